"""Messages with items on `items.<crawl id>`: a live feed for users' programs, and the source of the table of items.

The messages are JSON, because users' programs read them. Unknown fields are ignored. A field may only be added with a
default. A message may arrive twice.

A message has one or more pages (PageEntry), each with all items of one fetch of the page. When the page is fetched
again, a new PageEntry with a greater `fetch` replaces all earlier items of the page. An item that is still on the page
keeps its id.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from shared.domain.frontier.seed_contexts import context_bytes, labels_of, source_of
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId
from shared.domain.reads.items import PageItems, TakenItem
from shared.wire.messages import Malformed, decoder

ITEMS: Final = "ITEMS"
EVERY_ITEM: Final = "items.*"
MAX_BYTES: Final = 512 * 1024
"""The maximum size in bytes of a message of several pages. A larger page gets a message of its own."""

_PAGE: Final = re.compile(r"([0-9]{1,19})-([0-9a-f]{32})")
_FETCH: Final = re.compile(r"([0-9]{1,19})-([0-9]{1,9})")
_ID: Final = re.compile(r"[0-9a-f]{32}")
_ENTRY_BYTES: Final = 200
_ITEM_BYTES: Final = 120
_MOST: Final = 2**63 - 1


class ItemEntry(msgspec.Struct, frozen=True):
    """An item in a message. `id` is 32 hex digits, unique in the crawl.

    `rule` is the name of the rule that found the item. `data` is a JSON object with the item's fields. The value of a
    field is a single value, null or a list.
    """

    id: str
    rule: str
    data: msgspec.Raw


class PageEntry(msgspec.Struct, frozen=True):
    """The items of one fetched page in a message. `page` is the page's id in the API.

    - `fetch`: two numbers that identify the fetch, `<lease>-<grant>`. A later fetch has a greater lease number, or the
      same lease number and a greater grant number.
    - `at_ms`: when the page was fetched, in Unix milliseconds by the worker's clock.
    - `labels`, `source`: those of the seed from which the page was found. The fields are absent if the seed has none.
    """

    page: str
    url: str
    fetch: str
    at_ms: int
    items: list[ItemEntry] = []
    labels: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    source: str | msgspec.UnsetType = msgspec.UNSET


class Items(msgspec.Struct, frozen=True, tag_field="type", tag="items/1", omit_defaults=True):
    """A message with the items of one or more pages of one crawl. `name` is the crawl's name, `crawl` its id."""

    crawl: int
    name: str
    pages: list[PageEntry]


_encode: Final = msgspec.json.Encoder().encode
_object: Final = msgspec.json.Decoder(dict[str, Any])


decode_message: Final[Callable[[bytes], Items]] = decoder(Items, msgspec.json.Decoder)
"""Decode a message of the stream of items. Raise Malformed if it is not valid. The ids are not checked."""


def items_subject(crawl_id: CrawlId) -> str:
    """Return the subject on which the items of a crawl are published."""
    return f"items.{crawl_id}"


def encode_items(crawl_id: CrawlId, name: str, pages: Iterable[PageItems]) -> Iterator[bytes]:
    """Yield encoded messages with the items of these pages, in order. `name` is the crawl's name.

    A message with several pages has at most `MAX_BYTES` bytes. A page that is larger gets a message of its own.
    """
    entries: list[PageEntry] = []
    size = 0
    for page in pages:
        more = _ENTRY_BYTES + len(page.url) + (0 if page.context is None else context_bytes(page.context))
        more += sum(len(item.data) + _ITEM_BYTES for item in page.items)
        if entries and size + more > MAX_BYTES:
            yield _encode(Items(crawl_id, name, entries))
            entries, size = [], 0
        entries.append(_entry(page))
        size += more
    if entries:
        yield _encode(Items(crawl_id, name, entries))


def decode_items(data: bytes) -> tuple[CrawlId, list[PageItems]]:
    """Return the crawl's id and the pages from a message of the stream `ITEMS`. Raise Malformed if it is not valid."""
    message = decode_message(data)
    if not 0 < message.crawl <= _MOST:
        raise Malformed(f"there is no crawl {message.crawl}")
    try:
        return CrawlId(message.crawl), [_page(entry) for entry in message.pages]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from error


def crawl_of(data: bytes) -> CrawlId:
    """Return the id of the crawl from a message with items, 0 if the message is not valid."""
    try:
        return decode_items(data)[0]
    except Malformed:
        return CrawlId(0)


def _entry(page: PageItems) -> PageEntry:
    return PageEntry(
        page=f"{page.host_id}-{page.fingerprint.hex()}",
        url=page.url,
        fetch=f"{page.lease}-{page.grant}",
        at_ms=page.at_ms,
        items=[ItemEntry(item.id.hex(), item.rule, msgspec.Raw(item.data)) for item in page.items],
        labels=labels_of(page.context) or msgspec.UNSET,
        source=source_of(page.context) or msgspec.UNSET,
    )


def _page(entry: PageEntry) -> PageItems:
    page, fetch = _PAGE.fullmatch(entry.page), _FETCH.fullmatch(entry.fetch)
    if page is None or fetch is None or int(page[1]) > _MOST or int(fetch[1]) > _MOST or not 0 <= entry.at_ms <= _MOST:
        raise Malformed(f"{entry.page!r}, {entry.fetch!r}, {entry.at_ms} are no page, fetch and time")
    return PageItems(
        HostId(int(page[1])),
        Fingerprint(bytes.fromhex(page[2])),
        entry.url,
        LeaseId(int(fetch[1])),
        int(fetch[2]),
        entry.at_ms,
        tuple(_item(item) for item in entry.items),
    )


def _item(entry: ItemEntry) -> TakenItem:
    if _ID.fullmatch(entry.id) is None:
        raise Malformed(f"{entry.id!r} is no item's id")
    data = msgspec.json.encode(_object.decode(entry.data))  # encoded again, so that it is one object on one line
    return TakenItem(bytes.fromhex(entry.id), entry.rule, data)
