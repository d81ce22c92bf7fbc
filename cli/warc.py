"""`orb warc`: a stored page, as the archive has it."""

import argparse
import sys
from pathlib import Path

from cli.exits import Exit, Usage
from cli.folder import CrawlFolder
from cli.watch import say
from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.reading import read_response
from shared.adapters.sql.reading import CrawlReader
from shared.domain.archive import RecordLocation
from shared.domain.errors import Permanent
from shared.domain.explain import meaning
from shared.domain.url import Location, locate
from shared.ports.archive import ArchiveUnavailable

_MOST: int = 1 << 31


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", type=Path, metavar="DIR", help="the crawl's folder")
    parser.add_argument("url", metavar="URL", help="the page's URL")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--headers", action="store_true", help="status line and headers before the body")
    form.add_argument("--record", action="store_true", help="the WARC record as it is stored, one gzip member")


def run(arguments: argparse.Namespace) -> int:
    folder = CrawlFolder(arguments.dir).opened()
    url = located(arguments.url)
    segments = LocalSegments(folder.archive)
    place = _place(folder, url)
    out = sys.stdout.buffer
    try:
        if arguments.record:
            out.write(segments.read(place))
            return Exit.OK
        stored = read_response(segments, place, record_limit=_MOST, decoded_limit=_MOST)
    except (Permanent, ArchiveUnavailable) as error:
        raise Usage(f"the record of {url.url} cannot be read: {error}.") from error
    if arguments.headers:
        out.write(stored.head)
    out.write(stored.decoded)
    out.flush()
    if stored.refers_to is not None:
        say(f"unchanged since {stored.refers_to[1]}: the body is stored with the capture of {stored.refers_to[0]}")
    if stored.truncated:
        say(f"the body was cut when it was fetched: {stored.truncated}")
    if stored.decode_error:
        say(f"the body could not be decoded to its end: {stored.decode_error}")
    return Exit.OK


def located(text: str) -> Location:
    """The canonical form of a URL a person typed. Usage where there is none."""
    found = locate(text if "://" in text else f"https://{text}")
    if found is None:
        raise Usage(f"{text!r} is not an http or https URL.")
    return found


def _place(folder: CrawlFolder, url: Location) -> RecordLocation:
    reader = CrawlReader(folder.database)
    try:
        row = reader.crawl()
        view = None if row is None else reader.url(row.crawl_id, url)
    finally:
        reader.close()
    if view is None:
        raise Usage(
            f"the crawl in {folder.path} has never heard of {url.url}; "
            f"`orb show {folder.path} --url {url.url}` says why."
        )
    if view.fetch is None or view.fetch.location is None:
        why = f", {meaning(view.reason).text}" if view.reason else ""
        raise Usage(f"{url.url} has no stored page: it is {view.state.name.lower()}{why}.")
    return view.fetch.location
