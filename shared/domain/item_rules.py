"""The rules by which items are taken out of pages, as a crawl's spec declares them: data, never code."""

from typing import Annotated, Final, Literal

import msgspec
from blake3 import blake3
from msgspec import Meta

from shared.domain.ids import CrawlId, Fingerprint

Selector = Annotated[str, Meta(min_length=1, max_length=500)]
FieldName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
RuleName = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Expression = Annotated[str, Meta(min_length=1, max_length=1000)]

ITEM_ID_LENGTH: Final = 16
ATTRIBUTE: Final = "attr:"

Refusal = Literal["incomplete", "repeated", "too_many", "too_large", "unreadable"]
"""Why something that a rule matched is no item: a required field is missing, its key stands on the page already, the
page has more than `max_items_per_page` or `max_page_bytes`, it exceeds `max_item_bytes`; or the whole page took more
time or memory than a worker gives one."""

REFUSALS: Final[tuple[Refusal, ...]] = ("incomplete", "repeated", "too_many", "too_large", "unreadable")


class ItemField(msgspec.Struct, frozen=True, kw_only=True):
    """Where a field's value stands; exactly one of `css`, `meta` and `path`.

    `css` is searched within the item's element, and in the whole page where the rule has no `each`. `meta` is the
    content of a `meta` element with that name or property. `path` leads into the JSON-LD object of the rule, keys
    separated by dots. `take` says what of the element: its text (white space collapsed), its HTML, its link (href or
    src, made absolute), or `attr:NAME`. `match` is a regular expression (RE2 syntax): its first group, or all of it, is
    the value. `all`: a list of every value instead of the first. `required`: without a value there is no item.
    """

    css: Selector | None = None
    meta: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    path: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    take: Annotated[str, Meta(pattern=r"^(text|html|link|attr:[A-Za-z_:][A-Za-z0-9_:.-]{0,99})$")] = "text"
    match: Expression | None = None
    all: bool = False
    required: bool = False


class ItemRule(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of item is made of.

    `when` is a regular expression (RE2 syntax) searched in the page's canonical URL; None: every page. An item is each
    element that `each` selects, or each JSON-LD object whose `@type` is `json_ld`, or with neither the page itself.
    `key` names the field whose value tells the items of a page apart; None: their order does.
    """

    name: RuleName
    fields: Annotated[dict[FieldName, ItemField], Meta(min_length=1, max_length=100)]
    when: Expression | None = None
    each: Selector | None = None
    json_ld: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    key: str | None = None


ItemRules = Annotated[tuple[ItemRule, ...], Meta(max_length=50)]


class ItemLimits(msgspec.Struct, frozen=True):
    """What a page may yield."""

    items: int
    item_bytes: int
    page_bytes: int


def item_id(crawl_id: CrawlId, rule: str, page: Fingerprint, key: str) -> bytes:
    """The item's name in its crawl, the same whenever the page is fetched. `key`: the value of the rule's key field, or
    the item's place among those of the rule."""
    parts = (crawl_id.to_bytes(8), rule.encode(), page, key.encode())
    return blake3(b"".join(len(part).to_bytes(4) + part for part in parts)).digest(length=ITEM_ID_LENGTH)
