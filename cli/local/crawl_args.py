"""Checks the arguments of `orb crawl` before the command changes anything."""

import argparse
import os
import re
import shlex
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from cli.local.crawl_folder import CrawlFolder
from cli.local.spec_flags import declared, merged, seed_urls, stored, with_outage, written
from cli.terminal.exits import Usage
from cli.terminal.progress import say
from shared.domain.crawl.spec import CrawlSpec
from shared.domain.web.url import canonicalize, host_of

MAX_WORKERS: Final = 256
STOP_FIRST: Final = "stop the command that is at work (Ctrl-C)"


class CrawlRequest(Struct, frozen=True):
    """A checked command line of `orb crawl`: the spec, the folder, the number of workers, and the parsed arguments."""

    spec: CrawlSpec
    folder: CrawlFolder
    workers: int
    arguments: argparse.Namespace


def judged(arguments: argparse.Namespace) -> CrawlRequest:
    """Check the arguments of `orb crawl` and return what they request. Raise Usage if they are not valid.

    Problems of the spec are reported together.
    """
    seeds, notes = seed_urls(arguments.urls)
    known = None if arguments.spec is not None else _kept(arguments, seeds)
    data: dict[str, Any]
    if arguments.spec is not None:
        data, source = written(arguments.spec), f"the spec {arguments.spec}"
    elif known is not None:
        data, source = stored(known), "the command line" if seeds else f"the stored spec in {arguments.out}"
    elif seeds:
        data, source = {}, "the command line"
    elif arguments.out is not None:
        raise Usage(f"{arguments.out} contains no crawl to resume: name a URL or set --spec to start one.")
    else:
        raise Usage("no URL given: name one, or set --spec, or set --out to the folder of a crawl to resume.")
    spec = declared(with_outage(merged(data, seeds, arguments)), source, arguments)
    workers = _workers(arguments.workers)
    path = arguments.out or Path(_folder_name(spec.seeds[0].url))
    known = None if arguments.fresh else CrawlFolder(path).spec()
    if arguments.retry_failed and known is None:
        why = "--fresh removes it; choose one" if arguments.fresh else f"{path} holds none yet; leave the flag out"
        raise Usage(f"--retry-failed needs a crawl to resume, but {why}.")
    if arguments.refresh and not spec.recrawl.used:
        raise Usage(
            "--refresh fetches pages that are due, and this crawl fetches each page once: add --recrawl TIME, such as "
            "--recrawl 1d, or the section `recrawl` to its spec."
        )
    if known is not None and known.name != spec.name:
        raise Usage(
            f"{path} holds the crawl {known.name!r} and not {spec.name!r}; choose another folder with --out, or start "
            "over with --fresh."
        )
    for note in notes:
        say(note)
    return CrawlRequest(spec, CrawlFolder(path), workers, arguments)


def _kept(arguments: argparse.Namespace, seeds: list[str]) -> CrawlSpec | None:
    """Return the stored spec of the crawl that the arguments name, so that flags can change it.

    `seeds` are the URLs of the command line. Return None in two cases:

    - There is no such crawl.
    - `--fresh` is set and `seeds` is not empty. The stored spec is then not used.
    """
    if arguments.out is not None:
        path = arguments.out
    elif seeds and (first := canonicalize(seeds[0])) is not None:
        path = Path(_folder_name(first))
    else:
        return None
    return None if arguments.fresh and seeds else CrawlFolder(path).spec()


def _workers(text: str | None) -> int:
    if text is None:
        return min(
            MAX_WORKERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )
    if text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_WORKERS:
        return int(text)
    raise Usage(f"--workers: expected a whole number from 1 to {MAX_WORKERS}, got {text!r}.")


def _folder_name(url: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", host_of(url)).strip("-.") + ".crawl"


def resume_command(wanted: CrawlRequest) -> str:
    """Return the command line that resumes the crawl in its folder, with the spec stored there."""
    words = _going_on(wanted.folder.path)
    if wanted.arguments.workers is not None:
        words += ["--workers", str(wanted.workers)]
    return shlex.join(words)


def retry_command(path: Path) -> str:
    """Return the command line that retries the failed URLs of the crawl in the folder `path`."""
    return shlex.join([*_going_on(path), "--retry-failed"])


def unblock_command(path: Path) -> str:
    """Return the command line that resumes the crawl in the folder `path` and ends the back-off of all hosts."""
    return shlex.join([*_going_on(path), "--unblock"])


def then(command: str, *, at_work: bool) -> str:
    """Return words that tell the user to run `command`.

    If `at_work` is True, they first say to stop the running command.
    """
    return f"{STOP_FIRST}, then {command}" if at_work else command


def _going_on(path: Path) -> list[str]:
    return [program(), "crawl", "--out", str(path)]


def program() -> str:
    """Return the command with which this user starts orb: `orb`, or the path of the launcher in a clone."""
    launcher = Path(__file__).resolve().parents[2] / "orb"
    if os.environ.get("PYTHONSAFEPATH") and launcher.is_file():
        relative = os.path.relpath(launcher)
        return str(launcher) if relative.startswith("..") else os.path.join(".", relative)
    return "orb"
