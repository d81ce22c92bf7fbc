"""/v1/crawls/{name}/export: all pages, URLs, links, items or changes of a crawl as one file, produced while it is sent.

The rows are read in short transactions, each of which starts after the last row of the previous one. So no transaction
stays open for a slow client. The rows are encoded in a thread.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final, TypeVar, assert_never

import structlog
from fastapi import Path, Query, Response

from api.http.deps import Served, Services, problems
from api.http.errors import ProblemKind
from api.http.routing import Router
from api.http.streamed import BrokenOff, Streamed
from api.routes.pages import archive_of
from api.routes.urls import Name
from shared.adapters.objects.tabular import ENCODERS, RowEncoder
from shared.domain.errors import Transient
from shared.domain.explain.sentences import moment
from shared.domain.frontier.page_history import ChangeKind
from shared.domain.ids import Fingerprint, HostId
from shared.domain.reads.changes import ChangePlace
from shared.domain.reads.declared import DeclaredCrawl, PageFilter
from shared.domain.reads.exports import COLUMNS, Row, change_row, item_row, link_rows, page_row, url_row
from shared.domain.reads.items import ItemFilter
from shared.domain.reads.views import Page
from shared.ports.archive import PageArchive
from shared.ports.catalog import Missing, UrlPlace

T = TypeVar("T")

log = structlog.get_logger("orb.api")

router = Router(prefix="/v1/crawls/{name}/export", tags=["pages"])

PIECE: Final = 2_000
"""Maximum rows that one transaction reads, and that are encoded at once."""

_Pieces = AsyncGenerator[Iterator[Row], None]
_Aside = Callable[[Callable[[], T]], Awaitable[T]]


class ExportKind(StrEnum):
    """The kinds of rows that can be exported from a crawl."""

    PAGES = "pages"
    URLS = "urls"
    LINKS = "links"
    ITEMS = "items"
    CHANGES = "changes"


class ExportFormat(StrEnum):
    """The file format of an export.

    JSONL: one JSON object on each line. CSV: comma-separated, with a header line. PARQUET: Apache Parquet.
    """

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


_TYPES: Final = {
    ExportFormat.JSONL: "application/jsonl",
    ExportFormat.CSV: "text/csv; charset=utf-8; header=present",
    ExportFormat.PARQUET: "application/vnd.apache.parquet",
}
_DELETED_UNTIL: Final = "X-Orb-Deleted-Until"
_FILE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The file. If it cannot be completed, the connection is closed early.",
        "content": {
            "application/jsonl": {"schema": {"type": "string"}},
            "text/csv": {"schema": {"type": "string"}},
            "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}},
        },
        "headers": {
            _DELETED_UNTIL: {
                "description": "Retention has deleted all changes up to this time. What changed since is there.",
                "schema": {"type": "string", "format": "date-time"},
            }
        },
    },
    **problems(404, ProblemKind.NO_ARCHIVE, 429),
}


@router.get("/{what}", summary="Export a crawl", response_class=Response, responses=_FILE)
async def export_crawl(
    name: Name,
    what: Annotated[
        ExportKind,
        Path(
            description="What to export: stored pages, all discovered URLs, links of stored "
            "pages (from the archive), items, or changes of pages."
        ),
    ],
    served: Served,
    form: Annotated[ExportFormat, Query(alias="format", description="The format of the file.")] = ExportFormat.JSONL,
) -> Response:
    """Export every page, URL, link, item or change of a crawl, as `orb export` does.

    The export is no snapshot: a row that changes meanwhile may have its old or its new values. If the archive record of
    a page is damaged, its links are missing. If retention has deleted changes, the header `X-Orb-Deleted-Until` has the
    time up to which they are deleted. A master serves a bounded number of exports at a time. It ends an export whose
    client reads nothing for a minute.
    """
    crawl = await served.catalog.crawl(name)
    archive = archive_of(served) if what is ExportKind.LINKS else None
    aside: _Aside[Any] = asyncio.to_thread if archive is None else archive.aside
    encoder = await asyncio.to_thread(ENCODERS[form], COLUMNS[what])
    file = _file(served, crawl, _pieces(served, crawl, what, archive), encoder, aside)
    begun = await anext(file)  # An error before the first bytes can still be answered with a problem.
    headers = {"Content-Disposition": f'attachment; filename="{name}-{what}.{form}"'}
    if what is ExportKind.CHANGES:
        # Read after the first piece, so that it names what was deleted before that.
        deleted_ms = await served.catalog.changes_deleted_ms(crawl.crawl_id)
        headers |= {} if deleted_ms is None else {_DELETED_UNTIL: moment(deleted_ms)}
    return Streamed(begun, file, headers=headers, media_type=_TYPES[form])


async def _file(
    served: Services, crawl: DeclaredCrawl, pieces: _Pieces, encoder: RowEncoder, aside: _Aside[Any]
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of the exported file. After the last row, raise BrokenOff if the crawl was deleted or reset.

    In that case rows may be missing.

    - `pieces`: yields iterators over the rows.
    - `encoder`: converts the rows to bytes.
    - `aside`: runs a function in a thread.
    """
    with served.exports.slot():
        async with aclosing(pieces):
            async for rows in pieces:
                count = PIECE
                while count == PIECE:
                    part, count = await aside(partial(_encoded, encoder, rows))
                    if part:
                        yield part
        await _check_there(served, crawl)
        yield await aside(encoder.end)


async def _check_there(served: Services, crawl: DeclaredCrawl) -> None:
    try:
        now = await served.catalog.crawl(crawl.name)
    except Missing as error:
        raise BrokenOff(f"the crawl {crawl.name!r} was deleted while it was exported") from error
    if now.crawl_id != crawl.crawl_id:
        raise BrokenOff(f"the crawl {crawl.name!r} was begun anew while it was exported")


def _encoded(encoder: RowEncoder, rows: Iterator[Row]) -> tuple[bytes, int]:
    batch = list(islice(rows, PIECE))
    return encoder.add(batch), len(batch)


async def _pieces(served: Services, crawl: DeclaredCrawl, what: ExportKind, archive: PageArchive | None) -> _Pieces:
    """Read the rows in short transactions. For each transaction, yield an iterator over the rows that it read.

    The iterator converts each row when the row is consumed. `archive`: the archive from which the links of pages are
    read, for an export of links; None for every other export.
    """
    catalog = served.catalog
    behind: bytes | None = b"" if what is ExportKind.ITEMS else None
    while behind is not None:
        items, behind = await catalog.items(crawl.crawl_id, after=behind, which=ItemFilter(), max_count=PIECE)
        yield map(item_row, items)
    at: ChangePlace | None = ChangePlace(0) if what is ExportKind.CHANGES else None
    while at is not None:
        changes, at = await catalog.changes(crawl.crawl_id, after=at, kinds=tuple(ChangeKind), max_count=PIECE)
        yield map(change_row, changes)
    if what is ExportKind.ITEMS or what is ExportKind.CHANGES:
        return
    after: UrlPlace | None = UrlPlace(HostId(-1), Fingerprint(b""))
    while after is not None:
        match what:
            case ExportKind.URLS:
                urls, after = await catalog.urls(crawl.crawl_id, after=after, state=None, host=None, max_count=PIECE)
                yield map(url_row, urls)
            case ExportKind.PAGES | ExportKind.LINKS:
                pages, after = await catalog.pages(crawl.crawl_id, after=after, which=PageFilter(), max_count=PIECE)
                yield map(page_row, pages) if archive is None else link_rows(pages, archive.outlinks, _left_out)
            case _:
                assert_never(what)


def _left_out(page: Page, error: Exception) -> None:
    """Handle `error`, which prevented reading the links of `page` from the archive.

    If `error` is Transient, the archive cannot be read now. Raise `error`, which ends the export. Otherwise the record
    of the page is damaged. Log that the export lacks the links of the page.
    """
    if isinstance(error, Transient):
        raise error
    log.warning("export_links.omitted", url=page.url, error=str(error))
