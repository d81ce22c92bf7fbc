"""What is worth reporting of a page's links: nothing twice once acknowledged, nothing real ever dropped."""

import resource
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.crawl.scope import CompiledScope, ExclusionReason
from shared.domain.crawl.spec import CrawlSpec, Extract, Scheme, Scope, ScopeMode, Seed
from shared.domain.explain.excluded_links import CUT, MAX_EXAMPLES, MAX_URL
from shared.domain.ids import CrawlId, Fingerprint, Revision
from shared.domain.web.url import Location, canonicalize, fingerprint, locate
from tests.support.cpu_time import least_cpu_s
from workers.known_links import KnownLinks
from workers.outlinks import (
    MAX_EXAMPLES_SENT,
    MAX_OUTLINKS_BYTES,
    OutlinkResolver,
    Outlinks,
    redirect_target,
)
from workers.parse.html import LinkKind, PageLink, ParsedPage, Refresh, parse_html


def at(url: str) -> Location:
    location = locate(url)
    assert location is not None
    return location


PAGE = at("http://site.example/dir/page.html")


def resolver(
    known: KnownLinks | None = None, *, scope: Scope | None = None, extract: Extract | None = None, revision: int = 1
) -> OutlinkResolver:
    spec = CrawlSpec(seeds=(Seed(url="http://site.example/"),), scope=scope or Scope())
    return OutlinkResolver(
        CrawlId(1), Revision(revision), CompiledScope(spec), extract or Extract(), known or KnownLinks(1 << 10)
    )


def page_of(*hrefs: str, nofollow: frozenset[str] = frozenset()) -> ParsedPage:
    return ParsedPage(marked=tuple(PageLink(href, LinkKind.ANCHOR, href in nofollow) for href in hrefs))


def urls(outlinks: Outlinks) -> list[str]:
    return [location.url for location in outlinks.fresh]


def adds_up(outlinks: Outlinks) -> bool:
    rest = outlinks.known + outlinks.nofollow + outlinks.repeated
    return outlinks.found == len(outlinks.fresh) + rest + sum(outlinks.excluded.values())


def test_links_are_resolved_judged_and_counted_once_each() -> None:
    outlinks = resolver().outlinks(
        PAGE,
        page_of("a", "/a", "./a#x", "a", "#top", "page.html", "//other.example/", "mailto:x@y", "javascript:0", "b?q"),
        depth=2,
    )
    assert urls(outlinks) == [
        "http://site.example/dir/a",
        "http://site.example/a",
        "http://site.example/dir/b?q",
    ]
    assert outlinks.depth == 3
    assert outlinks.excluded == {ExclusionReason.HOST: 1, ExclusionReason.SCHEME: 2}
    assert (outlinks.found, outlinks.repeated) == (9, 3)
    assert adds_up(outlinks)


def test_links_without_an_http_url_are_counted_by_reason_with_examples() -> None:
    mail, script = "mailto:a@b.test", "java\nscript:x()"
    broken = ("http://[::bad/", "http://user:secret@site.example/", "//a b/", "https:///a%zz b/")
    outlinks = resolver().outlinks(PAGE, page_of(mail, " " + script, "DATA:,x", "tel:+1\x1b[2J", *broken), depth=0)
    assert outlinks.left_out() == {"scheme": 4, "invalid": 4}
    assert outlinks.examples["scheme"] == [mail, "java script:x()", "DATA:,x", "tel:+1 [2J"]
    assert outlinks.examples["invalid"] == list(broken)
    assert adds_up(outlinks)
    many = resolver().outlinks(PAGE, page_of(*(f"tel:{n}" + "0" * 20_000 for n in range(50))), depth=0)
    assert many.left_out() == {"scheme": 50}
    assert len(many.examples["scheme"]) == MAX_EXAMPLES
    assert max(map(len, many.examples["scheme"])) == MAX_URL + 1


def test_a_link_is_reported_again_until_its_report_is_acknowledged() -> None:
    known = KnownLinks(1 << 10)
    links = resolver(known)
    first = links.outlinks(PAGE, page_of("a", "b"), depth=0)
    assert links.outlinks(PAGE, page_of("a", "b"), depth=0).fresh == first.fresh
    links.acknowledged(first)
    again = links.outlinks(PAGE, page_of("a", "b", "c"), depth=0)
    assert urls(again) == ["http://site.example/dir/c"]
    assert again.known == 2
    assert adds_up(again)


def test_a_link_found_nearer_to_a_seed_is_reported_again() -> None:
    links = resolver()
    links.acknowledged(links.outlinks(PAGE, page_of("a"), depth=5))
    assert links.outlinks(PAGE, page_of("a"), depth=6).known == 1
    nearer = links.outlinks(PAGE, page_of("a"), depth=4)
    assert urls(nearer) == ["http://site.example/dir/a"]
    links.acknowledged(nearer)
    links.acknowledged(Outlinks(nearer.fresh, 9, 1, 0, 0, 0, {}))  # a late acknowledgement of a deeper report
    assert links.outlinks(PAGE, page_of("a"), depth=4).known == 1


def test_what_one_revision_knows_another_reports_anew() -> None:
    known = KnownLinks(1 << 10)
    one, two = resolver(known, revision=1), resolver(known, revision=2)
    one.acknowledged(one.outlinks(PAGE, page_of("a"), depth=0))
    assert len(two.outlinks(PAGE, page_of("a"), depth=0).fresh) == 1


def test_the_verdict_depends_on_the_page_the_link_is_on_and_its_depth() -> None:
    links = resolver(scope=Scope(max_depth=3))
    parsed = page_of("http://site.example/x")
    assert len(links.outlinks(at("http://site.example/y"), parsed, depth=2).fresh) == 1
    assert links.outlinks(at("http://other.example/y"), parsed, depth=2).excluded == {ExclusionReason.HOST: 1}
    assert links.outlinks(at("http://site.example/y"), parsed, depth=3).excluded == {ExclusionReason.DEPTH: 1}


def test_base_href_moves_relative_links_and_a_bad_one_does_not() -> None:
    def with_base(base: str) -> list[str]:
        links = (PageLink("x", LinkKind.ANCHOR, False), PageLink("#f", LinkKind.ANCHOR, False))
        return urls(resolver().outlinks(PAGE, ParsedPage(base_href=base, marked=links), depth=0))

    assert with_base("/moved/here") == ["http://site.example/moved/x", "http://site.example/moved/here"]
    assert with_base("mailto:x") == ["http://site.example/dir/x"]


def test_nofollow_of_link_page_and_header_is_obeyed_unless_spec_says() -> None:
    parsed = page_of("a", "b", nofollow=frozenset("b"))
    obeyed = resolver().outlinks(PAGE, parsed, depth=0)
    assert (urls(obeyed), obeyed.nofollow) == (["http://site.example/dir/a"], 1)
    header = resolver().outlinks(PAGE, parsed, depth=0, nofollow=True)
    assert (urls(header), header.nofollow) == ([], 2)
    all_of_them = resolver(extract=Extract(follow_nofollow=True))
    assert len(all_of_them.outlinks(PAGE, parsed, depth=0, nofollow=True).fresh) == 2
    assert adds_up(obeyed)
    assert adds_up(header)


def test_a_link_that_is_followed_elsewhere_on_the_page_is_followed() -> None:
    parsed = parse_html(b"<a rel=nofollow href=a></a><a href=a></a>", charset="utf-8", options=Extract())
    outlinks = resolver().outlinks(PAGE, parsed, depth=0)
    assert (len(outlinks.fresh), outlinks.nofollow) == (1, 0)


def test_canonical_and_refresh_are_links_if_the_spec_wants_them() -> None:
    parsed = ParsedPage(canonical="/canonical", refresh=Refresh("/refresh", 0))
    assert urls(resolver().outlinks(PAGE, parsed, depth=0)) == [
        "http://site.example/canonical",
        "http://site.example/refresh",
    ]
    neither = Extract(canonical_links=False, meta_refresh=False)
    assert resolver(extract=neither).outlinks(PAGE, parsed, depth=0).found == 0


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/x", "http://site.example/x"),
        ("https://other.example/a#f", "https://other.example/a"),
        (" y ", "http://site.example/dir/y"),
        ("/caf\xc3\xa9", "http://site.example/caf%C3%A9"),
        ("/caf\xe9", "http://site.example/caf%C3%A9"),
        ("/日", "http://site.example/%E6%97%A5"),
        ("ftp://x/", None),
        ("http://", None),
    ],
)
def test_a_redirect_leads_where_a_browser_would_go(location: str, target: str | None) -> None:
    assert redirect_target(location, PAGE.url) == target


Operations = st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.integers(0, 40), st.integers(0, 5)), max_size=200)


@given(Operations)
def test_nothing_is_known_that_was_not_remembered_at_that_depth_or_less(
    operations: list[tuple[bool, int, int, int]],
) -> None:
    known = KnownLinks(16)  # 120 keys fight for 16 slots
    remembered: dict[tuple[int, int], int] = {}
    for write, crawl, link, depth in operations:
        generation = known.generation(CrawlId(crawl), Revision(1))
        key = fingerprint(f"http://h/{link}")
        if write:
            known.remember(generation, [key], depth)
            remembered[crawl, link] = min(depth, remembered.get((crawl, link), depth))
            assert known.contains(generation, key, depth)
        elif known.contains(generation, key, depth):
            assert remembered[crawl, link] <= depth


def test_known_links_tell_fingerprints_apart_to_the_last_bit() -> None:
    known = KnownLinks(1)
    generation = known.generation(CrawlId(1), Revision(1))
    known.remember(generation, [Fingerprint(bytes(16))], 0)
    assert known.contains(generation, Fingerprint(bytes(16)), 0)
    assert not known.contains(generation, Fingerprint(bytes(15) + b"\1"), 0)


def test_an_empty_cache_knows_nothing_not_even_zeros() -> None:
    known = KnownLinks(1)
    assert not known.contains(known.generation(CrawlId(1), Revision(1)), Fingerprint(bytes(16)), 0)


def test_numbering_the_revisions_anew_only_forgets() -> None:
    known = KnownLinks(1 << 10)
    key = fingerprint("http://h/")
    first = known.generation(CrawlId(1), Revision(1))
    known.remember(first, [key], 0)
    for number in range(5000):
        assert not known.contains(known.generation(CrawlId(2), Revision(number)), key, 0)
    assert not known.contains(known.generation(CrawlId(1), Revision(1)), key, 0)


def test_links_that_are_forgotten_are_reported_anew() -> None:
    known = KnownLinks(1 << 10)
    generation, key = known.generation(CrawlId(1), Revision(1)), fingerprint("http://h/")
    known.remember(generation, [key], 0)
    known.forget()
    assert not known.contains(generation, key, 0)
    known.remember(generation, [key], 0)
    assert known.contains(generation, key, 0)


def test_cache_of_links_takes_no_memory_before_it_is_used() -> None:
    slots = 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    known = KnownLinks(slots)
    known.forget()
    touched = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert touched * resource.getpagesize() < 24 * slots / 10


def test_slots_come_in_powers_of_two() -> None:
    for slots in (0, 3, -4):
        with pytest.raises(ValueError, match="power of two"):
            KnownLinks(slots)


REFERENCES = st.lists(
    st.text(alphabet="ab./?#:=%20 \té", max_size=8)
    | st.sampled_from(["//other.example/p", "http:x", "https://site.example/", "", "..", "?q"])
)


@given(REFERENCES, st.sampled_from(list(ScopeMode)))
def test_fresh_links_are_exactly_the_canonical_ones_that_scope_allows(references: list[str], mode: ScopeMode) -> None:
    scope = Scope(mode=mode, max_depth=2)
    outlinks = resolver(scope=scope).outlinks(PAGE, page_of(*references), depth=1)
    judge = CompiledScope(CrawlSpec(seeds=(Seed(url="http://site.example/"),), scope=scope)).judge
    expected = {
        location
        for reference in references
        if (url := canonicalize(reference, PAGE.url)) is not None
        and (location := at(url)) != PAGE
        and judge(url, location.host, depth=2, via_host=PAGE.host) is None
    }
    assert set(outlinks.fresh) == expected
    assert len(outlinks.fresh) == len(expected)
    assert adds_up(outlinks)


def test_links_on_a_base_beyond_the_length_limit_cost_no_memory() -> None:
    """45 KB of page came to 1 GB: 20,000 links on a base of 16 KB, all kept although none was in scope."""
    base = "http://site.example/" + "b" * 16_000 + "/"
    page = ParsedPage(base_href=base, anchors=tuple(f"x{n}" for n in range(20_000)))
    assert least_cpu_s(lambda: resolver().outlinks(PAGE, page, depth=1), enough=2.0) < 2.0
    tracemalloc.start()
    try:
        outlinks = resolver().outlinks(PAGE, page, depth=1)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert outlinks.excluded == {ExclusionReason.LENGTH: 20_000}
    assert adds_up(outlinks)
    assert outlinks.urls == ()


def test_a_long_base_still_resolves_what_does_not_stand_on_it() -> None:
    page = ParsedPage(
        base_href="/" + "b" * 5_000 + "/", anchors=("/a", "//site.example/b", "http://site.example/c", "d")
    )
    outlinks = resolver().outlinks(PAGE, page, depth=1)
    assert [url.rpartition("/")[2] for url in urls(outlinks)] == ["a", "b", "c"]
    assert outlinks.excluded == {ExclusionReason.LENGTH: 1}


def test_the_outlinks_record_is_bounded_and_counts_what_it_leaves_out() -> None:
    page = page_of(*(f"http://other.example/{n}/" + "p" * 1_500 for n in range(3_000)))
    outlinks = resolver().outlinks(PAGE, page, depth=1)
    assert sum(map(len, outlinks.urls)) <= MAX_OUTLINKS_BYTES
    assert len(outlinks.urls) + outlinks.urls_left_out == 3_000
    assert outlinks.urls_left_out > 0


def test_links_left_out_are_counted_by_reason_with_examples() -> None:
    scope = Scope(max_depth=1, exclude=("/private/",), schemes=(Scheme.HTTP,))
    parsed = ParsedPage(
        anchors=("/private/x", "//other.example/a", "//site.example:81/b", "https://site.example/c", "/" + "q" * 3_000),
        marked=(PageLink("/unfollowed", LinkKind.ANCHOR, True),),
        links_cut=7,
        cut_links=("/beyond",),
    )
    outlinks = resolver(scope=scope).outlinks(PAGE, parsed, depth=0)
    assert outlinks.left_out() == {
        "exclude_pattern": 1, "other_host": 1, "other_port": 1, "scheme": 1, "url_length": 1, "nofollow": 1,
        "max_links_per_page": 7,
    }  # fmt: skip
    assert outlinks.examples["other_port"] == ["http://site.example:81/b"]
    assert outlinks.examples["nofollow"] == ["http://site.example/unfollowed"]
    assert outlinks.examples["max_links_per_page"] == ["http://site.example/beyond"]
    assert len(outlinks.examples["url_length"][0]) == MAX_URL + len(CUT)
    assert adds_up(outlinks)
    assert resolver(scope=scope).outlinks(PAGE, page_of("x"), depth=1).left_out() == {"depth": 1}


def test_examples_of_a_page_and_of_a_crawl_are_bounded() -> None:
    links = resolver()
    hrefs = [f"//other.example/{n}" for n in range(50)]
    first = links.outlinks(PAGE, page_of(*hrefs), depth=0)
    assert first.examples == {"other_host": [f"http:{href}" for href in hrefs[:MAX_EXAMPLES]]}
    assert first.left_out() == {"other_host": 50}
    sent = len(first.examples["other_host"])
    for _ in range(20):
        sent += len(links.outlinks(PAGE, page_of(*hrefs), depth=0).examples.get("other_host", ()))
    assert sent == MAX_EXAMPLES_SENT
    assert links.example("other_host", "http://other.example/") == {}
