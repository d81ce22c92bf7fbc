"""One crawl under sudden deaths, more than twenty of them: judged by what is left when it has finished."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import judge
from tests.support.kills import drawn_seed, play, recoveries_s, report, rounds
from tests.support.running import Running, write_spec
from tests.support.stored import check_crawl
from tests.support.synthetic import SyntheticSite
from tests.support.web import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

DELAY_S = 0.1
GRANT_S = "3"


def crawled_under_kills(web: Callable[..., Web], folder: Path, site: SyntheticSite, *, seed: int, decks: int) -> None:
    served = web(site)
    spec = write_spec(
        folder / "spec.json",
        {
            "seeds": [f"{served.origins[0]}/"],
            "scope": {"mode": "any"},
            "politeness": {"delay_s": DELAY_S},
            "retry": {"base_s": 0.2, "attempts": 5},
        },
    )
    settings = {"ORB_GRANT_S": GRANT_S, "ORB_ACK_WAIT_S": GRANT_S}
    expected = set(site.expected_pages(served.origins))
    with Running(folder / "crawl", "--spec", spec, "--workers", "3", settings=settings) as run:
        kills = play(run, served, rounds(seed, decks), len(expected))
        summary = run.finish(timeout_s=180)
    log = served.log()
    print(report(seed, kills, log))
    assert len(kills) >= 20 * decks
    # A kill after the last request would have struck a crawl that was over.
    assert set(recoveries_s(kills, log)) == {death.victim for death in kills}
    assert len(log) >= len(expected)
    check_crawl(run.out, summary, expected)
    too_soon = {host: gap for host in judge.hosts(log) if (gap := judge.smallest_gap(log, host)) < DELAY_S}
    assert too_soon == {}


@pytest.mark.timeout(360)
def test_sudden_deaths_of_every_process_lose_nothing_and_store_nothing_twice(
    web: Callable[..., Web], tmp_path: Path
) -> None:
    site = SyntheticSite(pages=1500, hosts=20, missing=20, flaky=30, redirects=30, loops=10, private=20)
    crawled_under_kills(web, tmp_path, site, seed=drawn_seed(), decks=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_sudden_deaths_lose_nothing_and_store_nothing_twice(web: Callable[..., Web], tmp_path: Path) -> None:
    site = SyntheticSite(pages=8000, hosts=30, missing=20, flaky=30, redirects=30, loops=10, private=20)
    crawled_under_kills(web, tmp_path, site, seed=drawn_seed(), decks=5)
