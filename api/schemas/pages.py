"""The response bodies of /v1 for stored pages and for seeds."""

from datetime import datetime
from enum import StrEnum
from typing import Final

from pydantic import Field

from api.schemas.frontier import TRUNCATED
from api.schemas.model import Model, moment_of, when
from shared.domain.archive.model import labelled_sha1
from shared.domain.ids import Fingerprint, HostId
from shared.domain.reads.views import Page, PageView, SeedView
from shared.ports.catalog import UrlPlace

PAGE_ID: Final = r"^[0-9]{1,19}-[0-9a-f]{32}$"
_MAX: Final = 2**63 - 1


class ArchivePlace(Model):
    """Where a WARC record is: its file, offset and length. The record is one gzip member of the file."""

    segment: str = Field(description="The name of the WARC file.", examples=["orb-w1-20300101080000-00001.warc.gz"])
    offset: int = Field(description="The offset of the record in bytes.", examples=[10240])
    length: int = Field(description="The length of the record in bytes.", examples=[5120])


class PageSummary(Model):
    """A stored page."""

    id: str = Field(description="The page's id within its crawl.", examples=["4099-8a5edab282632443219e051e4ade2d1d"])
    url: str = Field(description="The URL in canonical form.", examples=["https://example.org/guide/"])
    host: str = Field(description="`name` or `name:port` of its host.", examples=["example.org"])
    status: int = Field(description="The HTTP status.", examples=[200])
    mime: str | None = Field(description="The media type. Null if the answer named none.", examples=["text/html"])
    size: int = Field(description="The size of the body in bytes, as transferred.", examples=[18250])
    digest: str | None = Field(
        description="The SHA-1 of that body, as in WARC. Null if there is no body.",
        examples=["sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"],
    )
    depth: int = Field(description="The number of links between a seed and this page.", examples=[1])
    title: str | None = Field(description="The title. Null if the page has none.", examples=["A guide"])
    fetched_at: datetime = Field(description="When the page was fetched.", examples=["2030-01-01T08:12:30Z"])
    archive: ArchivePlace = Field(description="The place of its WARC record.")
    truncated: str | None = Field(description=TRUNCATED, examples=["length"])


class EarlierFetch(Model):
    """Another fetch of the same URL. If it is later than the fetch of the page, it returned no page."""

    at: datetime = Field(description="When the fetch began.", examples=["2030-01-01T08:00:00Z"])
    status: int | None = Field(description="The HTTP status. Null if there was no answer.", examples=[503])
    reason: str = Field(description="The outcome of the fetch.", examples=["http_503"])


class PageDetail(PageSummary):
    """A stored page with the record of its fetch."""

    latency_ms: int = Field(description="The duration of the fetch in milliseconds.", examples=[85])
    links: int = Field(description="The number of its links that the crawl followed.", examples=[42])
    links_found: int | None = Field(
        description="The number of all its links. Null if they were not counted.", examples=[51]
    )
    left_out: dict[str, int] = Field(
        description="The number of its links that were not followed, by reason.", examples=[{"other_host": 9}]
    )
    redirect: str | None = Field(
        description="The URL that it redirects to. Null if it does not redirect.", examples=["https://example.org/new/"]
    )
    etag: str | None = Field(
        description="The site's ETag of the page, for conditional requests. Null if there was none.",
        examples=['"5f-3c0a"'],
    )
    last_modified: str | None = Field(
        description="The site's Last-Modified of the page. Null if there was none.",
        examples=["Tue, 01 Jan 2030 08:00:00 GMT"],
    )
    history: list[EarlierFetch] = Field(description="Other fetches of the same URL, newest first.")


class SeedSource(StrEnum):
    """Where a seed comes from: the spec, or an upload."""

    SPEC = "spec"
    UPLOADED = "uploaded"


class SeedSummary(Model):
    """A seed of a crawl, with the state of its URL."""

    url: str = Field(description="The URL in canonical form.", examples=["https://example.org/"])
    source: SeedSource = Field(description="Where the seed was declared.")
    priority: int = Field(
        description="Its priority, from -100 to 100. Higher priorities are fetched first.", examples=[0]
    )
    state: str | None = Field(
        description="The state of the URL. Null until its owner has applied the seed.", examples=["done"]
    )
    reason: str | None = Field(description="Why it failed or was excluded. Null otherwise.", examples=["http_404"])
    status: int | None = Field(
        description="The HTTP status of the last fetch. Null if there was no answer.", examples=[200]
    )
    fetched_at: datetime | None = Field(
        description="When it was last fetched. Null if it never was.", examples=["2030-01-01T08:12:30Z"]
    )


def page_id(page: Page) -> str:
    """Return the id of a page as it is written in the API: the host's id and the URL's fingerprint."""
    return f"{page.host_id}-{page.fingerprint.hex()}"


def place_of(page: str) -> UrlPlace | None:
    """Return the host id and fingerprint in a page's id (of the form PAGE_ID); None if no page can have that id."""
    host, _, mark = page.partition("-")
    return UrlPlace(HostId(int(host)), Fingerprint(bytes.fromhex(mark))) if int(host) <= _MAX else None


def page_body(page: Page) -> PageSummary:
    """Return a page as a list of pages shows it."""
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
    """Return a page with the record of its fetch, as the API shows it."""
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
    """Return a seed as a list of seeds shows it. `known`: the state of its URL, None until the owner has applied it."""
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
