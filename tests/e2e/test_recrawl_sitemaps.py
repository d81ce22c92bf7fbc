"""A crawl that fetches pages again reads sitemaps again, and follows `lastmod` as far as it was right before."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from shared.domain.frontier.page_history import decoded
from shared.domain.frontier.recrawl import SignalTrust
from shared.domain.frontier.signals import HostSignals, signals_of
from tests.e2e.test_recrawl import INTERVAL_S, changes, orb, rows
from tests.support.web.changing_site import Site, page, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PATHS = [f"/{n}" for n in range(6)]
RIGHT = SignalTrust(wrong=0.0, wrong_by_chance=20.0, missed=0.0, missed_by_chance=20.0)
LYING = SignalTrust(wrong=50.0, wrong_by_chance=50.0, missed=0.0, missed_by_chance=0.0)
SITEMAP = ("/sitemap.xml", None, 200)


def sitemap(site: Site, changed_at: dict[str, float]) -> None:
    """Let the site serve a sitemap with a `lastmod` for each page: long ago, but for those in `changed_at`."""
    entries = [
        f"<url><loc>{site.url}{path}</loc><lastmod>"
        f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(changed_at.get(path, 1_500_000_000)))}</lastmod></url>"
        for path in PATHS
    ]
    site.pages["/sitemap.xml"] = f"<?xml version='1.0'?><urlset>{''.join(entries)}</urlset>"


def stored(site: Site, folder: Path, policy: str, discover: str = "") -> None:
    """Crawl the site for the first time."""
    site.pages |= {path: page(path) for path in PATHS} | {"/": page("start")}
    site.pages["/robots.txt"] = f"Sitemap: {site.url}/sitemap.xml\n"
    sitemap(site, {})
    spec = folder.parent / "spec.yaml"
    spec.write_text(
        f"seeds: [{site.url}/]\nrecrawl: {policy}\npoliteness: {{delay_s: 0}}\n"
        f"discover: {{sitemaps: robots{discover}}}\negress: {{allow: [127.0.0.0/8]}}\n"
    )
    orb("crawl", "--spec", spec, "--refresh", "--out", folder, "--json")
    assert [path for path, _, _ in site.taken()] == ["/", *PATHS, "/sitemap.xml"]


def only_the_sitemap_is_due(folder: Path, trust: SignalTrust) -> None:
    """Set the due times of the pages to tomorrow, and how far the signs of the host were right so far."""
    now_ms = int(time.time() * 1000)
    with closing(sqlite3.connect(folder / "crawl.db")) as connection:
        connection.execute("UPDATE urls SET rank = ? WHERE flags & 1", (now_ms + 86_400_000,))
        connection.execute("UPDATE urls SET rank = ? WHERE flags & 1 = 0", (now_ms - 1,))
        connection.execute("UPDATE queues SET next_due_ms = ?", (now_ms - 1,))
        connection.execute("UPDATE queues SET signals = ?", (HostSignals(trust, now_ms).encoded(),))
        connection.commit()


ADAPTIVE = "{policy: adaptive, min_s: 1, max_s: 8640000, requests_per_day: 864000}"


def test_changed_page_is_fetched_before_unchanged_ones_if_signs_were_right(tmp_path: Path) -> None:
    folder = tmp_path / "site.crawl"
    with serving() as site:
        stored(site, folder, ADAPTIVE)
        only_the_sitemap_is_due(folder, RIGHT)
        time.sleep(2 * INTERVAL_S)
        site.pages["/3"] = page("edited")
        sitemap(site, {"/3": time.time()})
        orb("crawl", "--out", folder, "--refresh", "--json")
        assert site.taken() == [("/3", None, 200), SITEMAP]
        assert [each for each in changes(folder) if each[0] == "changed"] == [("changed", "/3", 2)]
        ((signals,),) = rows(folder, "SELECT signals FROM queues")
        trust = signals_of(signals).trust
        assert (trust.wrong, trust.wrong_by_chance > 20.0) == (0.0, True), "the sign was right"
        counted = dict(rows(folder, "SELECT kind, sum(n) FROM crawl_tallies WHERE kind LIKE '%rates' GROUP BY kind"))
        assert counted == {"rates": 7, "sitemap_rates": 1}


def test_lying_sitemap_makes_no_page_due_sooner(tmp_path: Path) -> None:
    folder = tmp_path / "site.crawl"
    with serving() as site:
        stored(site, folder, ADAPTIVE)
        only_the_sitemap_is_due(folder, LYING)
        time.sleep(2 * INTERVAL_S)
        sitemap(site, {path: time.time() for path in PATHS[:5]})
        before = rows(folder, "SELECT url, rank FROM urls WHERE flags & 1 ORDER BY url")
        orb("crawl", "--out", folder, "--refresh", "--json")
        assert site.taken() == [SITEMAP]
        assert rows(folder, "SELECT url, rank FROM urls WHERE flags & 1 ORDER BY url") == before
        signed = rows(
            folder,
            "SELECT u.url, f.recrawl FROM urls u JOIN fetches f ON f.fingerprint = u.fingerprint WHERE flags & 1",
        )
        told = {url for url, history in signed if history is not None and decoded(history, 0).signalled}
        assert told == {f":{path}" for path in PATHS[:5]}, "the next comparisons judge the signs"


def test_quiet_sitemap_is_read_less_often_and_then_no_more(tmp_path: Path) -> None:
    folder = tmp_path / "site.crawl"
    policy = "{policy: fixed, min_s: 1, max_s: 8640000}"
    with serving() as site:
        stored(site, folder, policy, ", max_quiet_fetches: 2")
        row = "SELECT u.state, u.reason, u.rank, f.recrawl FROM urls u JOIN fetches f USING (fingerprint) WHERE {}"
        place = row.format("u.url LIKE '%sitemap.xml'")
        seen = []
        for _ in range(3):
            time.sleep(2.1 * INTERVAL_S)
            orb("crawl", "--out", folder, "--refresh", "--json")
            ((state, reason, rank, history),) = rows(folder, place)
            seen.append((state, reason, decoded(history, 0).quiet, rank - decoded(history, 0).checked_ms))
        assert [each[:3] for each in seen] == [(1, "unchanged", 1), (3, "quiet", 2), (3, "quiet", 2)]
        assert 2_000 <= seen[0][3] <= 3_000
        assert [path for path, _, _ in site.taken()].count("/sitemap.xml") == 2
        explained = orb("show", folder, "--url", f"{site.url}/sitemap.xml", "--json")
        assert "nothing new" in str(explained)


def test_new_page_of_a_sitemap_is_found_and_ends_its_quiet_time(tmp_path: Path) -> None:
    folder = tmp_path / "site.crawl"
    with serving() as site:
        stored(site, folder, "{policy: fixed, min_s: 1, max_s: 8640000}")
        place = (
            "SELECT u.rank, f.recrawl FROM urls u JOIN fetches f USING (fingerprint) WHERE u.url LIKE '%sitemap.xml'"
        )
        quiet = []
        for n in range(3):
            ((due_ms, _),) = rows(folder, place)
            time.sleep(max(due_ms / 1000 - time.time(), 0) + 0.1 * INTERVAL_S)
            if n == 1:
                site.pages["/new"] = page("new")
                site.pages["/sitemap.xml"] = "\n".join(f"{site.url}{path}" for path in [*PATHS, "/new"])
            orb("crawl", "--out", folder, "--refresh", "--json")
            ((_, history),) = rows(folder, place)
            quiet.append(decoded(history, 0).quiet)
        assert (quiet[0], quiet[2]) == (1, 1)
        assert quiet[1] in (0, 2), (
            "0: the link was stored before the outcome. 2: after it, and the next fetch counts it"
        )
        assert ("new", "/new", 1) in changes(folder)
