"""Which scopes are wider, and which stored links of a page the present scope admits."""

from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from shared.domain.archive.model import RecordLocation
from shared.domain.crawl.override_spec import Override
from shared.domain.crawl.requisites_spec import Requisites
from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.spec import CrawlSpec, Scope, ScopeMode, Seed, Traps
from shared.domain.crawl.wider_scope import FoundAgain, ReadablePage, found_again, hops_of_page, may_admit_more
from shared.domain.explain.excluded_links import decoded, is_unlisted, losses, may_be_admitted
from shared.domain.frontier.states import UrlKind, kind_flags
from shared.domain.ids import HostId
from shared.domain.web.url import fingerprint

HOST, OTHER = "a.example.com", "b.example.org"
SEED = f"http://{HOST}/"


def spec(seed: str = SEED, **scope: Any) -> CrawlSpec:
    return CrawlSpec(seeds=(Seed(url=seed),), scope=Scope(**scope))


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ({"mode": ScopeMode.HOST}, {"mode": ScopeMode.DOMAIN}),
        ({"mode": ScopeMode.DOMAIN}, {"mode": ScopeMode.ANY}),
        ({"mode": ScopeMode.PREFIX}, {"mode": ScopeMode.ANY}),
        ({"max_depth": 2}, {"max_depth": 3}),
        ({"max_depth": 2}, {}),
        ({"include": ("/a/",)}, {}),
        ({"include": ("/a/",)}, {"include": ("/a/", "/b/")}),
        ({"exclude": ("/a/", "/b/")}, {"exclude": ("/b/",)}),
        ({"max_url_length": 100}, {"max_url_length": 101}),
        ({}, {"extra_hops": 1}),
        ({}, {"requisites": Requisites.SAME_HOST}),
        ({"traps": Traps(max_segment_repeats=2)}, {"traps": Traps(max_segment_repeats=None)}),
        ({"traps": Traps(max_parameter_repeats=2)}, {"traps": Traps(max_parameter_repeats=3)}),
        ({}, {"traps": Traps(cycles=False)}),
    ],
)
def test_scope_that_lifts_a_rule_may_admit_more_and_its_reverse_not(
    narrow: dict[str, Any], wide: dict[str, Any]
) -> None:
    assert may_admit_more(spec(**narrow), spec(**wide))
    assert not may_admit_more(spec(**wide), spec(**narrow))
    assert not may_admit_more(spec(**wide), spec(**wide))


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ((), ({"hosts": ("b.example.org",), "mode": ScopeMode.ANY},)),
        (({"hosts": ("*.example.org",), "exclude": ("/a/",)},), ()),
        (({"hosts": ("*.example.org",), "max_depth": 1},), ({"hosts": ("*.example.org",), "max_depth": 2},)),
        (
            ({"hosts": ("*.example.org",), "exclude": ("/a/",)},),
            (
                {"hosts": ("b.example.org",), "exclude": ()},
                {"hosts": ("*.example.org",), "exclude": ("/a/",)},
            ),
        ),
    ],
)
def test_override_that_lifts_a_rule_may_admit_more_and_its_reverse_not(
    narrow: tuple[dict[str, Any], ...], wide: tuple[dict[str, Any], ...]
) -> None:
    one, two = (
        structs.replace(spec(), overrides=tuple(Override(**each) for each in overrides)) for overrides in (narrow, wide)
    )
    assert may_admit_more(one, two)
    assert not may_admit_more(two, one)


def test_scopes_that_exchange_rules_may_admit_more_either_way() -> None:
    for one, two in (
        (spec(mode=ScopeMode.HOST), spec(mode=ScopeMode.PREFIX)),
        (spec(max_depth=1), spec(exclude=("/x/",))),
        (spec(f"{SEED}a/", mode=ScopeMode.PREFIX), spec(f"{SEED}b/", mode=ScopeMode.PREFIX)),
        (spec(extra_hops=1), spec(f"http://{OTHER}/", extra_hops=1)),
    ):
        assert may_admit_more(one, two)
        assert may_admit_more(two, one)


def page(url: str = f"{SEED}page", *, depth: int = 1, hops: int = 0, kind: UrlKind = UrlKind.PAGE) -> ReadablePage:
    location = RecordLocation("1.warc.gz", 0, 1)
    flags = kind_flags(kind)
    return ReadablePage(HostId(1), HOST, fingerprint(url), url, depth, hops, flags, HOST, location, unlisted=False)


def found(given: CrawlSpec, of: ReadablePage, *outlinks: tuple[str, str]) -> list[tuple[str, int, int, UrlKind, int]]:
    def row(link: FoundAgain) -> tuple[str, int, int, UrlKind, int]:
        return link.location.url, link.depth, link.hops, link.kind, link.extra

    return [row(link) for link in found_again(CompiledScope(given), of, outlinks)]


def test_links_are_judged_one_deeper_from_the_host_of_their_page() -> None:
    near, far = f"{SEED}near", f"http://{OTHER}/far"
    links = ((near, "L a/@href"), (far, "L a/@href"), (near, "L a/@href"), (f"{SEED}page", "L a/@href"))
    assert found(spec(), page(), *links) == [(near, 2, 0, UrlKind.PAGE, 0)]
    assert found(spec(mode=ScopeMode.ANY), page(), *links)[1] == (far, 2, 0, UrlKind.PAGE, 0)
    assert found(spec(extra_hops=1), page(), *links)[1] == (far, 2, 0, UrlKind.PAGE, 1)
    assert found(spec(max_depth=1, mode=ScopeMode.ANY), page(), *links) == []


def test_redirect_keeps_the_depth_and_the_kind_of_its_url() -> None:
    target = "http://www.example.com/to"
    redirect = (target, "R Location:")
    assert found(spec(), page(depth=0, hops=1), redirect) == [(target, 0, 2, UrlKind.PAGE, 0)]
    assert found(spec(), page(depth=1), redirect) == []
    assert found(spec(mode=ScopeMode.DOMAIN), page(depth=1), redirect) == [(target, 1, 1, UrlKind.PAGE, 0)]
    listing = page(f"{SEED}sitemap.xml", kind=UrlKind.SITEMAP)
    assert found(spec(mode=ScopeMode.DOMAIN), listing, redirect) == [(target, 1, 1, UrlKind.SITEMAP, 0)]


def test_requisites_are_found_at_the_depth_of_their_page() -> None:
    image = (f"http://{OTHER}/i.png", "E */@src")
    assert found(spec(requisites=Requisites.SAME_HOST), page(), image) == []
    all_hosts = spec(requisites=Requisites.ALL)
    assert found(all_hosts, page(hops=3), image) == [(image[0], 1, 1, UrlKind.REQUISITE, 0)]
    style = page(f"{SEED}s.css", hops=2, kind=UrlKind.REQUISITE)
    assert found(all_hosts, style, image) == [(image[0], 1, 3, UrlKind.REQUISITE, 0)]


def test_entries_of_a_sitemap_are_left_to_its_next_fetch() -> None:
    listing = page(f"{SEED}sitemap.xml", depth=0, hops=1, kind=UrlKind.SITEMAP)
    assert found(spec(mode=ScopeMode.ANY), listing, (f"{SEED}entry", "M sitemap")) == []


def test_page_outside_the_present_scope_gives_no_links() -> None:
    outside, link = page(f"{SEED}private/page"), (f"{SEED}near", "L a/@href")
    narrow = spec(exclude=("/private/",), max_depth=9)
    assert found(narrow, outside, link) == []
    assert hops_of_page(CompiledScope(narrow), outside) is None
    assert hops_of_page(CompiledScope(spec()), replace(outside, via_host=None)) == 0


def test_only_pages_with_links_left_out_by_the_scope_are_read() -> None:
    assert [may_be_admitted(row) for row in (None, "", "nofollow 3", "robots 1", "invalid 1;unlisted 4")] == [False] * 5
    assert may_be_admitted("nofollow 3;depth 1")
    assert is_unlisted(decoded("depth 1;unlisted 4", every=True))
    assert decoded("depth 1;unlisted 4") == {"depth": 1}
    assert losses(False, None, "depth 1;unlisted 4", None) == [
        ("left_out", "depth", 1), ("outlinks", "left_out", 1), ("outlinks", "unlisted", 1),
    ]  # fmt: skip
