"""The Link header leads to the next page and the one before, as RFC 8288 §3 reads it."""

import pytest

from tests.support.cpu_time import least_cpu_s
from workers.page_reading import field_links


@pytest.mark.parametrize(
    ("value", "targets"),
    [
        ('<http://example.com/TheBook/chapter2>; rel="prev"; title="previous chapter"', ["http://example.com/TheBook/chapter2"]),
        ('</>; rel="http://example.net/foo"', []),
        ('</terms>; rel="copyright"; anchor="#foo"', []),
        ("</2>; rel=next; anchor=\"/other\"", []),
        ("</1>; rel=prev, </3>; rel=next", ["/1", "/3"]),
        ("</TheBook/chapter2>; rel=\"previous prev\"; title*=UTF-8'de'letztes%20Kapitel", ["/TheBook/chapter2"]),
        ('<a,b>; title="x, <c>; rel=next"; rel="Next"', ["a,b"]),
        ('<a>; title="\\"; rel=next"', []),
        ("<a> ; REL = next ;x", ["a"]),
        ("<a>; rel=stylesheet; rel=next", []),
        ("<>; rel=next", [""]),
        ("<a>; rel=\"next", ["a"]),
        ("a; rel=next", []),
        ("<a>; rel=next, b, <c>; rel=next", ["a"]),
        ("<a", []),
        ("", []),
    ],
)  # fmt: skip
def test_link_field_names_the_pages_before_and_after(value: str, targets: list[str]) -> None:
    assert list(field_links(value)) == targets


def test_link_field_names_the_canonical_page() -> None:
    value = '</2>; rel=next, </a>; rel="alternate Canonical", </b>; rel=canonical'
    assert list(field_links(value, {"canonical"})) == ["/a", "/b"]


@pytest.mark.parametrize("value", ["<" * 200_000, "<>;" * 60_000, '<>;"' * 50_000, '<>;="\\' * 40_000, "<>," * 60_000])
def test_hostile_link_field_costs_a_bounded_time(value: str) -> None:
    assert list(field_links(value)) == []
    assert least_cpu_s(lambda: list(field_links(value)), enough=1.0) < 1.0
