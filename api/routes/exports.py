"""/v1/crawls/{name}/export: all pages, URLs, links or items of a crawl as one file, made while it is sent.

It is read in pieces behind each other's last row, each a short transaction, so nothing is held while a slow caller
takes his time; what the piece becomes in bytes is made in a thread.
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

from api.deps import Served, Services, needs, problems
from api.errors import Kind
from api.routes.pages import archive_of
from api.routes.urls import Name
from api.routing import Router
from api.streamed import BrokenOff, Streamed
from shared.adapters.objects.tabular import ENCODERS, RowEncoder
from shared.domain.access import Role
from shared.domain.declared import DeclaredCrawl, PageFilter
from shared.domain.errors import Transient
from shared.domain.exports import COLUMNS, Row, item_row, link_rows, page_row, url_row
from shared.domain.ids import Fingerprint, HostId
from shared.domain.items import ItemFilter
from shared.domain.views import Page
from shared.ports.archive import PageArchive
from shared.ports.catalog import Missing, UrlPlace

T = TypeVar("T")

log = structlog.get_logger("orb.api")

router = Router(prefix="/v1/crawls/{name}/export", tags=["pages"], dependencies=[needs(Role.VIEWER)])

PIECE: Final = 2_000
"""Rows that one transaction reads, and that are made into bytes at once."""

_Pieces = AsyncGenerator[Iterator[Row], None]
_Aside = Callable[[Callable[[], T]], Awaitable[T]]


class Exported(StrEnum):
    """What there is to export."""

    PAGES = "pages"
    URLS = "urls"
    LINKS = "links"
    ITEMS = "items"


class ExportFormat(StrEnum):
    """The formats: a JSON object a line; comma-separated with a header; Apache Parquet."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


_TYPES: Final = {
    ExportFormat.JSONL: "application/jsonl",
    ExportFormat.CSV: "text/csv; charset=utf-8; header=present",
    ExportFormat.PARQUET: "application/vnd.apache.parquet",
}
_FILE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The file. Where it cannot be made to its end, the connection breaks off.",
        "content": {
            "application/jsonl": {"schema": {"type": "string"}},
            "text/csv": {"schema": {"type": "string"}},
            "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}},
        },
    },
    **problems(404, Kind.NO_ARCHIVE, 429),
}


@router.get("/{what}", summary="Export a crawl", operation_id="export_crawl", response_class=Response, responses=_FILE)
async def export_crawl(
    name: Name,
    what: Annotated[
        Exported,
        Path(description="Stored pages, every URL heard of, links of stored pages (from the archive), or items."),
    ],
    served: Served,
    form: Annotated[ExportFormat, Query(alias="format", description="Of the file.")] = ExportFormat.JSONL,
) -> Response:
    """Every row, whatever the size of the crawl; the same as `orb export` writes. No snapshot of a crawl that runs: a
    row that changes meanwhile is as before or as after. Links of pages whose record is damaged are left out. A master
    makes a bounded number of exports at once; a caller who takes nothing for a minute is given up.
    """
    crawl = await served.catalog.crawl(name)
    archive = archive_of(served) if what is Exported.LINKS else None
    aside: _Aside[Any] = asyncio.to_thread if archive is None else archive.aside
    encoder = await asyncio.to_thread(ENCODERS[form], COLUMNS[what])
    file = _file(served, crawl, _pieces(served, crawl, what, archive), encoder, aside)
    begun = await anext(file)  # what is wrong from the start is still a problem to tell
    headers = {"Content-Disposition": f'attachment; filename="{name}-{what}.{form}"'}
    return Streamed(begun, file, headers=headers, media_type=_TYPES[form])


async def _file(
    served: Services, crawl: DeclaredCrawl, pieces: _Pieces, encoder: RowEncoder, aside: _Aside[Any]
) -> AsyncGenerator[bytes, None]:
    """The file's bytes. BrokenOff where the crawl was deleted or begun anew meanwhile: its rows are being removed."""
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


async def _pieces(served: Services, crawl: DeclaredCrawl, what: Exported, archive: PageArchive | None) -> _Pieces:
    """The rows, by what one transaction read: made as they are asked for."""
    catalog = served.catalog
    behind: bytes | None = b"" if what is Exported.ITEMS else None
    while behind is not None:
        items, behind = await catalog.items(crawl.crawl_id, after=behind, which=ItemFilter(), most=PIECE)
        yield map(item_row, items)
    if what is Exported.ITEMS:
        return
    after: UrlPlace | None = UrlPlace(HostId(-1), Fingerprint(b""))
    while after is not None:
        match what:
            case Exported.URLS:
                urls, after = await catalog.urls(crawl.crawl_id, after=after, state=None, host=None, most=PIECE)
                yield map(url_row, urls)
            case Exported.PAGES | Exported.LINKS:
                pages, after = await catalog.pages(crawl.crawl_id, after=after, which=PageFilter(), most=PIECE)
                yield map(page_row, pages) if archive is None else link_rows(pages, archive.outlinks, _left_out)
            case _:
                assert_never(what)


def _left_out(page: Page, error: Exception) -> None:
    """A damaged record is left out; an archive that cannot be read now ends the export."""
    if isinstance(error, Transient):
        raise error
    log.warning("export.links_left_out", url=page.url, error=str(error))
