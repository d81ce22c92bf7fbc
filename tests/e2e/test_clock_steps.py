"""What a jump of the wall clock does not touch: how long members say that they run, and the ages of what waits."""

from pathlib import Path

import pytest

from tests.support.api.cluster_clients import address, asking
from tests.support.faults import member_controls
from tests.support.faults.member_controls import MemberControls
from tests.support.processes.cluster import cluster as opened
from tests.support.processes.metrics_scrape import scraped

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


def test_no_age_is_negative_after_the_clock_of_a_master_went_back_an_hour(tmp_path: Path) -> None:
    turned = MemberControls(tmp_path / "m1.dials")
    with opened(tmp_path) as cluster:
        cluster.entry = member_controls.ENTRY
        cluster.master("m1", **{member_controls.VARIABLE: str(tmp_path / "m1.dials")})
        with asking(cluster, "m1") as api:

            def uptime_s() -> float | None:
                (master,) = api.get("/v1/masters").json()["items"]
                return None if master["load"] is None else float(master["load"]["uptime_s"])

            cluster.wait_until(lambda: uptime_s() is not None, "the master has said how it is loaded")
            before = uptime_s()
            turned.turn(clock_s=-3600.0)
            cluster.wait_until(lambda: uptime_s() != before, "it has said so again")
            after = uptime_s()
            assert before is not None
            assert after is not None
            assert before < after
            scrape = scraped(address(cluster, "m1").removeprefix("http://"))
            ages = [name for name in scrape.names() if name.startswith("orb_") and name.endswith("_seconds")]
            assert len(ages) > 3
            assert {name: scrape.sum(name) for name in ages if scrape.sum(name) < 0} == {}
