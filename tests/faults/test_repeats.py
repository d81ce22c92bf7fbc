"""The end of a master in good order repeats no request: what workers report meanwhile is applied once."""

import asyncio
import signal
from pathlib import Path

import pytest

from shared.domain.ids import CrawlId
from tests.support.faults.faulted_cluster import prepared
from tests.support.faults.history_collector import crawl_seen
from tests.support.faults.traffic import DeclaredCrawl, agent
from tests.support.faults.validation import requested_too_often
from tests.support.processes.cluster import cluster
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import serve

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]

CRAWLS = 60
PAGES = 8
GRANTS = {"ORB_GRANT_S": "60", "ORB_ACK_WAIT_S": "60"}
"""No grant expires in this test: so each page is requested once, whatever the machine does."""


def test_restart_of_a_master_beside_many_crawls_repeats_and_loses_nothing(tmp_path: Path) -> None:
    site = SyntheticSite(pages=PAGES, hosts=2)
    with serve(tmp_path / "web.jsonl", *(site for _ in range(CRAWLS))) as web, cluster(tmp_path) as running:
        asyncio.run(prepared(running))
        running.master("m1", **GRANTS)
        running.worker("w1", **GRANTS)
        declared = []
        for number in range(CRAWLS):
            name = f"c{number}"
            spec = {
                "name": name,
                "seeds": [web.origins_of(number)[0]],
                "scope": {"mode": "any"},
                "fetch": {"user_agent": agent(name)},
                "politeness": {"delay_s": 1.0},
            }
            declared.append(DeclaredCrawl(running.declare(spec), name, number))
        web.wait_served(CRAWLS * PAGES // 4, 120)
        running.members["m1"].signal(signal.SIGTERM)
        running.members["m1"].process.wait(60)
        running.wait_until(lambda: running.leader() is None, "the master gave up the lead")
        running.master("m1", **GRANTS)
        for crawl in declared:
            running.finish(CrawlId(crawl.id), 120)
        seen = [crawl_seen(running, crawl, web) for crawl in declared]
        log = web.log()
    assert [evidence for crawl in seen for evidence in requested_too_often(crawl, log, ())] == []
    assert all(crawl.counters["pages"] == PAGES for crawl in seen)
