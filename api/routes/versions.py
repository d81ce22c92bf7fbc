"""/v1/crawls/{name}/pages/{page}: the versions of a stored page, their bodies, and how their texts differ."""

import asyncio
from functools import partial
from typing import Annotated, Final

from fastapi import Path, Query, Request, Response

from api.http.deps import CONDITIONAL, Served, Services, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.routes.pages import BODY, PageId, archive_of, stored_body, stored_page
from api.routes.urls import Name
from api.schemas.changes import PageDiff, PageVersionSummary, diff_body, version_body
from api.schemas.model import Listing
from api.schemas.pages import place_of
from shared.domain.archive.stored_body import NotARecord
from shared.domain.reads.changes import PageVersion
from shared.domain.reads.declared import DeclaredCrawl
from shared.domain.reads.views import PageView
from shared.domain.web.page_text import MAX_BYTES
from shared.domain.web.text_diff import has_text, text_diff, text_of
from shared.ports.archive import PageArchive, RecordUnreadable
from shared.ports.catalog import Missing

router = Router(
    prefix="/v1/crawls/{name}/pages/{page}", tags=["pages"],
    responses=problems(404),
)  # fmt: skip

_GREATEST: Final = 2**31 - 1
Number = Annotated[int, Path(ge=1, le=_GREATEST, description="The number of the version.", examples=[2])]


@router.get("/versions", summary="List the versions of a page")
async def list_versions(name: Name, page_id: PageId, served: Served) -> Listing[PageVersionSummary]:
    """List the stored versions of a page, newest first: at most `recrawl.keep_versions`.

    A page has one version until a later fetch finds that it has changed.
    """
    _, _, versions = await _versions(served, name, page_id)
    return Listing(items=[version_body(each) for each in versions], next=None)


@router.get(
    "/versions/{version}/body", summary="Get the body of a version",
    response_class=Response, dependencies=[CONDITIONAL], responses=BODY,
)  # fmt: skip
async def get_version_body(name: Name, page_id: PageId, version: Number, served: Served, request: Request) -> Response:
    """Return the content of a version as the site sent it, with content coding removed.

    It is always a download, whatever its type.
    """
    crawl, view, versions = await _versions(served, name, page_id)
    place = _numbered(versions, version).location
    return await stored_body(served, crawl, view.page.url, view.page.fingerprint, place, request)


@router.get("/diff", summary="Compare two versions", responses=problems(ProblemKind.NO_ARCHIVE))
async def diff_versions(
    name: Name,
    page_id: PageId,
    served: Served,
    before: Annotated[
        int | None,
        Query(
            alias="from",
            ge=1,
            le=_GREATEST,
            description="The earlier version. Null: the one before `to`.",
            examples=[1],
        ),
    ] = None,
    after: Annotated[
        int | None,
        Query(alias="to", ge=1, le=_GREATEST, description="The later version. Null: the newest.", examples=[2]),
    ] = None,
) -> PageDiff:
    """Return the difference between the texts of two versions. For HTML, the visible text is compared."""
    _, _, versions = await _versions(served, name, page_id)
    new = _numbered(versions, after) if after is not None else versions[0]
    if before is None and new is versions[-1]:
        raise Missing(f"the page has no version before {new.version}")
    old = _numbered(versions, before) if before is not None else versions[versions.index(new) + 1]
    for version in (old, new):
        if not has_text(version.mime):
            error = FieldError("from" if version is old else "to", f"is of type {version.mime}, which has no text")
            raise ApiProblem(ProblemKind.INVALID, "only texts can be compared", errors=[error])
    archive = archive_of(served)
    try:
        texts = [await archive.aside(partial(_text, archive, each)) for each in (old, new)]
    except (RecordUnreadable, NotARecord) as error:
        raise ApiProblem(
            ProblemKind.NO_ARCHIVE, "a record of the page cannot be read in this master's archive"
        ) from error
    diff = await asyncio.to_thread(text_diff, *texts)
    return diff_body(old.version, new.version, diff)


async def _versions(served: Services, name: str, page_id: str) -> tuple[DeclaredCrawl, PageView, list[PageVersion]]:
    at = place_of(page_id)
    crawl, view = await stored_page(served, name, at)
    versions = [] if at is None else list(await served.catalog.versions(crawl.crawl_id, at))
    if not versions:
        raise Missing(f"the crawl {name!r} has no stored page of that id")
    return crawl, view, versions


def _numbered(versions: list[PageVersion], number: int) -> PageVersion:
    found = next((each for each in versions if each.version == number), None)
    if found is None:
        kept = ", ".join(str(each.version) for each in versions)
        raise Missing(f"the page has no version {number}; listed are {kept}")
    return found


def _text(archive: PageArchive, version: PageVersion) -> list[str]:
    """Return the lines of a version's text. Call it in a thread, because it reads the archive."""
    stored = archive.body(version.location)
    content_type = next((value for name, value in stored.headers if name == "content-type"), "")
    parts, size = [], 0
    for piece in stored:
        parts.append(piece)
        size += len(piece)
        if size >= MAX_BYTES:
            break
    return text_of(b"".join(parts), content_type, version.mime)
