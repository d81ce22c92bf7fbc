"""What pages and stylesheets load, by CSS Syntax Level 3 and HTML. The cases are data (`cases/requisites.yaml`)."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cpu_time import least_cpu_s
from workers.parse.css import css_text, css_urls
from workers.parse.html import srcset_urls
from workers.parse.requisites import MAX_REQUISITE_BYTES, requisites_of

CASES: dict[str, list[dict[str, Any]]] = yaml.safe_load(
    (Path(__file__).parent / "cases" / "requisites.yaml").read_text()
)


@pytest.mark.parametrize("case", CASES["css"], ids=lambda case: case["name"])
def test_stylesheet_loads_these_urls(case: dict[str, Any]) -> None:
    assert list(css_urls(case["text"])) == case["urls"]


@pytest.mark.parametrize("case", CASES["srcset"], ids=lambda case: case["name"])
def test_srcset_has_these_candidates(case: dict[str, Any]) -> None:
    assert list(srcset_urls(case["text"])) == case["urls"]


@pytest.mark.parametrize("case", CASES["html"], ids=lambda case: case["name"])
def test_page_needs_these_requisites(case: dict[str, Any]) -> None:
    assert list(requisites_of(case["text"].encode(), "utf-8", xml=case.get("xml", False))) == case["urls"]


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        (b"\xef\xbb\xbfa\xc3\xa4", "text/css; charset=latin1", "a\xe4"),
        ("a\xe4".encode("utf-16-le"), "text/css; charset=utf-16", "a\xe4"),
        (b"a\xe4", "text/css; charset=iso-8859-1", "a\xe4"),
        (b'@charset "windows-1252";\x80', None, '@charset "windows-1252";\u20ac'),
        (b'@charset "utf-16";\xc3\xa4', None, '@charset "utf-16";\xe4'),
        (b"a\xc3\xa4\xff", "text/css", "a\xe4\ufffd"),
    ],
)
def test_stylesheet_is_decoded_by_the_standard(body: bytes, content_type: str | None, text: str) -> None:
    assert css_text(body, content_type) == text


@given(st.text(alphabet="url(\"')\\/*@import ;{}a\n<!->srcstyle="))
def test_any_text_is_read_without_an_error(text: str) -> None:
    list(css_urls(text))
    list(requisites_of(text.encode(), "utf-8"))
    list(requisites_of(b"<style>" + text.encode(), "utf-16"))


@pytest.mark.parametrize(
    "piece",
    ['"', "a ", "url(", "url(/*)", "url(\\", 'url("\n', "@import", "\\a ", "/*", "url(a'", "<img src=a ", "<p style='"],
)
def test_cost_grows_with_the_text_and_no_faster(piece: str) -> None:
    """Eight times the text must not cost 64 times as much."""

    def read(size: int) -> None:
        text = piece * (size // len(piece))
        list(css_urls(text))
        list(requisites_of(text.encode(), "utf-8"))

    once = least_cpu_s(lambda: read(1 << 15), enough=0)
    bound = 8 * 3 * once + 0.05
    assert least_cpu_s(lambda: read(1 << 18), enough=bound) < bound


def test_page_beyond_the_bound_is_not_searched() -> None:
    page = b"<img src=a>" + b" " * MAX_REQUISITE_BYTES + b"<img src=b>"
    assert list(requisites_of(page, "utf-8")) == ["a"]


def test_candidates_of_a_million_are_read_one_by_one() -> None:
    page = b"<img srcset='" + b"a 1x," * 1_000_000 + b"'>"
    assert list(islice(requisites_of(page[: MAX_REQUISITE_BYTES - 8] + b"'>", "utf-8"), 3)) == ["a"] * 3
