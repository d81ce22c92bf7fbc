"""The commands `orb ctl seeds add`, `orb ctl seeds delete` and `orb ctl seeds set`.

- `seeds add` reads seeds from arguments, or from files of any size.
- `seeds delete` reads seeds from arguments.
- `seeds set` reads seeds from a file.
"""

import argparse
import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cli.ctl.client import path
from cli.ctl.estate.kinds import SEED_SET
from cli.ctl.estate.plans import present
from cli.ctl.reads import url_of
from cli.ctl.upload import Total, Upload, lines_of, pieces_of
from cli.ctl.verb_context import VerbContext, Verbs
from cli.local.spec_flags import labels_given
from cli.terminal.exits import Exit, Usage
from cli.terminal.yaml_input import document, text_of

_SHOWN: Final = 10
_AT_ONCE: Final = 1_000


def declare(verbs: Verbs) -> None:
    """Add the commands `seeds add`, `seeds delete` and `seeds set` to `orb ctl`."""
    seeds = verbs.family("seeds", "add and delete seeds, and put seed sets (`get seeds` and `get seed-sets` list them)")
    add = seeds.add("add", "add seeds; accepted seeds are stored durably", _add)
    add.add_argument("crawl", metavar="CRAWL")
    add.add_argument("urls", nargs="*", metavar="URL")
    add.add_argument(
        "-f", "--file", action="append", default=[], metavar="FILE",
        help="one URL per line, or NDJSON, plain or gzip; - is standard input; repeatable",
    )  # fmt: skip
    add.add_argument(
        "--label", action="append", default=[], metavar="NAME=VALUE",
        help="label for the pages found from these seeds; repeatable; lines that are JSON have their own",
    )  # fmt: skip
    add.add_argument("--source", metavar="TEXT", help="where these seeds come from, kept with their pages")
    add.add_argument(
        "--upload-id", metavar="ID", help="an id for the upload; a repeated upload with the same id changes nothing"
    )

    delete = seeds.add("delete", "delete seeds; those that were not fetched are excluded", _delete)
    delete.add_argument("crawl", metavar="CRAWL")
    delete.add_argument("urls", nargs="*", metavar="URL", help="the URLs of the seeds")
    delete.add_argument("--all", action="store_true", help="every seed that is not in the spec")

    of_set = seeds.add("set", "create or replace a seed set; what leaves it is withdrawn", _set)
    of_set.add_argument("crawl", metavar="CRAWL")
    of_set.add_argument("name", metavar="SET")
    of_set.add_argument(
        "-f", "--file", required=True, metavar="FILE",
        help="a YAML or JSON document with the list `seeds`; - is standard input",
    )  # fmt: skip


def _set(desk: VerbContext, arguments: argparse.Namespace) -> int:
    crawl, name, source = arguments.crawl, arguments.name, arguments.file
    data = document(sys.stdin.read() if source == "-" else text_of(Path(source), "seed set"), source)
    given = {"kind": "seed-set", "crawl": crawl, "name": name}
    if not isinstance(data, dict) or "seeds" not in data or not data.keys() <= {"seeds", *given}:
        raise Usage(f"{source}: expected a mapping with `seeds`, and no other fields than kind, crawl and name.")
    for field, wanted in given.items():
        if data.get(field, wanted) != wanted:
            raise Usage(f"{source}: its {field} is {data[field]!r}, and not {wanted!r}.")
    at = path("crawls", crawl, "seed-sets", name)
    before = present(desk.client, SEED_SET, f"{crawl}/{name}")
    answer = desk.client.ask("PUT", at, body={"seeds": data["seeds"]})
    same = before is not None and before.etag == answer.etag
    done = "created" if before is None else "unchanged" if same else "configured"
    desk.output.done(f"seed-set/{crawl}/{name}", done, answer.body)
    if not same:
        desk.asked(answer.body)
    return Exit.OK


def _delete(desk: VerbContext, arguments: argparse.Namespace) -> int:
    if arguments.all == bool(arguments.urls):
        raise Usage("no seeds given: name URLs, or set --all for every seed that is not in the spec.")
    at = path("crawls", arguments.crawl, "seeds")
    bodies: list[object] = [{"all": True}]
    if not arguments.all:
        urls = [url_of(url) for url in arguments.urls]
        bodies = [{"seeds": urls[begin : begin + _AT_ONCE]} for begin in range(0, len(urls), _AT_ONCE)]
    for body in bodies:
        answer = desk.client.ask("DELETE", at, body=body).body
        desk.output.done(f"crawl/{arguments.crawl}", "seeds are being deleted", answer)
        desk.asked(answer)
    return Exit.OK


def _add(desk: VerbContext, arguments: argparse.Namespace) -> int:
    if not arguments.urls and not arguments.file:
        raise Usage("no seeds given: name URLs, or a file with -f.")
    upload = Upload(desk.client, path("crawls", arguments.crawl, "seeds"), arguments.upload_id or uuid.uuid4().hex)
    total = upload.total
    try:
        _send(upload, arguments)
    except Usage:  # the lines before the defect of the file were sent
        if total.pieces:
            _report(desk, arguments.crawl, total)
        raise
    _report(desk, arguments.crawl, total)
    return Exit.OK if total.accepted or not total.rejected else Exit.FAILED


def _send(upload: Upload, arguments: argparse.Namespace) -> None:
    """Send all seeds of the command line and the files. Show the progress on a terminal."""
    total = upload.total
    context = _context(arguments)
    try:
        for lines in _sources(arguments):
            lines = (_with_context(line, context) for line in lines) if context else lines
            for piece in pieces_of(lines):
                upload.send(piece)
                if total.pieces > 1 and sys.stderr.isatty():
                    print(f"\rorb: {total.lines:,} lines, {total.accepted:,} accepted", end="", file=sys.stderr)
    finally:
        if total.pieces > 1 and sys.stderr.isatty():
            print(file=sys.stderr)


def _report(desk: VerbContext, crawl: str, total: Total) -> None:
    """Print the first rejected lines, and the totals of the upload."""
    for line, url, reason in total.first_rejected[:_SHOWN]:
        desk.note(f"line {line:,} was rejected: {url}: {reason}" if url else f"line {line:,} was rejected: {reason}")
    if total.rejected > _SHOWN:
        desk.note(f"and {total.rejected - _SHOWN:,} more")
    counts = f"{total.accepted:,} accepted, {total.duplicate:,} duplicate, {total.rejected:,} rejected"
    desk.output.done(f"crawl/{crawl}", f"seeds: {counts}", total.as_json())


def _context(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the JSON fields `labels` and `source` that the options --label and --source add to each seed."""
    fields: dict[str, object] = {"labels": labels_given(arguments.label, "--label")} if arguments.label else {}
    return fields | ({"source": arguments.source} if arguments.source else {})


def _with_context(line: bytes, context: dict[str, object]) -> bytes:
    """Convert a line with a URL to a JSON object, which has the URL and the fields of `context`.

    If the line is JSON already, return it unchanged. Return an empty line for a comment or an empty line.
    """
    text = line.strip()
    if text[:1] in (b'"', b"{"):
        return line
    if not text or text.startswith(b"#"):
        return b""
    return json.dumps({"url": text.decode(errors="replace"), **context}, ensure_ascii=False).encode()


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
