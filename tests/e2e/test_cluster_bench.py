"""The benches of a cluster, in small: they account for every page and process. No time or rate is asserted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.cluster_pages import Look, Work, crawled, row
from tests.benchmarks.owner_pages import owned
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = pytest.mark.e2e


def test_cluster_bench_accounts_for_pages_and_every_process(tmp_path: Path, web: Callable[..., Web]) -> None:
    site = SyntheticSite(pages=600)
    served = web(site)
    work = crawled(tmp_path, f"{served.origins[0]}/", 2, None, None)
    assert work.last.pages == len(site.expected_pages(served.origins))
    assert 0 < work.pages < work.last.pages
    used = {part for part, cpu_us in work.cpu_us().items() if cpu_us > 0}
    assert used >= {"masters", "workers", "NATS"}
    assert "database" not in used
    for shares in work.loops():
        assert sum(shares) == pytest.approx(1, abs=0.05)


def test_cluster_bench_row_shows_rates_costs_and_idle_loops() -> None:
    work = Work(
        Look(10.0, 100, {"masters": 1.0, "workers": 2.0}, ((1.0, 0.5),)),
        Look(20.0, 1100, {"masters": 1.5, "workers": 3.5}, ((6.0, 1.5),)),
    )
    assert row("sqlite", 1, work) == "| sqlite | 1 | 1,000 | 10.0 | 100 | 500 | 500 | 1,500 | 50% 10% 40% |"


def test_owner_bench_settles_the_pages_that_its_worker_reports(tmp_path: Path) -> None:
    cells = [cell.strip() for cell in owned(tmp_path, 2, 2000, None, None, None).split("|")]
    database, hosts, pages, _, master_us, server_us, _, per_cpu_s = cells[1:-1]
    assert (database, hosts, server_us) == ("sqlite", "2", "-")
    assert 0 < int(pages.replace(",", "")) <= 2000
    assert int(master_us.replace(",", "")) > 0
    assert int(per_cpu_s.replace(",", "")) > 0
