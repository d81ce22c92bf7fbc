"""Links that lead out of the scope: how many hops beyond it they are, and what bounds them."""

from typing import Any

import pytest

from shared.domain.crawl.requisites_spec import Requisites
from shared.domain.crawl.scope import CompiledScope, ScopeRule
from shared.domain.crawl.scope_change import found_beyond, same_scope
from shared.domain.crawl.spec import CrawlSpec, Scope, ScopeMode, Seed
from shared.domain.crawl.spec_parse import SpecError, parse_spec
from shared.domain.frontier.states import (
    ALSO_PAGE,
    EXTRA_BITS,
    MAX_EXTRA_HOPS,
    UrlKind,
    extra_hops_of,
    kind_flags,
    kind_of,
    with_extra_hops,
)
from shared.domain.web.fetch import Answer, Timings
from shared.domain.web.url import host_of, locate
from tests.unit.test_requisites import Crawl
from workers.discoveries import batches_by_stream, links_of
from workers.page_reading import PageReading, read

A, B = "http://a.example/dir/", "http://b.example/"


def spec(extra_hops: int, **scope: Any) -> CrawlSpec:
    return CrawlSpec(seeds=(Seed(url=A),), scope=Scope(extra_hops=extra_hops, **scope))


def beyond(of: CrawlSpec, url: str, via: str, *, extra: int = 0, depth: int = 1, hops: int = 0) -> int | str:
    found = CompiledScope(of).hops_beyond(url, host_of(url), depth=depth, via_host=host_of(via), hops=hops, extra=extra)
    return found.name.value if isinstance(found, ScopeRule) else found


@pytest.mark.parametrize(
    ("limit", "url", "via", "extra", "expected"),
    [
        (1, A + "x", A, 0, 0),
        (1, B, A, 0, 1),
        (0, B, A, 0, "other_host"),
        (1, B + "x", B, 1, "other_host"),
        (2, B + "x", B, 1, 2),
        (3, "http://c.example/", B, 2, 3),
        (1, A + "x", B, 1, 0),
        (1, "http://a.example:81/", A, 0, "other_port"),
        (1, "ftp://b.example/", A, 0, "scheme"),
    ],
)
def test_link_out_of_scope_counts_its_hops(limit: int, url: str, via: str, extra: int, expected: int | str) -> None:
    assert beyond(spec(limit), url, via, extra=extra) == expected


@pytest.mark.parametrize(
    ("mode", "url", "extra", "expected"),
    [
        (ScopeMode.DOMAIN, "http://www.a.example/", 1, 0),
        (ScopeMode.DOMAIN, "http://www.b.example/", 1, 2),
        (ScopeMode.PREFIX, A + "x", 1, 0),
        (ScopeMode.PREFIX, "http://a.example/other", 1, 2),
        (ScopeMode.ANY, B + "x", 1, 0),
    ],
)
def test_page_beyond_the_scope_links_into_places_of_seeds(mode: ScopeMode, url: str, extra: int, expected: int) -> None:
    assert beyond(spec(2, mode=mode), url, B, extra=extra) == expected


def test_hops_pass_over_mode_and_include_and_no_other_rule() -> None:
    of = spec(1, include=("/docs/",), exclude=("secret",), max_depth=2)
    assert beyond(of, B, A) == 1
    assert beyond(of, A + "other", A) == 1
    assert beyond(of, A + "docs/x", A) == 0
    assert beyond(of, B + "secret", A) == "exclude_pattern"
    assert beyond(of, B + "a/a/a/a/a", A) == "trap"
    assert beyond(of, B, A, depth=3) == "depth"
    assert beyond(of, B, B, extra=1, depth=3) == "depth"


def test_redirect_is_a_hop_only_where_it_leaves_the_scope() -> None:
    assert beyond(spec(1), B, A, hops=1) == 1
    assert beyond(spec(1), "http://www.b.example/", B, extra=1, hops=1) == 1
    assert beyond(spec(1), A, B, extra=1, hops=1) == 0
    assert beyond(spec(1), B, B, extra=1, hops=11) == "redirects"


def test_number_of_hops_leaves_the_other_flags_alone() -> None:
    flags = kind_flags(UrlKind.FEED) | ALSO_PAGE | 31
    for extra in range(MAX_EXTRA_HOPS + 1):
        changed = with_extra_hops(with_extra_hops(flags, MAX_EXTRA_HOPS), extra)
        assert (extra_hops_of(changed), changed & ~EXTRA_BITS) == (extra, flags)
        assert kind_of(changed) is UrlKind.FEED
        assert changed < 1 << 15, "a column of 16 bits has it"


@pytest.mark.parametrize("wrong", [-1, MAX_EXTRA_HOPS + 1, "one"])
def test_number_outside_the_bounds_is_refused_with_its_path(wrong: object) -> None:
    with pytest.raises(SpecError) as refused:
        parse_spec({"seeds": [A], "scope": {"extra_hops": wrong}})
    assert [problem.path for problem in refused.value.problems] == ["scope.extra_hops"]


def found(of: CrawlSpec, url: str, via: str | None, flags: int, *, hops: int = 0) -> int | str:
    scope = CompiledScope(of)
    via_host = None if via is None else host_of(via)
    result = found_beyond(scope, url, host_of(url), depth=1, hops=hops, flags=flags, via_host=via_host)
    return result.name.value if isinstance(result, ScopeRule) else result


def test_changed_scope_counts_hops_of_found_urls_anew() -> None:
    one, two = with_extra_hops(0, 1), with_extra_hops(0, 2)
    assert found(spec(0, mode=ScopeMode.ANY), B, A, one) == 0
    assert found(spec(1), B, A, 0) == 1
    assert found(spec(0), B, A, one) == "other_host"
    assert found(spec(1), B + "x", B, two) == "other_host"
    assert found(spec(2), B + "x", B, two) == 2
    assert found(spec(1), B, None, 0) == 0, "a seed is in scope"
    assert found(spec(1), B, A, kind_flags(UrlKind.LISTED)) == "other_host", "only links of pages lead beyond"


def test_changed_scope_keeps_links_from_beyond_to_hosts_of_seeds() -> None:
    of = CrawlSpec(seeds=(Seed(url=A), Seed(url=B)), scope=Scope(extra_hops=1, max_depth=1))
    at_c = "http://c.example/"
    assert beyond(of, B + "x", at_c, extra=1) == 0, "the worker's verdict at the page on c"
    assert found(of, B + "x", at_c, 0) == 0
    assert found(of, "http://d.example/", at_c, 0) == 1
    assert found(of, B + "x", A, 0) == beyond(of, B + "x", A) == 1, "a page in scope"
    assert found(CrawlSpec(seeds=of.seeds, scope=Scope(extra_hops=1, exclude=("/x$",))), B + "x", at_c, 0) != 0


def test_changed_scope_keeps_redirects_of_listed_pages_to_beyond() -> None:
    listed = with_extra_hops(kind_flags(UrlKind.LISTED), 1)
    assert found(spec(1), B, A, listed, hops=1) == 1
    assert found(spec(0), B, A, listed, hops=1) == "other_host"


def test_scopes_with_hops_and_other_seeds_are_different_scopes() -> None:
    other = CrawlSpec(seeds=(Seed(url=B),), scope=Scope(extra_hops=1))
    assert not same_scope(spec(1), other)
    assert not same_scope(spec(1), spec(2))
    assert same_scope(spec(1), spec(1))
    assert same_scope(spec(0), CrawlSpec(seeds=(Seed(url=B),)))


def test_explanation_names_the_hops() -> None:
    scope = CompiledScope(spec(1))
    of = {each.rule.value: each for each in scope.explain(B, "b.example", depth=1, via_host="a.example")}
    assert (of["other_host"].allowed, of["other_host"].detail) == (
        True,
        "1 hop beyond the scope, limit 1 (scope.extra_hops)",
    )
    verdicts = scope.explain(B + "x", "b.example", depth=2, via_host="b.example", extra=1)
    refused = [each.detail for each in verdicts if not each.allowed]
    assert refused == ["2 hops beyond the scope, limit 1"]


HTML = b"<a href=/in>in</a><a href=http://b.example/out>out</a><a href=http://a.example:81/port>port</a>"


def reading(crawl: Crawl, url: str, extra: int, body: bytes = HTML) -> PageReading:
    page = locate(url)
    assert page is not None
    answer = Answer(url, 200, (("content-type", "text/html"),), b"", b"", body, body, "127.0.0.1", Timings())
    return read(crawl, page, 0, 0, answer, 0, UrlKind.PAGE, extra)  # type: ignore[arg-type]  # Crawl has what is read of it


def sent(crawl: Crawl, page: PageReading) -> list[tuple[str, int, int]]:
    at = locate(A)
    assert at is not None
    links = links_of(crawl, 1, at, page)  # type: ignore[arg-type]  # as above
    batches = batches_by_stream(links)
    return sorted(
        (link.url, link.depth, link.extra)
        for some in batches.values()
        for batch in some
        for origin in batch.origins
        for link in origin.links
    )


def test_worker_remembers_links_of_each_number_of_hops_apart() -> None:
    crawl = Crawl(Requisites.NONE, scope=Scope(extra_hops=2))
    first = reading(crawl, A, 0)
    assert sent(crawl, first) == [("http://a.example/in", 1, 0), ("http://b.example/out", 1, 1)]
    assert first.left_out == {"other_port": 1}
    assert first.links == 2
    assert first.outlinks is not None
    crawl.outlinks.acknowledged(first.outlinks)
    again = reading(crawl, A, 0)
    assert sent(crawl, again) == []
    assert again.links == 2
    elsewhere = reading(crawl, "http://b.example/", 1, b"<a href=out>out</a><a href=http://a.example/in>in</a>")
    assert sent(crawl, elsewhere) == [("http://b.example/out", 1, 2)], "what is known in scope is known"
    in_scope = reading(crawl, "http://b.example/", 0, b"<a href=out>out</a>")
    assert sent(crawl, in_scope) == [("http://b.example/out", 1, 0)], "never hidden by its hops from another page"


def test_crawl_without_the_field_reports_no_hops() -> None:
    crawl = Crawl(Requisites.NONE, scope=Scope())
    page = reading(crawl, A, 0)
    assert (sent(crawl, page), page.left_out) == ([("http://a.example/in", 1, 0)], {"other_host": 1, "other_port": 1})
