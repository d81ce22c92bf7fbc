"""The page set of a crawl with a depth limit is that of a breadth-first search, whatever comes late."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.crawl_process import Running, write_spec
from tests.support.processes.orb_command import export
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_page_found_late_by_a_shorter_way_brings_what_lies_below_it(
    seed: int, web: Callable[..., Web], tmp_path: Path
) -> None:
    """Long chains over fast hosts find first what short ways over slow hosts lead to: then all below is found again."""
    site = SyntheticSite(
        pages=600, hosts=12, seed=seed, branching=1, out_degree=2, latency_s=(0.0, 0.0, 0.0, 0.3), redirects=30
    )
    served = web(site)
    depths = sorted(site.expected_pages(served.origins).values())
    limit = depths[len(depths) // 2]
    expected = site.expected_pages(served.origins, limit)
    deepest = [url for url, depth in expected.items() if depth == limit]
    assert len(expected) > 200
    assert len(deepest) > 20
    spec = write_spec(
        tmp_path / "spec.json",
        {
            "seeds": [f"{served.origins[0]}/"],
            "scope": {"mode": "any", "max_depth": limit},
            "politeness": {"delay_s": 0.01},
        },
    )
    with Running(tmp_path / "crawl", "--spec", spec, "--workers", "2") as run:
        summary = run.finish()
    stored = {row["url"]: row["depth"] for row in export("pages", run.out) if row["status"] == 200}
    assert stored == expected
    assert summary["identities"] == {"urls": 0, "links": 0}
