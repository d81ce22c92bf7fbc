"""Queries of the CDX server select and order captures as pywb's does."""

from typing import Any

import pytest

from shared.domain.archive.cdx_query import CdxMatch, CdxQuery, CdxSort, cdx_query
from shared.domain.archive.cdxj import IndexRow, surt, timestamp14
from shared.domain.archive.model import RecordLocation

DAY_MS = 86_400_000
START_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""


def row(url: str, day: int = 0) -> IndexRow:
    at_ms = START_MS + day * DAY_MS
    return IndexRow(surt(url), at_ms, url, "text/html", 200, bytes(20), RecordLocation("1-a.warc.gz", day, 10))


def query(url: str, match: CdxMatch | None = None, **more: Any) -> CdxQuery:
    found = cdx_query(url, match)
    assert found is not None
    return CdxQuery(*found, **more)


ROWS = [
    row("https://a.test/"),
    row("http://www.a.test/docs/1"),
    row("http://a.test/docs/2"),
    row("http://a.test/docsy"),
    row("http://b.a.test/docs/1"),
    row("http://a.test:8080/docs/1"),
    row("http://aa.test/"),
]


@pytest.mark.parametrize(
    ("url", "match", "found"),
    [
        ("http://a.test/", None, [0]),
        ("a.test", None, [0]),
        ("https://a.test/docs/1", None, [1]),
        ("http://a.test/docs/", CdxMatch.PREFIX, [1, 2]),
        ("http://a.test/docs*", None, [1, 2, 3]),
        ("http://a.test/docs/1", CdxMatch.HOST, [0, 1, 2, 3]),
        ("*.a.test", None, [0, 1, 2, 3, 4, 5]),
        ("http://a.test:8080/", CdxMatch.HOST, [5]),
        ("http://none.test/", None, []),
    ],
)
def test_captures_match_by_the_sort_key_of_their_url(url: str, match: CdxMatch | None, found: list[int]) -> None:
    selected = query(url, match).selected(ROWS)
    assert sorted(each.url for each in selected) == sorted(ROWS[at].url for at in found)
    assert [each.surt for each in selected] == sorted(each.surt for each in selected)


@pytest.mark.parametrize(
    ("more", "days"),
    [
        ({}, [0, 1, 2, 31, 365]),
        ({"max_count": 2}, [0, 1]),
        ({"since": "20260102"}, [1, 2, 31, 365]),
        ({"until": "202601"}, [0, 1, 2]),
        ({"since": "2026", "until": "2026"}, [0, 1, 2, 31]),
        ({"sort": CdxSort.REVERSE, "max_count": 1}, [365]),
        ({"closest": "20260103", "sort": CdxSort.CLOSEST, "max_count": 3}, [2, 1, 0]),
        ({"closest": "2027"}, [365, 31, 2, 1, 0]),
        ({"closest": "20269999"}, [0, 1, 2, 31, 365]),
        ({"closest": "0"}, [0, 1, 2, 31, 365]),
    ],
)
def test_captures_are_selected_and_ordered_by_time(more: dict[str, Any], days: list[int]) -> None:
    rows = [row("http://a.test/", day) for day in (31, 0, 365, 2, 1)]
    selected = query("http://a.test/", **more).selected(rows)
    assert [(each.fetched_at_ms - START_MS) // DAY_MS for each in selected] == days
    assert all(len(timestamp14(each.fetched_at_ms)) == 14 for each in selected)


@pytest.mark.parametrize("url", ["ftp://a.test/", "http://", "", "*", "http://me@a.test/"])
def test_query_for_no_url_is_none(url: str) -> None:
    assert cdx_query(url, None) is None


def test_exact_query_looks_up_a_bounded_number_of_urls() -> None:
    locations = query("http://www.a.test/x?y=1").locations()
    assert sorted(each.url for each in locations) == [
        "http://a.test/x?y=1",
        "http://www.a.test/x?y=1",
        "https://a.test/x?y=1",
        "https://www.a.test/x?y=1",
    ]
    assert query("http://[::1]:80/").locations()
