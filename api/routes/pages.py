"""/v1/crawls/{name}/pages: what was stored, and the bodies as the archive has them.

A body is what some site sent, so nobody's browser may take it for ours: it is always a download of no type, under a
name of safe characters, and sandboxed.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any, Final

import structlog
from fastapi import Path, Query, Request, Response

from api.conditional import has, known_tags
from api.deps import CONDITIONAL, UNCHANGED, Page, Served, Services, etag, needs, problems
from api.errors import Kind, Problem
from api.routes.urls import Name, OneUrl, located
from api.routing import Router
from api.schemas.model import VISIBLE, Listing, Model
from api.schemas.pages import PAGE_ID, PageDetail, PageSummary, page_body, page_detail, place_of
from api.streamed import BrokenOff, Streamed
from shared.domain.access import Role
from shared.domain.archive import RecordLocation
from shared.domain.declared import DeclaredCrawl, PageFilter
from shared.domain.ids import Fingerprint, HostId
from shared.domain.stored import NotARecord
from shared.domain.stored_body import StoredBody
from shared.domain.url import Location, locate
from shared.domain.views import PageView
from shared.ports.archive import PageArchive, RecordUnreadable
from shared.ports.catalog import Missing, UrlPlace

log = structlog.get_logger("orb.api")

router = Router(
    prefix="/v1/crawls/{name}/pages", tags=["pages"], dependencies=[needs(Role.VIEWER)], responses=problems(404)
)

PageId = Annotated[str, Path(alias="page", pattern=PAGE_ID, description="Its `id`.")]
WHOLE_BYTES: Final = 1 << 20
"""Bodies up to this are read to their end before the answer begins, so that it says how they end."""

_BODY: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The body, content coding removed, as a download.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "headers": {
            "X-Orb-Incomplete": {
                "description": "`truncated`: it was cut. `undecodable`: it is as far as it could be decoded.",
                "schema": {"type": "string", "enum": ["truncated", "undecodable"]},
            }
        },
    },
    **UNCHANGED,
    **problems(404, Kind.NO_ARCHIVE),
}
_NO_ARCHIVE_HINT: Final = "start this master with --archive DIR (ORB_ARCHIVE), where it can read the workers' segments"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARS: Final = 80


@router.get("", summary="List stored pages", operation_id="list_pages")
async def list_pages(
    name: Name,
    served: Served,
    page: Page,
    response: Response,
    host: Annotated[str | None, Query(max_length=300, pattern=VISIBLE, description="Only those of this host.")] = None,
    status: Annotated[int | None, Query(ge=100, le=999, description="Only those with this HTTP status.")] = None,
    mime: Annotated[
        str | None,
        Query(max_length=100, pattern=VISIBLE, description="Only this media type.", examples=["text/html"]),
    ] = None,
) -> Listing[PageSummary]:
    """By host. A page of the list looks at a bounded number of fetches, so one may be short or empty before the end:
    follow `next`."""
    crawl = await served.catalog.crawl(name)
    after_host, after = page.place(tuple[int, bytes], (-1, b""))
    found, place = await served.catalog.pages(
        crawl.crawl_id,
        after=UrlPlace(HostId(after_host), Fingerprint(after)),
        which=PageFilter(host, status, None if mime is None else mime.lower()),
        most=page.most,
    )
    at = None if place is None else (place.host_id, place.fingerprint)
    return Listing(items=[page_body(each) for each in found], next=page.next(at, response))


@router.get(
    "/lookup", summary="Look a stored page up", operation_id="lookup_page", dependencies=[CONDITIONAL],
    responses=UNCHANGED,
)  # fmt: skip
async def lookup_page(name: Name, url: OneUrl, served: Served, response: Response) -> PageDetail:
    """The record of the fetch that stored it; 404 where no page of that URL is stored."""
    _, view = await _page(served, name, located(url))
    return _tagged(page_detail(view), response)


@router.get(
    "/lookup/body", summary="Get a stored body by URL", operation_id="lookup_page_body", response_class=Response,
    dependencies=[CONDITIONAL], responses=_BODY,
)  # fmt: skip
async def lookup_body(name: Name, url: OneUrl, served: Served, request: Request) -> Response:
    """What the site sent, from the archive, content coding removed. Always a download, whatever it was."""
    crawl, view = await _page(served, name, located(url))
    return await _body(served, crawl, view, request)


@router.get(
    "/{page}", summary="Get a stored page", operation_id="get_page", dependencies=[CONDITIONAL], responses=UNCHANGED
)
async def get_page(name: Name, page_id: PageId, served: Served, response: Response) -> PageDetail:
    """The record of the fetch that stored it."""
    _, view = await _page(served, name, place_of(page_id))
    return _tagged(page_detail(view), response)


@router.get(
    "/{page}/body", summary="Get a stored body", operation_id="get_page_body", response_class=Response,
    dependencies=[CONDITIONAL], responses=_BODY,
)  # fmt: skip
async def get_body(name: Name, page_id: PageId, served: Served, request: Request) -> Response:
    """What the site sent, from the archive, content coding removed. Always a download, whatever it was."""
    crawl, view = await _page(served, name, place_of(page_id))
    return await _body(served, crawl, view, request)


async def _page(served: Services, name: str, at: UrlPlace | Location | None) -> tuple[DeclaredCrawl, PageView]:
    crawl = await served.catalog.crawl(name)
    view = None if at is None else await served.catalog.page(crawl.crawl_id, at)
    if view is None:
        what = at.url if isinstance(at, Location) else "that id"
        raise Missing(f"the crawl {name!r} has no stored page of {what}")
    return crawl, view


def _tagged(body: PageDetail, response: Response) -> PageDetail:
    response.headers.update(etag(digest_of(body)))
    return body


def digest_of(body: Model) -> str:
    """Names this content of a body."""
    return hashlib.sha256(body.model_dump_json().encode()).hexdigest()[:32]


# --- bodies -----------------------------------------------------------------------------------------------------------


def archive_of(served: Services) -> PageArchive:
    """The archive; a problem that says what to do where this master has none."""
    if served.archive is None:
        raise Problem(Kind.NO_ARCHIVE, "this master was not told where the archive is", hint=_NO_ARCHIVE_HINT)
    return served.archive


async def _body(served: Services, crawl: DeclaredCrawl, view: PageView, request: Request) -> Response:
    archive = archive_of(served)
    place = view.page.location
    tag = hashlib.sha256(f"{place.segment} {place.offset} {place.length}".encode()).hexdigest()[:32]
    if has(known_tags(request.scope), f'"{tag}"'.encode()):
        return Response(status_code=304, headers=etag(tag))
    headers = etag(tag) | _headers(view)
    try:
        stored = await archive.aside(lambda: archive.body(place))
        if stored.refers_to is not None:
            earlier = await _captured(served, crawl, view, stored.refers_to[0])
            stored = await archive.aside(lambda: archive.body(earlier))
        pieces = iter(stored)
        begun, is_whole = await archive.aside(lambda: _begun(pieces))
    except (RecordUnreadable, NotARecord) as error:
        log.warning("page.unreadable", crawl=crawl.crawl_id, url=view.page.url, error=str(error))
        detail = "the page's record cannot be read in this master's archive; the log says why"
        raise Problem(Kind.NO_ARCHIVE, detail, hint=_NO_ARCHIVE_HINT) from error
    if stored.incomplete is not None:
        headers["X-Orb-Incomplete"] = stored.incomplete
    if is_whole:
        return Response(begun, headers=headers, media_type="application/octet-stream")
    return Streamed(begun, _rest(archive, stored, pieces), headers=headers, media_type="application/octet-stream")


async def _captured(served: Services, crawl: DeclaredCrawl, view: PageView, url: str) -> RecordLocation:
    """Where the body lies of a page that was found unchanged: with the capture of `url`, whose payload was the same."""
    location = locate(url)
    found = None if location is None else await served.catalog.page(crawl.crawl_id, location)
    if found is None or found.page.digest != view.page.digest or found.page.location == view.page.location:
        raise Missing(f"the body of {view.page.url} is stored with an earlier capture, which is no longer listed")
    return found.page.location


def _begun(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """The beginning of a body, and whether it is all of it."""
    parts, size = [], 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size >= WHOLE_BYTES:
            return b"".join(parts), False
    return b"".join(parts), True


async def _rest(archive: PageArchive, stored: StoredBody, pieces: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    """A body whose record turns out to be damaged breaks off; the caller sees that it is not whole."""
    said = stored.incomplete
    while (piece := await archive.aside(lambda: next(pieces, None))) is not None:
        yield piece
    if stored.incomplete != said:
        raise BrokenOff(f"the body of {stored.url} is {stored.incomplete} behind its beginning")


def _headers(view: PageView) -> dict[str, str]:
    return {
        "Content-Disposition": f'attachment; filename="{file_name(view.page.url, view.page.fingerprint)}"',
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
    }


def file_name(url: str, fingerprint: Fingerprint) -> str:
    """A name for the page's file: of plain characters, never hidden, never a path, never one that a system keeps."""
    last = url.partition("?")[0].rpartition("/")[2]
    safe = _UNSAFE.sub("-", last).strip("-.")[-_NAME_CHARS:]
    return f"{fingerprint.hex()[:8]}-{safe or 'page'}"
