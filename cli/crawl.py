"""`orb crawl`: from URLs or a spec to archived pages in a folder, on this machine. The same command again resumes."""

import argparse
import asyncio
import errno
import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cli.authorities import check_authorities, put_authorities
from cli.exits import Exit
from cli.folder import CrawlFolder
from cli.spec import FLAGS, add_flags, changed_fields, effects
from cli.wanted import Wanted, judged, resume_command, unblock_command
from cli.watch import say
from shared.domain.crawl import CrawlSpec, ScopeMode, encode_spec
from shared.domain.errors import Transient, Unusable
from shared.domain.frontier import CrawlState

if TYPE_CHECKING:
    from cli.family import Ending
    from cli.summary import Summary

_EPILOG: Final = """\
The folder DIR is by default the first seed's host with .crawl behind it, in the current directory. Without URL
and --spec, the crawl in DIR goes on as it was declared. Exit codes: 0 finished, 1 finished without a page, 2 wrong
command or spec, 3 interrupted and resumable, 4 the machine lacks something (and the crawl is resumable)."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "urls",
        nargs="*",
        metavar="URL",
        help="where to start; https:// is assumed where no scheme is given, http:// of localhost",
    )
    parser.add_argument("--spec", type=Path, metavar="FILE", help="a crawl spec in YAML or JSON")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the crawl's folder")
    parser.add_argument("--workers", metavar="N", help="worker processes (default: one a core)")
    parser.add_argument("--fresh", action="store_true", help="remove what is in DIR and start over")
    parser.add_argument(
        "--retry-failed", action="store_true", help="try every URL that failed once more, with new attempts"
    )
    parser.add_argument(
        "--unblock", action="store_true", help="go on and ask at once what is left alone after 429, 503 or an outage"
    )
    parser.add_argument(
        "--ca", metavar="FILE", help="trust the authorities in this PEM file, too; `none` takes them away again"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout at the end, nothing else there")
    parser.add_argument("--no-progress", action="store_true", help="no display and no progress lines")
    add_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    check_authorities(arguments.ca)
    wanted = judged(arguments)
    folder = wanted.folder
    folder.make()
    with folder.held() as lock, _resumable(wanted):
        if (arguments.fresh or folder.renewing()) and (kept := folder.renew()):
            say(f"left in {folder.path}, for they are not the crawl's: {', '.join(kept[:5])}")
        put_authorities(folder, arguments.ca)
        before = folder.spec()
        summary = None if before is None else _finished(wanted)
        if summary is not None and not (arguments.retry_failed and summary.counters.failed):
            return _already_finished(wanted, summary)
        _announce(wanted, before)
        folder.put_spec(wanted.spec)
        return _crawled(wanted, lock, None if summary is None else summary.row.finished_at_ms)


def _announce(wanted: Wanted, before: CrawlSpec | None) -> None:
    path = wanted.folder.path
    if wanted.spec.scope.mode is ScopeMode.PREFIX and (before is None or before.scope != wanted.spec.scope):
        from shared.domain.scope import prefixes

        below = [f"{host}{path}" for host, paths in prefixes(wanted.spec).items() for path in paths if path[-1] == "/"]
        more = f" and {len(below) - 3} more" if len(below) > 3 else ""
        say(f"scope prefix: what lies below {', '.join(below[:3])}{more}, and the seeds themselves")
    if before is None:
        return say(f"crawling into {path} with {wanted.workers} worker{'s' if wanted.workers > 1 else ''}")
    if wanted.arguments.retry_failed:
        say(f"going on in {path}: every URL that failed is tried again")
    if wanted.arguments.unblock:
        say(f"going on in {path}: hosts that are left alone are asked at once")
    changed = changed_fields(before, wanted.spec)
    if changed:
        more = f"; and {len(changed) - 4} more" if len(changed) > 4 else ""
        say(f"going on in {path} under a changed spec: {'; '.join(changed[:4])}{more}")
        for effect in effects(changed):
            say(effect)
    elif not (wanted.arguments.retry_failed or wanted.arguments.unblock):
        say(f"going on in {path}, which was interrupted")


# --- the run ----------------------------------------------------------------------------------------------------------


def _finished(wanted: Wanted) -> "Summary | None":
    """Return the summary if this very crawl is finished; None if there is something to do."""
    if not wanted.folder.database.is_file():
        return None  # and the database's libraries are loaded while the processes start
    from cli.summary import summarized

    summary = summarized(wanted.folder)
    if summary is None or summary.row.state is not CrawlState.FINISHED:
        return None
    return summary if summary.row.spec == encode_spec(wanted.spec).decode() else None


def _already_finished(wanted: Wanted, summary: "Summary") -> int:
    """Say that the crawl is finished and how to go on; return the exit code."""
    from cli.summary import as_json

    finished_ms = summary.row.finished_at_ms or 0
    index = wanted.folder.index
    if not index.exists() or index.stat().st_mtime * 1000 < finished_ms:
        from cli.settling import settle

        settle(wanted.folder)
    code = Exit.OK if summary.counters.pages else Exit.NOTHING_FETCHED
    pages, failed = summary.counters.pages, summary.counters.failed
    again = f"--retry-failed tries {failed:,} failed URL{'' if failed == 1 else 's'} again, " if failed else ""
    if wanted.arguments.retry_failed:
        say("no URL of it failed, so there is nothing to try again.")
    say(
        f"the crawl in {wanted.folder.path} is finished with {pages:,} page{'' if pages == 1 else 's'}; "
        f"{_how_to_go_on(summary.row.finished_reason)}, {again}and --fresh starts over."
    )
    if wanted.arguments.json:
        _print_json(as_json(summary, wanted.folder) | _run_json("finished", code, 0.0, ""))
    return code


def _how_to_go_on(reason: str | None) -> str:
    flag = next((flag.name for flag in FLAGS if flag.path == f"budget.{reason}"), None)
    return "a changed spec goes on" if flag is None else f"its {flag} is used up: a greater one goes on"


def _crawled(wanted: Wanted, lock: int, finished_before_ms: int | None) -> int:
    """Run the crawl. `finished_before_ms`: when it was finished before, which is not the end of this run."""
    from cli.local import LocalRun
    from cli.logs import log_to
    from cli.settling import is_finished, repair

    folder = wanted.folder
    log_to(folder.logs)
    repair(folder.archive)
    started = time.monotonic()
    watch = _watch(wanted, started)

    async def go() -> "Ending":
        local = LocalRun(
            folder,
            wanted.spec,
            workers=wanted.workers,
            lock=lock,
            watch=watch,
            finished=lambda: is_finished(folder, wanted.spec, finished_before_ms),
            retry_id=f"retry-{uuid.uuid4().hex}" if wanted.arguments.retry_failed else "",
            unblock=wanted.arguments.unblock,
        )
        return await local.run()

    try:
        ending = asyncio.run(go())
    finally:
        watch.close()
    return _ended(wanted, ending, time.monotonic() - started, finished_before_ms)


def _ended(wanted: Wanted, ending: "Ending", seconds: float, finished_before_ms: int | None = None) -> int:
    """Put the folder in order, tell how it stands and why, and choose the exit code."""
    from cli.family import End, Ending
    from cli.settling import is_finished, settle
    from cli.summary import as_json, as_text, given_up_text, summarized

    folder = wanted.folder
    summary = None
    try:
        try:
            settle(folder)
        finally:
            summary = summarized(folder)
    except (OSError, Unusable, Transient) as error:
        # What is stored is safe; the next run puts the archive in order.
        ending = Ending(End.FAILED, ending.message or _lacking(error, folder))
    else:
        if ending.end is End.FAILED and is_finished(folder, wanted.spec, finished_before_ms):
            ending = Ending(End.FINISHED)  # what the machine lacks came too late to matter
    pages = 0 if summary is None else summary.counters.pages
    match ending.end:
        case End.FINISHED:
            code = Exit.OK if pages else Exit.NOTHING_FETCHED
        case End.INTERRUPTED:
            code = Exit.RESUMABLE
        case End.FAILED:
            code = Exit.ENVIRONMENT
    message = ending.message
    if code is Exit.NOTHING_FETCHED and summary is not None:
        from shared.domain.explain import no_page

        tallies = {kind: dict(counts) for kind, counts in summary.tallies.items()}
        message = f"no page was fetched: {no_page(tallies, dict(summary.last_failures or {}), summary.redirected)}"
    elif not message and summary is not None and summary.needs_scripts is not None:
        from shared.domain.explain import NEEDS_SCRIPTS

        message = f"{summary.needs_scripts}: {NEEDS_SCRIPTS}; name pages that have text in their HTML as seeds."
    if summary is not None and (lost := given_up_text(summary, folder)):
        message = f"{message} {lost}".strip()
    elif not message and summary is not None and ending.end is End.FINISHED:
        message = summary.too_narrow()
    if wanted.arguments.json and summary is not None:
        _print_json(as_json(summary, folder) | _run_json(ending.end.value, code, seconds, message))
    elif wanted.arguments.json:
        _print_json({"dir": str(folder.path), "pages": 0} | _run_json(ending.end.value, code, seconds, message))
    elif summary is not None:
        print(as_text(summary, folder, seconds=seconds))
    _last_word(wanted, ending.end.value, message)
    return code


def _last_word(wanted: Wanted, end: str, message: str) -> None:
    if message:
        say(message)
    if end != "finished":
        say(f"to go on: {resume_command(wanted)}")


def _watch(wanted: Wanted, started: float) -> Any:
    from cli.pace import Pace
    from cli.watch import PlainLines, Silent

    if wanted.arguments.no_progress:
        return Silent()
    pace = Pace(started, wanted.spec.budget)
    unblock = unblock_command(wanted.folder.path)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from cli.display import LiveDisplay

        return LiveDisplay(wanted.folder.path.name, pace, unblock=unblock)
    return PlainLines(pace, unblock=unblock)


# --- the last words ---------------------------------------------------------------------------------------------------


@contextmanager
def _resumable(wanted: Wanted) -> Iterator[None]:
    """What ends a run outside of its loop: a late Ctrl-C, a disk that refuses."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; to go on: {resume_command(wanted)}")
        _print_cut(wanted, "interrupted", Exit.RESUMABLE, "stopped")
        raise SystemExit(Exit.RESUMABLE) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO):
            raise
        message = _lacking(error, wanted.folder)
        say(message)
        _print_cut(wanted, "failed", Exit.ENVIRONMENT, message)
        say(f"to go on: {resume_command(wanted)}")
        raise SystemExit(Exit.ENVIRONMENT) from error


def _print_cut(wanted: Wanted, end: str, code: Exit, message: str) -> None:
    """With `--json`, write the fields of the run alone: the crawl could not be summed up."""
    if wanted.arguments.json:
        _print_json({"dir": str(wanted.folder.path)} | _run_json(end, code, 0.0, message))


def _lacking(error: Exception, folder: CrawlFolder) -> str:
    """What the machine lacks, in a sentence."""
    if not isinstance(error, OSError):
        return str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {folder.path} is full; make room there, and the crawl goes on."
    return f"{error.filename or folder.path}: {error.strerror}; put that right, and the crawl goes on."


def _run_json(end: str, code: int, seconds: float, message: str) -> dict[str, Any]:
    return {"end": end, "exit_code": int(code), "seconds": round(seconds, 3), "message": message}


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document))
