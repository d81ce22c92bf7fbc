"""Verbs export and body of `orb ctl`: stored data of a crawl, or all declared resources, to a file or stdout."""

import argparse
import sys
from pathlib import Path
from typing import Final

import httpx

from cli.ctl.client import ANSWER_S, Query, cause_of, path
from cli.ctl.estate.export import export_estate
from cli.ctl.reads import url_of
from cli.ctl.verb_context import VerbContext, Verbs
from cli.terminal.atomic_output import written_whole
from cli.terminal.display_rates import amount
from cli.terminal.exits import Environment, Exit, Usage

FORMATS: Final = ("jsonl", "csv", "parquet")
_WHAT: Final = ("pages", "urls", "links", "items", "changes")
ESTATE: Final = "estate"
DELETED_UNTIL: Final = "X-Orb-Deleted-Until"
"""A response header of an export of changes: the time up to which retention has deleted the changes."""

_SILENCE_S: Final = 120.0
"""How many seconds the server may send nothing during an export, such as while it reads rows from the database."""


def declare(verbs: Verbs) -> None:
    """Add the verbs export and body to `orb ctl`."""
    export = verbs.add(
        "export", "export a crawl's data as JSON Lines, CSV or Parquet, or all declared resources as files", _export
    )
    export.add_argument("what", choices=(*_WHAT, ESTATE), help=f"{ESTATE}: all declared resources, as YAML for `apply`")
    export.add_argument("crawl", metavar="CRAWL", nargs="?", help=f"not for {ESTATE}")
    export.add_argument("--format", choices=FORMATS, help="default: by FILE's ending, else jsonl")
    export.add_argument("--out", type=Path, metavar="FILE", help=f"default: standard output; a folder for {ESTATE}")
    body = verbs.add("body", "print the stored body of a page", _body)
    body.add_argument("crawl", metavar="CRAWL")
    body.add_argument("url", metavar="URL", help="the URL")
    body.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")


def _export(desk: VerbContext, arguments: argparse.Namespace) -> int:
    if arguments.what == ESTATE:
        if arguments.crawl is not None or arguments.format is not None:
            raise Usage("`export estate` writes all resources as YAML: leave out the crawl and --format.")
        export_estate(desk, None if arguments.out == Path("-") else arguments.out)
        return Exit.OK
    if arguments.crawl is None:
        raise Usage(f"no crawl given: run `orb ctl export {arguments.what} CRAWL`.")
    ending = "" if arguments.out is None else arguments.out.suffix.removeprefix(".").lower()
    form = arguments.format or (ending if ending in FORMATS else "jsonl")
    if form == "parquet" and arguments.out is None and sys.stdout.isatty():
        raise Usage("Parquet cannot be printed on a terminal: set --out FILE.")
    at = path("crawls", arguments.crawl, "export", arguments.what)
    size = _save(desk, at, {"format": form}, arguments.out, _SILENCE_S)
    if arguments.out is not None:
        desk.note(f"{arguments.what} of {arguments.crawl}: {amount(size)} in {arguments.out}")
    return Exit.OK


def _body(desk: VerbContext, arguments: argparse.Namespace) -> int:
    query = {"url": url_of(arguments.url)}
    at = path("crawls", arguments.crawl, "pages", "lookup", "body")
    _save(desk, at, query, arguments.out, ANSWER_S)
    return Exit.OK


def _save(desk: VerbContext, at: str, query: Query, file: Path | None, answer_s: float) -> int:
    """Send a GET for the API path `at`, and write the answer to `file` (None: standard output).

    Return its size in bytes. The file appears only when it is complete. `answer_s`: how many seconds the server may be
    silent. Raise Environment if the answer ends too early.
    """
    size = 0
    with (
        desk.client.stream(at, query, headers={"Accept": "*/*"}, answer_s=answer_s) as response,
        written_whole(file) as out,
    ):
        if (until := response.headers.get(DELETED_UNTIL)) is not None:
            desk.note(f"the changes up to {until} are deleted (retention.changes_days)")
        try:
            for piece in response.iter_bytes():
                out.write(piece)
                size += len(piece)
        except httpx.RequestError as error:
            raise Environment(f"the answer was incomplete ({cause_of(error)}): repeat the command.") from error
    return size
