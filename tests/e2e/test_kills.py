"""One crawl under sudden deaths, more than twenty of them: judged by what is left when it has finished."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.support.archive.stored_crawl import check_crawl
from tests.support.processes.crawl_process import Running, write_spec
from tests.support.processes.kill_rounds import SEED, drawn_seed, play, recoveries_s, report, rounds
from tests.support.processes.orb_command import export
from tests.support.web import log_judge
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.long]

DELAY_S = 0.1
GRANT_S = "3"


def crawled_under_kills(
    served: Web,
    folder: Path,
    *,
    decks: int,
    requests: int,
    scope: Mapping[str, object] = MappingProxyType({}),
    budget: Mapping[str, object] = MappingProxyType({}),
) -> tuple[Path, dict[str, Any]]:
    """Folder and summary of a crawl from the first host's start, killed all along about `requests` requests."""
    seed = drawn_seed()
    spec = write_spec(
        folder / "spec.json",
        {
            "seeds": [f"{served.origins[0]}/"],
            "scope": {"mode": "any", **scope},
            "politeness": {"delay_s": DELAY_S},
            "retry": {"base_s": 0.2, "attempts": 5},
            "budget": dict(budget),
        },
    )
    settings = {"ORB_GRANT_S": GRANT_S, "ORB_ACK_WAIT_S": GRANT_S}
    print(f"{SEED}={seed} repeats the draws")
    with Running(folder / "crawl", "--spec", spec, "--workers", "3", settings=settings) as run:
        kills = play(run, served, rounds(seed, decks), requests)
        summary = run.finish(timeout_s=180)
    log = served.log()
    print(report(kills, log))
    assert len(kills) >= 20 * decks
    # A kill after the last request would have struck a crawl that was over.
    assert set(recoveries_s(kills, log)) == {death.victim for death in kills}
    too_soon = {host: gap for host in log_judge.hosts(log) if (gap := log_judge.smallest_gap(log, host)) < DELAY_S}
    assert too_soon == {}
    return run.out, summary


@pytest.mark.timeout(360)
def test_sudden_deaths_of_every_process_lose_nothing_and_store_nothing_twice(
    web: Callable[..., Web], tmp_path: Path
) -> None:
    site = SyntheticSite(pages=1500, hosts=20, missing=20, flaky=30, redirects=30, loops=10, private=20)
    served = web(site)
    expected = set(site.expected_pages(served.origins))
    out, summary = crawled_under_kills(served, tmp_path, decks=1, requests=len(expected))
    check_crawl(out, summary, expected)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_sudden_deaths_lose_nothing_and_store_nothing_twice(web: Callable[..., Web], tmp_path: Path) -> None:
    site = SyntheticSite(pages=8000, hosts=30, missing=20, flaky=30, redirects=30, loops=10, private=20)
    served = web(site)
    expected = set(site.expected_pages(served.origins))
    out, summary = crawled_under_kills(served, tmp_path, decks=5, requests=len(expected))
    check_crawl(out, summary, expected)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_crawl_within_depth_equals_breadth_first_search(web: Callable[..., Web], tmp_path: Path) -> None:
    site = SyntheticSite(
        pages=3000, hosts=20, branching=1, out_degree=2, latency_s=(0.0, 0.0, 0.2), redirects=30, flaky=20
    )
    served = web(site)
    depths = sorted(site.expected_pages(served.origins).values())
    limit = depths[len(depths) // 2]
    expected = site.expected_pages(served.origins, limit)
    out, summary = crawled_under_kills(served, tmp_path, decks=1, requests=len(expected), scope={"max_depth": limit})
    check_crawl(out, summary, set(expected))
    assert {row["url"]: row["depth"] for row in export("pages", out) if row["status"] == 200} == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_under_sudden_deaths_a_page_budget_is_used_up_and_not_exceeded(web: Callable[..., Web], tmp_path: Path) -> None:
    site = SyntheticSite(pages=4000, hosts=20, missing=20, flaky=30, redirects=30)
    served = web(site)
    out, summary = crawled_under_kills(served, tmp_path, decks=1, requests=1000, budget={"max_pages": 1000})
    pages = Counter(row["url"] for row in export("pages", out) if row["status"] == 200)
    assert max(pages.values()) == 1
    assert len(pages) == summary["pages"] == 1000
    assert summary["finished_reason"] == "max_pages"
    assert summary["identities"] == {"urls": 0, "links": 0}
