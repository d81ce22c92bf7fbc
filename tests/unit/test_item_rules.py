"""Rules of items: refused with the place of what is wrong, kept as declared, and what they make of a page."""

import json
from typing import Any

import pytest

from shared.domain.crawl.item_rules import item_id
from shared.domain.crawl.spec import decode_spec, encode_spec
from shared.domain.crawl.spec_parse import SpecError, parse_spec
from shared.domain.ids import CrawlId, Fingerprint
from tests.support.cpu_time import least_cpu_s
from workers.extract.rules import Extraction, ExtractionInput, extract
from workers.extract.xhtml import as_html

PAGE = b"""<html><head><title>Bolts</title><meta property="og:title" content="Bolts &amp; nuts">
<meta name=price content=3>
<script type="application/ld+json">{"@graph": [{"@type": ["Product", "Thing"], "name": "Bolt", "offers": [
 {"@type": "Offer", "price": 3.5}, {"price": "4"}], "brand": {"name": "B"}, "big": 123456789012345678901234567890,
 "nan": NaN, "half": "\\ud800"}]}</script><script type="application/ld+json">{not json</script></head><body>
<div class=card data-sku=1><h2> M8  <b>steel</b>
</h2><a href="../x?y=1">more</a><i class=price>EUR 12.50</i></div>
<div class=card data-sku=2><h2>M9</h2></div><div class=card data-sku=2><h2>M10</h2></div><div class=card></div>
</body></html>"""


def taken(
    *rules: dict[str, Any],
    body: bytes = PAGE,
    url: str = "https://a.test/p/q/",
    charset: str = "utf-8",
    xml: bool = False,
    **limits: int,
) -> Extraction:
    spec = parse_spec({"seeds": ["https://a.test/"], "extract": {"items": list(rules), **limits}})
    page = ExtractionInput(7, bytes(16), url, charset, body, xml)
    return extract(page, spec.extract.items, spec.extract.item_limits())


HEAD: dict[str, Any] = {"name": "head", "fields": {"title": {"css": "head > title"}}}


def data(extraction: Extraction) -> list[Any]:
    return [json.loads(item.data) for item in extraction.items]


def test_fields_of_each_element() -> None:
    found = taken(
        {
            "name": "card",
            "each": "div.card",
            "fields": {
                "sku": {"css": "div", "take": "attr:data-sku"},
                "title": {"css": "h2"},
                "html": {"css": "h2", "take": "html"},
                "more": {"css": "a", "take": "link"},
                "price": {"css": ".price", "match": r"([0-9]+)\.([0-9]+)"},
            },
        }
    )
    assert data(found) == [
        {"sku": "1", "title": "M8 steel", "html": "<h2> M8  <b>steel</b>\n</h2>", "more": "https://a.test/p/x?y=1",
         "price": "12"},
        {"sku": "2", "title": "M9", "html": "<h2>M9</h2>", "more": None, "price": None},
        {"sku": "2", "title": "M10", "html": "<h2>M10</h2>", "more": None, "price": None},
    ]  # fmt: skip
    assert len({item.id for item in found.items}) == 3
    assert found.refused == {}, "an element without any value is no item, and nothing that was missed"


def test_element_that_several_alternatives_match_counts_once() -> None:
    body = b"<ul><li class=item>a<li>b</ul><h1 class=title>c</h1><p class=item>d<li>e</p>"
    each = {"name": "each", "each": ".item, li", "fields": {"text": {"css": "li, .item"}}}
    page = {"name": "page", "fields": {"all": {"css": "h1, .title, .item, li", "all": True}}}
    found = taken(each, page, body=body)
    assert data(found) == [*({"text": text} for text in "abde"), {"all": list("abcde")}], "in the document's order"
    assert found.refused == {}


def test_fields_of_json_ld_and_of_the_page() -> None:
    found = taken(
        {
            "name": "product",
            "json_ld": "Product",
            "fields": {
                "name": {"path": "name"},
                "prices": {"path": "offers.price", "all": True},
                "price": {"path": "offers.price", "match": "[0-9]+"},
                "brand": {"path": "brand"},
                "big": {"path": "big"},
                "nan": {"path": "nan"},
                "half": {"path": "half"},
                "none": {"path": "offers.name.x"},
                "og": {"meta": "og:title"},
                "meta": {"meta": "price"},
                "first": {"css": "h2"},
            },
        },
        {"name": "offer", "json_ld": "Offer", "fields": {"price": {"path": "price"}}},
    )
    assert data(found) == [
        {"name": "Bolt", "prices": [3.5, "4"], "price": "3", "brand": "B", "big": "123456789012345678901234567890",
         "nan": None, "half": "?", "none": None, "og": "Bolts & nuts", "meta": "3", "first": "M8 steel"},
        {"price": 3.5},
    ]  # fmt: skip


_WRITTEN = (
    "Product",
    "schema:Product",
    "https://schema.org/Product",
    "http://schema.org/Product/",
    "https://a.test/v#Product",
)


@pytest.mark.parametrize("declared", _WRITTEN)
def test_json_ld_type_is_found_however_its_vocabulary_is_written(declared: str) -> None:
    rule = {"name": "p", "json_ld": declared, "fields": {"type": {"path": "@type"}}}
    types = [*_WRITTEN, "SomeProduct", "Product/x", "schema:Offer"]
    body = f'<script type="application/ld+json">{json.dumps([{"@type": each} for each in types])}</script>'.encode()
    assert data(taken(rule, body=body)) == [{"type": each} for each in _WRITTEN]


@pytest.mark.parametrize("charset", ["utf-8", "utf-16-le", "utf-16-be"])
def test_page_with_a_byte_order_mark_has_its_title_in_its_head(charset: str) -> None:
    body = "\ufeff<!doctype html><html><head><title>Bolts</title></head></html>".encode(charset)
    assert data(taken(HEAD, body=body, charset=charset)) == [{"title": "Bolts"}]


def test_xhtml_page_with_empty_elements_has_the_tree_that_it_means() -> None:
    body = b"""<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title>Bolts</title>
<script src="x.js"/><!-- <script/> --><script>//<![CDATA[
"<i/>"//]]></script></head><body><h2 title="a > b"><a id='x/'/>M8<br/>steel</h2><i title="<i/>"/>
<p><svg><path d="M1"/></svg><![CDATA[ <b/> ]]>end</p></body></html>"""
    rule = {
        "name": "page",
        "fields": {
            "title": {"css": "h2"},
            "within": {"css": "h2 > br", "take": "html", "all": True},
            "anchor": {"css": "a", "take": "html"},
            "italic": {"css": "i", "take": "html"},
            "last": {"css": "body > p", "take": "html"},
            "script": {"css": "script:not([src])"},
        },
    }
    assert data(taken(rule, body=body, xml=True)) == [
        {"title": "M8steel", "within": ["<br>"], "anchor": '<a id="x/"></a>', "italic": '<i title="&lt;i/&gt;"></i>',
         "last": '<p><svg><path d="M1"></path></svg> &lt;b/&gt; end</p>', "script": '//<![CDATA[ "<i/>"//]]>'}
    ]  # fmt: skip
    assert data(taken(rule, body=body))[0]["anchor"] == '<a id="x/">M8<br>steel</a>', "HTML has no empty anchor"


def test_html_that_is_sent_as_xhtml_keeps_its_text() -> None:
    rule = {"name": "page", "fields": {"link": {"css": "a"}, "title": {"css": "h1"}}}
    body = b"<a href=/x/>text</a><img alt=/><![CDATA[ > <h1>H</h1>"
    assert data(taken(rule, body=body, xml=True)) == [{"link": "text", "title": "H"}]


@pytest.mark.parametrize(
    "piece", ["<a ", "<a '", "<!--", "<![CDATA[", "<?", "<a b='\"", "<a/", "<", "<script>", "<script "]
)
def test_xhtml_of_broken_markup_is_prepared_in_linear_time(piece: str) -> None:
    once = least_cpu_s(lambda: as_html(piece * (1 << 12)), enough=0)
    bound = 8 * 3 * once + 0.05
    assert least_cpu_s(lambda: as_html(piece * (1 << 15)), enough=bound) < bound


def test_an_item_keeps_its_id_by_its_key_and_else_by_its_place() -> None:
    keyed = {"name": "card", "each": "div.card", "key": "sku"}
    fields = {"sku": {"css": "div", "take": "attr:data-sku"}, "title": {"css": "h2"}}
    found = taken({**keyed, "fields": fields})
    assert [item["sku"] for item in data(found)] == ["1", "2"]
    assert found.refused == {"repeated": 1, "incomplete": 1}
    turned = taken({**keyed, "fields": fields}, body=b"<div class=card data-sku=2><h2>New</h2></div>")
    assert turned.items[0].id == found.items[1].id
    assert turned.items[0].data != found.items[1].data
    by_place = taken({"name": "card", "each": "div.card", "fields": fields})
    assert by_place.items[0].id == item_id(CrawlId(7), "card", Fingerprint(bytes(16)), "0")
    ids = {item_id(CrawlId(crawl), rule, Fingerprint(page), key) for crawl in (1, 2) for rule in ("a", "ab")
           for page in (bytes(16), b"b" * 16) for key in ("", "b")}  # fmt: skip
    assert len(ids) == 16


def test_what_lacks_a_required_field_is_no_item() -> None:
    fields = {"title": {"css": "h2"}, "price": {"css": ".price", "required": True}}
    found = taken({"name": "card", "each": "div.card", "fields": fields})
    assert [item["title"] for item in data(found)] == ["M8 steel"]
    assert found.refused == {"incomplete": 3}


def test_a_page_gives_no_more_than_its_limits() -> None:
    body = b"".join(b"<p>%03d %s</p>" % (n, b"x" * 90) for n in range(40)) + b"<h1>%s</h1>" % (b"y" * 500)
    rule = {"name": "p", "each": "p", "fields": {"text": {"css": "p"}}}
    assert len(taken(rule, body=body).items) == 40
    few = taken(rule, body=body, max_items_per_page=10)
    assert ([item["text"][:3] for item in data(few)], few.refused) == ([f"{n:03}" for n in range(10)], {"too_many": 1})
    small = taken(rule, body=body, max_item_bytes=100, max_page_bytes=1024)
    assert (small.items, small.refused) == ([], {"too_large": 40})
    full = taken(rule, body=body, max_item_bytes=1024, max_page_bytes=1024)
    assert (len(full.items), full.refused) == (9, {"too_many": 31})


def test_text_that_no_database_takes_is_replaced() -> None:
    found = taken({"name": "p", "fields": {"text": {"css": "p"}, "a": {"css": "p", "take": "attr:a"}}},
                  body="<p a='&#0;x'>\ufeff a&#xD800;\u00a0 b</p>".encode())  # fmt: skip
    ((item,),) = [data(found)]
    assert "\0" not in item["a"]
    assert item["text"].endswith("b")


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "-Infinity"])
def test_number_that_json_cannot_have_counts_as_absent(number: str) -> None:
    body = f'<script type="application/ld+json">{{"@type": "P", "a": {number}, "b": 1e9}}</script>'.encode()
    fields = {"a": {"path": "a"}, "b": {"path": "b"}}
    assert data(taken({"name": "p", "json_ld": "P", "fields": fields}, body=body)) == [{"a": None, "b": 1e9}]
    required = {**fields, "a": {"path": "a", "required": True}}
    for rule in ({"fields": required}, {"fields": fields, "key": "a"}):
        assert taken({"name": "p", "json_ld": "P", **rule}, body=body).refused == {"incomplete": 1}


def test_json_ld_without_end_is_passed_over() -> None:
    deep = b"[" * 100_000
    nested = b'{"@type": "P", "a": ' + b"[" * 900 + b"1" + b"]" * 900 + b"}"
    wide = b'{"@type": "P", "a": [' + b",".join([b'{"@type": "Q", "b": 1}'] * 12_000) + b"]}"
    body = b"".join(b'<script type="application/ld+json">' + each + b"</script>" for each in (deep, nested, wide))
    found = taken({"name": "p", "json_ld": "P", "fields": {"a": {"path": "a"}}}, body=body)
    assert data(found)[:1] in ([{"a": 1}], []), "deep lists are read as far as they can be, or not at all"


@pytest.mark.parametrize(
    ("rule", "place", "said"),
    [
        ({"fields": {"t": {"css": "h1["}}}, "fields.t.css", "is no CSS selector"),
        ({"fields": {"t": {"css": "a:hover"}}}, "fields.t.css", "unknown pseudo-class ':hover'"),
        ({"each": "b c >", "fields": {"t": {"css": "a"}}}, "each", "ends too early"),
        ({"fields": {"t": {}}}, "fields.t", "has no source for its value"),
        ({"fields": {"t": {"css": "a", "meta": "b"}}}, "fields.t", "css and meta are all set"),
        ({"fields": {"t": {"csss": "a"}}}, "fields.t.csss", "unknown field"),
        ({"fields": {"t": {"css": "a", "take": "value"}}}, "fields.t.take", "expected text"),
        ({"fields": {"t": {"meta": "a", "take": "html"}}}, "fields.t.take", "so it needs css"),
        ({"fields": {"t": {"path": "a"}}}, "fields.t.path", "the rule has no json_ld"),
        ({"json_ld": "P", "fields": {"t": {"path": "a..b"}}}, "fields.t.path", "has an empty key"),
        ({"json_ld": "P", "each": "a", "fields": {"t": {"path": "a"}}}, "json_ld", "cannot be combined with each"),
        ({"key": "u", "fields": {"t": {"css": "a"}}}, "key", "'u' is not a field of the rule"),
        ({"key": "t", "fields": {"t": {"css": "a", "all": True}}}, "fields.t.all", "cannot be true for"),
        ({"when": "(a+", "fields": {"t": {"css": "a"}}}, "when", "is not a regular expression"),
        ({"fields": {"t": {"css": "a", "match": "("}}}, "fields.t.match", "is not a regular expression"),
        ({"fields": {}}, "fields", "expected a mapping"),
        ({"fields": {"1t": {"css": "a"}}}, "fields", "expected"),
        ({"fields": ["t"]}, "fields", "expected a mapping"),
        ({"fields": {"t": "h1"}}, "fields.t", "expected a mapping of fields"),
        ({}, "fields", "is required"),
        ({"name": "Upper", "fields": {"t": {"css": "a"}}}, "name", "expected lower-case letters, digits and"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(rule: dict[str, Any], place: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        taken({"name": "ok", "fields": {"t": {"css": "a"}}}, {"name": "x", **rule})
    (problem,) = refused.value.problems
    assert problem.path == f"extract.items[1].{place}"
    assert said in problem.message


def test_rules_have_names_of_their_own_and_limits_that_fit() -> None:
    rule = {"name": "a", "fields": {"t": {"css": "a"}}}
    with pytest.raises(SpecError, match=r"extract.items\[1\].name: 'a' is the name of an earlier rule"):
        taken(rule, rule)
    with pytest.raises(SpecError, match=r"extract\.max_item_bytes: is more than max_page_bytes"):
        taken(rule, max_item_bytes=2000, max_page_bytes=1024)
    with pytest.raises(SpecError, match=r"extract\.items: expected a list of length <= 50"):
        taken(*({**rule, "name": f"a{n}"} for n in range(51)))


def test_rules_are_kept_as_they_were_declared() -> None:
    rule = {"name": "a", "when": "/p/", "json_ld": "P", "fields": {"t": {"path": "a.b", "all": True, "match": "x"}}}
    spec = parse_spec({"seeds": ["https://a.test/"], "extract": {"items": [rule]}})
    assert decode_spec(encode_spec(spec)) == spec
