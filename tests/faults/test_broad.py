"""A broad crawl whose visits wait leaves a narrow crawl of the same pool its share."""

from pathlib import Path

import pytest

from tests.support.faults.traffic import agent
from tests.support.processes.cluster import cluster
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import serve

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]

HOSTS = 600
PAGES = 150
VISITS = 8
GRANTS = {"ORB_GRANT_S": "60", "ORB_ACK_WAIT_S": "60"}


def test_narrow_crawl_finishes_beside_a_broad_one_that_fills_the_pool(tmp_path: Path) -> None:
    narrow, broad = SyntheticSite(pages=PAGES, hosts=8), SyntheticSite(pages=100 * HOSTS, hosts=HOSTS, seed=2)
    with serve(tmp_path / "web.jsonl", narrow, broad) as web, cluster(tmp_path) as running:
        running.master("m1", **GRANTS)
        running.worker("w1", **GRANTS, ORB_MAX_VISITS=str(VISITS))

        def declared(name: str, site: int, delay_s: float) -> int:
            return running.declare(
                {
                    "name": name,
                    "seeds": list(web.origins_of(site)),
                    "scope": {"mode": "any"},
                    "fetch": {"user_agent": agent(name)},
                    "politeness": {"delay_s": delay_s},
                }
            )

        declared("broad", 1, 20.0)
        web.wait_until(lambda log: len({each.host for each in log}) >= VISITS)
        found = declared("narrow", 0, 0.1)
        # By its share it has four visits, each of some five pages a second, as soon as visits of the other end.
        running.wait_until(
            lambda: running.query(f"SELECT state FROM crawls WHERE crawl_id = {found}") == [("finished",)],
            "the narrow crawl is finished",
            120,
        )
        served = [each for each in web.log() if each.user_agent == agent("broad") and each.complete]
    assert served, "the broad crawl goes on"
