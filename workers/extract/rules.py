"""A page's items by a crawl's rules (pure). Runs where a page may take what it takes: see the package."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import urljoin

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from shared.domain.ids import CrawlId, Fingerprint
from shared.domain.item_rules import ATTRIBUTE, ItemField, ItemLimits, ItemRule, Refusal, item_id
from shared.domain.patterns import value_in

Value = str | int | float | bool | None

_SPACES: Final = re.compile(r"[ \t\n\f\r\u00a0]+")
_LINKS: Final = ("href", "src")
_LARGEST: Final = 1 << 63
_MOST_OBJECTS: Final = 10_000
"""Values of a page's JSON-LD that are looked at."""


class Page(msgspec.Struct, frozen=True, array_like=True):
    """A page to be taken apart. `base`: what its links are relative to; `charset`: a Python codec."""

    crawl_id: int
    fingerprint: bytes
    base: str
    charset: str
    body: bytes


class Found(msgspec.Struct, frozen=True, array_like=True):
    """An item: `data` is a JSON object with every field of its rule, null where there is nothing."""

    id: bytes
    rule: str
    data: bytes


class Extraction(msgspec.Struct, frozen=True, array_like=True):
    """What came of a page: its items in the order of rules and document, and how much was refused why."""

    items: list[Found] = []
    refused: dict[Refusal, int] = {}


def extract(page: Page, rules: Iterable[ItemRule], limits: ItemLimits) -> Extraction:
    """The items of a page to which all of `rules` apply."""
    document = _Document(page)
    kept: dict[bytes, Found] = {}
    refused: Counter[Refusal] = Counter()
    room = limits.page_bytes
    for rule in rules:
        for place, scope in enumerate(document.scopes(rule)):
            if len(kept) >= limits.items:
                refused["too_many"] += 1
                break  # the rest of this rule's is not even looked at
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
            elif len(data) > room:
                refused["too_many"] += 1
            else:
                kept[name] = Found(name, rule.name, data)
                room -= len(data)
    return Extraction(list(kept.values()), dict(refused))


def _key_of(value: object) -> str:
    return msgspec.json.encode(value).decode()


class _Document:
    """A parsed page. Its JSON-LD is read when some rule asks for it."""

    def __init__(self, page: Page) -> None:
        self._tree = LexborHTMLParser(page.body.decode(page.charset, "replace"))
        self._base = page.base
        self._objects: list[tuple[frozenset[str], dict[str, Any]]] | None = None

    def scopes(self, rule: ItemRule) -> "Iterable[LexborNode | dict[str, Any] | None]":
        """What the rule makes an item of: elements, JSON-LD objects, or the page (None)."""
        if rule.each is not None:
            return self._tree.css(rule.each)
        if rule.json_ld is not None:
            if self._objects is None:
                self._objects = list(_objects(self._tree))
            return [found for types, found in self._objects if rule.json_ld in types]
        return [None]

    def values(
        self, rule: ItemRule, scope: "LexborNode | dict[str, Any] | None"
    ) -> dict[str, Value | list[Value]] | None:
        """The item; None where a required field, or the key, has no value. Empty where no field has one."""
        item: dict[str, Value | list[Value]] = {}
        for name, field in rule.fields.items():
            try:
                found = list(self._candidates(field, scope))
            except RecursionError:  # lists in lists without end
                found = []
            if not found and (field.required or name == rule.key):
                return None
            item[name] = found if field.all else found[0] if found else None
        return item if any(value not in (None, []) for value in item.values()) else {}

    def _candidates(self, field: ItemField, scope: "LexborNode | dict[str, Any] | None") -> Iterator[Value]:
        """The values of a field, all of them or as few as are needed to have the first."""
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
            for element in within.css(field.css):
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


# --- values -----------------------------------------------------------------------------------------------------------


def _clean(text: str) -> str:
    """As a reader sees it: white space collapsed."""
    return _storable(_SPACES.sub(" ", text).strip())


def _storable(text: str) -> str:
    """Text that UTF-8 can carry, without NUL, which databases refuse."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _matched(expression: str, value: Value) -> Value:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return value_in(expression, text)


# --- JSON-LD ----------------------------------------------------------------------------------------------------------


def _objects(tree: LexborHTMLParser) -> Iterator[tuple[frozenset[str], dict[str, Any]]]:
    """The objects of a page's JSON-LD that have a type, outer ones first; blocks that are no JSON are passed over."""
    left = _MOST_OBJECTS
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
                    yield frozenset(name.rpartition("/")[2] for name in named), value
                waiting += reversed(value.values())
            elif isinstance(value, list):
                waiting += reversed(value)


def _no_number(_: str) -> None:
    """JSON has no Infinity and no NaN, and neither has what is made of it."""


def _leaves(values: list[Any], path: list[str]) -> Iterator[Value]:
    """What a path leads to, through lists: text, numbers and truth values; an object stands for its `@value` or `name`,
    and is else nothing."""
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
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -_LARGEST <= value < _LARGEST else str(value)
    return None
