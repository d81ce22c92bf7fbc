from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.crawl.scope import MAX_HOPS, CompiledScope, ExclusionReason, prefixes
from shared.domain.crawl.spec import Traps
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.crawl.traps import trap
from shared.domain.web.url import canonicalize, host_of

SEED = "http://example.org/docs/index.html"


def scope(**fields: Any) -> CompiledScope:
    return CompiledScope(parse_spec({"seeds": [SEED], "scope": fields}))


def verdict(compiled: CompiledScope, url: str, via: str | None = "example.org", **how: Any) -> ExclusionReason | None:
    rule = compiled.judge(url, host_of(url), via_host=via, **{"depth": 1, **how})
    return None if rule is None else rule.name


def test_mode_host_follows_links_within_the_host_of_the_page_only() -> None:
    compiled = scope()
    assert verdict(compiled, "http://example.org/other") is None
    assert verdict(compiled, "https://example.org/other") is None
    assert verdict(compiled, "http://www.example.org/") is ExclusionReason.HOST
    assert verdict(compiled, "http://example.org:8080/") is ExclusionReason.PORT


def test_pages_of_an_uploaded_seed_are_judged_by_their_own_host() -> None:
    assert verdict(scope(), "http://uploaded.example/b", via="uploaded.example") is None
    assert verdict(scope(), "http://uploaded.example/b", via="example.org") is ExclusionReason.HOST


def test_mode_domain_follows_links_within_the_registrable_domain() -> None:
    compiled = scope(mode="domain")
    assert verdict(compiled, "http://a.b.example.org/") is None
    assert verdict(compiled, "http://example.com/") is ExclusionReason.DOMAIN
    assert verdict(compiled, "http://b.github.io/", via="a.github.io") is ExclusionReason.DOMAIN


def test_mode_prefix_follows_links_below_the_seeds_directory() -> None:
    compiled = scope(mode="prefix")
    assert verdict(compiled, "http://example.org/docs/a/b") is None
    assert verdict(compiled, "https://example.org/docs/") is None
    assert verdict(compiled, "http://example.org/docs") is ExclusionReason.PREFIX
    assert verdict(compiled, "http://example.org/blog/") is ExclusionReason.PREFIX
    assert verdict(compiled, "http://other.example/docs/") is ExclusionReason.PREFIX


def test_prefix_of_a_seed_without_a_slash_is_the_seed_and_below() -> None:
    compiled = CompiledScope(parse_spec({"seeds": ["http://example.org/docs"], "scope": {"mode": "prefix"}}))
    for path in ("/docs", "/docs?page=2", "/docs/", "/docs/a", "/docs/a/b?x=1"):
        assert verdict(compiled, f"http://example.org{path}") is None, path
    for path in ("/", "/docsx", "/docs.html", "/doc", "/blog/docs/"):
        assert verdict(compiled, f"http://example.org{path}") is ExclusionReason.PREFIX, path
    assert prefixes(parse_spec({"seeds": ["http://a.example/v1.2", "http://a.example/x/index.html?a=b"]})) == {
        "a.example": ("/v1.2/", "/v1.2?", "/x/")
    }


def test_mode_prefix_goes_on_where_a_seed_was_redirected_to() -> None:
    compiled = scope(mode="prefix")
    moved = "http://www.example.org/docs/"
    assert verdict(compiled, moved, depth=0, via_seed_redirect=True, hops=1) is None
    assert verdict(compiled, moved + "a", via="www.example.org") is None
    assert verdict(compiled, "http://www.example.org/blog/", via="www.example.org") is ExclusionReason.PREFIX


def test_each_seeds_prefix_holds_for_its_own_host() -> None:
    spec = parse_spec({"seeds": ["http://a.example/x/", "http://b.example/y/"], "scope": {"mode": "prefix"}})
    compiled = CompiledScope(spec)
    assert verdict(compiled, "http://b.example/y/1", via="a.example") is None
    assert verdict(compiled, "http://a.example/y/1", via="a.example") is ExclusionReason.PREFIX


def test_mode_any_follows_every_link() -> None:
    assert verdict(scope(mode="any"), "http://elsewhere.example/") is None


def test_seeds_are_in_scope_unless_scheme_length_or_exclude_refuse() -> None:
    compiled = scope(include=["/docs/"], exclude=[r"\.zip$"], max_url_length=100, schemes=["http"], max_depth=0)
    assert verdict(compiled, "http://uploaded.example/a/a/a/a/a/a", via=None, depth=0) is None
    assert verdict(compiled, "http://uploaded.example/a.zip", via=None, depth=0) is ExclusionReason.EXCLUDE
    assert verdict(compiled, "https://uploaded.example/", via=None, depth=0) is ExclusionReason.SCHEME
    assert verdict(compiled, "http://uploaded.example/" + "a" * 99, via=None, depth=0) is ExclusionReason.LENGTH


def test_only_seed_may_redirect_within_registrable_domain() -> None:
    compiled = scope(include=["/never/"])
    there = "https://www.example.org/"
    assert verdict(compiled, there, depth=0, via_seed_redirect=True, hops=1) is None
    assert verdict(scope(), there, depth=1, hops=1) is ExclusionReason.HOST
    assert verdict(compiled, "http://example.com/", depth=0, via_seed_redirect=True, hops=1) is ExclusionReason.HOST


def test_limits_hold_at_their_exact_value() -> None:
    compiled = scope(max_depth=2, max_url_length=40)
    assert verdict(compiled, "http://example.org/", depth=2) is None
    assert verdict(compiled, "http://example.org/", depth=3) is ExclusionReason.DEPTH
    assert verdict(compiled, "http://example.org/".ljust(40, "a")) is None
    assert verdict(compiled, "http://example.org/".ljust(41, "a")) is ExclusionReason.LENGTH
    assert verdict(compiled, "http://example.org/", hops=MAX_HOPS) is None
    assert verdict(compiled, "http://example.org/", hops=MAX_HOPS + 1) is ExclusionReason.HOPS


def test_exclude_wins_over_include() -> None:
    compiled = scope(include=["/a/", "/b/"], exclude=["secret"])
    assert verdict(compiled, "http://example.org/b/x") is None
    assert verdict(compiled, "http://example.org/c/x") is ExclusionReason.INCLUDE
    assert verdict(compiled, "http://example.org/a/secret") is ExclusionReason.EXCLUDE


URLS = st.builds(
    lambda host, path: canonicalize(f"http://{host}/{path}") or "http://example.org/",
    st.sampled_from(["example.org", "www.example.org", "example.com", "127.0.0.1:81"]),
    st.text("ab/?=&", max_size=40),
)


@given(
    url=URLS,
    mode=st.sampled_from(["host", "domain", "prefix", "any"]),
    depth=st.integers(0, 4),
    hops=st.integers(0, 12),
    via=st.none() | st.sampled_from(["example.org", "www.example.org"]),
    redirect=st.booleans(),
)
def test_explanation_and_judgement_agree(
    url: str, mode: str, depth: int, hops: int, via: str | None, redirect: bool
) -> None:
    compiled = scope(mode=mode, max_depth=2, max_url_length=50, include=["a"], exclude=["bb"])
    how: dict[str, Any] = {"depth": depth, "via_host": via, "via_seed_redirect": redirect, "hops": hops}
    rule = compiled.judge(url, host_of(url), **how)
    refusals = [verdict for verdict in compiled.explain(url, host_of(url), **how) if not verdict.allowed]
    if rule is None:
        assert refusals == []
    else:
        assert (refusals[0].rule, refusals[0].detail) == (rule.name, refusals[0].detail)
        assert rule.detail


@pytest.mark.parametrize(
    "url",
    [
        # relative links without a leading slash, resolved ever deeper
        "http://example.org/news/news/news/news/",
        "http://example.org/en/about/en/about/en/about/en/about/contact",
        "http://example.org/css/images/css/images/css/images/a/b/c/d/e",
        "http://example.org/a/b/c/d/a/b/c/d/a/b/c/index.html",
        "http://shop.example/catalog/catalog/product/catalog/product/catalog/x.html",
        "http://example.org//////page",
        "http://cal.example/2024/05/./05/05/05/",
        # parameters appended to themselves
        "http://example.org/list?lang=en&lang=en&lang=en",
        "http://example.org/?page=1&sort=asc&page=1&sort=asc&page=1",
        "http://forum.example/t?x=1&x=1&x=1&x=1#a",
    ],
)
def test_known_traps_are_seen(url: str) -> None:
    canonical = canonicalize(url)
    assert canonical is not None
    assert trap(canonical, Traps()) is not None
    assert trap(canonical, Traps(max_segment_repeats=None, max_parameter_repeats=None, cycles=False)) is None


@pytest.mark.parametrize(
    "url",
    [
        "https://docs.python.org/3/library/asyncio-task.html",
        "https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/concurrent/atomic/AtomicLong.html",
        "https://github.com/apache/spark/blob/master/core/src/main/scala/org/apache/spark/rdd/RDD.scala",
        "https://repo1.maven.org/maven2/org/apache/maven/maven/3.9.0/maven-3.9.0.pom",
        "https://repo1.maven.org/maven2/commons-io/commons-io/2.11.0/commons-io-2.11.0.jar",
        "https://example.org/2011/11/11/11-things",
        "https://example.org/2001/01/01/",
        "https://web.archive.org/web/20200101000000/https://example.org/a/b/c/",
        "https://example.org/a/a/a/",
        "https://svn.example.org/repos/test/trunk/test/unit/test/data/a/b/c/d/",
        "https://shop.example/search?size=1&size=2&size=3&color=red&color=blue",
        "https://shop.example/?filter[]=a&filter[]=b&filter[]=a",
        "https://example.org/?a&b&c&&&&",
        "https://example.org/wiki/Sub/Page/Of/A/Page/With/Many/Other/Parts/And/More",
        "https://example.org/maps/10/5/10/5/tile.png",
        "https://example.org/",
        "https://example.org/?q=1/1/1/1/1/1/1/1/1/1/1",
    ],
)
def test_ordinary_urls_are_no_traps(url: str) -> None:
    canonical = canonicalize(url)
    assert canonical is not None
    assert trap(canonical, Traps()) is None


@given(st.lists(st.sampled_from("abc"), max_size=14))
def test_segment_counts_hold_exactly(segments: list[str]) -> None:
    url = "http://example.org/" + "/".join(segments)
    max_count = max((segments.count(s) for s in segments), default=0)
    cycles = len(segments) >= 10 and sum(segments.count(s) >= 3 for s in set(segments)) >= 2
    assert (trap(url, Traps(cycles=False)) is not None) == (max_count > 3)
    assert (trap(url, Traps(max_segment_repeats=None)) is not None) == cycles


def test_large_patterns_make_judging_count_as_more_work() -> None:
    assert scope().weight == 1
    assert scope(exclude=["(?:[a-z]{40}x){20}"]).weight > 4
