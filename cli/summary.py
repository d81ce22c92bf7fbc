"""How a crawl stands, read from its folder: for the end of a run, for `orb show`, as text and as JSON.

The JSON fields are documented in docs/command.md; scripts rely on them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cli.folder import CrawlFolder
from cli.pace import amount, clock, count, rate
from cli.tally import ranked
from shared.adapters.objects.local import OPEN_SUFFIX
from shared.adapters.sql.reading import CrawlReader
from shared.domain.explain import moment
from shared.domain.ledger import Counters, CrawlRow
from shared.domain.software import VERSION
from shared.domain.views import HostView

_LABEL: Final = 11
_TALLIES: Final = ("status", "failed", "excluded", "retried", "host_failures", "truncated")
_BUDGETS: Final = {
    "complete": "every URL in scope was tried",
    "max_pages": "the page budget is used up",
    "max_bytes": "the byte budget is used up",
    "max_seconds": "the time budget is used up",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """A crawl as its folder tells. `archive_bytes` counts segments, finished or not."""

    row: CrawlRow
    counters: Counters
    tallies: Mapping[str, Mapping[str, int]]
    hosts: int
    dead_letters: int
    segments: int
    archive_bytes: int
    top_hosts: tuple[HostView, ...] = ()
    last_failures: Mapping[str, int] | None = None


def summarized(folder: CrawlFolder, *, top: int = 0) -> Summary | None:
    """The summary of the folder's crawl with its `top` hosts; None where no crawl was stored yet."""
    if not folder.database.is_file():
        return None
    reader = CrawlReader(folder.database)
    try:
        row = reader.crawl()
        if row is None:
            return None
        segments, size = _archived(folder.archive)
        return Summary(
            row=row,
            counters=reader.counters(row.crawl_id),
            tallies=reader.tallies(row.crawl_id),
            hosts=reader.hosts(row.crawl_id),
            dead_letters=reader.dead_letters(row.crawl_id),
            segments=segments,
            archive_bytes=size,
            top_hosts=tuple(reader.top_hosts(row.crawl_id, top)) if top else (),
            last_failures=reader.last_failures(row.crawl_id),
        )
    finally:
        reader.close()


def as_json(summary: Summary, folder: CrawlFolder) -> dict[str, Any]:
    """The summary's documented fields."""
    row, counters = summary.row, summary.counters
    return {
        "orb": VERSION,
        "dir": str(folder.path),
        "crawl": row.name,
        "crawl_id": row.crawl_id,
        "revision": row.revision,
        "state": row.state.value,
        "finished_reason": row.finished_reason,
        "pages": counters.pages,
        "bytes": counters.bytes,
        "active_seconds": round(row.active_ms / 1000, 3),
        "counters": {name: value for name, value in asdict(counters).items() if name != "version"},
        "identities": {"urls": counters.url_drift(), "links": counters.link_drift()},
        **{kind: dict(summary.tallies.get(kind, {})) for kind in _TALLIES},
        "hosts": summary.hosts,
        "dead_letters": summary.dead_letters,
        "archive": {"segments": summary.segments, "bytes": summary.archive_bytes},
        "created_at": moment(row.created_at_ms),
        "finished_at": None if row.finished_at_ms is None else moment(row.finished_at_ms),
    }


def host_json(host: HostView) -> dict[str, Any]:
    """A host's documented fields."""
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
        "blocked_until": moment(host.blocked_until_ms) if host.blocked_until_ms else None,
        "visited_at": moment(host.visited_at_ms) if host.visited_at_ms else None,
        "ip": host.ip,
    }


def as_text(summary: Summary, folder: CrawlFolder, *, seconds: float | None = None) -> str:
    """The summary for people; `seconds` is the length of the run that has just ended."""
    row, counters = summary.row, summary.counters
    took = row.active_ms / 1000
    lines = [
        _line("state", state_text(summary)),
        _line("pages", f"{count(counters.pages)}, {amount(counters.bytes)}{_timed(counters.pages, took, seconds)}"),
        _line(
            "URLs",
            f"{count(counters.discovered)} known: {count(counters.done)} done, {count(counters.failed)} failed, "
            f"{count(counters.excluded)} excluded, {count(counters.queued)} queued, {count(counters.leased)} in flight",
        ),
    ]
    for label, kind in (
        ("answers", "status"),
        ("failed", "failed"),
        ("excluded", "excluded"),
        ("hosts", "host_failures"),
        ("cut", "truncated"),
    ):
        said = ", ".join(ranked(summary.tallies.get(kind, {}), plain=kind in ("status", "truncated")))
        if kind == "host_failures" and summary.hosts:
            said = f"{count(summary.hosts)} known" + (f"; could not be visited: {said}" if said else "")
        if said:
            lines.append(_line(label, said))
    if summary.dead_letters:
        lines.append(_line("given up", f"{count(summary.dead_letters)} dead letters"))
    drift = counters.url_drift(), counters.link_drift()
    if any(drift):
        lines.append(_line("books", f"do not balance: {drift[0]} URLs and {drift[1]} links are unaccounted for"))
    lines.append(
        _line("folder", f"{folder.path}: {amount(summary.archive_bytes)} of WARC in {_segments(summary.segments)}")
    )
    return "\n".join(lines)


def hosts_text(hosts: tuple[HostView, ...]) -> str:
    """The busiest hosts, a line each."""
    widest = max((len(host.host) for host in hosts), default=0)
    return "\n".join(
        f"  {host.host:<{widest}}  {count(host.pages):>9} pages  {count(host.queued + host.waiting):>9} queued"
        f"  {host.latency_ms:>6} ms" + (f"  {host.last_failure}" if host.failures and host.last_failure else "")
        for host in hosts
    )


def state_text(summary: Summary) -> str:
    """The state in words, with why it is finished."""
    row = summary.row
    reason = _BUDGETS.get(row.finished_reason or "", row.finished_reason or "")
    return (
        row.state.value
        + (f": {reason}" if reason else "")
        + (f" (revision {row.revision})" if row.revision > 1 else "")
    )


def _timed(pages: int, active_s: float, seconds: float | None) -> str:
    said = "" if seconds is None else f" in {clock(seconds)}"
    if active_s >= 1 and pages:
        said += f", {rate(pages / active_s)} over {clock(active_s)} at work"
    return said


def _segments(n: int) -> str:
    return f"{count(n)} segment{'' if n == 1 else 's'}"


def _line(label: str, said: str) -> str:
    return f"{label:<{_LABEL}}{said}"


def _archived(folder: Path) -> tuple[int, int]:
    """Segments and their bytes."""
    if not folder.is_dir():
        return 0, 0
    sizes = [
        entry.stat().st_size
        for entry in folder.iterdir()
        if entry.name.removesuffix(OPEN_SUFFIX).endswith(".warc.gz") and entry.is_file()
    ]
    return len(sizes), sum(sizes)
