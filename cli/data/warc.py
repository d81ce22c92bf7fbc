"""`orb warc`: print the stored body, headers or WARC record of a page."""

import argparse
import sys
from pathlib import Path

from cli.local.crawl_folder import CrawlFolder
from cli.terminal.exits import Exit, Usage
from cli.terminal.progress import say
from shared.adapters.objects.local import LocalSegments
from shared.adapters.sql.catalog.crawl_reader import CrawlReader
from shared.domain.archive.model import RecordLocation
from shared.domain.archive.stored_body import NotARecord, StoredBody
from shared.domain.crawl.spec import decode_spec
from shared.domain.errors import Permanent
from shared.domain.explain.sentences import meaning
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.reads.views import UrlView
from shared.domain.web.url import Location, locate, scheme_of
from shared.ports.archive import ArchiveUnavailable

_MAX: int = 1 << 31
"""The greatest size of a record, and of a body without its content coding, in bytes."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", type=Path, metavar="DIR", help="the crawl's folder")
    parser.add_argument("url", metavar="URL", help="the page's URL")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--headers", action="store_true", help="status line and headers before the body")
    form.add_argument("--record", action="store_true", help="the WARC record as it is stored, one gzip member")


def run(arguments: argparse.Namespace) -> int:
    folder = CrawlFolder(arguments.dir).opened()
    segments = LocalSegments(folder.archive)
    url, place = _place(folder, arguments.url)
    out = sys.stdout.buffer
    try:
        record = segments.read(place)
        if arguments.record:
            out.write(record)
            return Exit.OK
        stored = StoredBody(lambda: iter((record,)), record_limit=_MAX, decoded_limit=_MAX)
        if arguments.headers:
            out.write(stored.head)
        for piece in stored:
            out.write(piece)
    except NotARecord as error:
        raise Usage(f"{url.url} cannot be read from {place.segment} at byte {place.offset}: {error}.") from error
    except (Permanent, ArchiveUnavailable) as error:
        raise Usage(f"the record of {url.url} cannot be read: {error}.") from error
    out.flush()
    if stored.refers_to is not None:
        say(f"unchanged since {stored.refers_to[1]}: the body is stored with the capture of {stored.refers_to[0]}")
    if stored.truncated:
        say(f"the body was cut when it was fetched: {stored.truncated}")
    elif stored.incomplete == "truncated":
        say(f"the body is longer than {_MAX} bytes, and is cut there; --record writes it as it is stored")
    if stored.decode_error:
        say(f"the body could not be decoded to its end: {stored.decode_error}")
    return Exit.OK


def looked_up(reader: CrawlReader, crawl: CrawlRow, text: str) -> tuple[Location, UrlView | None]:
    """Parse a URL that the user typed. Return it in canonical form, and its stored state (None if the crawl has none).

    A URL without a scheme is looked up with both http and https. If the crawl knows neither, the scheme of the first
    seed is assumed. Raise Usage if `text` is not an http or https URL.
    """
    first = scheme_of(decode_spec(crawl.spec).seeds[0].url)
    schemes = (first, "http" if first == "https" else "https")
    tried = [text] if "://" in text or text.startswith("-") else [f"{scheme}://{text}" for scheme in schemes]
    urls = [url for url in map(locate, tried) if url is not None]
    if not urls:
        raise Usage(f"{text!r} is not an http or https URL.")
    views = ((url, reader.url(crawl.crawl_id, url)) for url in urls)
    return next(((url, view) for url, view in views if view is not None), (urls[0], None))


def _place(folder: CrawlFolder, text: str) -> tuple[Location, RecordLocation]:
    reader = CrawlReader(folder.database)
    try:
        row = reader.crawl()
        if row is None:
            raise Usage(f"{folder.path} has no crawl results yet.")
        url, view = looked_up(reader, row, text)
    finally:
        reader.close()
    if view is None:
        raise Usage(
            f"the crawl in {folder.path} does not know {url.url}; `orb show {folder.path} --url {url.url}` explains it."
        )
    if view.fetch is None or view.fetch.location is None:
        why = f", {meaning(view.reason).text}" if view.reason else ""
        raise Usage(f"{url.url} has no stored page: it is {view.state.name.lower()}{why}.")
    return url, view.fetch.location
