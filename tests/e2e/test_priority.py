"""Pages that a rule of `priority` raises are fetched before the other pages of their host."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.crawl_process import Running, write_spec
from tests.support.processes.orb_command import orb
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

PAGES = 60


def test_pages_that_a_rule_raises_are_fetched_first(web: Callable[..., Web], tmp_path: Path) -> None:
    site = SyntheticSite(pages=PAGES, branching=PAGES, out_degree=PAGES)
    served = web(site)
    origin = served.origins[0]
    spec = write_spec(
        tmp_path / "spec.json",
        {
            "seeds": [f"{origin}/"],
            "politeness": {"delay_s": 0.02},
            "priority": [{"match": "7\\.html$", "value": 20}, {"match": "3\\.html$", "value": -20}],
        },
    )
    with Running(tmp_path / "crawl", "--spec", spec) as run:
        summary = run.finish()
    assert summary["pages"] == PAGES
    fetched = [exchange.path for exchange in served.log() if exchange.path.endswith(".html")]
    raised = [path for path in fetched if path.endswith("7.html")]
    lowered = [path for path in fetched if path.endswith("3.html")]
    assert (len(raised), len(lowered)) == (6, 6)
    assert fetched[:6] == raised
    assert fetched[-6:] == lowered
    shown = json.loads(orb("show", run.out, "--url", f"{origin}{raised[0]}", "--json"))
    assert shown["priority"] == 20
    assert shown["priority_rule"] == "its priority is 20: priority[0] matches it, '7\\\\.html$'"
    assert "priority[1] matches it" in orb("show", run.out, "--url", f"{origin}{lowered[0]}").decode()
