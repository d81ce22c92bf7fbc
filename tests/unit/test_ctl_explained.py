"""Crawls, clusters, hosts and reasons as people read them at length."""

import json
from typing import Any

import httpx

from tests.support.api.scripted_masters import Masters

STATS: dict[str, Any] = {
    "counters": {"discovered": 12_345, "done": 12_000, "pages": 11_999},
    "identity": {"url_drift": 0, "link_drift": 0},
    "tallies": {"status": {"404": 3, "200": 11_999}, "excluded": {}, "failed": {"http_404": 3}},
    "top_hosts": [{"host": "a.test", "pages": 7, "queued": 0, "waiting": 0, "leased": 1, "delay_s": 1.5,
                   "blocked_until": "2030-01-02T05:04:05Z", "failures": 0, "visited_at": "2030-01-02T03:04:00Z"}],
    "rates": {"counted_at": "2030-01-02T03:04:04Z", "windows": [
        {"window_s": 10, "measured_s": 10.1, "pages_per_s": 31.25, "bytes_per_s": 1_500_000},
    ]},
}  # fmt: skip


def test_a_crawl_is_described_with_its_numbers_and_its_spec() -> None:
    crawl = {"name": "docs", "id": 7, "revision": 3, "state": "running", "finished_reason": None, "labels": {"a": "b"},
             "allowed_verbs": ["pause", "cancel"], "spec": {"seeds": ["https://a.test/"]}, "active_s": 60,
             "created_at": "2030-01-02T03:00:05Z", "started_at": None, "finished_at": None}  # fmt: skip
    progress = {"active_s": 60.0, "pages": 11_999, "bytes": 4_200_000, "pages_per_s": 199.98, "completed": 12_000,
                "known": 12_345, "progress": 0.972, "waits": {
                    "standing": True, "number": 1, "more": False, "hosts": [
                        {"host": "a.test", "reason": "refuses", "text": "until then for a.test: it answered 429"}]},
                }  # fmt: skip
    answers = [httpx.Response(200, json=body) for body in (crawl, progress, STATS)]
    masters = Masters(answers)
    assert masters.run("describe", "crawl", "docs") == (
        """\
docs
state             running
allowed verbs     pause, cancel
revision          3 (crawl 7)
labels            a=b
created           2030-01-02 03:00:05 UTC (4m ago)
active            1m
pages             11,999, 4.2 MB, 200/s over all
completed         12,000 of 12,345 URLs in scope (97.2%)
waits             no host gets requests now
                  until then for a.test: it answered 429; to ask at once: orb ctl hosts unblock a.test

numbers
discovered        12,345
done              12,000
pages             11,999
identities        both hold

rates
last 10 s         31.2/s pages, 1.5 MB/s
counted           2030-01-02 03:04:04 UTC (1s ago)

answers and reasons
status            200 11,999, 404 3
failed            http_404 3

hosts with the most pages
HOST    PAGES  QUEUED  WAITING  LEASED  DELAY  BLOCKED  FAILURES  VISITED
a.test      7       0        0       1   1.5s       2h         0       5s

spec
seeds:
- https://a.test/
"""
    )
    assert json.loads(Masters(answers).run("describe", "crawl", "docs", form="json"))["stats"] == STATS


def test_a_drift_is_not_passed_over() -> None:
    drifted = {**STATS, "identity": {"url_drift": -2, "link_drift": 0}, "rates": None}
    said = Masters([httpx.Response(200, json=drifted)]).run("stats", "docs")
    assert "identities        drift: url_drift=-2\n" in said
    assert "rates" not in said


def test_a_cluster_is_described_by_who_owns_what() -> None:
    owners: dict[str, str | None] = {"0": "m1", "1": "m1", "2": "m1", "3": "m2", "4": None, "5": "m1"}
    master = {"id": "m1", "state": "active", "leading": True, "address": "h:1", "partitions": 4, "version": "1",
              "started_at": "2030-01-02T03:04:00Z"}  # fmt: skip
    cluster = {"member": "m1", "leading": True, "workers": 3, "masters": [master], "partitions": owners}
    assert Masters([httpx.Response(200, json=cluster)]).run("describe", "cluster") == (
        """\
cluster
member            m1
leading           yes
workers           3

masters
ID  STATE   LEADS  ADDRESS  PARTITIONS  VERSION  AGE
m1  active  yes    h:1               4  1         5s

partitions by owner
m1                0-2, 5
m2                3
none              4
"""
    )


def test_a_host_is_described_with_its_queue_of_every_crawl() -> None:
    body = {
        "host": {"host": "a.test", "queued": 0, "pages": 0, "delay_s": 2.0, "ip": None},
        "queues": [{"crawl": "docs", "queued": 3, "pages": 10}, {"crawl": "news", "queued": 0, "pages": 1}],
    }
    assert Masters([httpx.Response(200, json=body)]).run("describe", "host", "a.test") == (
        """\
host a.test
host              a.test
delay_s           2

queues
CRAWL  QUEUED  PAGES
docs   3       10
news   0       1
"""
    )


def test_an_explanation_has_every_rule_and_fits_a_narrow_terminal() -> None:
    body = {
        "url": "http://a.test/x", "known": True, "state": "queued", "why": ["It waits.", "word " * 20],
        "in_scope": None, "linked_from": None, "blocking_reason": "the host is blocked",
        "rules": [{"rule": "depth", "allowed": True, "detail": "1"},
                  {"rule": "blocked", "allowed": False, "detail": "until\x1b[2J then"}],
    }  # fmt: skip
    said = Masters([httpx.Response(200, json=body)]).run("explain", "docs", "a.test/x", width=50)
    lines = said.splitlines()
    assert lines[:3] == ["http://a.test/x", "state             queued", "why               It waits."]
    assert "blocking reason   the host is blocked" in lines
    assert lines[-2:] == ["ok  depth    1", "NO  blocked  until\\x1b[2J then"]
    assert max(map(len, lines)) <= 50


def test_what_waits_is_told_with_the_age_of_the_oldest() -> None:
    lag = {
        "at": "2030-01-02T03:04:05Z",
        "due_urls": {"count": 35_000, "oldest_s": 4.2, "is_lower_bound": True},
        "shards_pending": {"count": 0, "oldest_s": None, "is_lower_bound": False},
        "reports_pending": None,
    }
    assert Masters([httpx.Response(200, json=lag)]).run("lag", "docs") == (
        "due urls          35,000 or more, the oldest for 4s\n"
        "shards pending    0\n"
        "reports pending   not known: NATS does not answer\n"
    )
