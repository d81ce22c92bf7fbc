"""A crawl over the API of a cluster to which things happen, and the proof that it is whole all the same."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

from shared.domain.ids import CrawlId
from tests.support.api.cluster_clients import Background, client, until_written
from tests.support.database.url_rows import URLS
from tests.support.processes.cluster import PARTITIONS, TTL_S, Cluster
from tests.support.web import log_judge
from tests.support.web.web_server import Web

DELAY_S: Final = 0.1
TAKEOVER_S: Final = TTL_S + 2.0
"""What is promised after the death of a leader or an owner."""

PAGES: Final = (
    f"SELECT u.url FROM {URLS} u JOIN fetches f USING (crawl_id, host_id, fingerprint)"
    " WHERE f.page AND f.status = 200 AND u.crawl_id = {}"
)
BEGUN: Final = "SELECT 1 FROM crawl_counters WHERE crawl_id = {} AND pages > 0"
HALF: Final = Counter({"m1": PARTITIONS // 2, "m2": PARTITIONS // 2})


def started(cluster: Cluster, *, workers: int = 3) -> tuple[str, str]:
    """The leader and its follower, over some workers."""
    cluster.master("m1")
    cluster.wait_until(lambda: cluster.leader() == "m1", "the first one leads")
    cluster.master("m2")
    for number in range(1, workers + 1):
        cluster.worker(f"w{number}")
    wanted = Counter({"m1": PARTITIONS}) if cluster.url is None else HALF
    cluster.wait_until(lambda: cluster.owners() == wanted, "the partitions are placed")
    return "m1", "m2"


def spec(served: Web) -> dict[str, object]:
    return {
        "seeds": [f"{served.origins[0]}/"],
        "scope": {"mode": "any"},
        "politeness": {"delay_s": DELAY_S},
        "retry": {"base_s": 0.2, "attempts": 5},
        # A site may hold its answers back until a command has ended (`Web.answer`).
        "fetch": {"first_byte_timeout_s": 100},
        "egress": {"allow": ["127.0.0.0/8"]},
    }


def declared(cluster: Cluster, served: Web, *masters: str, name: str = "docs") -> CrawlId:
    """A crawl, over the API of one of these masters."""
    with client(cluster, *masters) as someone:
        made = until_written(someone, cluster, "POST", "/v1/crawls", {"name": name, "spec": spec(served)}, name)
    return CrawlId(made.body["id"])


def whole(cluster: Cluster, served: Web, crawl: CrawlId) -> None:
    """Check that the crawl finished with each page of the site once, balanced counters and polite gaps."""
    assert cluster.finish(crawl).finished_reason == "complete"
    expected = set(served.expected_pages())
    pages = [url for (url,) in cluster.query(PAGES.format(crawl))]
    assert len(pages) == len(set(pages))
    assert set(pages) == expected
    columns = ("discovered", "queued", "leased", "done", "failed", "excluded", "accepted", "new", "known", "refused")
    sums = ", ".join(f"sum({column})" for column in columns)
    [row] = cluster.query(f"SELECT {sums} FROM crawl_counters WHERE crawl_id = {crawl}")
    n = dict(zip(columns, map(int, row), strict=True))
    assert n["discovered"] == n["done"] + n["failed"] + n["excluded"], n
    assert (n["queued"], n["leased"]) == (0, 0), n
    assert n["accepted"] == n["new"] + n["known"] + n["refused"], n
    log = served.log()
    too_soon = {host: gap for host in log_judge.hosts(log) if (gap := log_judge.smallest_gap(log, host)) < DELAY_S}
    assert too_soon == {}


def rest(cluster: Cluster, since: float, seconds: float) -> None:
    """Wait until something that began then (time.monotonic) has lasted for so long."""
    cluster.wait_until(lambda: time.monotonic() - since >= seconds, "it has lasted long enough", seconds + 10)


@contextmanager
def watched_terms(cluster: Cluster) -> Iterator[list[list[int]]]:
    """The owner terms of all partitions, looked at all the time."""
    seen: list[list[int]] = []
    with Background(lambda: seen.append(cluster.terms()), 0.05):
        yield seen


def never_back(terms: list[list[int]]) -> None:
    """No partition went back to an earlier owner."""
    assert len(terms) > 10
    assert all(a <= b for before, after in pairwise(terms) for a, b in zip(before, after, strict=True))
