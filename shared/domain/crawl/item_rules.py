"""The rules of a crawl spec for the extraction of items from pages. A rule is only data: it contains no code."""

from typing import Annotated, Final, Literal

import msgspec
from blake3 import blake3
from msgspec import Meta

from shared.domain.crawl.described import described
from shared.domain.ids import CrawlId, Fingerprint

Selector = Annotated[str, Meta(min_length=1, max_length=500)]
FieldName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
RuleName = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Expression = Annotated[str, Meta(min_length=1, max_length=1000)]

ITEM_ID_LENGTH: Final = 16
ATTRIBUTE: Final = "attr:"

Refusal = Literal["incomplete", "repeated", "too_many", "too_large", "unreadable"]
"""Why a match of a rule gives no item.

`incomplete`: a required field is missing. `repeated`: the page already has an item with its key. `too_many`: the page
exceeds `max_items_per_page` or `max_page_bytes`. `too_large`: the item exceeds `max_item_bytes`. `unreadable`: the
whole page took more time or memory than a worker allows.
"""


class ItemField(msgspec.Struct, frozen=True, kw_only=True):
    """Where the value of an item's field is found: exactly one of `css`, `meta` and `path` is set.

    - `css`: a selector that is searched within the item's element, or in the whole page if the rule has no `each`.
    - `meta`: the name or property of a `meta` element, whose content is the value.
    - `path`: keys into the JSON-LD object of the rule, separated by dots.
    - `take`: what is read from the element: its text (white space collapsed), its HTML, its link (href or src, made
      absolute), or `attr:NAME`.
    - `match`: a regular expression (RE2 syntax). Its first group is the value, or the whole match without a group.
    - `all`: the value is a list of all matches instead of the first.
    - `required`: without a value there is no item.
    """

    css: Annotated[
        Selector | None,
        described(
            "A CSS selector, searched within the element of the item, or in the whole page if the "
            "rule has no `each`. Null: use `meta` or `path`.",
            "h1.title",
        ),
    ] = None
    meta: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        described(
            "The name or property of a `meta` element, whose content is the value. Null: use `css` or `path`.",
            "og:title",
        ),
    ] = None
    path: Annotated[
        Annotated[str, Meta(min_length=1, max_length=500)] | None,
        described(
            "Keys into the JSON-LD object of the rule, separated by dots. Null: use `css` or `meta`.", "offers.price"
        ),
    ] = None
    take: Annotated[
        Annotated[str, Meta(pattern=r"^(text|html|link|attr:[A-Za-z_:][A-Za-z0-9_:.-]{0,99})$")],
        described(
            "What to take of the element: `text` with white space collapsed, `html`, `link` (href or "
            "src, made absolute), or `attr:NAME`.",
            "text",
        ),
    ] = "text"
    match: Annotated[
        Expression | None,
        described(
            "A regular expression (RE2). Its first group, or else the whole match, is the value. "
            "Null: take the value as it is.",
            "([0-9.]+)",
        ),
    ] = None
    all: Annotated[bool, described("True: a list of all values. False: the first value.")] = False
    required: Annotated[bool, described("True: there is no item if this field has no value.")] = False


class ItemRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that extracts one kind of item from pages.

    - `when`: a regular expression (RE2 syntax) that is searched in the page's canonical URL. None: the rule applies to
      every page.
    - `each`: each element that this selector finds is an item.
    - `json_ld`: each JSON-LD object with this `@type` is an item. Without `each` and `json_ld` the page is one item.
    - `key`: the field whose value identifies an item on its page. None: the item's index on the page identifies it.
    """

    name: Annotated[RuleName, described("The name of the rule.", "product")]
    fields: Annotated[
        Annotated[dict[FieldName, ItemField], Meta(min_length=1, max_length=100)],
        described("The fields of an item, by name."),
    ]
    when: Annotated[
        Expression | None,
        described(
            "A regular expression (RE2). The rule applies to pages with a match in their canonical "
            "URL. Null: to every page.",
            "/p/",
        ),
    ] = None
    each: Annotated[
        Selector | None,
        described(
            "A CSS selector. Each element that it selects is an item. Null: the page is one item, "
            "unless `json_ld` is set.",
            "li.product",
        ),
    ] = None
    json_ld: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        described("The `@type` of JSON-LD objects, each of which is an item. Null: none.", "Product"),
    ] = None
    key: Annotated[
        str | None,
        described(
            "The field whose value identifies an item on its page. Null: the order on the page identifies it.", "sku"
        ),
    ] = None


ItemRules = Annotated[tuple[ItemRule, ...], Meta(max_length=50)]


class ItemLimits(msgspec.Struct, frozen=True):
    """The limits on the items of one page: their number, the bytes of each item, and of all items together."""

    items: int
    item_bytes: int
    page_bytes: int


def item_id(crawl_id: CrawlId, rule: str, page: Fingerprint, key: str) -> bytes:
    """Return the id of an item in its crawl. It is the same after each fetch of the page.

    `page`: the page's fingerprint. `key`: the value of the rule's key field. Without a key field it is the index of the
    item's element among those that the rule selects on the page.
    """
    parts = (crawl_id.to_bytes(8), rule.encode(), page, key.encode())
    return blake3(b"".join(len(part).to_bytes(4) + part for part in parts)).digest(length=ITEM_ID_LENGTH)
