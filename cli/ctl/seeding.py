"""seeds: URLs to start from, a few or millions, from files of any size at constant memory."""

import argparse
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cli.ctl.client import path
from cli.ctl.desk import Desk, Verbs
from cli.ctl.reading import url_of
from cli.ctl.uploading import Upload, lines_of, pieces_of
from cli.exits import Exit, Usage

_SHOWN: Final = 10
_AT_ONCE: Final = 1_000


def declare(verbs: Verbs) -> None:
    """Declare the verbs."""
    seeds = verbs.family("seeds", "add URLs to start from, take them back (`get seeds` lists them)")
    add = seeds.add("add", "add seeds: what is counted as accepted is never lost", _add)
    add.add_argument("crawl", metavar="CRAWL")
    add.add_argument("urls", nargs="*", metavar="URL")
    add.add_argument(
        "-f", "--file", action="append", default=[], metavar="FILE",
        help="a URL a line, or NDJSON; gzip is seen by itself; - is standard input; repeatable",
    )  # fmt: skip
    add.add_argument(
        "--upload-id", metavar="ID", help="a name of your own: the same upload again under it changes nothing"
    )

    delete = seeds.add("delete", "take seeds back: those never fetched are excluded", _delete)
    delete.add_argument("crawl", metavar="CRAWL")
    delete.add_argument("urls", nargs="*", metavar="URL", help="any spelling of them")
    delete.add_argument("--all", action="store_true", help="every seed that the spec does not name")


def _delete(desk: Desk, arguments: argparse.Namespace) -> int:
    if arguments.all == bool(arguments.urls):
        raise Usage("name the seeds to delete, or give --all for every one that the spec does not name.")
    at = path("crawls", arguments.crawl, "seeds")
    wanted: list[object] = [{"all": True}]
    if not arguments.all:
        urls = [url_of(url) for url in arguments.urls]
        wanted = [{"seeds": urls[begin : begin + _AT_ONCE]} for begin in range(0, len(urls), _AT_ONCE)]
    for body in wanted:
        answer = desk.client.ask("DELETE", at, body=body).body
        desk.output.done(f"crawl/{arguments.crawl}", "seeds are taken back", answer)
        desk.asked(answer)
    return Exit.OK


def _add(desk: Desk, arguments: argparse.Namespace) -> int:
    if not arguments.urls and not arguments.file:
        raise Usage("give URLs, or a file of them with -f.")
    upload = Upload(desk.client, path("crawls", arguments.crawl, "seeds"), arguments.upload_id or uuid.uuid4().hex)
    total = upload.total
    for lines in _sources(arguments):
        for piece in pieces_of(lines):
            upload.send(piece)
            if total.pieces > 1 and sys.stderr.isatty():
                print(f"\rorb: {total.lines:,} lines, {total.accepted:,} accepted", end="", file=sys.stderr)
    if total.pieces > 1 and sys.stderr.isatty():
        print(file=sys.stderr)
    for line, url, reason in total.first_rejected[:_SHOWN]:
        desk.note(f"line {line:,} was not taken: {url}: {reason}" if url else f"line {line:,} was not taken: {reason}")
    if total.rejected > _SHOWN:
        desk.note(f"and {total.rejected - _SHOWN:,} more")
    said = f"{total.accepted:,} accepted, {total.duplicate:,} repeated, {total.rejected:,} not taken"
    desk.output.done(f"crawl/{arguments.crawl}", f"seeds: {said}", total.as_json())
    return Exit.OK if total.accepted or not total.rejected else Exit.FAILED


def _sources(arguments: argparse.Namespace) -> Iterator[Iterator[bytes]]:
    if arguments.urls:
        yield iter([url.encode() for url in arguments.urls])
    for name in arguments.file:
        yield lines_of(sys.stdin.buffer, "standard input") if name == "-" else _file(name)


def _file(name: str) -> Iterator[bytes]:
    try:
        with Path(name).open("rb") as file:
            yield from lines_of(file, name)
    except OSError as error:
        raise Usage(f"cannot read {name}: {error.strerror}.") from None
