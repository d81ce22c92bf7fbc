"""The section `recrawl` of a spec: each mistake has its place. Long validators of sites are not stored."""

import pytest

from api.crawls.finished_check import spent_of
from shared.domain.archive.model import Archived, RecordLocation
from shared.domain.crawl.recrawl_rules import PageInterval, compiled
from shared.domain.crawl.recrawl_spec import Recrawl, RecrawlPolicy
from shared.domain.crawl.spec import decode_spec, encode_spec
from shared.domain.crawl.spec_parse import SpecError, parse_spec
from shared.domain.crawl.spec_rules import refused_pattern
from shared.domain.frontier.counters import Counters
from shared.domain.ids import Fingerprint
from shared.domain.web.fetch import Answer, Timings
from workers.outcome import answered
from workers.page_reading import PageReading

SEEDS = {"seeds": ["http://a.test/"]}


def problems(**recrawl: object) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        parse_spec({**SEEDS, "recrawl": recrawl})
    return {problem.path: str(problem) for problem in caught.value.problems}


def test_all_mistakes_of_the_section_are_reported_at_once() -> None:
    found = problems(
        policy="sometimes", min_s=0, max_s="x", requests_per_day=0, compare="pixels", keep_versions=0, share=2,
        minimum=1,
        by_pattern=[{"match": "(?=a)"}, {"max_s": 5}],
    )  # fmt: skip
    assert set(found) == {
        "recrawl.policy", "recrawl.min_s", "recrawl.max_s", "recrawl.requests_per_day", "recrawl.compare",
        "recrawl.keep_versions", "recrawl.share", "recrawl.minimum", "recrawl.by_pattern[0].match",
        "recrawl.by_pattern[1].match",
    }  # fmt: skip
    assert "fixed" in found["recrawl.policy"]
    assert "lookahead" in found["recrawl.by_pattern[0].match"]


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"policy": "fixed", "min_s": 10, "max_s": 5}, "recrawl.max_s"),
        ({"policy": "adaptive"}, "recrawl.requests_per_day"),
        ({"policy": "fixed", "requests_per_day": 5}, "recrawl.requests_per_day"),
        ({"policy": "fixed", "by_pattern": [{"match": "a", "max_s": 5}]}, "recrawl.by_pattern[0].max_s"),
        ({"by_pattern": [{"match": "a", "policy": "fixed"}]}, "recrawl.policy"),
    ],
)
def test_rules_between_fields_are_checked(section: dict[str, object], path: str) -> None:
    found = problems(**section)
    assert path in found
    assert "(" in found[path] or "min_s" in found[path] or "never" in found[path]


def test_spec_without_the_section_fetches_each_page_once_and_reads_back() -> None:
    spec = parse_spec(SEEDS)
    assert not spec.recrawl.used
    daily = parse_spec({**SEEDS, "recrawl": {"policy": "fixed", "by_pattern": [{"match": "news", "min_s": 60}]}})
    assert decode_spec(encode_spec(daily)) == daily
    rules = compiled(daily.recrawl)
    assert rules.of("http://a.test/news/1") == PageInterval(RecrawlPolicy.FIXED, 60_000, 2_592_000_000, 0)
    assert rules.of("http://a.test/") == PageInterval(RecrawlPolicy.FIXED, 86_400_000, 2_592_000_000)


def test_pattern_of_another_version_stops_dispatch_and_not_the_outcomes() -> None:
    spec = Recrawl(policy=RecrawlPolicy.FIXED)
    stored = decode_spec(
        encode_spec(parse_spec(SEEDS)).replace(b'"by_pattern":[]', b'"by_pattern":[{"match":"(?=a)"}]')
    )
    assert stored.recrawl.by_pattern
    assert "recrawl.by_pattern[0]" in (refused_pattern(stored.scope, stored.extract, stored.recrawl) or "")
    assert compiled(stored.recrawl).of("http://a.test/a").min_ms == int(spec.min_s * 1000)


def test_spent_page_budget_ends_only_a_crawl_that_fetches_each_page_once() -> None:
    spent = Counters(pages=5)
    budget = {"budget": {"max_pages": 5, "max_bytes": 1}}
    assert spent_of(parse_spec({**SEEDS, **budget}), spent) == "max_pages"
    assert spent_of(parse_spec({**SEEDS, **budget, "recrawl": {"policy": "fixed"}}), spent) is None


@pytest.mark.parametrize(("size", "stored"), [(100, True), (64 << 10, False)])
def test_long_validators_of_a_site_are_not_stored(size: int, stored: bool) -> None:
    etag = '"' + "e" * (size - 2) + '"'
    answer = Answer("http://a.test/", 200, (("etag", etag),), b"", b"", b"x", b"x", "127.0.0.1", Timings())
    place = Archived(RecordLocation("s", 0, 1), b"d" * 20)
    told = answered(Fingerprint(b"f" * 16), answer, PageReading("text/html"), place, at_ms=1, retry_after_ms=-1)
    assert told.etag == (etag if stored else None)
