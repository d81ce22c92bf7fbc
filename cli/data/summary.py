"""The summary of a crawl as text and as JSON, for `orb show` and the end of `orb crawl`. It is read from the folder.

docs/command.md documents the JSON fields, because scripts use them.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from cli.local.crawl_args import retry_command, then, unblock_command
from cli.local.crawl_folder import CrawlFolder
from cli.terminal.display_rates import amount, clock, count, rate
from cli.terminal.summary_counts import ranked
from cli.terminal.wait_messages import as_objects, sentences
from shared.adapters.objects.local import OPEN_SUFFIX
from shared.adapters.sql.catalog.crawl_reader import CrawlReader
from shared.domain.crawl.host_specs import HostSpecs
from shared.domain.crawl.spec import decode_spec
from shared.domain.explain.excluded_links import ExcludedLinkExample
from shared.domain.explain.losses import Losses
from shared.domain.explain.redirects import Redirect, redirects_end
from shared.domain.explain.sentences import NEEDS_SCRIPTS, meaning, moment, why_unknown
from shared.domain.explain.waits import Waits, given_up, rested, waits_of
from shared.domain.frontier.counters import Counters
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.frontier.failure import HOST_UNREACHABLE
from shared.domain.frontier.states import CrawlState
from shared.domain.reads.views import HostView
from shared.domain.software import VERSION
from shared.domain.web.url import Location, canonicalize, fingerprint, host_of, locate

_LABEL: Final = 11
_SEEDS: Final = 20
_TALLIES: Final = (
    *("status", "failed", "excluded", "retried", "host_failures", "truncated", "left_out", "not_indexed", "discover"),
    "revisited",
)
_BUDGETS: Final = {
    "complete": "every URL in scope was tried",
    "max_pages": "the page budget is used up",
    "max_bytes": "the byte budget is used up",
    "max_seconds": "the time budget is used up",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers and findings that a summary of a crawl shows, read from its folder.

    - `segments`, `archive_bytes`: the number and size of all its WARC files, finished or not.
    - `hosts_given_up`: some of the hosts that failed repeatedly and were given up, each with its last failure.
    - `last_failures`: for each kind of failure, the number of hosts whose last failure it was.
    - `redirected`: if the crawl has no page, a sentence on where the redirects of a seed end. Otherwise "".
    - `needs_scripts`: a seed whose page has scripts but neither text nor links, or None.
    - `examples`: some of the links that were not followed, by reason.
    """

    row: CrawlRow
    counters: Counters
    tallies: Mapping[str, Mapping[str, int]]
    hosts: int
    dead_letters: int
    segments: int
    archive_bytes: int
    top_hosts: tuple[HostView, ...] = ()
    last_failures: Mapping[str, int] | None = None
    waits: Waits = field(default_factory=Waits)
    hosts_given_up: Mapping[str, str] = field(default_factory=dict)
    redirected: str = ""
    needs_scripts: str | None = None
    examples: Mapping[str, Sequence[ExcludedLinkExample]] = field(default_factory=dict)

    def losses(self) -> Losses:
        """Return how many links were not followed and how many pages are incomplete, each by reason.

        An incomplete page is one whose body was cut off. Failed URLs are not included.
        """
        return Losses(self.tallies.get("left_out", {}), self.tallies.get("truncated", {}), self.examples)

    def too_narrow(self) -> str:
        """Return a sentence on the rules that excluded all links, if the crawl is complete with only one page.

        Return "" for any other crawl, and if no rule excluded links.
        """
        counters = self.counters
        whole = self.row.finished_reason == "complete" and not counters.failed and not counters.excluded
        return self.losses().too_narrow(decode_spec(self.row.spec)) if whole and counters.pages == 1 else ""


def summarized(folder: CrawlFolder, *, top: int = 0) -> Summary | None:
    """Return the summary of the crawl in the folder, with the `top` hosts that have the most pages.

    Return None if the folder has no crawl yet.
    """
    if not folder.database.is_file():
        return None
    reader = CrawlReader(folder.database)
    try:
        row = reader.crawl()
        if row is None:
            return None
        counters = reader.counters(row.crawl_id)
        tallies = reader.tallies(row.crawl_id)
        segments, size = _archived(folder.archive)
        return Summary(
            row=row,
            counters=counters,
            tallies=tallies,
            hosts=reader.hosts(row.crawl_id),
            dead_letters=reader.dead_letters(row.crawl_id),
            segments=segments,
            archive_bytes=size,
            top_hosts=tuple(reader.top_hosts(row.crawl_id, top)) if top else (),
            last_failures=reader.last_failures(row.crawl_id),
            waits=_waits(reader, row),
            redirected="" if counters.pages else _redirected(reader, row),
            hosts_given_up=reader.hosts_given_up(row.crawl_id)
            if tallies.get("failed", {}).get(HOST_UNREACHABLE)
            else {},
            needs_scripts=_needing_scripts(reader, row),
            examples=reader.left_out(row.crawl_id),
        )
    finally:
        reader.close()


def given_up_text(summary: Summary, folder: CrawlFolder, *, at_work: bool = False) -> str:
    """Return a sentence on the hosts that were given up, with the command that retries their URLs.

    Return "" if no host was given up. `at_work`: True if a command is running in the folder. Then the sentence says to
    stop it first.
    """
    urls = summary.tallies.get("failed", {}).get(HOST_UNREACHABLE, 0)
    return given_up(summary.hosts_given_up, urls, then(retry_command(folder.path), at_work=at_work))


def _waits(reader: CrawlReader, row: CrawlRow) -> Waits:
    """Return which hosts of the crawl wait, and why. Return no waits for a finished crawl."""
    if row.state is CrawlState.FINISHED:
        return Waits()
    spec, now_ms = decode_spec(row.spec), time.time_ns() // 1_000_000
    specs = HostSpecs(spec)
    states = [rested(state, specs.of(state.host)) for state in reader.host_states(row.crawl_id, now_ms)]
    return waits_of(states, spec, now_ms)


def _redirected(reader: CrawlReader, row: CrawlRow) -> str:
    """Return a sentence on the first seed that was redirected: the last URL, and the rule that excludes it, if any.

    Only the first _SEEDS seeds are examined. Return "" if none of them was redirected.
    """
    spec = decode_spec(row.spec)
    for seed in spec.seeds[:_SEEDS]:
        redirects: list[Redirect] = []
        url: str | None = canonicalize(seed.url)
        while url is not None and url not in [each.url for each in redirects]:
            view = reader.url(row.crawl_id, Location(url, host_of(url), fingerprint(url)))
            if view is None or view.fetch is None or view.fetch.status // 100 != 3:
                break
            target = canonicalize(view.fetch.redirect, url) if view.fetch.redirect else None
            redirects.append(Redirect(url, view.fetch.status, target))
            url = target
        if redirects:
            known = url is not None and reader.url(row.crawl_id, Location(url, host_of(url), fingerprint(url)))
            verdicts = [] if url is None or known else why_unknown(url, spec, host_known=False)[1]
            refused = next((each for each in verdicts if not each.allowed), None)
            advice = "" if refused is None else meaning(refused.rule).advice
            return redirects_end(
                redirects, "" if refused is None else "; ".join(filter(None, (refused.detail, advice)))
            )
    return ""


def _needing_scripts(reader: CrawlReader, row: CrawlRow) -> str | None:
    """Return the URL of the first seed whose page shows text and links only after its scripts have run.

    Only the first _SEEDS seeds are examined. Return None if none of them has such a page.
    """
    for seed in decode_spec(row.spec).seeds[:_SEEDS]:
        url = locate(seed.url)
        view = None if url is None else reader.url(row.crawl_id, url)
        if view is not None and view.fetch is not None and view.fetch.detail == NEEDS_SCRIPTS:
            return view.url
    return None


def as_json(summary: Summary, folder: CrawlFolder, *, at_work: bool = False) -> dict[str, Any]:
    """Return the fields of the summary for `--json`. `at_work`: True if a command is running in the folder."""
    row, counters = summary.row, summary.counters
    return {
        "orb": VERSION,
        "dir": str(folder.path),
        "crawl": row.name,
        "crawl_id": row.crawl_id,
        "revision": row.revision,
        "state": _state(row, at_work),
        "finished_reason": row.finished_reason,
        "pages": counters.pages,
        "bytes": counters.bytes,
        "active_seconds": round(row.active_ms / 1000, 3),
        "counters": {name: value for name, value in structs.asdict(counters).items() if name != "version"},
        "identities": {"urls": counters.url_drift(), "links": counters.link_drift()},
        **{kind: dict(summary.tallies.get(kind, {})) for kind in _TALLIES},
        "left_out_examples": {
            reason: [structs.asdict(example) for example in examples] for reason, examples in summary.examples.items()
        },
        "losses": _losses(summary),
        "hosts": summary.hosts,
        "dead_letters": summary.dead_letters,
        "waits": as_objects(summary.waits, then(unblock_command(folder.path), at_work=at_work)),
        "hosts_given_up": dict(summary.hosts_given_up),
        "archive": {"segments": summary.segments, "bytes": summary.archive_bytes},
        "created_at": moment(row.created_at_ms),
        "finished_at": None if row.finished_at_ms is None else moment(row.finished_at_ms),
    }


def host_json(host: HostView) -> dict[str, Any]:
    """Return the fields that `--json` prints for a host."""
    return {
        "host": host.host,
        "pages": host.pages,
        "queued": host.queued + host.waiting,
        "leased": host.leased,
        "latency_ms": host.latency_ms,
        "crawl_delay_ms": host.crawl_delay_ms,
        "operator_delay_ms": host.operator_delay_ms,
        "failures": host.failures,
        "last_failure": host.last_failure,
        "blocked_until": moment(host.held_until_ms) if host.held_until_ms else None,
        "visited_at": moment(host.visited_at_ms) if host.visited_at_ms else None,
        "ip": host.ip,
    }


def as_text(
    summary: Summary, folder: CrawlFolder, *, seconds: float | None = None, scanner: str = "", at_work: bool = False
) -> str:
    """Return the summary as text for the terminal.

    - `seconds`: the length of the run that has just ended. None outside a run.
    - `scanner`: which tag scanner the run used to find HTML tags, compiled or Python. "": omit it.
    - `at_work`: True if a command is running in the folder.
    """
    row, counters = summary.row, summary.counters
    took = row.active_ms / 1000
    waits = sentences(summary.waits, then(unblock_command(folder.path), at_work=at_work))
    lines = [
        *(_line("" if number else "waits", wait) for number, wait in enumerate(waits)),
        _line("state", state_text(summary, at_work=at_work)),
        _line("pages", f"{count(counters.pages)}, {amount(counters.bytes)}{_timed(counters.pages, took, seconds)}"),
        _line(
            "URLs",
            f"{count(counters.discovered)} known: {count(counters.done)} done, {count(counters.failed)} failed, "
            f"{count(counters.excluded)} excluded, {count(counters.queued)} queued, {count(counters.leased)} in flight",
        ),
    ]
    if discovered := summary.tallies.get("discover"):
        if discovered.keys() - {"requisites"}:
            lines.append(_line("sitemaps", _discovered(discovered)))
        if discovered.get("requisites"):
            lines.append(_line("requisites", f"{count(discovered['requisites'])} found"))
    if revisited := summary.tallies.get("revisited"):
        lines.append(_line("revisits", f"{count(sum(revisited.values()))}: {', '.join(ranked(revisited, plain=True))}"))
    for label, kind in (
        ("answers", "status"),
        ("failed", "failed"),
        ("excluded", "excluded"),
        ("not listed", "not_indexed"),
        ("hosts", "host_failures"),
    ):
        text = ", ".join(ranked(summary.tallies.get(kind, {}), plain=kind == "status"))
        if kind == "host_failures" and summary.hosts:
            text = f"{count(summary.hosts)} known" + (f"; could not be visited: {text}" if text else "")
        if text:
            lines.append(_line(label, text))
    if seconds is None and (text := given_up_text(summary, folder, at_work=at_work)):  # a run prints it last
        lines.append(_line("given up", text))
    if summary.dead_letters:
        lines.append(_line("given up", f"{count(summary.dead_letters)} dead letters"))
    drift = counters.url_drift(), counters.link_drift()
    if any(drift):
        lines.append(_line("drift", f"{drift[0]} URLs and {drift[1]} links are unaccounted for"))
    lines.append(
        _line("folder", f"{folder.path}: {amount(summary.archive_bytes)} of WARC in {_segments(summary.segments)}")
    )
    if scanner:
        lines.append(_line("scanner", scanner))
    spec, losses = decode_spec(row.spec), summary.losses()
    if left_out := losses.links(spec):
        lines += _block("left out", [*left_out, *losses.ways(spec)])
    lines += _block("cut", losses.pages(spec))
    return "\n".join(lines)


def _discovered(counts: Mapping[str, int]) -> str:
    """Return text on how many sitemaps and feeds were read, and how many URLs were first found in them."""
    read = [f"{count(counts[key])} {key}" for key in ("sitemaps", "feeds") if counts.get(key)]
    partly = f", {count(counts['partly_read'])} not to the end" if counts.get("partly_read") else ""
    unreadable = f"; {count(counts['unreadable'])} could not be read" if counts.get("unreadable") else ""
    listed = f"{count(counts.get('listed', 0))} URLs found in them"
    return f"{' and '.join(read) or 'none'} read{partly}, {listed}{unreadable}"


def hosts_text(hosts: tuple[HostView, ...]) -> str:
    """Return one line for each host: pages, queued URLs, latency and the last failure."""
    widest = max((len(host.host) for host in hosts), default=0)
    return "\n".join(
        f"  {host.host:<{widest}}  {count(host.pages):>9} pages  {count(host.queued + host.waiting):>9} queued"
        f"  {host.latency_ms:>6} ms" + (f"  {host.last_failure}" if host.failures and host.last_failure else "")
        for host in hosts
    )


def _state(row: CrawlRow, at_work: bool) -> str:
    """Return the state of the crawl, or `interrupted` for an unfinished crawl in whose folder no command is running.

    A paused crawl keeps its state. `at_work`: True if a command is running in the folder.
    """
    return row.state.value if at_work or row.state not in (CrawlState.SEEDING, CrawlState.RUNNING) else "interrupted"


def state_text(summary: Summary, *, at_work: bool = False) -> str:
    """Return the state of the crawl in words, with the reason if it is finished.

    `at_work`: True if a command is running in the folder.
    """
    row = summary.row
    reason = _BUDGETS.get(row.finished_reason or "", row.finished_reason or "")
    if row.finished_reason == "complete" and summary.losses().hide_urls():
        reason = "every URL in scope that was found was tried, but links or pages were cut (see below)"
    return (
        _state(row, at_work)
        + (f": {reason}" if reason else "")
        + (f" (revision {row.revision})" if row.revision > 1 else "")
    )


def _timed(pages: int, active_s: float, seconds: float | None) -> str:
    text = "" if seconds is None else f" in {clock(seconds)}"
    if active_s >= 1 and pages:
        text += f", {rate(pages / active_s)} over {clock(active_s)} at work"
    return text


def _segments(n: int) -> str:
    return f"{count(n)} segment{'' if n == 1 else 's'}"


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def _block(label: str, lines: Sequence[str]) -> list[str]:
    return [_line(label if number == 0 else "", line) for number, line in enumerate(lines)]


def _losses(summary: Summary) -> list[str]:
    """Return one sentence for each reason why links were not followed or pages are incomplete."""
    spec, losses = decode_spec(summary.row.spec), summary.losses()
    left_out = [f"left out: {line}" for line in losses.links(spec)]
    return [
        *left_out,
        *losses.ways(spec),
        *(f"cut: {line}" for line in losses.pages(spec)),
    ]


def _archived(folder: Path) -> tuple[int, int]:
    """Return the number of WARC files in the archive folder, finished or not, and their total size in bytes."""
    if not folder.is_dir():
        return 0, 0
    sizes = [
        entry.stat().st_size
        for entry in folder.iterdir()
        if entry.name.removesuffix(OPEN_SUFFIX).endswith(".warc.gz") and entry.is_file()
    ]
    return len(sizes), sum(sizes)
