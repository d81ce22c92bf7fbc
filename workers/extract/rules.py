"""Extracts a page's items by a crawl's rules, without I/O. Only the extraction process runs it."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any, Final
from urllib.parse import urljoin

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

import workers.parse.windows_codecs  # noqa: F401  # registers codecs of pages
from shared.domain.crawl.item_rules import ATTRIBUTE, ItemField, ItemLimits, ItemRule, Refusal, item_id
from shared.domain.crawl.patterns import value_in
from shared.domain.ids import CrawlId, Fingerprint
from workers.extract.xhtml import as_html

Value = str | int | float | bool | None

_SPACES: Final = re.compile(r"[ \t\n\f\r\u00a0]+")
_IRI_PARTS: Final = re.compile("[/#:]")
_LINKS: Final = ("href", "src")
_LARGEST: Final = 1 << 63
_MAX_OBJECTS: Final = 10_000
"""The maximum number of values that are read from a page's JSON-LD."""


class ExtractionInput(msgspec.Struct, frozen=True, array_like=True):
    """An HTML page from which items are extracted.

    `base`: the URL to which its links are relative. `charset`: the Python codec of `body`. `xml`: it is XHTML.
    """

    crawl_id: int
    fingerprint: bytes
    base: str
    charset: str
    body: bytes
    xml: bool = False


class ExtractedItem(msgspec.Struct, frozen=True, array_like=True):
    """An item of a page. `rule`: the name of its rule.

    `data`: a JSON object with every field of the rule, null (or an empty list) for a field without a value.
    """

    id: bytes
    rule: str
    data: bytes


class Extraction(msgspec.Struct, frozen=True, array_like=True):
    """The items of a page, in the order of the rules, and for each rule in the order of the document.

    `refused`: how many items were refused, by reason.
    """

    items: list[ExtractedItem] = []
    refused: dict[Refusal, int] = {}


def extract(page: ExtractionInput, rules: Iterable[ItemRule], limits: ItemLimits) -> Extraction:
    """Return the items that `rules` find in the page, and how many were refused.

    Every rule is used: the caller must leave out rules that do not apply to the page.
    """
    document = _Document(page)
    kept: dict[bytes, ExtractedItem] = {}
    refused: Counter[Refusal] = Counter()
    bytes_left = limits.page_bytes
    for rule in rules:
        for place, scope in enumerate(document.scopes(rule)):
            if len(kept) >= limits.items:
                refused["too_many"] += 1
                break  # do not read the rest of this rule's items
            values = document.values(rule, scope)
            if values is None:
                refused["incomplete"] += 1
                continue
            if not values:
                continue
            key = str(place) if rule.key is None else _key_of(values[rule.key])
            name = item_id(CrawlId(page.crawl_id), rule.name, Fingerprint(page.fingerprint), key)
            data = msgspec.json.encode(values)
            if name in kept:
                refused["repeated"] += 1
            elif len(data) > limits.item_bytes:
                refused["too_large"] += 1
            elif len(data) > bytes_left:
                refused["too_many"] += 1
            else:
                kept[name] = ExtractedItem(name, rule.name, data)
                bytes_left -= len(data)
    return Extraction(list(kept.values()), dict(refused))


def _key_of(value: object) -> str:
    return msgspec.json.encode(value).decode()


class _Document:
    """A parsed page, in which rules find items. Its JSON-LD is parsed when a rule first needs it."""

    def __init__(self, page: ExtractionInput) -> None:
        # A byte order mark would be text before the first tag, so that the parser would end the head there.
        text = page.body.decode(page.charset, "replace").removeprefix("\ufeff")
        self._tree = LexborHTMLParser(as_html(text) if page.xml else text)
        self._base = page.base
        self._objects: list[tuple[frozenset[str], dict[str, Any]]] | None = None

    def scopes(self, rule: ItemRule) -> "Iterable[LexborNode | dict[str, Any] | None]":
        """Return the parts of the page that may each have an item of the rule.

        They are the elements that the rule's selector `each` finds, or the JSON-LD objects of the rule's type
        `json_ld`. If the rule has neither, the only part is None, which means the whole page.
        """
        if rule.each is not None:
            return _elements(self._tree, rule.each)
        if rule.json_ld is not None:
            if self._objects is None:
                self._objects = list(_objects(self._tree))
            wanted = _type_name(rule.json_ld)
            return [value for types, value in self._objects if wanted in types]
        return [None]

    def values(
        self, rule: ItemRule, scope: "LexborNode | dict[str, Any] | None"
    ) -> dict[str, Value | list[Value]] | None:
        """Return the values of a rule's fields in one part of the page, by the name of the field.

        `scope` is the part: an HTML element, a JSON-LD object, or None for the whole page.

        - Return None if a required field, or the rule's key field, has no value.
        - Return {} if no field has a value, and none is required.
        """
        item: dict[str, Value | list[Value]] = {}
        for name, field in rule.fields.items():
            try:
                values = list(self._candidates(field, scope))
            except RecursionError:  # too deeply nested lists
                values = []
            if not values and (field.required or name == rule.key):
                return None
            item[name] = values if field.all else values[0] if values else None
        return item if any(value not in (None, []) for value in item.values()) else {}

    def _candidates(self, field: ItemField, scope: "LexborNode | dict[str, Any] | None") -> Iterator[Value]:
        """Yield the values of a field in one part of the page: all of them if `field.all`, else only the first.

        `scope`: the part of the page, as `scopes` returns it.
        """
        raw = self._raw(field, scope)
        matched = raw if field.match is None else (_matched(field.match, value) for value in raw)
        for value in matched:
            if value is not None:
                yield value
                if not field.all:
                    return

    def _raw(self, field: ItemField, scope: "LexborNode | dict[str, Any] | None") -> Iterator[Value]:
        if field.path is not None:
            yield from _leaves([scope], field.path.split("."))
        elif field.meta is not None:
            for element in self._tree.css("meta[content]"):
                attributes = element.attributes
                if field.meta in (attributes.get("property"), attributes.get("name")):
                    yield _clean(attributes.get("content") or "") or None
        elif field.css is not None:
            within = self._tree if scope is None or isinstance(scope, dict) else scope
            for element in _elements(within, field.css):
                yield self._taken(field.take, element)

    def _taken(self, take: str, element: LexborNode) -> Value:
        if take == "text":
            return _clean(element.text(deep=True)) or None
        if take == "html":
            return _storable(element.html or "")
        if take == "link":
            written = next((value for name in _LINKS if (value := element.attributes.get(name))), None)
            return None if written is None else self._absolute(written)
        value = element.attributes.get(take.removeprefix(ATTRIBUTE).lower())
        return None if value is None else _storable(value)

    def _absolute(self, written: str) -> str | None:
        try:
            return _storable(urljoin(self._base, written.strip(" \t\n\f\r")))
        except ValueError:
            return None


def _elements(within: LexborHTMLParser | LexborNode, selector: str) -> Iterable[LexborNode]:
    """Return the elements that `selector` finds, each once, in the order of the document.

    Lexbor returns an element once for each alternative of the selector that it matches, as of `li, .item`.
    """
    return {element.mem_id: element for element in within.css(selector)}.values()


# --- values -----------------------------------------------------------------------------------------------------------


def _clean(text: str) -> str:
    """Return the text with white space collapsed, as a browser shows it. Replace characters that cannot be stored."""
    return _storable(_SPACES.sub(" ", text).strip())


def _storable(text: str) -> str:
    """Return the text without lone surrogates and NUL, which UTF-8 or databases refuse. Each is replaced."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _matched(expression: str, value: Value) -> Value:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return value_in(expression, text)


# --- JSON-LD ----------------------------------------------------------------------------------------------------------


def _objects(tree: LexborHTMLParser) -> Iterator[tuple[frozenset[str], dict[str, Any]]]:
    """Yield the JSON-LD objects of a page that have a type, outer objects first, each with the names of its types.

    Skip blocks that are not valid JSON. At most _MAX_OBJECTS values are read.
    """
    left = _MAX_OBJECTS
    for script in tree.css('script[type="application/ld+json" i]'):
        try:
            waiting: list[Any] = [json.loads(script.text(deep=True), strict=False, parse_constant=_no_number)]
        except (ValueError, RecursionError):
            continue
        while waiting and left:
            left -= 1
            value = waiting.pop()
            if isinstance(value, dict):
                types = value.get("@type")
                named = frozenset(each for each in (types if isinstance(types, list) else [types]) if type(each) is str)
                if named:
                    yield frozenset(map(_type_name, named)), value
                waiting += reversed(value.values())
            elif isinstance(value, list):
                waiting += reversed(value)


def _type_name(written: str) -> str:
    """Return the name of a type without its vocabulary, such as Product for `schema:Product` or its whole IRI."""
    return _IRI_PARTS.split(written.rstrip("/#:"))[-1]


def _no_number(_: str) -> None:
    """Return None for Infinity or NaN in a page's JSON. Items must be valid JSON, which has no such values."""


def _leaves(values: list[Any], path: list[str]) -> Iterator[Value]:
    """Yield the text, numbers and booleans at `path`, a list of keys, in each of `values`.

    The elements of a list on the path are searched one by one. For an object at the end, yield its `@value` and `name`.
    """
    for value in values:
        if isinstance(value, list):
            yield from _leaves(value, path)
        elif path:
            if isinstance(value, dict) and path[0] in value:
                yield from _leaves([value[path[0]]], path[1:])
        elif isinstance(value, dict):
            yield from (_leaf(value[name]) for name in ("@value", "name") if name in value)
        else:
            yield _leaf(value)


def _leaf(value: object) -> Value:
    if isinstance(value, str):
        return _clean(value) or None
    if isinstance(value, float):
        return value if isfinite(value) else None  # 1e999 is infinite, which is no JSON
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -_LARGEST <= value < _LARGEST else str(value)
    return None
