"""The table of metrics says what the processes expose, neither more nor less."""

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from api.frontier.dead_letters import letter_of_shard
from api.frontier.stats import OwnerStats
from api.observe.metrics import LETTERS, MasterMetrics
from api.observe.metrics import METRICS as MASTERS
from api.observe.traffic import measure
from shared.domain.crawl.scope import ExclusionReason
from shared.domain.ids import HostId, Partition
from shared.domain.web.fetch import FailureKind
from shared.telemetry import Metric, exposed, registry_of
from shared.wire.messages import ShardUnreadable
from workers.metrics import METRICS as WORKERS
from workers.metrics import WorkerMetrics
from workers.stats import WorkerStats as WorkerTally

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
BASE_UNITS = ("_seconds", "_bytes", "_ratio", "_total", "_info")
PARTS_OF_A_UNIT = ("milli", "_ms", "_kb", "_mb", "minutes", "hours", "percent")


def documented(section: str) -> dict[str, tuple[str, str]]:
    """Name -> type and labels, as the table of this section has them."""
    text = DOCS.read_text("utf-8").split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*?) *\| (.+?) \| (.*?) ?\|$", text, re.MULTILINE)
    assert all(meaning for _, _, _, meaning, _ in rows)
    return {name: (kind, labels) for name, kind, labels, _, _ in rows}


def described(metrics: Sequence[Metric]) -> dict[str, tuple[str, str]]:
    return {f"orb_{metric.name}": (metric.kind, ", ".join(metric.labels)) for metric in metrics}


def of_http() -> dict[str, tuple[str, str]]:
    """What the middleware of the API registers."""
    registry = CollectorRegistry()
    measure(FastAPI(), registry)
    suffix = {"counter": "_total"}
    found = {}
    for collector in registry._collector_to_names:
        for family in collector.collect():
            labels = ", ".join(getattr(collector, "_labelnames"))  # noqa: B009  not declared in their types
            found[family.name + suffix.get(family.type, "")] = (family.type, labels)
    return found


def test_the_table_of_masters_and_their_registry_agree() -> None:
    assert documented("Masters") == described(MASTERS) | of_http()


def test_the_table_of_workers_and_their_registry_agree() -> None:
    assert documented("Workers") == described(WORKERS)


@pytest.mark.parametrize("metric", [*MASTERS, *WORKERS], ids=lambda metric: metric.name)
def test_names_follow_the_convention(metric: Metric) -> None:
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert not any(part in metric.name for part in PARTS_OF_A_UNIT), "base units only"
    if metric.kind == "histogram":
        assert metric.name.endswith("_seconds")
    assert "le" not in metric.labels
    assert metric.text.endswith(".")


def test_a_metric_of_both_kinds_of_member_is_one_metric() -> None:
    both = described(MASTERS).keys() & described(WORKERS).keys()
    room = {"orb_resource_used_bytes", "orb_resource_limit_bytes", "orb_resource_pressure"}
    assert both == {"orb_member_lease_seconds", "orb_member_sessions_lost_total"} | room
    assert {name: described(MASTERS)[name] for name in both} == {name: described(WORKERS)[name] for name in both}


def test_dead_letter_of_an_unreadable_shard_is_exposed() -> None:
    stats = OwnerStats()
    shard = ShardUnreadable("default", HostId(1), 0, 7, "w1", "truncated", 3, b"\xff\x00\x01")
    stats.dead_lettered([letter_of_shard(Partition(0), shard, 1)])
    read = dict(MasterMetrics._counted(cast(MasterMetrics, SimpleNamespace(_stats=stats))))
    assert read[LETTERS]["shard",] == 1


def test_a_registry_is_read_anew_at_every_scrape() -> None:
    pages = Metric("pages_total", "counter", "Pages.", ("crawl",))
    counted: dict[tuple[str, ...], float] = {("a",): 1}
    registry = registry_of([pages], lambda: [(pages, counted)])
    assert b'\norb_pages_total{crawl="a"} 1.0\n' in exposed(registry)[0]
    counted["b",] = 2
    text, media_type = exposed(registry, "application/openmetrics-text; version=1.0.0")
    assert b'\norb_pages_total{crawl="b"} 2.0\n' in text
    assert media_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


def test_counters_of_closed_sets_are_zero_before_the_first_event() -> None:
    """A rate over a series that begins with 1 misses its first event."""
    worker = cast(WorkerMetrics, SimpleNamespace(_stats=WorkerTally()))
    read = {metric.name: values for metric, values in WorkerMetrics._fetched(worker)}
    assert read["fetch_failures_total"] == {(kind.value,): 0 for kind in FailureKind}
    master = cast(MasterMetrics, SimpleNamespace(_stats=OwnerStats()))
    read = {metric.name: values for metric, values in MasterMetrics._counted(master)}
    assert read["host_failures_total"] == {(f"robots_{kind.value}",): 0 for kind in FailureKind}
    assert read["url_attempts_unsuccessful_total"] == {
        **{(result, kind.value): 0 for result in ("failed", "retried") for kind in FailureKind},
        **{("excluded", reason.value): 0 for reason in ExclusionReason},
    }
    assert read["dead_letters_total"] == {(kind,): 0 for kind in ("url", "outcome", "discovery", "items", "shard")}
    assert set(read["fetches_discarded_total"].values()) == set(read["links_total"].values()) == {0}
