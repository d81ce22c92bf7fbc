"""Stored pages and seeds, as they are shown."""

from datetime import datetime
from enum import StrEnum
from typing import Final

from pydantic import Field

from api.schemas.frontier import TRUNCATED
from api.schemas.model import Model, moment_of, when
from shared.domain.archive import labelled_sha1
from shared.domain.ids import Fingerprint, HostId
from shared.domain.views import Page, PageView, SeedView
from shared.ports.catalog import UrlPlace

PAGE_ID: Final = r"^[0-9]{1,19}-[0-9a-f]{32}$"
_MOST: Final = 2**63 - 1


class ArchivePlace(Model):
    """Where the page's WARC record lies: one gzip member of a segment."""

    segment: str
    offset: int
    length: int


class PageSummary(Model):
    """A stored page."""

    id: str = Field(description="Names the page within its crawl.", examples=["4099-8a5edab282632443219e051e4ade2d1d"])
    url: str
    host: str
    status: int
    mime: str | None
    size: int = Field(description="Bytes of the body as it was transferred.")
    digest: str | None = Field(description="SHA-1 of that body, as WARC writes it.")
    depth: int
    title: str | None
    fetched_at: datetime
    archive: ArchivePlace
    truncated: str | None = Field(description=TRUNCATED)


class EarlierFetch(Model):
    """Another fetch of the same URL. One later than the page's brought no page."""

    at: datetime
    status: int | None
    reason: str


class PageDetail(PageSummary):
    """A stored page with the record of its fetch."""

    latency_ms: int
    links: int = Field(description="Links in it that were taken up.")
    links_found: int | None = Field(description="All links in it; null where they were not counted.")
    left_out: dict[str, int] = Field(description="Links in it that were left out, by reason.")
    redirect: str | None
    etag: str | None = Field(description="The site's own, for asking it again.")
    last_modified: str | None
    history: list[EarlierFetch] = Field(description="Newest first.")


class SeedSource(StrEnum):
    """Where a seed was declared."""

    SPEC = "spec"
    UPLOADED = "uploaded"


class SeedSummary(Model):
    """A URL that the crawl starts from."""

    url: str
    source: SeedSource
    priority: int
    state: str | None = Field(description="As of a URL; null while its owner has not taken it in.", examples=["done"])
    reason: str | None
    status: int | None
    fetched_at: datetime | None


def page_id(page: Page) -> str:
    """The page's name in URLs."""
    return f"{page.host_id}-{page.fingerprint.hex()}"


def place_of(page: str) -> UrlPlace | None:
    """The place that a page's name (of the form PAGE_ID) stands for; None where no page can have it."""
    host, _, mark = page.partition("-")
    return UrlPlace(HostId(int(host)), Fingerprint(bytes.fromhex(mark))) if int(host) <= _MOST else None


def page_body(page: Page) -> PageSummary:
    """The page as a list shows it."""
    place = page.location
    return PageSummary(
        id=page_id(page),
        url=page.url,
        host=page.host,
        status=page.status,
        mime=page.mime,
        size=page.size,
        digest=labelled_sha1(page.digest) if page.digest else None,
        depth=page.depth,
        title=page.title,
        fetched_at=moment_of(page.fetched_at_ms),
        archive=ArchivePlace(segment=place.segment, offset=place.offset, length=place.length),
        truncated=page.truncated,
    )


def page_detail(view: PageView) -> PageDetail:
    """The page with the record of its fetch."""
    fetch = view.fetch
    history = [EarlierFetch(at=moment_of(at), status=status or None, reason=why) for at, status, why in fetch.history]
    return PageDetail(
        **dict(page_body(view.page)),
        latency_ms=fetch.latency_ms,
        links=fetch.links,
        links_found=fetch.links_found,
        left_out=dict(fetch.left_out),
        redirect=fetch.redirect,
        etag=fetch.etag,
        last_modified=fetch.last_modified,
        history=history,
    )


def seed_body(url: str, source: SeedSource, priority: int, known: SeedView | None) -> SeedSummary:
    """The seed as a list shows it."""
    if known is None:
        return SeedSummary(
            url=url, source=source, priority=priority, state=None, reason=None, status=None, fetched_at=None
        )
    return SeedSummary(
        url=url,
        source=source,
        priority=priority,
        state=known.state.name.lower(),
        reason=known.reason,
        status=known.status or None,
        fetched_at=when(known.fetched_at_ms),
    )
