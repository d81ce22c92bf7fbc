"""The judge of a soak: a pure function over samples, logs, counters and the web servers' log."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

from tests.support.faults.census import Sample
from tests.support.web import log_judge
from tests.support.web.exchange_log import Exchange
from tests.support.web.log_judge import TooLittleTraffic

RSS_GROWTH: Final = 1.10
RSS_FLOOR: Final = 24 << 20
DESCRIPTORS_GROWTH: Final = 1.10
DESCRIPTORS_FLOOR: Final = 24
"""The median of the last third may exceed that of the middle third by a tenth, or by the floor if that is more: a
killed member begins anew, and a heap is given back in pieces."""
JUDGED_S: Final = 600.0
"""A shorter soak shows warming up, and is not judged for growth."""
LEAST_SAMPLES: Final = 6
LEAST_EXCHANGES: Final = 200
EXPLAINED_S: Final = 30.0
"""How long after the death of an engine its clients may report it."""

FALSE_ALARMS: Final = frozenset(
    {"report_stream.replaced", "reports.lost", "report.dead_lettered", "etcd.replaced", "process.aborted"}
)
"""What no kill of a soak explains: nothing that was acknowledged is lost by SIGKILL."""
STALLS: Final = frozenset({"event_loop.blocked"})
"""What a machine with too much to do explains; counted, and no failure."""
_ENGINES: Final = frozenset({"broker"})
_NS: Final = 1e-9


@dataclass(frozen=True, slots=True)
class KillEvent:
    """SIGKILL to a member or the broker, at a Unix time."""

    victim: str
    at: float


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a member's log: when (Unix time), and its event and level."""

    member: str
    at: float
    event: str
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class SoakHistory:
    """All that a soak leaves behind. `members` are the names that are judged for growth; `delays` are the seconds that
    each host is promised; `counters` are sums for each crawl and partition."""

    seconds: float
    members: tuple[str, ...]
    samples: tuple[Sample, ...]
    kills: tuple[KillEvent, ...]
    lines: tuple[LogLine, ...]
    counters: Mapping[str, Mapping[str, int]]
    delays: Mapping[str, float]
    exchanges: tuple[Exchange, ...]
    pages: Mapping[str, int]


def verdict(soaked: SoakHistory) -> tuple[str, ...]:
    """Return everything that is wrong, in words. TooLittleTraffic if the soak could not show it."""
    if len(soaked.samples) < LEAST_SAMPLES:
        raise TooLittleTraffic(f"{len(soaked.samples)} samples were taken")
    if len(soaked.exchanges) < LEAST_EXCHANGES:
        raise TooLittleTraffic(f"{len(soaked.exchanges)} requests were made")
    if not soaked.kills:
        raise TooLittleTraffic("no process was killed")
    idle = [name for name, pages in soaked.pages.items() if not pages]
    if idle:
        raise TooLittleTraffic(f"no page of {', '.join(idle)} was stored")
    return (*_failed(soaked), *_growth(soaked), *_identities(soaked), *_impolite(soaked))


def _failed(soaked: SoakHistory) -> Iterator[str]:
    """Owners that failed, and alarms, beyond what the death of an engine explains."""
    for line in soaked.lines:
        bad = line.event in FALSE_ALARMS or line.event == "owner.reloaded" or line.level in ("error", "critical")
        if bad and line.event not in STALLS and not _explained(soaked, line):
            yield f"{line.member}: {line.text}"


def _explained(soaked: SoakHistory, line: LogLine) -> bool:
    if line.event in FALSE_ALARMS:
        return False
    return any(kill.victim in _ENGINES and 0 <= line.at - kill.at <= EXPLAINED_S for kill in soaked.kills)


def _growth(soaked: SoakHistory) -> Iterator[str]:
    if soaked.seconds < JUDGED_S:
        return
    third = soaked.seconds / 3
    middle = [sample for sample in soaked.samples if third <= sample.at_s < 2 * third]
    last = [sample for sample in soaked.samples if sample.at_s >= 2 * third]
    for name in soaked.members:
        before = [sample.rss[name] for sample in middle if name in sample.rss]
        after = [sample.rss[name] for sample in last if name in sample.rss]
        if before and after and median(after) > max(median(before) * RSS_GROWTH, median(before) + RSS_FLOOR):
            yield f"{name}: RSS grew from {median(before) / 1e6:.0f} to {median(after) / 1e6:.0f} MB"
        opened = [sample.descriptors[name] for sample in middle if name in sample.descriptors]
        open_now = [sample.descriptors[name] for sample in last if name in sample.descriptors]
        max_count = max(median(opened) * DESCRIPTORS_GROWTH, median(opened) + DESCRIPTORS_FLOOR) if opened else 0
        if opened and open_now and median(open_now) > max_count:
            yield f"{name}: descriptors grew from {median(opened):.0f} to {median(open_now):.0f}"


def _identities(soaked: SoakHistory) -> Iterator[str]:
    for crawl, n in soaked.counters.items():
        if n["discovered"] != n["queued"] + n["leased"] + n["done"] + n["failed"] + n["excluded"]:
            yield f"{crawl}: URLs do not add up: {dict(n)}"
        if n["accepted"] != n["new"] + n["known"] + n["refused"]:
            yield f"{crawl}: links do not add up: {dict(n)}"


def _impolite(soaked: SoakHistory) -> Iterator[str]:
    by_host: dict[str, list[Exchange]] = {}
    for exchange in soaked.exchanges:
        by_host.setdefault(exchange.host, []).append(exchange)
    for host, exchanges in by_host.items():
        ordered = log_judge.of_host(exchanges, host)
        ended_ns = ordered[0].ended_ns
        for before, after in pairwise(ordered):
            ended_ns = max(ended_ns, before.ended_ns)
            gap_s = (after.begun_ns - ended_ns) * _NS
            if gap_s < soaked.delays[host]:
                yield f"{host}{after.path} {gap_s:.4f} s after the end of a response"


def by_minute(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return a row for each minute: the largest RSS and descriptors, the last sizes."""
    rows: dict[int, dict[str, Any]] = {}
    for sample in samples:
        row = rows.setdefault(int(sample.at_s // 60), {"minute": int(sample.at_s // 60)})
        for kind, values in (("rss", sample.rss), ("fds", sample.descriptors)):
            for name, value in values.items():
                row[f"{kind} {name}"] = max(value, row.get(f"{kind} {name}", 0))
        row |= {f"log {name}": size for name, size in sample.logs.items()}
        row |= {f"stored {kind}": size for kind, size in sample.storage.items()}
    return [rows[minute] for minute in sorted(rows)]
