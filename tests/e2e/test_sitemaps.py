"""A crawl finds pages that only sitemaps and feeds know, and they cost nothing where they are not asked for."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.crawl_process import Running
from tests.support.processes.orb_command import export, orb
from tests.support.web.sitemap_site import SitemapSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

PAGES = 5
FAST = ("--delay", "0.01", "--allow-net", "127.0.0.0/8")


@pytest.mark.parametrize("named", [True, False])
def test_pages_that_only_sitemaps_and_a_feed_know_are_crawled(
    named: bool, web: Callable[..., Web], tmp_path: Path
) -> None:
    site = SitemapSite(pages=PAGES, named=named)
    served = web(site)
    mode = "robots" if named else "well-known"
    with Running(tmp_path / "crawl", f"{served.origins[0]}/", *FAST, "--sitemaps", mode, "--feeds") as run:
        summary = run.finish()
    expected = {"/", "/news/1", "/news/2"} | {f"/{part}/{n}" for part in "ab" for n in range(PAGES)}
    pages = {row["url"].removeprefix(served.origins[0]): row["depth"] for row in export("pages", run.out)}
    assert pages == {path: 0 if path == "/" else 1 for path in expected}
    assert summary["pages"] == len(expected)
    assert summary["discover"] == {"sitemaps": 3, "feeds": 1, "listed": len(expected) - 1}
    assert summary["left_out"] == {"other_host": 1}
    assert summary["identities"] == {"urls": 0, "links": 0}
    asked = [exchange.path for exchange in served.log()]
    sources = {"/robots.txt", "/feed", site.index, "/maps/a.xml", "/maps/b.xml.gz"}
    assert sorted(asked) == sorted(expected | sources), "each was requested once"
    shown = json.loads(orb("show", run.out, "--url", f"{served.origins[0]}/a/1", "--json"))
    assert shown["discovered_from"][0] == f"{served.origins[0]}/maps/a.xml"


def test_summary_counts_a_sitemap_that_is_cut(web: Callable[..., Web], tmp_path: Path) -> None:
    served = web(SitemapSite(pages=PAGES, cut=True))
    with Running(tmp_path / "crawl", f"{served.origins[0]}/", *FAST, "--sitemaps", "robots") as run:
        summary = run.finish()
    assert summary["discover"] == {"sitemaps": 2, "partly_read": 1, "listed": 2 * PAGES}
    assert b"2 sitemaps read, 1 not to the end" in orb("show", run.out)
    assert b"redirect" not in orb("show", run.out, "--url", f"{served.origins[0]}/maps/a.xml"), (
        "only sitemaps lead to it"
    )


def test_sitemaps_do_not_use_up_the_page_budget(web: Callable[..., Web], tmp_path: Path) -> None:
    served = web(SitemapSite(pages=PAGES))
    arguments = (*FAST, "--sitemaps", "robots", "--max-pages", "6")
    with Running(tmp_path / "crawl", f"{served.origins[0]}/", *arguments) as run:
        summary = run.finish()
    assert (summary["pages"], summary["finished_reason"]) == (6, "max_pages")
    assert summary["discover"]["sitemaps"] >= 2


def test_crawl_without_discover_requests_neither_sitemap_nor_feed(web: Callable[..., Web], tmp_path: Path) -> None:
    served = web(SitemapSite(pages=PAGES))
    with Running(tmp_path / "crawl", f"{served.origins[0]}/", *FAST) as run:
        summary = run.finish()
    assert [exchange.path for exchange in served.log()] == ["/robots.txt", "/"]
    assert (summary["pages"], summary["discover"]) == (1, {})
