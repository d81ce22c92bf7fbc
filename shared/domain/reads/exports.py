"""The columns and rows of a crawl's exports: stored pages, all known URLs, the links of pages, and items.

`orb export` and the API of a master both make the rows with these functions, and the bytes with
shared.adapters.objects.tabular. So their exports are the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from shared.domain.archive.model import RecordLocation, labelled_sha1
from shared.domain.errors import Permanent, Transient
from shared.domain.frontier.seed_contexts import SeedContext, labels_of, source_of
from shared.domain.reads.changes import PageChangeView
from shared.domain.reads.items import StoredItem
from shared.domain.reads.views import KnownUrl, Page

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
        "gone": "bool",
        "labels": "json",
        "source": "string",
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
    "changes": {"at": "timestamp", "kind": "string", "url": "string", "version": "int32"},
    "items": {
        "id": "string",
        "rule": "string",
        "url": "string",
        "fetched_at": "timestamp",
        "data": "json",
        "labels": "json",
        "source": "string",
    },
}
"""The columns of each export and their types. A `timestamp` is Unix ms in a row, `json` the text of a JSON value.

These columns have a value in every row:
- `links`: the columns `source` and `target`.
- `items` and `changes`: all columns except `labels` and `source`.
- The other exports: the column `url`.
"""

_HOPS: Final = {"L": "link", "E": "embedded", "R": "redirect", "I": "inferred", "S": "synthesized", "M": "manifest"}

ReadLinks = Callable[[RecordLocation], Sequence[tuple[str, str]]]
"""A function that reads the outlinks of a page from the archive. It takes the location of the page's record, and
returns pairs (URL, how found)."""


def page_row(page: Page) -> Row:
    """Return a stored page as a row of the export `pages`: a mapping from column to value."""
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
        "gone": page.gone,
        **_context_columns(page.context),
    }


def url_row(url: KnownUrl) -> Row:
    """Return a known URL as a row of the export `urls`: a mapping from column to value."""
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
    """Return an item as a row of the export `items`: a mapping from column to value."""
    row = {"id": item.id.hex(), "rule": item.rule, "url": item.url, "fetched_at": item.at_ms, "data": item.data}
    return row | _context_columns(item.context)


def _context_columns(context: SeedContext | None) -> Row:
    labels = labels_of(context)
    return {"labels": msgspec.json.encode(labels).decode() if labels else None, "source": source_of(context)}


def change_row(change: PageChangeView) -> Row:
    """Return a change of a page as a row of the export `changes`: a mapping from column to value."""
    kind = change.kind.name.lower()
    return {"at": change.place.at_ms, "kind": kind, "url": change.url, "version": change.version}


def link_rows(pages: Iterable[Page], read: ReadLinks, left_out: Callable[[Page, Exception], None]) -> Iterator[Row]:
    """Yield the outlinks of stored pages as rows of the export `links`.

    `read` returns a page's outlinks from the archive. If a record cannot be read, call `left_out` with the page and the
    error, and skip the page. `left_out` may raise an exception, which ends the iteration.
    """
    for page in pages:
        try:
            links = read(page.location)
        except (Permanent, Transient) as error:
            left_out(page, error)
            continue
        for target, how in links:
            hop, _, path = how.partition(" ")
            yield {"source": page.url, "target": target, "kind": _HOPS.get(hop, hop), "found": path or None}
