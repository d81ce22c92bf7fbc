"""`orb crawl`: crawl URLs or a spec into a folder, with all processes on this machine.

The same command resumes a crawl that was interrupted.
"""

import argparse
import asyncio
import errno
import json
import os
import ssl
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cli.local.crawl_args import CrawlRequest, judged, resume_command, unblock_command
from cli.local.crawl_folder import CrawlFolder
from cli.local.spec_flags import FLAGS, add_flags, changed_fields, effects
from cli.terminal.exits import Exit, Usage
from cli.terminal.progress import say
from shared.domain.crawl.spec import CrawlSpec, ScopeMode, encode_spec
from shared.domain.errors import Transient, Unusable
from shared.domain.frontier.states import CrawlState
from workers.parse.compiled import chosen

if TYPE_CHECKING:
    from cli.data.summary import Summary
    from cli.local.fork_server import ForkServer
    from cli.local.process_group import RunOutcome

IMPORTED: Final = ("cli.local.local_run", "cli.data.summary", "cli.local.finalize", "api.main", "workers.main")
"""Modules that this command, the master and the workers need. The command imports them before it starts processes."""

NONE: Final = "none"
"""The value of --ca that removes the additional certificate authorities, which an earlier --ca stored."""

_EPILOG: Final = """\
The default of DIR is `HOST.crawl` in the current directory, with the host of the first seed. Without URL and
--spec, the crawl in DIR is resumed. Exit codes: 0 finished, 1 finished without a page, 2 wrong
command or spec, 3 interrupted and resumable, 4 the environment is not usable, and the crawl resumable."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "urls",
        nargs="*",
        metavar="URL",
        help="URL to start from; the default scheme is https://, for localhost http://",
    )
    parser.add_argument("--spec", type=Path, metavar="FILE", help="a crawl spec in YAML or JSON")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the crawl's folder")
    parser.add_argument("--workers", metavar="N", help="number of worker processes (default: one per core)")
    parser.add_argument("--fresh", action="store_true", help="delete the contents of DIR and start over")
    parser.add_argument("--retry-failed", action="store_true", help="retry every failed URL, with new attempts")
    parser.add_argument(
        "--refresh",
        action="store_true",
        help="fetch what is new and the pages that are due, and end; needs --recrawl or the section recrawl",
    )
    parser.add_argument(
        "--unblock",
        action="store_true",
        help="resume, and send requests at once to hosts that are blocked after 429, 503 or an outage",
    )
    parser.add_argument(
        "--ca", metavar="FILE", help="also trust the certificate authorities in this PEM file; `none` removes them"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object on stdout at the end, and nothing else"
    )
    parser.add_argument("--no-progress", action="store_true", help="show no progress")
    add_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    authorities = authorities_of(arguments.ca)
    chosen(os.environ)  # raises on an invalid setting, before the folder is created
    wanted = judged(arguments)
    folder = wanted.folder
    folder.make()
    with folder.held() as lock, _resumable(wanted):
        renewed = arguments.fresh or folder.renewing()
        if renewed and (kept := folder.renew()):
            say(f"kept in {folder.path}, because the crawl did not make them: {', '.join(kept[:5])}")
        put_authorities(folder, authorities)
        before = folder.spec()
        summary = None if before is None else _finished(wanted)
        again = wanted.spec.recrawl.used or (arguments.retry_failed and summary is not None and summary.counters.failed)
        if summary is not None and not again:
            return _already_finished(wanted, summary)
        _announce(wanted, before)
        folder.put_spec(wanted.spec)
        return _crawled(wanted, lock, None if summary is None else summary.row.finished_at_ms, renewed)


def _announce(wanted: CrawlRequest, before: CrawlSpec | None) -> None:
    path = wanted.folder.path
    rescoped = False
    if before is not None:
        from shared.domain.crawl.scope_change import same_scope

        rescoped = not same_scope(before, wanted.spec)
    if wanted.spec.scope.mode is ScopeMode.PREFIX and (before is None or rescoped):
        from shared.domain.crawl.scope import prefixes

        below = [f"{host}{path}" for host, paths in prefixes(wanted.spec).items() for path in paths if path[-1] == "/"]
        more = f" and {len(below) - 3} more" if len(below) > 3 else ""
        say(f"scope prefix: URLs below {', '.join(below[:3])}{more}, and the seeds themselves")
    if before is None:
        return say(f"crawling into {path} with {wanted.workers} worker{'s' if wanted.workers > 1 else ''}")
    if wanted.arguments.retry_failed:
        say(f"resuming in {path}: every failed URL is retried")
    if wanted.arguments.unblock:
        say(f"resuming in {path}: requests to blocked hosts are sent at once")
    changed = changed_fields(before, wanted.spec)
    if changed:
        more = f"; and {len(changed) - 4} more" if len(changed) > 4 else ""
        say(f"resuming in {path} with a changed spec: {'; '.join(changed[:4])}{more}")
        for effect in effects(changed, rescoped=rescoped):
            say(effect)
    elif wanted.arguments.refresh:
        say(f"resuming in {path}: what is new or due is fetched")
    elif not (wanted.arguments.retry_failed or wanted.arguments.unblock):
        say(f"resuming the interrupted crawl in {path}")


# --- the run ----------------------------------------------------------------------------------------------------------


def _finished(wanted: CrawlRequest) -> "Summary | None":
    """Return the summary of the crawl in the folder if it is finished with the requested spec.

    Otherwise return None.
    """
    if not wanted.folder.database.is_file():
        return None  # and do not load the database's libraries yet: they load while processes start
    from cli.data.summary import summarized

    summary = summarized(wanted.folder)
    if summary is None or summary.row.state is not CrawlState.FINISHED:
        return None
    return summary if summary.row.spec == encode_spec(wanted.spec).decode() else None


def _already_finished(wanted: CrawlRequest, summary: "Summary") -> int:
    """Print that the crawl is finished, and which flags continue it. Return the exit code of the command.

    An earlier run may have ended without writing the archive's index (index.cdxj). The index is then missing, or older
    than the end of the crawl. In this case, first repair unfinished WARC files, and write the index.
    """
    from cli.data.summary import as_json

    finished_ms = summary.row.finished_at_ms or 0
    index = wanted.folder.index
    if not index.exists() or index.stat().st_mtime * 1000 < finished_ms:
        from cli.local.finalize import complete_archive

        complete_archive(wanted.folder)
    code = Exit.OK if summary.counters.pages else Exit.NOTHING_FETCHED
    pages, failed = summary.counters.pages, summary.counters.failed
    again = f"--retry-failed tries {failed:,} failed URL{'' if failed == 1 else 's'} again, " if failed else ""
    if wanted.arguments.retry_failed:
        say("no URL failed, so there is nothing to retry.")
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


def _crawled(wanted: CrawlRequest, lock: int, finished_before_ms: int | None, renewed: bool) -> int:
    """Run the crawl and return the exit code.

    - `lock`: the file descriptor of the folder's lock, which the processes inherit.
    - `finished_before_ms`: when an earlier run finished the crawl (Unix ms). This run ends only when the crawl is
      finished again. None: no earlier run has finished the crawl.
    - `renewed`: True if the previous contents of the folder have just been deleted.
    """
    from cli.local.fork_server import forking, preload

    # This process needs most of these modules at the end, too: the forks share them.
    preload(IMPORTED)
    with forking() as forks:
        return _run(wanted, lock, finished_before_ms, renewed, forks)


def _run(
    wanted: CrawlRequest, lock: int, finished_before_ms: int | None, renewed: bool, forks: "ForkServer | None"
) -> int:
    from cli.local.finalize import is_finished, repair
    from cli.local.local_run import LocalRun
    from cli.local.logs import log_to

    folder = wanted.folder
    log_to(folder.logs)
    repair(folder.archive)
    started = time.monotonic()
    watch = _watch(wanted, started)

    async def go() -> "RunOutcome":
        local = LocalRun(
            folder,
            wanted.spec,
            workers=wanted.workers,
            lock=lock,
            watch=watch,
            finished=lambda: is_finished(folder, wanted.spec, finished_before_ms),
            retry_id=f"retry-{uuid.uuid4().hex}" if wanted.arguments.retry_failed else "",
            unblock=wanted.arguments.unblock,
            renewed=renewed,
            refresh_ms=time.time_ns() // 1_000_000 if wanted.arguments.refresh else 0,
            forks=forks,
        )
        return await local.run()

    try:
        ending = asyncio.run(go())
    finally:
        watch.close()
    return _ended(wanted, ending, time.monotonic() - started, finished_before_ms)


def _ended(wanted: CrawlRequest, ending: "RunOutcome", seconds: float, finished_before_ms: int | None = None) -> int:
    """Complete the archive after a run, print the summary and why the run ended, and return the exit code.

    - `ending`: how the run ended.
    - `seconds`: the length of the run.
    - `finished_before_ms`: when an earlier run finished the crawl (Unix ms). None: the crawl was not finished.
    """
    from cli.data.summary import as_json, as_text, given_up_text, summarized
    from cli.local.finalize import complete_archive, is_finished
    from cli.local.process_group import RunEnd, RunOutcome

    folder = wanted.folder
    summary = None
    try:
        try:
            complete_archive(folder)
        finally:
            summary = summarized(folder)
    except (OSError, Unusable, Transient) as error:
        # What is stored is safe; the next run repairs the archive.
        ending = RunOutcome(RunEnd.FAILED, ending.message or _lacking(error, folder))
    else:
        if ending.end is RunEnd.FAILED and is_finished(folder, wanted.spec, finished_before_ms):
            ending = RunOutcome(RunEnd.FINISHED)  # the crawl finished before the failure
    pages = 0 if summary is None else summary.counters.pages
    match ending.end:
        case RunEnd.FINISHED:
            code = Exit.OK if pages else Exit.NOTHING_FETCHED
        case RunEnd.INTERRUPTED:
            code = Exit.RESUMABLE
        case RunEnd.FAILED:
            code = Exit.ENVIRONMENT
    message = ending.message
    if code is Exit.NOTHING_FETCHED and summary is not None:
        from shared.domain.explain.sentences import no_page

        tallies = {kind: dict(counts) for kind, counts in summary.tallies.items()}
        message = f"no page was fetched: {no_page(tallies, dict(summary.last_failures or {}), summary.redirected)}"
    elif not message and summary is not None and summary.needs_scripts is not None:
        from shared.domain.explain.sentences import NEEDS_SCRIPTS

        message = f"{summary.needs_scripts}: {NEEDS_SCRIPTS}; name pages that have text in their HTML as seeds."
    if summary is not None and (lost := given_up_text(summary, folder)):
        message = f"{message} {lost}".strip()
    elif not message and summary is not None and ending.end is RunEnd.FINISHED:
        message = summary.too_narrow()
    if wanted.arguments.json and summary is not None:
        _print_json(as_json(summary, folder) | _run_json(ending.end.value, code, seconds, message))
    elif wanted.arguments.json:
        _print_json({"dir": str(folder.path), "pages": 0} | _run_json(ending.end.value, code, seconds, message))
    elif summary is not None:
        print(as_text(summary, folder, seconds=seconds, scanner=str(chosen(os.environ))))
    _last_word(wanted, ending.end.value, message)
    return code


def _last_word(wanted: CrawlRequest, end: str, message: str) -> None:
    if message:
        say(message)
    if end != "finished":
        say(f"to go on: {resume_command(wanted)}")


def _watch(wanted: CrawlRequest, started: float) -> Any:
    from cli.terminal.display_rates import ProgressRates
    from cli.terminal.progress import PlainLines, Silent

    if wanted.arguments.no_progress:
        return Silent()
    pace = ProgressRates(started, wanted.spec.budget)
    unblock = unblock_command(wanted.folder.path)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from cli.terminal.display import LiveDisplay

        return LiveDisplay(wanted.folder.path.name, pace, unblock=unblock)
    return PlainLines(pace, unblock=unblock)


# --- the last words ---------------------------------------------------------------------------------------------------


@contextmanager
def _resumable(wanted: CrawlRequest) -> Iterator[None]:
    """Convert Ctrl-C and disk errors in the `with` block to SystemExit, after printing how to resume the crawl."""
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


def _print_cut(wanted: CrawlRequest, end: str, code: Exit, message: str) -> None:
    """Print the JSON object of a run that ended without a summary of the crawl. Do nothing without `--json`.

    `end` is how the run ended: `interrupted` or `failed`. `message` is the reason.
    """
    if wanted.arguments.json:
        _print_json({"dir": str(wanted.folder.path)} | _run_json(end, code, 0.0, message))


def _lacking(error: Exception, folder: CrawlFolder) -> str:
    """Return a sentence that says what the machine lacks according to `error`, such as disk space."""
    if not isinstance(error, OSError):
        return str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {folder.path} is full; make room there, and the crawl goes on."
    return f"{error.filename or folder.path}: {error.strerror}; correct that, and the crawl goes on."


def _run_json(end: str, code: int, seconds: float, message: str) -> dict[str, Any]:
    scanner = chosen(os.environ).name
    return {
        "end": end,
        "exit_code": int(code),
        "seconds": round(seconds, 3),
        "message": message,
        "tag_scanner": scanner,
    }


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document))


def authorities_of(named: str | None) -> bytes | None:
    """Return the content of the file that `--ca` names. It is read only here, since it may be a pipe.

    `named` is the value of the flag. Return None for None (no flag), and b"" for `none`. Raise Usage if the file cannot
    be read or has no certificate.
    """
    if named is None:
        return None
    if named == NONE:
        return b""
    try:
        content = Path(named).read_bytes()
        with tempfile.NamedTemporaryFile() as copy:  # Only as a file does OpenSSL read it as libcurl does.
            copy.write(content)
            copy.flush()
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=copy.name)
    except ssl.SSLError:
        raise Usage(f"--ca: {named} has no PEM certificate (-----BEGIN CERTIFICATE-----).") from None
    except OSError as error:
        raise Usage(f"--ca: cannot read {named}: {error.strerror}.") from None
    return content


def put_authorities(folder: CrawlFolder, own: bytes | None) -> None:
    """Store in the crawl's folder which certificate authorities the crawl trusts, as `authorities_of` returned them.

    - PEM certificates: trust the default authorities and these.
    - b"": trust only the default authorities.
    - None: change nothing.
    """
    if own is None:
        return
    if not own:
        return folder.authorities.unlink(missing_ok=True)
    from workers.fetch.curl import default_ca_bundle

    staged = folder.authorities.with_suffix(".pem.new")
    parts = [Path(default_ca_bundle()).read_bytes().strip(), own.strip()]
    staged.write_bytes(b"\n".join(parts) + b"\n")
    os.replace(staged, folder.authorities)
