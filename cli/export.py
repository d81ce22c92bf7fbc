"""`orb export`: pages, URLs or links of a crawl, row by row. The columns are in docs/command.md."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from cli.exits import Exit, Usage
from cli.folder import CrawlFolder
from cli.watch import say
from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.outlinks import read_outlinks
from shared.adapters.sql.reading import CrawlReader
from shared.domain.archive import labelled_sha1
from shared.domain.ids import CrawlId
from shared.domain.views import KnownUrl, Page
from shared.ports.archive import ArchiveUnavailable, RecordUnreadable

FORMATS: Final = ("jsonl", "csv", "parquet")
GROUP_ROWS: Final = 20_000
"""Rows of a Parquet row group, which is what is held in memory."""

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "pages": {
        "url": "string",
        "status": "int32",
        "mime": "string",
        "digest": "string",
        "size": "int64",
        "segment": "string",
        "offset": "int64",
        "length": "int64",
        "depth": "int32",
        "fetched_at": "timestamp",
        "title": "string",
    },
    "urls": {
        "url": "string",
        "host": "string",
        "state": "string",
        "reason": "string",
        "depth": "int32",
        "attempts": "int32",
        "discovered_from": "string",
        "status": "int32",
        "mime": "string",
        "size": "int64",
        "fetched_at": "timestamp",
        "redirect": "string",
    },
    "links": {"source": "string", "target": "string", "kind": "string", "found": "string"},
}
"""The columns of each export and their types; none but `url`, `source` and `target` is promised to have a value."""

_HOPS: Final = {"L": "link", "E": "embedded", "R": "redirect", "I": "inferred", "S": "synthesized", "M": "manifest"}

Row = dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=tuple(COLUMNS), help="stored pages, every URL heard of, or the links of pages")
    parser.add_argument("dir", type=Path, metavar="DIR", help="the crawl's folder")
    parser.add_argument("--format", choices=FORMATS, help="default: by FILE's ending, else jsonl")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: standard output")


def run(arguments: argparse.Namespace) -> int:
    folder = CrawlFolder(arguments.dir).opened()
    form = arguments.format or _format_of(arguments.output)
    if form == "parquet" and arguments.output is None and sys.stdout.isatty():
        raise Usage("Parquet is not for a terminal; name a file with -o FILE.")
    reader = CrawlReader(folder.database)
    try:
        row = reader.crawl()
        if row is None:
            raise Usage(f"nothing has been crawled in {folder.path} yet.")
        with _output(arguments.output) as out:
            count = _WRITERS[form](_rows(arguments.what, reader, row.crawl_id, folder), COLUMNS[arguments.what], out)
    finally:
        reader.close()
    if arguments.output is not None:
        say(f"{count:,} {arguments.what} in {arguments.output}")
    return Exit.OK


def _format_of(path: Path | None) -> str:
    ending = "" if path is None else path.suffix.removeprefix(".").lower()
    return ending if ending in FORMATS else "jsonl"


def _rows(what: str, reader: CrawlReader, crawl_id: CrawlId, folder: CrawlFolder) -> Iterator[Row]:
    match what:
        case "pages":
            return map(_page, reader.pages(crawl_id))
        case "urls":
            return map(_url, reader.urls(crawl_id))
        case _:
            return _links(reader.pages(crawl_id), LocalSegments(folder.archive))


def _page(page: Page) -> Row:
    return {
        "url": page.url,
        "status": page.status,
        "mime": page.mime,
        "digest": labelled_sha1(page.digest) if page.digest else None,
        "size": page.size,
        "segment": page.location.segment,
        "offset": page.location.offset,
        "length": page.location.length,
        "depth": page.depth,
        "fetched_at": page.fetched_at_ms,
        "title": page.title,
    }


def _url(url: KnownUrl) -> Row:
    return {
        "url": url.url,
        "host": url.host,
        "state": url.state.name.lower(),
        "reason": url.reason,
        "depth": url.depth,
        "attempts": url.attempts,
        "discovered_from": url.discovered_from,
        "status": url.status or None,
        "mime": url.mime,
        "size": url.size,
        "fetched_at": url.fetched_at_ms,
        "redirect": url.redirect,
    }


def _links(pages: Iterable[Page], segments: LocalSegments) -> Iterator[Row]:
    """The outlinks that the archive keeps of each accepted page; a record that cannot be read is told of."""
    for page in pages:
        try:
            found = read_outlinks(segments, page.location)
        except (RecordUnreadable, ArchiveUnavailable) as error:
            say(f"the links of {page.url} are left out: {error}")
            continue
        for target, how in found:
            hop, _, path = how.partition(" ")
            yield {"source": page.url, "target": target, "kind": _HOPS.get(hop, hop), "found": path or None}


# --- formats ----------------------------------------------------------------------------------------------------------


@contextmanager
def _output(path: Path | None) -> Iterator[IO[bytes]]:
    """Standard output, or a file that appears under its name only once it is whole."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    staged = path.with_name(f".{path.name}.part")
    try:
        with staged.open("wb") as out:
            yield out
        staged.replace(path)
    except FileNotFoundError as error:
        raise Usage(f"cannot write {path}: {error.strerror}.") from error
    finally:
        staged.unlink(missing_ok=True)


def _jsonl(rows: Iterable[Row], columns: Mapping[str, str], out: IO[bytes]) -> int:
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    count = 0
    for row in rows:
        out.write(encode(_dated(row, columns)).encode("utf-8", "replace") + b"\n")
        count += 1
    return count


def _csv(rows: Iterable[Row], columns: Mapping[str, str], out: IO[bytes]) -> int:
    text = io.TextIOWrapper(out, "utf-8", "replace", newline="", write_through=True)
    count = 0
    try:
        writer = csv.DictWriter(text, fieldnames=list(columns))
        writer.writeheader()
        for row in rows:
            writer.writerow(_dated(row, columns))
            count += 1
    finally:
        text.detach()  # the output belongs to the caller
    return count


def _parquet(rows: Iterable[Row], columns: Mapping[str, str], out: IO[bytes]) -> int:
    import pyarrow
    import pyarrow.parquet

    types = {
        "string": pyarrow.string(),
        "int32": pyarrow.int32(),
        "int64": pyarrow.int64(),
        "timestamp": pyarrow.timestamp("ms", tz="UTC"),
    }
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    count, left = 0, iter(rows)
    with pyarrow.parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        while group := list(islice(left, GROUP_ROWS)):
            writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


_WRITERS: Final[Mapping[str, Callable[[Iterable[Row], Mapping[str, str], IO[bytes]], int]]] = {
    "jsonl": _jsonl,
    "csv": _csv,
    "parquet": _parquet,
}


def _dated(row: Row, columns: Mapping[str, str]) -> Row:
    """The row with times as ISO 8601 text in UTC, to the millisecond."""
    for name, kind in columns.items():
        if kind == "timestamp" and row[name] is not None:
            at = datetime.fromtimestamp(row[name] / 1000, UTC)
            row[name] = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return row
