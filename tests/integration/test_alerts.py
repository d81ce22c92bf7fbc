"""Every alert is silent while all is well and fires when what it is for happens, by Prometheus's own evaluation."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ALERTS: Final = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "alerts.yml"
RULES: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
}
METRICS: Final = ALERTS.parents[2] / "docs" / "metrics.md"
COMPARED_WITH: Final = {"orb_partitions", "orb_shards_dispatched_total", "orb_fetches_total"}
"""Metrics that say nothing bad by themselves, and that an alert compares others with."""

WELL_MIN: Final = 9
"""All is well up to this minute."""


@dataclass(frozen=True)
class Case:
    """What is scraped every minute (`1x9` is a value ten times), and what the alert says after `fires_min` minutes.
    `labels` are the alert's own, besides its severity."""

    alert: str
    series: Mapping[str, str]
    fires_min: int
    summary: str
    labels: Mapping[str, str] = field(default_factory=dict)


CASES: Final = (
    Case("OrbResourcePressure", {'orb_resource_pressure{instance="w1", resource="archive"}': "0x9 1x9"}, 12,
         "w1 takes on no new work: archive is nearly full", {"instance": "w1", "resource": "archive"}),
    Case("OrbMemberDown", {'up{job="orb-worker", instance="w1"}': "1x9 0x9"}, 12, "w1 does not answer",
         {"job": "orb-worker", "instance": "w1"}),
    Case("OrbNoMaster", {'up{job="orb-master", instance="m1"}': "1x9 0x9", 'up{job="orb-master", instance="m2"}':
         "1x5 0x13", 'up{job="orb-worker", instance="w1"}': "1x20"}, 12, "No master answers"),
    Case("OrbNoMaster", {'up{job="orb-master", instance="m1"}': "1x9 stale"}, 12, "No master answers",
         {"job": "orb-master"}),
    Case("OrbLeaderCountNotOne", {'orb_leader{instance="m1"}': "1x9 0x9", 'orb_leader{instance="m2"}': "0x20"}, 12,
         "0 masters lead, instead of one"),
    Case("OrbLeaderCountNotOne", {'orb_leader{instance="m1"}': "1x20", 'orb_leader{instance="m2"}': "0x9 1x9"}, 12,
         "2 masters lead, instead of one"),
    Case("OrbLeaderChangesOften", {'orb_leader{instance="m1"}': "1x9 0 1 0 1", 'orb_leader{instance="m2"}':
         "0x9 1 0 1 0"}, 13, "The leader changes often"),
    Case("OrbMemberLeaseNearExpiry", {'orb_member_lease_seconds{instance="w1"}': "12x9 3x9"}, 12,
         "w1 renews its lease late", {"instance": "w1"}),
    Case("OrbEtcdUnreachable", {'orb_etcd_contact_age_seconds{instance="m1", view="crawls"}': "20x9 41x9"}, 12,
         "m1 cannot reach etcd", {"instance": "m1"}),
    Case("OrbPartitionsWithoutOwner", {'orb_partitions_owned{instance="m1"}': "32x9 0x9", 'orb_partitions_owned{'
         'instance="m2"}': "32x20", 'orb_partitions{instance="m1"}': "64x20", 'orb_partitions{instance="m2"}': "64x20"},
         13, "Partitions have no owner"),
    Case("OrbConservationDrift", {'orb_conservation_drift{instance="m1", crawl="docs", identity="urls"}': "0x9 3x20"},
         21, "docs: the urls do not add up, by 3", {"crawl": "docs", "identity": "urls"}),
    Case("OrbStatsStale", {'orb_stats_age_seconds{instance="m1"}': "5x9 31x9"}, 12,
         "m1 gets no counts from the database or from NATS", {"instance": "m1"}),
    Case("OrbReportBacklogOld", {'orb_report_oldest_age_seconds{instance="m1", kind="outcome"}': "1x9 61x20"}, 16,
         "Reports of workers are not applied"),
    Case("OrbReportBacklogFull", {'orb_reports_fullness_ratio{instance="m1", kind="discovery"}': "0.1x9 0.6x20"}, 16,
         "Reports (discovery) fill their stream in NATS", {"kind": "discovery"}),
    Case("OrbReportsLost", {'orb_report_gaps_total{instance="m1"}': "0x9 1x9"}, 11,
         "NATS lost reports that it had acknowledged", {"instance": "m1"}),
    Case("OrbReportsLost", {'orb_report_streams_replaced_total{instance="m1"}': "0x9 1x9"}, 11,
         "NATS lost reports that it had acknowledged", {"instance": "m1"}),
    Case("OrbItemsMissed", {'orb_item_messages_missed_total{instance="m1"}': "0x9 3x9"}, 11,
         "Items left their stream before they were in the table", {"instance": "m1"}),
    Case("OrbDatabaseSlow", {
        'orb_transaction_duration_seconds_bucket{instance="m1", work="outcomes", le="0.1"}': "0+60x9 600x30",
        'orb_transaction_duration_seconds_bucket{instance="m1", work="outcomes", le="0.5"}': "0+60x9 600x30",
        'orb_transaction_duration_seconds_bucket{instance="m1", work="outcomes", le="1"}': "0+60x9 600+60x30",
        'orb_transaction_duration_seconds_bucket{instance="m1", work="outcomes", le="+Inf"}': "0+60x9 600+60x30",
    }, 30, "Transactions (outcomes) are slow", {"work": "outcomes"}),
    Case("OrbDeadLetters", {'orb_dead_letters_total{instance="m1", kind="outcome"}': "0x9 2x9"}, 11,
         "A dead letter: outcome", {"kind": "outcome"}),
    Case("OrbDispatchStalled", {'orb_queues_due{instance="m1", pool="eu"}': "5x40", 'orb_shards_dispatched_total{'
         'instance="m1"}': "0+60x9 540x30"}, 27, "Hosts are due, and nothing is dispatched"),
    Case("OrbPoolSaturated", {'orb_pool_free_visits{instance="m1", pool="eu"}': "20x9 0x60", 'orb_queues_due{'
         'instance="m1", pool="eu"}': "2000x60"}, 42, "The pool eu has no free visits", {"pool": "eu"}),
    Case("OrbGrantsExpiring", {'orb_grants_expired_total{instance="m1"}': "0x9 0+60x60"}, 40,
         "Grants expire without a final outcome"),
    Case("OrbArchiveCommitFailing", {'orb_archive_commit_failures_total{instance="w1"}': "0x9 1x9"}, 11,
         "w1 cannot write its archive", {"instance": "w1"}),
    Case("OrbArchiveCommitSlow", {
        'orb_archive_commit_duration_seconds_bucket{instance="w1", le="1"}': "0+60x9 600x30",
        'orb_archive_commit_duration_seconds_bucket{instance="w1", le="2.5"}': "0+60x9 600+60x30",
        'orb_archive_commit_duration_seconds_bucket{instance="w1", le="+Inf"}': "0+60x9 600+60x30",
    }, 30, "w1 writes its archive slowly", {"instance": "w1"}),
    Case("OrbNatsStorageFailing", {'orb_nats_storage_failing{instance="w1"}': "0x9 1x9"}, 12,
         "NATS answers w1 and stores nothing", {"instance": "w1"}),
    Case("OrbShardsMalformed", {'orb_shards_malformed_total{instance="w1"}': "0x9 1x9"}, 11,
         "w1 cannot read URL shards", {"instance": "w1"}),
    Case("OrbReportFlushStalled", {'orb_report_flush_running_seconds{instance="w1"}': "0x9 15x9"}, 12,
         "w1 cannot report what it fetched", {"instance": "w1"}),
    Case("OrbFetchNetworkFailing", {'orb_fetches_total{instance="w1"}': "0+60x60", 'orb_fetch_failures_total{'
         'instance="w1", kind="dns"}': "0x9 0+60x60"}, 40, "Most fetches fail at DNS or connect"),
    Case("OrbFetchNetworkFailing", {'orb_fetches_total{instance="w1"}': "0+60x60", 'orb_fetch_failures_total{'
         'instance="w1", kind="connect_timeout"}': "0x9 0+60x60"}, 40, "Most fetches fail at DNS or connect"),
    # A new host's first request is for robots.txt. No URL is fetched then, perhaps since the start of the worker.
    Case("OrbFetchNetworkFailing", {'orb_fetches_total{instance="w1"}': "0+60x9 540x60", 'orb_host_failures_total{'
         'instance="m1", reason="robots_dns"}': "0x9 0+60x60"}, 40, "Most fetches fail at DNS or connect"),
    Case("OrbFetchNetworkFailing", {'orb_host_failures_total{instance="m1", reason="robots_connect_timeout"}':
         "0x9 0+60x60"}, 40, "Most fetches fail at DNS or connect"),
    Case("OrbConnectionsRefused", {'orb_http_connections_refused_total{instance="m1"}': "0x9 7x9"}, 11,
         "m1 refuses connections to its API", {"instance": "m1"}),
    Case("OrbApiErrors", {'orb_http_requests_total{instance="m1", handler="/v1/crawls", status="503"}':
         "0x9 0+60x20"}, 18, "m1 answers /v1/crawls with errors", {"instance": "m1", "handler": "/v1/crawls"}),
)  # fmt: skip


@pytest.fixture(scope="module")
def promtool() -> str:
    """Prometheus's own evaluation of rules; without it the test is skipped, or fails where CI is set."""
    found = shutil.which("promtool")
    if found is None:
        reason = "promtool is not installed: apt-get install prometheus"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def story(case: Case) -> dict[str, Any]:
    """A case in promtool's words: silent while all is well, and for a minute more where the rule waits."""
    rule = RULES[case.alert]
    told = {
        "exp_labels": {**case.labels, **rule["labels"]},
        "exp_annotations": {"summary": case.summary, "description": rule["annotations"]["description"]},
    }
    silent_min = [WELL_MIN, WELL_MIN + 1] if "for" in rule else [WELL_MIN]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            *({"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": []} for minute in silent_min),
            {"eval_time": f"{case.fires_min}m", "alertname": case.alert, "exp_alerts": [told]},
        ],
    }


def test_every_alert_has_a_case() -> None:
    assert {case.alert for case in CASES} == set(RULES)


def bad() -> dict[str, str]:
    """When each metric of docs/metrics.md is bad, by the last column of its tables."""
    rows = re.findall(r"^\| `(orb_\w+)` \|.*\| (.*?) ?\|$", METRICS.read_text("utf-8"), re.MULTILINE)
    return dict(sorted(rows))  # what masters and workers both have is explained once


def judged(metric: str) -> list[str]:
    """The expressions of the alerts that look at a metric."""
    found = [rule["expr"] for rule in RULES.values()]
    return [expression for expression in found if re.search(rf"\b{metric}(_bucket|_count|_sum)?\b", expression)]


def test_metrics_with_a_definite_bad_value_have_alerts() -> None:
    """A number that a person must not overlook is not left to a dashboard."""
    definite = {metric for metric, when in bad().items() if re.match(r"(Any|Anything but 0|1|Above|Below)\b", when)}
    assert len(definite) > 12
    assert {metric for metric in definite if not judged(metric)} == set()


def test_alerts_and_documented_metrics_agree() -> None:
    """Each alert looks at documented metrics with a bad value, and by the number that the table names."""
    documented = bad()
    named = {name for rule in RULES.values() for name in re.findall(r"\borb_\w+", rule["expr"])}
    plain = {re.sub(r"_bucket$", "", name) for name in named}
    assert plain - documented.keys() == set()
    assert {name for name in plain if not documented[name]} <= COMPARED_WITH
    bounds = {metric: found[1] for metric, when in documented.items() if (found := re.match(r"Above ([\d.]+) s", when))}
    assert len(bounds) > 3
    unlike = {
        metric: expressions
        for metric, number in bounds.items()
        if (expressions := judged(metric)) and not any(expression.endswith(f"> {number}") for expression in expressions)
    }
    assert unlike == {}


def faults_of(promtool: str, tmp_path: Path, *stories: dict[str, Any], rules: Path = ALERTS) -> str:
    """What Prometheus finds wrong with these stories of the rules, empty if they are true."""
    path = tmp_path / "stories.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": [*stories]}))
    judged = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    return "" if judged.returncode == 0 else judged.stdout + judged.stderr


def test_few_dead_hosts_beside_many_fetches_are_no_network_failure(promtool: str, tmp_path: Path) -> None:
    """A broad crawl always has hosts without an address."""
    series = {
        'orb_fetches_total{instance="w1"}': "0+600x60",
        'orb_host_failures_total{instance="m1", reason="robots_dns"}': "0+60x60",
        'orb_shards_dispatched_total{instance="m1"}': "0+66x60",
    }
    quiet = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": "50m", "alertname": "OrbFetchNetworkFailing", "exp_alerts": []}],
    }
    assert faults_of(promtool, tmp_path, quiet) == ""


def test_alerts_fire_when_they_should_and_not_before(promtool: str, tmp_path: Path) -> None:
    assert faults_of(promtool, tmp_path, *map(story, CASES)) == ""


def test_workers_wanted_follow_what_each_pool_has_to_do(promtool: str, tmp_path: Path) -> None:
    series = {
        'orb_worker_info{instance="w1", worker="w1", pool="default"}': 1,
        'orb_worker_info{instance="w2", worker="w2", pool="default"}': 1,
        'orb_worker_info{instance="w3", worker="w3", pool="browser"}': 1,
        'orb_visits_limit{instance="w1"}': 100,
        'orb_visits_limit{instance="w2"}': 200,
        'orb_visits_limit{instance="w3"}': 4,
        'orb_queues_due{instance="m1", pool="default"}': 300,
        'orb_queues_due{instance="m2", pool="default"}': 151,
        'orb_queues_due{instance="m1", pool="empty"}': 1025,
        'orb_shards{instance="m1", pool="default", state="in_flight"}': 140,
        'orb_shards{instance="m2", pool="default", state="pending"}': 9,
        'orb_shards{instance="m2", pool="default", state="expired"}': 900,
        'orb_shards{instance="m2", pool="browser", state="in_flight"}': 4,
        'orb_shards{instance="m2", pool="left", state="pending"}': 7,
        'orb_worker_info{instance="w4", worker="w4", pool="idle"}': 1,
        'orb_visits_limit{instance="w4"}': 100,
        'orb_pool_workers{instance="m1", pool="idle"}': 1,
        'orb_pool_workers{instance="m1", pool="default"}': 2,
    }
    wanted = {"default": 4, "browser": 1, "empty": 2, "left": 1, "idle": 0}
    story = {
        "interval": "1m",
        "input_series": [{"series": name, "values": f"{value}x2"} for name, value in series.items()],
        "promql_expr_test": [
            {
                "expr": "orb:pool_workers_wanted",
                "eval_time": "2m",
                "exp_samples": [
                    {"labels": f'orb:pool_workers_wanted{{pool="{pool}"}}', "value": n} for pool, n in wanted.items()
                ],
            }
        ],
    }
    assert faults_of(promtool, tmp_path, story, rules=ALERTS.with_name("scaling.yml")) == ""
