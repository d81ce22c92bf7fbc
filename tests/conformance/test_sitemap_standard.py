"""Sitemaps and feeds by their standards: every must holds, and 98 % of what real files have.

The cases are data, from the standards and from the forms of real files (`cases/sitemaps.yaml`, `cases/feeds.yaml`).
"""

import gzip
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domain.web.url import locate
from workers.discover.listing import MAX_ENTRIES, ListingReader
from workers.discover.xml_listing import MAX_XML_DEPTH, Listing

CASES = Path(__file__).parent / "cases"
FEED = "http://a.example/blog/feed"


def cases(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.safe_load((CASES / f"{name}.yaml").read_text())
    return loaded


def encoded(case: dict[str, Any]) -> bytes:
    body: bytes = case["body"].encode(case.get("encoding", "utf-8"))
    return gzip.compress(body) if case.get("coding") == "gzip" else body


def urls(reader: ListingReader) -> list[str]:
    located = [locate(entry.reference, entry.base) for batch in reader for entry in batch]
    return [location.url for location in located if location is not None]


def wrong(case: dict[str, Any]) -> str:
    """Return what is wrong with the reading of a case, empty if nothing is."""
    reader = ListingReader(FEED, encoded(case), case.get("type", "application/xml"), dates=True)
    lists = urls(reader)
    if lists != case["lists"]:
        return f"{case['section']}: {case['name']}: lists {lists}, not {case['lists']}; {reader.problem}"
    if (reader.form and reader.form.value) != case["form"] or bool(reader.problem) != case.get("problem", False):
        return f"{case['section']}: {case['name']}: is {reader.form} with the problem {reader.problem!r}"
    return ""


ALL = cases("sitemaps") + cases("feeds")


@pytest.mark.parametrize("case", [case for case in ALL if case.get("must")], ids=lambda case: str(case["name"]))
def test_listing_required_by_standard_is_read_as_it_says(case: dict[str, Any]) -> None:
    assert not wrong(case)


def test_listing_with_a_character_that_xml_lacks_is_read_to_its_end() -> None:
    lists = "<urlset><url><loc>http://a.example/1</loc></url><url><loc>{}</loc></url></urlset>"
    numbers = (*range(32), 0x7F, 0xD7FF, *range(0xD800, 0xE000, 0x100), 0xFFFD, 0xFFFE, 0xFFFF, 0x10FFFF, 0x110000)
    forms = [f"&#{number};" for number in numbers] + [f"&#x{number:x};" for number in numbers] + ["\ufffe", "\uffff"]
    for form in forms:
        reader = ListingReader(FEED, lists.format(f"http://a.example/{form}2").encode(), "text/xml")
        assert (len(urls(reader)), reader.problem) == (2, ""), form


def test_listings_of_real_sites_are_read_as_meant() -> None:
    real = [case for case in ALL if not case.get("must")]
    failed = list(filter(None, map(wrong, real)))
    assert len(failed) <= 0.02 * len(real), failed


@settings(max_examples=200)
@given(st.data())
def test_listing_damaged_at_random_is_read_without_error(data: st.DataObject) -> None:
    body = bytearray(encoded(data.draw(st.sampled_from(ALL))))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=20))
    reader = ListingReader(FEED, bytes(body), data.draw(st.sampled_from(["text/xml", "text/plain", None])), dates=True)
    assert sum(map(len, reader)) == reader.entries <= len(body)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><urlset>&b;</urlset>', "entity 'a'"),
        (b'<!DOCTYPE a [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]><urlset/>', "entity 'p'"),
        (b'<!DOCTYPE a [<!ENTITY x SYSTEM "http://127.0.0.1/">]><urlset><url><loc>&x;</loc></url></urlset>', "entity"),
        (b"<urlset>" + b"<a>" * (MAX_XML_DEPTH + 1), "nested more than"),
        (b"<urlset><!--" + b"-x" * (2 << 20), "more than 1 MiB"),
        (b"<urlset><a b='" + b"x" * (4 << 20), "more than 1 MiB"),
        (gzip.compress(b"<urlset>" + b" " * (60 << 20) + b"</urlset>"), "after 50 MiB"),
        (gzip.compress(b"<urlset/>" * 9)[:20], "ends early"),
        (b"\x1f\x8b\x08garbage", "gzip"),
        (b"\x89PNG\r\n\x1a\n\0\0", "binary"),
    ],
    ids=("bomb", "parameter", "external", "deep", "comment", "attribute", "gzip bomb", "cut gzip", "no gzip", "image"),
)
def test_hostile_listing_ends_with_a_reason_and_no_entry(body: bytes, problem: str) -> None:
    reader = ListingReader(FEED, body, "text/xml")
    assert not urls(reader)
    assert problem in reader.problem


def test_include_instruction_in_listing_loads_nothing() -> None:
    include = b'<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="file:///etc/passwd" parse="text"/>'
    body = b"<urlset><url><loc>" + include + b"</loc></url><url><loc>http://a.example/1</loc></url></urlset>"
    assert urls(ListingReader(FEED, body, "text/xml")) == ["http://a.example/1"]


def test_feed_of_a_million_entries_is_read_up_to_the_limit() -> None:
    body = b"<rss><channel>" + b"<item><link>http://a.example/</link></item>" * 1_000_000
    reader = ListingReader(FEED, gzip.compress(body, 1), "application/rss+xml")
    batches = iter(reader)
    sizes = [len(next(batches))]
    assert reader.form is Listing.RSS, "the form is known with the first entries"
    sizes += map(len, batches)
    assert sum(sizes) == reader.entries == MAX_ENTRIES
    assert max(sizes) < MAX_ENTRIES / 5
    assert str(MAX_ENTRIES) in reader.problem
