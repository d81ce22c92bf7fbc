"""`orb export`: print a crawl's pages, URLs, links, items or changes as rows. docs/command.md lists the columns."""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Final

from cli.local.crawl_folder import CrawlFolder
from cli.terminal.atomic_output import written_whole
from cli.terminal.exits import Exit, Usage
from cli.terminal.progress import say
from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.outlinks import read_outlinks
from shared.adapters.objects.tabular import ENCODERS, RowEncoder
from shared.adapters.sql.catalog.crawl_reader import CrawlReader
from shared.domain.explain.sentences import moment
from shared.domain.ids import CrawlId
from shared.domain.reads.exports import COLUMNS, Row, change_row, item_row, link_rows, page_row, url_row
from shared.domain.reads.views import Page

FORMATS: Final = tuple(ENCODERS)
BATCH_ROWS: Final = 2_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=tuple(COLUMNS), help="stored pages, every URL, links, items, or changes")
    parser.add_argument("dir", type=Path, metavar="DIR", help="the crawl's folder")
    parser.add_argument("--format", choices=FORMATS, help="default: by FILE's ending, else jsonl")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default, or with -: standard output")


def run(arguments: argparse.Namespace) -> int:
    folder = CrawlFolder(arguments.dir).opened()
    output: Path | None = None if arguments.output == Path("-") else arguments.output
    form = arguments.format or _format_of(output)
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise Usage("Parquet cannot be printed on a terminal: set -o FILE.")
    reader = CrawlReader(folder.database)
    try:
        row = reader.crawl()
        if row is None:
            raise Usage(f"{folder.path} has no crawl results yet.")
        with written_whole(output) as out:
            rows = _rows(arguments.what, reader, row.crawl_id, folder)
            count = _write(rows, ENCODERS[form](COLUMNS[arguments.what]), out)
        # Read after the rows, so that it names what was deleted meanwhile.
        deleted_ms = reader.changes_deleted_ms(row.crawl_id) if arguments.what == "changes" else None
    finally:
        reader.close()
    if deleted_ms is not None:
        say(f"the changes up to {moment(deleted_ms)} are deleted (retention.changes_days)")
    if output is not None:
        say(f"{count:,} {arguments.what} in {output}")
    return Exit.OK


def _format_of(path: Path | None) -> str:
    ending = "" if path is None else path.suffix.removeprefix(".").lower()
    return ending if ending in FORMATS else "jsonl"


def _rows(what: str, reader: CrawlReader, crawl_id: CrawlId, folder: CrawlFolder) -> Iterator[Row]:
    match what:
        case "pages":
            return map(page_row, reader.pages(crawl_id))
        case "urls":
            return map(url_row, reader.urls(crawl_id))
        case "items":
            return map(item_row, reader.items(crawl_id))
        case "changes":
            return map(change_row, reader.changes(crawl_id))
        case _:
            segments = LocalSegments(folder.archive)
            return link_rows(reader.pages(crawl_id), partial(read_outlinks, segments), _left_out)


def _left_out(page: Page, error: Exception) -> None:
    say(f"the links of {page.url} are omitted: {error}")


# --- output -----------------------------------------------------------------------------------------------------------


def _write(rows: Iterator[Row], encoder: RowEncoder, out: IO[bytes]) -> int:
    """Encode the rows in batches and write them to `out`. Return the number of rows."""
    count = 0
    while batch := list(islice(rows, BATCH_ROWS)):
        out.write(encoder.add(batch))
        count += len(batch)
    out.write(encoder.end())
    return count
