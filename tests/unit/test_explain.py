"""Every reason has a meaning, and a crawl without a page says what is the matter."""

import pytest

from shared.domain.crawl.scope import ExclusionReason
from shared.domain.explain.sentences import counted, meaning, no_page
from shared.domain.frontier.commands import SEED_DELETED, SEED_WITHDRAWN
from shared.domain.frontier.failure import HOST_UNREACHABLE
from shared.domain.web.fetch import FailureKind


@pytest.mark.parametrize(
    "reason", [*FailureKind, *ExclusionReason, HOST_UNREACHABLE, "poison", SEED_DELETED, SEED_WITHDRAWN]
)
def test_every_reason_that_is_ever_stored_has_a_meaning_of_its_own(reason: str) -> None:
    found = meaning(reason)
    assert found.text
    assert found.text != reason.replace("_", " ")
    assert len(found.short) <= 20


def test_reasons_made_of_parts_are_understood() -> None:
    assert meaning("http_404").text == "the server answered with status 404"
    assert meaning("robots_dns").text.startswith("its robots.txt could not be read: the host's name")
    assert meaning("robots_http_500").short == "robots.txt HTTP 500"
    assert meaning("never_heard_of").text == "never heard of"


@pytest.mark.parametrize(
    ("tallies", "failures", "said"),
    [
        ({"failed": {"egress_denied": 3}, "excluded": {"robots": 1}}, {}, "--allow-net"),
        ({"excluded": {"robots": 2}}, {}, "robots.txt forbids it"),
        ({"failed": {HOST_UNREACHABLE: 9, "http_404": 1}}, {"dns": 1}, "could not be resolved"),
        ({"failed": {HOST_UNREACHABLE: 9}}, {}, "given up"),
        ({"status": {"301": 2}}, {}, "status 301"),
        ({"status": {"304": 1}}, {}, "status 304"),
        ({}, {}, "no URL could be fetched"),
    ],
)
def test_a_crawl_without_a_page_says_why(
    tallies: dict[str, dict[str, int]], failures: dict[str, int], said: str
) -> None:
    assert said in no_page(tallies, failures)


def test_one_of_a_thing_is_not_several() -> None:
    assert [counted(n, "failure") for n in (0, 1, 2)] == ["0 failures", "1 failure", "2 failures"]
