"""A crawl whose spec has other values for one of its hosts, judged by what its servers were asked."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.crawl_process import Running, write_spec
from tests.support.processes.orb_command import orb
from tests.support.web import log_judge
from tests.support.web.file_site import FileTree
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DELAY_S = 0.4
PAGES = 12


@pytest.fixture
def site(web: Callable[..., Web], tmp_path: Path) -> Web:
    """Two hosts, each with a chain of pages. The first links to the second."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    served = web(*[FileTree(str(tmp_path / name)) for name in ("one", "two")])
    two = served.origins[1]
    for name in ("one", "two"):
        for n in range(PAGES):
            links = f"<a href=p{n + 1}.html>next</a>" if n + 1 < PAGES else ""
            (tmp_path / name / f"p{n}.html").write_text(f"<title>{n}</title>{links}")
    start = f"<a href=p0.html>chain</a><a href={two}/p0.html>other</a><a href={two}/print/x.html>print</a>"
    (tmp_path / "one" / "index.html").write_text(start)
    return served


def requested(site: Web, host: str) -> list[str]:
    return [each.path for each in site.log() if each.host == host and each.path != "/robots.txt"]


def test_host_with_an_override_has_its_own_delay_depth_and_scope(site: Web, tmp_path: Path) -> None:
    one, two = site.hosts
    override = {"hosts": [two], "delay_s": DELAY_S, "mode": "any", "max_depth": 4, "exclude": ["/print/"]}
    spec = {"seeds": [f"{site.origins[0]}/"], "politeness": {"delay_s": 0.01}, "overrides": [override]}
    with Running(tmp_path / "crawl", "--spec", write_spec(tmp_path / "spec.json", spec)) as run:
        run.finish()
    assert requested(site, one) == ["/", *[f"/p{n}.html" for n in range(PAGES)]]
    assert requested(site, two) == [f"/p{n}.html" for n in range(4)]
    log = site.log()
    assert log_judge.smallest_gap(log, two) >= DELAY_S
    assert log_judge.smallest_gap(log, one) < DELAY_S
    shown = json.loads(orb("show", run.out, "--json"))
    assert shown["left_out"] == {"depth": 1, "exclude_pattern": 1}
    text = orb("show", run.out, "--url", f"{site.origins[1]}/p4.html").decode()
    assert "(overrides[0].max_depth)" in text


def test_host_with_an_override_gives_no_more_pages_than_it_allows(site: Web, tmp_path: Path) -> None:
    one, two = site.hosts
    spec = {
        "seeds": [f"{site.origins[0]}/"],
        "scope": {"mode": "any", "exclude": ["/print/"]},
        "politeness": {"delay_s": 0.01},
        "budget": {"max_pages_per_host": 6},
        "overrides": [{"hosts": [two], "max_pages_per_host": 3}],
    }
    with Running(tmp_path / "crawl", "--spec", write_spec(tmp_path / "spec.json", spec)) as run:
        run.finish()
    assert (len(requested(site, one)), len(requested(site, two))) == (6, 3)
