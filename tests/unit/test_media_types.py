"""The section `media`: which types of pages are stored and parsed, and how what is left out counts."""

from typing import Any

import msgspec
import pytest

from api.frontier.outcome_facts import fetch_row
from shared.domain.archive.model import Archived, RecordLocation
from shared.domain.crawl.media_spec import NOT_PARSED, Media
from shared.domain.crawl.spec import decode_spec, encode_spec
from shared.domain.crawl.spec_parse import SpecError, parse_spec
from shared.domain.explain.excluded_links import losses
from shared.domain.explain.losses import Losses
from shared.domain.explain.sentences import no_page
from shared.domain.frontier.states import UrlKind
from shared.domain.ids import CrawlId, Fingerprint, HostId
from shared.domain.web.fetch import Answer, Timings
from tests.unit.test_pages import HTML, PAGE, Crawl, found, reading
from workers.outcome import answered
from workers.page_reading import PageReading
from workers.visit_crawls import is_page, skips_body

SEEDS = {"seeds": ["http://a.test/"]}


@pytest.mark.parametrize(
    ("media", "path"),
    [
        ({"fetched": []}, "media.fetched"),
        ({"fetched": ["image"]}, "media.fetched[0]"),
        ({"fetched": ["text/html"] * 101}, "media.fetched"),
        ({"stored": []}, "media.stored"),
        ({"stored": ["text"]}, "media.stored[0]"),
        ({"stored": ["text/html", "Text/HTML"]}, "media.stored[1]"),
        ({"stored": ["text/html; charset=utf-8"]}, "media.stored[0]"),
        ({"parsed": ["*/html"]}, "media.parsed[0]"),
        ({"parsed": ["text/html"] * 101}, "media.parsed"),
        ({"kept": ["text/html"]}, "media.kept"),
    ],
)
def test_each_mistake_is_refused_with_its_place(media: object, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({**SEEDS, "media": media})
    assert [problem.path for problem in caught.value.problems] == [path]


def test_hint_names_the_canonical_form_of_a_type() -> None:
    with pytest.raises(SpecError, match="write text/html"):
        parse_spec({**SEEDS, "media": {"stored": ["Text/HTML; charset=utf-8"]}})


@pytest.mark.parametrize(
    ("types", "stored"),
    [
        (None, ["text/html", "image/png", ""]),
        (("image/*",), ["image/png"]),
        (("text/html",), ["text/html"]),
        (("*/*",), ["text/html", "image/png", ""]),
        (("application/pdf",), []),
    ],
)
def test_type_matches_itself_its_kind_and_everything(types: tuple[str, ...] | None, stored: list[str]) -> None:
    media = Media(fetched=types, stored=types, parsed=types)
    each = ["text/html", "image/png", ""]
    assert [of for of in each if media.stores(of)] == stored
    assert [of for of in each if media.parses(of)] == stored
    assert [of for of in each if media.fetches(of)] == stored


def crawl(**media: Any) -> Crawl:
    made = Crawl()
    made.spec = msgspec.structs.replace(made.spec, media=Media(**media))
    made.skips_body = skips_body(made.spec.media)
    assert decode_spec(encode_spec(made.spec)) == made.spec
    return made


def outcome_of(page: PageReading) -> Any:
    answer = Answer(PAGE, 200, (), b"", b"", HTML, HTML, "127.0.0.1", Timings())
    stored = None if page.unstored else Archived(RecordLocation("s", 0, 1), b"d" * 20)
    return answered(Fingerprint(bytes(16)), answer, page, stored, at_ms=1, retry_after_ms=-1)


def test_page_that_is_not_stored_gives_links_and_no_record() -> None:
    page = reading(crawl=crawl(stored=("application/pdf",)))
    assert page.unstored
    assert page.html is None
    assert found(page) == found(reading())
    outcome = outcome_of(page)
    assert (outcome.record, outcome.digest, outcome.not_indexed) == (None, b"", "media_type")
    row = fetch_row(CrawlId(1), HostId(1), Fingerprint(bytes(16)), outcome, page=False)
    assert (row.page, row.reason, row.segment) == (False, "media_type", None)
    assert ("not_indexed", "media_type", 1) in losses(row.page, row.truncated, row.left_out, row.reason)


def test_type_that_is_not_declared_is_that_of_the_content() -> None:
    undeclared = (("content-type", "unknown/unknown"),)
    assert not reading(HTML, *undeclared, crawl=crawl(stored=("text/html",))).unstored
    assert reading(HTML, *undeclared, crawl=crawl(stored=("image/*",))).unstored


def test_page_that_is_not_fetched_has_a_reason_and_nothing_else() -> None:
    page = reading(b"", crawl=crawl(fetched=("application/pdf",)))
    assert (page.unstored, page.mime, page.html, found(page)) == (True, "text/html", None, [])
    outcome = outcome_of(page)
    assert (outcome.record, outcome.digest, outcome.not_indexed) == (None, b"", "not_fetched")
    row = fetch_row(CrawlId(1), HostId(1), Fingerprint(bytes(16)), outcome, page=False)
    assert (row.page, row.reason, row.segment, row.links_found) == (False, "not_fetched", None, None)
    assert losses(row.page, row.truncated, row.left_out, row.reason) == [("not_indexed", "not_fetched", 1)]


@pytest.mark.parametrize(
    ("status", "content_type", "skipped"),
    [
        (200, "application/zip", True),
        (206, "Application/ZIP; charset=utf-8", True),
        (200, "text/html", False),
        (200, "image/png", False),
        (200, "text/html, application/zip", True),
        (200, None, False),
        (200, "", False),
        (200, "nonsense", False),
        (200, "unknown/unknown", False),
        (200, "*/*", False),
        (301, "application/zip", False),
        (404, "application/zip", False),
    ],
)
def test_only_a_declared_type_of_a_page_can_end_its_transfer(
    status: int, content_type: str | None, skipped: bool
) -> None:
    skips = skips_body(Media(fetched=("text/html", "image/*")))
    assert skips is not None
    assert skips(status, content_type) is skipped
    assert skips_body(Media(stored=("image/*",))) is None, "every type is fetched, so nothing is checked"


@pytest.mark.parametrize("kind", [UrlKind.REQUISITE, UrlKind.FEED, UrlKind.SITEMAP, UrlKind.HOST_SITEMAP])
def test_requisites_sitemaps_and_feeds_are_fetched_whatever_their_type(kind: UrlKind) -> None:
    assert not is_page(kind)
    assert is_page(UrlKind.PAGE)
    assert is_page(UrlKind.LISTED)


def test_page_that_is_not_parsed_is_stored_and_counts_as_not_read() -> None:
    page = reading(crawl=crawl(parsed=("application/xhtml+xml",)))
    assert (page.unstored, page.title, found(page), dict(page.left_out)) == (False, None, [], {NOT_PARSED: 1})
    outcome = outcome_of(page)
    assert outcome.record is not None
    row = fetch_row(CrawlId(1), HostId(1), Fingerprint(bytes(16)), outcome, page=True)
    assert (row.page, row.left_out) == (True, "not_parsed 1")


@pytest.mark.parametrize("status", [302, 404])
def test_answers_that_are_no_page_are_archived_whatever_their_type(status: int) -> None:
    assert not reading(status=status, crawl=crawl(stored=("image/*",))).unstored


def test_what_is_left_out_is_explained() -> None:
    spec = parse_spec(SEEDS)
    lost = Losses({NOT_PARSED: 2}, {}, {})
    assert lost.links(spec) == [
        "2 pages whose links were not read (media.parsed); a longer media.parsed in the spec follows them"
    ]
    assert lost.hide_urls()
    assert no_page({"status": {"200": 3}, "not_indexed": {"media_type": 3}}, {}) == (
        "media.stored of the spec leaves out its media type; add the type to media.stored."
    )
    assert no_page({"status": {"200": 3}, "not_indexed": {"media_type": 1, "not_fetched": 2}}, {}) == (
        "media.fetched of the spec leaves out its media type; add the type to media.fetched."
    )
