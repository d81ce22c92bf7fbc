"""/v1/crawls/{name}/pages: stored pages, and their content from the archive, as their sites sent it.

No browser may treat that content as content of this master, because it comes from a foreign site. So it is always sent
as a download of unspecified type, sandboxed, and with a file name of safe characters.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import partial
from typing import Annotated, Any, Final

import structlog
from fastapi import Path, Query, Request, Response

from api.http.conditional import has, known_tags
from api.http.deps import CONDITIONAL, UNCHANGED, Page, Served, Services, etag, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.routing import Router
from api.http.streamed import BrokenOff, Streamed
from api.routes.urls import Name, OneUrl, located
from api.schemas.model import VISIBLE, Listing, Model
from api.schemas.pages import PAGE_ID, PageDetail, PageSummary, page_body, page_detail, place_of
from shared.domain.archive.model import RecordLocation
from shared.domain.archive.stored_body import NotARecord, StoredBody
from shared.domain.ids import Fingerprint, HostId
from shared.domain.reads.declared import DeclaredCrawl, PageFilter
from shared.domain.reads.views import PageView
from shared.domain.web.url import Location, locate
from shared.ports.archive import PageArchive, RecordUnreadable
from shared.ports.catalog import Missing, UrlPlace

log = structlog.get_logger("orb.api")

router = Router(prefix="/v1/crawls/{name}/pages", tags=["pages"], responses=problems(404))

PageId = Annotated[str, Path(alias="page", pattern=PAGE_ID, description="The page's id.")]
WHOLE_BYTES: Final = 1 << 20
"""A body of fewer bytes is read completely before the response begins.

So the response's header X-Orb-Incomplete reports every fault of such a body, even one at its end.
"""

BODY: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The body as a download, with content coding removed.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "headers": {
            "X-Orb-Incomplete": {
                "description": "`truncated`: the body was cut off. `undecodable`: it ends where decoding failed.",
                "schema": {"type": "string", "enum": ["truncated", "undecodable"]},
            }
        },
    },
    **UNCHANGED,
    **problems(404, ProblemKind.NO_ARCHIVE),
}
NO_ARCHIVE_HINT: Final = "start this master with --archive DIR (ORB_ARCHIVE), where it can read the workers' segments"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARS: Final = 80


@router.get("", summary="List stored pages")
async def list_pages(
    name: Name,
    served: Served,
    page: Page,
    response: Response,
    host: Annotated[str | None, Query(max_length=300, pattern=VISIBLE, description="Only pages of this host.")] = None,
    status: Annotated[int | None, Query(ge=100, le=999, description="Only pages with this HTTP status.")] = None,
    mime: Annotated[
        str | None,
        Query(max_length=100, pattern=VISIBLE, description="Only pages of this media type.", examples=["text/html"]),
    ] = None,
) -> Listing[PageSummary]:
    """List the stored pages of a crawl, host by host.

    Each request searches only a limited part of the crawl. So `items` may be short or empty although more pages follow.
    Continue until `next` is null.
    """
    crawl = await served.catalog.crawl(name)
    after_host, after = page.place(tuple[int, bytes], (-1, b""))
    rows, place = await served.catalog.pages(
        crawl.crawl_id,
        after=UrlPlace(HostId(after_host), Fingerprint(after)),
        which=PageFilter(host, status, None if mime is None else mime.lower()),
        max_count=page.max_count,
    )
    at = None if place is None else (place.host_id, place.fingerprint)
    return Listing(items=[page_body(each) for each in rows], next=page.next(at, response))


@router.get("/lookup", summary="Look up a stored page", dependencies=[CONDITIONAL], responses=UNCHANGED)
async def lookup_page(name: Name, url: OneUrl, served: Served, response: Response) -> PageDetail:
    """Return the stored page of a URL, with the record of its fetch; 404 if no page of that URL is stored."""
    _, view = await stored_page(served, name, located(url))
    return _tagged(page_detail(view), response)


@router.get(
    "/lookup/body", summary="Get a stored body by URL", response_class=Response, dependencies=[CONDITIONAL],
    responses=BODY,
)  # fmt: skip
async def lookup_page_body(name: Name, url: OneUrl, served: Served, request: Request) -> Response:
    """Return the content of a URL's stored page as the site sent it, with content coding removed.

    It is always a download, whatever its type.
    """
    crawl, view = await stored_page(served, name, located(url))
    return await _body(served, crawl, view, request)


@router.get("/{page}", summary="Get a stored page", dependencies=[CONDITIONAL], responses=UNCHANGED)
async def get_page(name: Name, page_id: PageId, served: Served, response: Response) -> PageDetail:
    """Return a stored page with the record of its fetch."""
    _, view = await stored_page(served, name, place_of(page_id))
    return _tagged(page_detail(view), response)


@router.get(
    "/{page}/body", summary="Get a stored body", response_class=Response, dependencies=[CONDITIONAL], responses=BODY
)
async def get_page_body(name: Name, page_id: PageId, served: Served, request: Request) -> Response:
    """Return the content of a stored page as the site sent it, with content coding removed.

    It is always a download, whatever its type.
    """
    crawl, view = await stored_page(served, name, place_of(page_id))
    return await _body(served, crawl, view, request)


async def stored_page(served: Services, name: str, at: UrlPlace | Location | None) -> tuple[DeclaredCrawl, PageView]:
    """Return the crawl `name` and one of its stored pages.

    `at`: the page's host id and fingerprint (UrlPlace), or its URL (Location). Raise Missing if there is no such crawl,
    if no such page is stored, or if `at` is None.
    """
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
    """Return a hash of a response body, for its ETag."""
    return hashlib.sha256(body.model_dump_json().encode()).hexdigest()[:32]


# --- bodies -----------------------------------------------------------------------------------------------------------


def archive_of(served: Services) -> PageArchive:
    """Return the archive that this master reads. Raise ApiProblem if none is configured."""
    if served.archive is None:
        raise ApiProblem(ProblemKind.NO_ARCHIVE, "no archive is configured on this master", hint=NO_ARCHIVE_HINT)
    return served.archive


async def _body(served: Services, crawl: DeclaredCrawl, view: PageView, request: Request) -> Response:
    page = view.page
    find_earlier = partial(_earlier_record, served, crawl, view)
    return await stored_body(served, crawl, page.url, page.fingerprint, page.location, request, find_earlier)


async def _no_earlier_record(url: str) -> RecordLocation:
    raise Missing(f"the body of that version is stored with another capture of {url}")


async def stored_body(
    served: Services,
    crawl: DeclaredCrawl,
    url: str,
    fingerprint: Fingerprint,
    place: RecordLocation,
    request: Request,
    find_earlier: Callable[[str], Awaitable[RecordLocation]] = _no_earlier_record,
) -> Response:
    """Return the body of the archive record at `place` as a download; 304 if the client has it already.

    - `url`, `fingerprint`: the URL and the fingerprint of the page, from which the file's name is made.
    - `find_earlier` is called for a record that has no body but refers to an earlier record with the same body. It gets
      the URL of the earlier record and returns the location of that record. By default it raises Missing.

    Raise ApiProblem if the record cannot be read.
    """
    archive = archive_of(served)
    tag = hashlib.sha256(f"{place.segment} {place.offset} {place.length}".encode()).hexdigest()[:32]
    if has(known_tags(request.scope), f'"{tag}"'.encode()):
        return Response(status_code=304, headers=etag(tag))
    headers = etag(tag) | _headers(url, fingerprint)
    try:
        stored = await archive.aside(lambda: archive.body(place))
        if stored.refers_to is not None:
            earlier = await find_earlier(stored.refers_to[0])
            stored = await archive.aside(lambda: archive.body(earlier))
        pieces = iter(stored)
        begun, is_whole = await archive.aside(lambda: _begun(pieces))
    except (RecordUnreadable, NotARecord) as error:
        log.warning("archive_record.rejected", crawl=crawl.crawl_id, url=url, error=str(error))
        detail = "the page's record cannot be read in this master's archive; the log says why"
        raise ApiProblem(ProblemKind.NO_ARCHIVE, detail, hint=NO_ARCHIVE_HINT) from error
    if stored.incomplete is not None:
        headers["X-Orb-Incomplete"] = stored.incomplete
    if is_whole:
        return Response(begun, headers=headers, media_type="application/octet-stream")
    return Streamed(begun, _rest(archive, stored, pieces), headers=headers, media_type="application/octet-stream")


async def _earlier_record(served: Services, crawl: DeclaredCrawl, view: PageView, url: str) -> RecordLocation:
    """Find the earlier archive record that has the body of the page `view`, and return its location.

    The archive stores equal bodies once. A later record has no body. It only names the URL of the earlier record.

    `url`: the URL that the record of `view` names. Example: the pages /a and /b have the same body, and /a was fetched
    first. If `view` is /b, then `url` is the URL of /a. Return the location of /a's record.

    Raise Missing if the earlier record is not the record of a stored page any more:

    - The crawl has no stored page with the URL `url`.
    - That page was fetched again, and has another body now.
    - That page is `view`: it was fetched twice with the same body. Only its later record, without a body, is known.
    """
    location = locate(url)
    capture = None if location is None else await served.catalog.page(crawl.crawl_id, location)
    if capture is None or capture.page.digest != view.page.digest or capture.page.location == view.page.location:
        raise Missing(f"the body of {view.page.url} is stored with an earlier capture, which is no longer listed")
    return capture.page.location


def _begun(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """Read the first pieces of a body, up to about WHOLE_BYTES. Return them, and True if they are the whole body."""
    parts, size = [], 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size >= WHOLE_BYTES:
            return b"".join(parts), False
    return b"".join(parts), True


async def _rest(archive: PageArchive, stored: StoredBody, pieces: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the rest of a body, whose beginning was already read from `pieces`.

    Raise BrokenOff if the record turns out to be damaged. The connection is then closed, so that the client detects it.
    """
    incomplete = stored.incomplete
    while (piece := await archive.aside(lambda: next(pieces, None))) is not None:
        yield piece
    if stored.incomplete != incomplete:
        raise BrokenOff(f"the body of {stored.url} is {stored.incomplete} behind its beginning")


def _headers(url: str, fingerprint: Fingerprint) -> dict[str, str]:
    return {
        "Content-Disposition": f'attachment; filename="{file_name(url, fingerprint)}"',
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
    }


def file_name(url: str, fingerprint: Fingerprint) -> str:
    """Return a safe file name for the download of a page: the start of its fingerprint and the end of its URL.

    It has only plain characters and no path. It is neither hidden nor reserved by an operating system.
    """
    last = url.partition("?")[0].rpartition("/")[2]
    safe = _UNSAFE.sub("-", last).strip("-.")[-_NAME_CHARS:]
    return f"{fingerprint.hex()[:8]}-{safe or 'page'}"
