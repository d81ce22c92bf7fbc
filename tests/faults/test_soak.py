"""The judge of a soak finds what failed, grew or was rude; a short soak of a real cluster shows nothing of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engines.postgres import PostgresServer
from tests.support.faults.census import Sample
from tests.support.faults.soak import soaked, stored, table
from tests.support.faults.soak_verdict import (
    DESCRIPTORS_FLOOR,
    JUDGED_S,
    LEAST_EXCHANGES,
    RSS_FLOOR,
    KillEvent,
    LogLine,
    SoakHistory,
    by_minute,
    verdict,
)
from tests.support.web.exchange_log import Exchange
from tests.support.web.log_judge import TooLittleTraffic

SECOND = 1_000_000_000
KILL = KillEvent("broker", 1000.0)


def exchange(at_s: float) -> Exchange:
    return Exchange("a:1", "GET", "/0", "orb", 200, 1, round(at_s * SECOND), round((at_s + 0.01) * SECOND))


def sample(at_s: float, rss: int = 100 << 20, descriptors: int = 50) -> Sample:
    return Sample(at_s, {"m1": rss}, {"m1": descriptors}, {"m1": 1000}, {"database": 5000})


def line(event: str, at: float, level: str = "warning") -> LogLine:
    return LogLine("m1", at, event, level, event)


COUNTED = {
    "discovered": 6, "queued": 1, "leased": 1, "done": 2, "failed": 1, "excluded": 1,
    "accepted": 9, "new": 6, "known": 2, "refused": 1,
}  # fmt: skip
GOOD = SoakHistory(
    seconds=JUDGED_S,
    members=("m1",),
    samples=tuple(sample(at_s) for at_s in range(0, int(JUDGED_S), 20)),
    kills=(KillEvent("w1", 500.0), KILL),
    lines=(
        line("owner.reloaded", 1005.0),
        line("owner.stopped", 100.0, "info"),
        line("event_loop.blocked", 9.0, "error"),
    ),
    counters={"c1": COUNTED},
    delays={"a:1": 0.5},
    exchanges=tuple(exchange(number) for number in range(LEAST_EXCHANGES)),
    pages={"c1": 2},
)


def later(**values: int) -> tuple[Sample, ...]:
    """Samples of which those in the last third hold more."""
    return tuple(s if s.at_s < 2 * JUDGED_S / 3 else sample(s.at_s, **values) for s in GOOD.samples)


def test_good_soak_has_no_findings() -> None:
    assert verdict(GOOD) == ()


@pytest.mark.parametrize(
    ("bad", "evidence"),
    [
        pytest.param(replace(GOOD, lines=(line("owner.failed", 10.0, "error"),)), "owner.failed", id="owner failed"),
        pytest.param(
            replace(GOOD, lines=(line("owner.reloaded", 990.0),)), "owner.reloaded", id="reload before the kill"
        ),
        pytest.param(
            replace(GOOD, lines=(line("owner.reloaded", 505.0),)), "owner.reloaded", id="reload after a worker"
        ),
        pytest.param(replace(GOOD, lines=(line("reports.lost", 1005.0, "error"),)), "reports.lost", id="false alarm"),
        pytest.param(replace(GOOD, samples=later(rss=(100 << 20) + RSS_FLOOR + 1)), "RSS grew", id="memory"),
        pytest.param(
            replace(GOOD, samples=later(descriptors=51 + DESCRIPTORS_FLOOR)), "descriptors grew", id="descriptors"
        ),
        pytest.param(
            replace(GOOD, counters={"c1": {**COUNTED, "done": 3}}), "URLs do not add up", id="identity of URLs"
        ),
        pytest.param(
            replace(GOOD, counters={"c1": {**COUNTED, "known": 3}}), "links do not add up", id="identity of links"
        ),
        pytest.param(
            replace(GOOD, exchanges=(*GOOD.exchanges, exchange(7.4))), "after the end of a response", id="impolite"
        ),
    ],
)
def test_each_defect_is_found_alone(bad: SoakHistory, evidence: str) -> None:
    findings = verdict(bad)
    assert findings
    assert all(evidence in each for each in findings)


def test_growth_within_the_tolerance_is_no_finding() -> None:
    assert verdict(replace(GOOD, samples=later(rss=(100 << 20) + RSS_FLOOR))) == ()
    assert verdict(replace(GOOD, seconds=JUDGED_S - 1, samples=later(rss=1 << 30))) == ()


@pytest.mark.parametrize(
    "little",
    [
        replace(GOOD, samples=GOOD.samples[:3]),
        replace(GOOD, exchanges=GOOD.exchanges[1:]),
        replace(GOOD, kills=()),
        replace(GOOD, pages={"c1": 2, "c2": 0}),
    ],
)
def test_too_little_is_not_judged(little: SoakHistory) -> None:
    with pytest.raises(TooLittleTraffic):
        verdict(little)


def test_table_has_a_row_for_each_minute(tmp_path: Path) -> None:
    rows = by_minute([sample(10, rss=5_000_000), sample(50, rss=4_000_000), sample(70, rss=1_000_000)])
    seen = [(row["minute"], row["rss m1"], row["stored database"]) for row in rows]
    assert seen == [(0, 5_000_000, 5000), (1, 1_000_000, 5000)]
    assert table(rows).splitlines()[1].split() == ["0", "5.0", "50", "0.0", "0.0"]
    stored(rows, tmp_path / "soak.csv")
    assert (tmp_path / "soak.csv").read_text().splitlines()[2] == "1,1000000,50,1000,5000"


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.faults
@pytest.mark.timeout(400)
def test_short_soak_of_a_cluster_has_no_findings(tmp_path: Path, postgres_server: PostgresServer) -> None:
    left = soaked(tmp_path, postgres_server, seconds=90.0, kill_every_s=18.0)
    print(table(by_minute(left.samples)))
    assert verdict(left) == ()
