"""The sitemaps that a robots.txt names, and what a sitemap may list by its location."""

import pytest

from shared.domain.web.robots import RobotsRules
from shared.domain.web.sitemaps import MAX_ROBOTS_SITEMAPS, listing_folder, lists_whole_host, sitemaps_of

ORIGIN = "https://a.example"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("Sitemap: https://a.example/s.xml\n", ["https://a.example/s.xml"]),
        ("sitemap:https://a.example/s.xml", ["https://a.example/s.xml"]),
        ("User-agent: x\nDisallow: /\nSITEMAP : https://a.example/s.xml\r\nAllow: /\n", ["https://a.example/s.xml"]),
        (
            "Sitemap: https://a.example/1\rSitemap: https://b.example/2\r",
            ["https://a.example/1", "https://b.example/2"],
        ),
        ("Sitemap: /s.xml # ours\n", ["https://a.example/s.xml"]),
        ("\ufeffSitemap: https://a.example/s.xml", ["https://a.example/s.xml"]),
        ("Sitemap: https://a.example/s\nSitemap: https://A.example:443/s\n", ["https://a.example/s"]),
        ("Sitemap:\nSitemap: ftp://a.example/s\n# Sitemap: https://a.example/no\nMy-Sitemap: /no\n", []),
        ("Disallow: /Sitemap: /no\n", []),
        ("Sitemap: not a url\nSitemap: sitemap.xml\nSitemap: //b.example/s\n", ["https://b.example/s"]),
    ],
)
def test_robots_names_sitemaps_outside_of_its_groups(body: str, named: list[str]) -> None:
    rules = RobotsRules(body.encode())
    assert [location.url for location in rules.sitemaps(ORIGIN)] == named
    assert rules.sitemaps(ORIGIN) is rules.sitemaps(ORIGIN)


def test_robots_names_sitemaps_up_to_the_limit() -> None:
    body = b"".join(b"Sitemap: /%d.xml\n" % n for n in range(MAX_ROBOTS_SITEMAPS + 1))
    named = sitemaps_of(body, ORIGIN)
    assert len(named) == MAX_ROBOTS_SITEMAPS
    assert named[-1].url == f"{ORIGIN}/{MAX_ROBOTS_SITEMAPS - 1}.xml"


@pytest.mark.parametrize(
    ("sitemap", "folder"),
    [
        (f"{ORIGIN}/sitemap.xml", f"{ORIGIN}/"),
        (f"{ORIGIN}/catalog/sitemap.xml", f"{ORIGIN}/catalog/"),
        (f"{ORIGIN}/catalog/", f"{ORIGIN}/catalog/"),
        (f"{ORIGIN}/sitemap.php?file=/a/b.xml", f"{ORIGIN}/"),
    ],
)
def test_sitemap_lists_what_is_at_or_below_its_path(sitemap: str, folder: str) -> None:
    assert listing_folder(sitemap) == folder
    assert lists_whole_host(sitemap) == (folder == f"{ORIGIN}/")
