"""The response bodies of /v1 for stored pages and for seeds."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from api.schemas.frontier import TRUNCATED
from api.schemas.model import SEED_LABELS, SEED_SOURCE, Model, field, moment_of
from shared.domain.archive.model import labelled_sha1
from shared.domain.frontier.seed_contexts import SeedContext, labels_of, source_of
from shared.domain.ids import Fingerprint, HostId
from shared.domain.reads.views import Page, PageView, SeedView
from shared.ports.catalog import UrlPlace

PAGE_ID: Final = r"^[0-9]{1,19}-[0-9a-f]{32}$"
SEGMENT_NAME: Final = r"^[A-Za-z0-9_.-]{1,200}\.warc\.gz$"
TIME_DIGITS: Final = r"^[0-9]{0,14}$"
_MAX: Final = 2**63 - 1


class ArchivePlace(Model):
    """The location of a WARC record: its file, offset and length. The record is one gzip member of the file."""

    segment: str = field("The name of the WARC file.", "orb-w1-20300101080000-00001.warc.gz")
    offset: int = field("The offset of the record in bytes.", 10240)
    length: int = field("The length of the record in bytes.", 5120)


class PageSummary(Model):
    """A stored page, in a list of pages."""

    id: str = field("The page's id within its crawl.", "4099-8a5edab282632443219e051e4ade2d1d")
    url: str = field("The URL in canonical form.", "https://example.org/guide/")
    host: str = field("`name` or `name:port` of its host.", "example.org")
    status: int = field("The HTTP status.", 200)
    mime: str | None = field("The media type. Null if the answer named none.", "text/html")
    size: int = field("The size of the body in bytes, as transferred.", 18250)
    digest: str | None = field(
        "The SHA-1 of that body, as in WARC. Null if there is no body.", "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"
    )
    depth: int = field("The number of links between a seed and this page.", 1)
    title: str | None = field("The title. Null if the page has none.", "A guide")
    fetched_at: datetime = field("When the page was fetched.", "2030-01-01T08:12:30Z")
    archive: ArchivePlace = field("The place of its WARC record.")
    truncated: str | None = field(TRUNCATED, "length")
    gone: bool = field("True if the site has no such page any more. This is then what it was at its last fetch.", False)
    labels: dict[str, str] = field(SEED_LABELS, {"team": "search"})
    source: str | None = field(SEED_SOURCE, "https://example.org/members.csv")


class OtherFetch(Model):
    """A fetch of a page's URL that did not give the stored page.

    Example: a URL was fetched on Monday (503), on Tuesday (200, the page was stored) and on Wednesday (404). The
    fetches of Monday and Wednesday are the other fetches.
    """

    at: datetime = field("When the fetch began.", "2030-01-01T08:00:00Z")
    status: int | None = field("The HTTP status. Null if there was no answer.", 503)
    reason: str = field("The outcome of the fetch.", "http_503")


class PageDetail(PageSummary):
    """A stored page, with details of its fetch and a list of the other fetches of its URL."""

    latency_ms: int = field("The duration of the fetch in milliseconds.", 85)
    links: int = field("The number of its links that the crawl followed.", 42)
    links_found: int | None = field("The number of all its links. Null if they were not counted.", 51)
    left_out: dict[str, int] = field("The number of its links that were not followed, by reason.", {"other_host": 9})
    redirect: str | None = field(
        "The URL that it redirects to. Null if it does not redirect.", "https://example.org/new/"
    )
    etag: str | None = field(
        "The site's ETag of the page, for conditional requests. Null if there was none.", '"5f-3c0a"'
    )
    last_modified: str | None = field(
        "The site's Last-Modified of the page. Null if there was none.", "Tue, 01 Jan 2030 08:00:00 GMT"
    )
    history: list[OtherFetch] = field("Other fetches of the same URL, newest first.")


class SeedSource(StrEnum):
    """Where a seed was declared: in the spec, or in an upload after the crawl was declared."""

    SPEC = "spec"
    UPLOADED = "uploaded"


class SeedSummary(Model):
    """A seed of a crawl, with the state of its URL."""

    url: str = field("The URL in canonical form.", "https://example.org/")
    source: SeedSource = field("Where the seed was declared.")
    priority: int = field("Its priority, from -100 to 100. Higher priorities are fetched first.", 0)
    state: str | None = field("The state of the URL. Null until its owner has applied the seed.", "done")
    reason: str | None = field("Why it failed or was excluded. Null otherwise.", "http_404")
    status: int | None = field("The HTTP status of the last fetch. Null if there was no answer.", 200)
    fetched_at: datetime | None = field("When it was last fetched. Null if it never was.", "2030-01-01T08:12:30Z")
    labels: dict[str, str] = field("The labels that the seed was given last.", {"team": "search"})
    given_source: str | None = field(
        "The `source` that the seed was given last. Null if it has none.", "https://example.org/members.csv"
    )


def page_id(page: Page) -> str:
    """Return the id of a page in the API: the id of its host, a hyphen, and the hexadecimal fingerprint of its URL."""
    return f"{page.host_id}-{page.fingerprint.hex()}"


def place_of(page: str) -> UrlPlace | None:
    """Return the host id and the fingerprint in `page`, the id of a page. `page` must match PAGE_ID.

    Return None if the host id is larger than 2**63 - 1. No host has such an id.
    """
    host, _, mark = page.partition("-")
    return UrlPlace(HostId(int(host)), Fingerprint(bytes.fromhex(mark))) if int(host) <= _MAX else None


def page_body(page: Page) -> PageSummary:
    """Return a page as a list of pages shows it."""
    return PageSummary.of(
        page,
        id=page_id(page),
        digest=labelled_sha1(page.digest) if page.digest else None,
        archive=ArchivePlace.of(page.location),
        labels=labels_of(page.context),
        source=source_of(page.context),
    )


def page_detail(view: PageView) -> PageDetail:
    """Return a stored page with details of its fetch, as the API shows it."""
    fetch = view.fetch
    history = [OtherFetch(at=moment_of(at), status=status or None, reason=why) for at, status, why in fetch.history]
    return PageDetail.of(fetch, **dict(page_body(view.page)), history=history)


def seed_body(
    url: str, source: SeedSource, priority: int, context: SeedContext | None, known: SeedView | None
) -> SeedSummary:
    """Return a seed as a list of seeds shows it.

    - `url`, `source`, `priority`, `context`: the seed as it was declared. `context` has its labels and its source text.
    - `known`: the stored state of its URL, None if the owner has not applied the seed yet.
    """
    declared: dict[str, Any] = {"url": url, "source": source, "priority": priority}
    declared |= {"labels": labels_of(context), "given_source": source_of(context)}
    if known is None:
        return SeedSummary(**declared, state=None, reason=None, status=None, fetched_at=None)
    return SeedSummary.of(known, **declared, state=known.state.name.lower(), status=known.status or None)
