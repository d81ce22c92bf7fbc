"""What an export of a crawl has in its columns: rows of stored pages, of every URL heard of, of the links of pages, of
items.

Whoever exports, the `orb export` command or a master over HTTP, takes the rows from here and the bytes from
shared.adapters.objects.tabular, so that both say the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from shared.domain.archive import RecordLocation, labelled_sha1
from shared.domain.errors import Permanent, Transient
from shared.domain.items import StoredItem
from shared.domain.views import KnownUrl, Page

Row = dict[str, Any]
Columns = Mapping[str, str]

COLUMNS: Final[Mapping[str, Columns]] = {
    "pages": {
        "url": "string",
        "status": "int32",
        "mime": "string",
        "digest": "string",
        "size": "int64",
        "segment": "string",
        "offset": "int64",
        "length": "int64",
        "depth": "int32",
        "fetched_at": "timestamp",
        "title": "string",
        "truncated": "string",
        "links": "int32",
        "links_found": "int32",
    },
    "urls": {
        "url": "string",
        "host": "string",
        "state": "string",
        "reason": "string",
        "depth": "int32",
        "attempts": "int32",
        "discovered_from": "string",
        "status": "int32",
        "mime": "string",
        "size": "int64",
        "fetched_at": "timestamp",
        "redirect": "string",
        "truncated": "string",
    },
    "links": {"source": "string", "target": "string", "kind": "string", "found": "string"},
    "items": {"id": "string", "rule": "string", "url": "string", "fetched_at": "timestamp", "data": "json"},
}
"""The columns of each export and their types; none but `url`, `source` and `target` is promised to have a value.

A `timestamp` is Unix milliseconds in a row, `json` the text of a JSON value; items have a value in every column.
"""

_HOPS: Final = {"L": "link", "E": "embedded", "R": "redirect", "I": "inferred", "S": "synthesized", "M": "manifest"}

ReadLinks = Callable[[RecordLocation], Sequence[tuple[str, str]]]
"""The outlinks that the archive keeps of the page at a place: pairs of URL and how it was found."""


def page_row(page: Page) -> Row:
    """The row of a stored page."""
    return {
        "url": page.url,
        "status": page.status,
        "mime": page.mime,
        "digest": labelled_sha1(page.digest) if page.digest else None,
        "size": page.size,
        "segment": page.location.segment,
        "offset": page.location.offset,
        "length": page.location.length,
        "depth": page.depth,
        "fetched_at": page.fetched_at_ms,
        "title": page.title,
        "truncated": page.truncated,
        "links": page.links,
        "links_found": page.links_found,
    }


def url_row(url: KnownUrl) -> Row:
    """The row of a URL."""
    return {
        "url": url.url,
        "host": url.host,
        "state": url.state.name.lower(),
        "reason": url.reason,
        "depth": url.depth,
        "attempts": url.attempts,
        "discovered_from": url.discovered_from,
        "status": url.status or None,
        "mime": url.mime,
        "size": url.size,
        "fetched_at": url.fetched_at_ms,
        "redirect": url.redirect,
        "truncated": url.truncated,
    }


def item_row(item: StoredItem) -> Row:
    """The row of an item."""
    return {"id": item.id.hex(), "rule": item.rule, "url": item.url, "fetched_at": item.at_ms, "data": item.data}


def link_rows(pages: Iterable[Page], read: ReadLinks, left_out: Callable[[Page, Exception], None]) -> Iterator[Row]:
    """The rows of the links of pages. Where a record cannot be read, `left_out` is told, and raises or has it so."""
    for page in pages:
        try:
            found = read(page.location)
        except (Permanent, Transient) as error:
            left_out(page, error)
            continue
        for target, how in found:
            hop, _, path = how.partition(" ")
            yield {"source": page.url, "target": target, "kind": _HOPS.get(hop, hop), "found": path or None}
