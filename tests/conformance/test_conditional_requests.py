"""Conditional requests against RFC 9110 and RFC 9111: cases as data, written from the standards.

Every case of a *must* holds, and 98 % of the others.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.web.validators import NotModified, conditions, http_date, imf_fixdate, is_etag, judged, same_etag

_DATA: Final = json.loads((Path(__file__).parent / "cases" / "conditional_requests.json").read_text("utf-8"))
NOW_S: Final = _DATA["now_s"]
CASES: Final[list[dict[str, Any]]] = _DATA["cases"]
PARTS: Final = {"etag", "strong", "weak", "date", "conditions", "judged"}
HEADER_CHARACTERS: Final = st.characters(max_codepoint=0xFF)


def text(given: Any) -> Any:
    """Return a value of a case. An object stands for a long text."""
    if isinstance(given, dict) and "times" in given:
        return given["before"] + given["fill"] * given["times"] + given["after"]
    return given


def outcome(case: dict[str, Any]) -> Any:
    """Return what the product says to a case, in the form of its `expected`."""
    given = case["given"]
    match case["part"]:
        case "etag":
            return is_etag(text(given))
        case "strong" | "weak":
            return same_etag(*given, strong=case["part"] == "strong")
        case "date":
            return http_date(text(given), NOW_S)
        case "conditions":
            etag, modified = map(text, given)
            return [list(header) for header in conditions(etag, modified, NOW_S)]
        case "judged":
            sent, received = given
            return judged(tuple((name, value) for name, value in sent), received, NOW_S).value
    raise AssertionError(f"no such part: {case['part']}")


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["level"] == "must"],
    ids=lambda case: f"{case['section']}-{case['part']}-{case['name']}".replace(" ", "_"),
)
def test_must_of_the_standards_holds(case: dict[str, Any]) -> None:
    assert outcome(case) == case["expected"]


def test_nearly_all_other_cases_hold() -> None:
    others = [case for case in CASES if case["level"] != "must"]
    failed = [f"{case['section']}: {case['name']}" for case in others if outcome(case) != case["expected"]]
    assert len(failed) <= 0.02 * len(others), failed


def test_cases_cover_every_part() -> None:
    assert {case["part"] for case in CASES} == PARTS
    assert {case["level"] for case in CASES} == {"must", "should", "may"}


@given(st.none() | st.text(HEADER_CHARACTERS), st.none() | st.text(HEADER_CHARACTERS))
def test_headers_from_any_validators_are_valid(etag: str | None, modified: str | None) -> None:
    for name, value in conditions(etag, modified, NOW_S):
        assert name in ("If-None-Match", "If-Modified-Since")
        assert not set(value) & set("\r\n\0")
        assert is_etag(value) or http_date(value, NOW_S) is not None


@given(st.integers(0, 253_402_300_799))
def test_dates_survive_the_format_that_is_sent(unix_s: int) -> None:
    assert http_date(imf_fixdate(unix_s), NOW_S) == unix_s


@given(st.text(HEADER_CHARACTERS), st.text(HEADER_CHARACTERS))
def test_any_response_304_gets_a_verdict(etag: str, modified: str) -> None:
    sent = conditions('"a"', "Sun, 06 Nov 1994 08:49:37 GMT", NOW_S)
    for asked in (sent, sent[:1], sent[1:], ()):
        verdict = judged(asked, {"etag": etag, "last-modified": modified}, NOW_S)
        assert (verdict is NotModified.UNASKED) == (not asked)
