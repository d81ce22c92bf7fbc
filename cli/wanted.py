"""What a command line of `orb crawl` asks for, judged before anything is touched."""

import argparse
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cli.exits import Usage
from cli.folder import CrawlFolder
from cli.spec import declared, merged, seed_urls, stored, with_outage, written
from cli.watch import say
from shared.domain.crawl import CrawlSpec
from shared.domain.url import canonicalize, host_of

WORKERS_MOST: Final = 256


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for, judged."""

    spec: CrawlSpec
    folder: CrawlFolder
    workers: int
    arguments: argparse.Namespace


def judged(arguments: argparse.Namespace) -> Wanted:
    """Judge the arguments; Usage with everything that is wrong."""
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
        raise Usage(f"{arguments.out} holds no crawl to go on with; name a URL or a --spec to begin one.")
    else:
        raise Usage("name a URL to start from, a --spec, or the folder of a crawl to go on with (--out DIR).")
    spec = declared(with_outage(merged(data, seeds, arguments)), source, arguments)
    workers = _workers(arguments.workers)
    path = arguments.out or Path(_folder_name(spec.seeds[0].url))
    known = None if arguments.fresh else CrawlFolder(path).spec()
    if arguments.retry_failed and known is None:
        why = "--fresh removes it; choose one" if arguments.fresh else f"{path} holds none yet; leave the flag out"
        raise Usage(f"--retry-failed goes on with a crawl, but {why}.")
    if known is not None and known.name != spec.name:
        raise Usage(
            f"{path} holds the crawl {known.name!r} and not {spec.name!r}; choose another folder with --out, or start "
            "over with --fresh."
        )
    for note in notes:
        say(note)
    return Wanted(spec, CrawlFolder(path), workers, arguments)


def _kept(arguments: argparse.Namespace, seeds: list[str]) -> CrawlSpec | None:
    """What the crawl in the folder was declared as, which goes on as it was but for what the command line says; None
    where there is none, or it shall not count."""
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
            WORKERS_MOST, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )
    if text.isascii() and text.isdigit() and 1 <= int(text) <= WORKERS_MOST:
        return int(text)
    raise Usage(f"--workers: expected a whole number from 1 to {WORKERS_MOST}, got {text!r}.")


def _folder_name(url: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", host_of(url)).strip("-.") + ".crawl"


def resume_command(wanted: Wanted) -> str:
    """The command that goes on with this folder as it is declared."""
    words = _going_on(wanted.folder.path)
    if wanted.arguments.workers is not None:
        words += ["--workers", str(wanted.workers)]
    return shlex.join(words)


def retry_command(path: Path) -> str:
    """Return the command that tries again what failed in the crawl of a folder."""
    return shlex.join([*_going_on(path), "--retry-failed"])


def unblock_command(path: Path) -> str:
    """Return the command that goes on in a folder and asks at once what is left alone."""
    return shlex.join([*_going_on(path), "--unblock"])


def _going_on(path: Path) -> list[str]:
    return [program(), "crawl", "--out", str(path)]


def program() -> str:
    """How this person starts `orb`: a clone's launcher, or the installed command."""
    launcher = Path(__file__).resolve().parents[1] / "orb"
    if os.environ.get("PYTHONSAFEPATH") and launcher.is_file():
        relative = os.path.relpath(launcher)
        return str(launcher) if relative.startswith("..") else os.path.join(".", relative)
    return "orb"
