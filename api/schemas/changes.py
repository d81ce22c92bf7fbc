"""The response bodies of /v1 for the changes and versions of pages."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Literal

import msgspec
from pydantic import Field

from api.schemas.frontier import TRUNCATED
from api.schemas.model import Listing, Model, field, moment_of
from api.schemas.pages import ArchivePlace
from shared.domain.archive.model import labelled_sha1
from shared.domain.crawl.recrawl_rules import compiled
from shared.domain.crawl.recrawl_spec import Recrawl, RecrawlPolicy
from shared.domain.frontier.page_history import ChangeKind
from shared.domain.frontier.recrawl_pages import expected
from shared.domain.reads.changes import PageChangeView, PageVersion
from shared.domain.web.text_diff import TextDiff


class ChangeName(StrEnum):
    """The kind of a page change: the page is new, its content changed, or it is gone from the site."""

    NEW = "new"
    CHANGED = "changed"
    GONE = "gone"


class PageChangeSummary(Model):
    """One recorded change of a page: the crawl found that it is new, has changed, or is gone."""

    kind: ChangeName = field("What happened to the page.")
    at: datetime = field("When the crawl recorded it.", "2030-01-01T08:12:30Z")
    page: str = field("The page's id within its crawl.", "4099-8a5edab282632443219e051e4ade2d1d")
    url: str = field("The URL in canonical form.", "https://example.org/news/")
    host: str = field("`name` or `name:port` of its host.", "example.org")
    version: int = field("The number of the page's newest version then.", 2)


class ChangesGap(Model):
    """The part of the requested time whose changes are missing from the list, because retention has deleted them."""

    reason: Literal["expired"] = field("Retention deleted them (`retention.changes_days`).", "expired")
    deleted_until: datetime = field(
        "All changes up to this time are deleted. What changed since is listed.", "2029-01-01T08:12:30Z"
    )


class PageChangeList(Listing[PageChangeSummary]):
    """One page of the list of changes. The `Link` header has the address of the next page."""

    gap: ChangesGap | None = Field(
        None, description="The changes at the beginning that are deleted. Null: none is, from `since` on."
    )


class PageVersionSummary(Model):
    """One stored version of a page, in the list of the page's versions."""

    version: int = field("Its number, from 1.", 2)
    newest: bool = field("True: it is the stored page.")
    fetched_at: datetime = field("When it was first fetched.", "2030-01-01T08:12:30Z")
    status: int = field("The HTTP status.", 200)
    mime: str | None = field("The media type. Null if the answer named none.", "text/html")
    size: int = field("The size of the body in bytes, as transferred.", 18250)
    digest: str | None = field(
        "The SHA-1 of that body, as in WARC. Null if there is no body.", "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"
    )
    title: str | None = field("The title. Null if the page has none.", "News")
    archive: ArchivePlace = field("The place of its WARC record.")
    truncated: str | None = field(TRUNCATED, "length")


class PageDiff(Model):
    """The line-by-line difference between the texts of two versions of a page."""

    before: int = field("The number of the version before.", 1)
    after: int = field("The number of the version after.", 2)
    added: int = field("The number of added lines.", 1)
    removed: int = field("The number of removed lines.", 1)
    cut: bool = field("True: a part of the texts was too long to be compared.")
    lines: list[str] = field(
        "The difference in the unified format. For HTML it is that of the visible text, with a line for each block.",
        ["@@ -1,2 +1,2 @@", " News", "-Rain", "+Sun"],
    )


class RecrawlPlan(Model):
    """An estimate for fetching the stored pages again: the number of requests, and how fresh the pages stay.

    The estimate is based on how often earlier fetches found the pages changed.
    """

    pages: int = field("The number of stored pages whose rate of change is estimated.", 870)
    requests_per_day: float = field("The number of requests a day that they would get.", 1000.0)
    expected_freshness: float = field(
        "The part of them that is expected to be as on their site, at any time, from 0 to 1.", 0.92
    )


def recrawl_plan(spec: Recrawl, counts: Mapping[str, int]) -> RecrawlPlan | None:
    """Return what the section `recrawl` of a spec would cost in requests, and how fresh it would keep the pages.

    Return None if `counts` has no page, or if the section does not let the crawl fetch pages again.

    `counts` groups the crawl's stored pages by how often they change. The key is the number of a group as text
    (`recrawl.bucket_of`), and the value is the number of pages in the group.
    """
    pages = {int(bucket): n for bucket, n in counts.items() if n > 0}
    if not spec.used or not pages:
        return None
    interval = compiled(msgspec.structs.replace(spec, by_pattern=())).of("")
    budget = spec.requests_per_day if interval.policy is RecrawlPolicy.ADAPTIVE else None
    requests, fresh = expected(pages, interval, budget)
    return RecrawlPlan(
        pages=sum(pages.values()), requests_per_day=round(requests, 3), expected_freshness=round(fresh, 4)
    )


def change_body(change: PageChangeView) -> PageChangeSummary:
    """Return a page change as the API lists it."""
    return PageChangeSummary.of(
        change,
        kind=ChangeName(change.kind.name.lower()),
        at=moment_of(change.place.at_ms),
        page=f"{change.host_id}-{change.fingerprint.hex()}",
    )


def version_body(version: PageVersion) -> PageVersionSummary:
    """Return one version of a page as the API lists it."""
    return PageVersionSummary.of(
        version,
        digest=labelled_sha1(version.digest) if version.digest else None,
        archive=ArchivePlace.of(version.location),
    )


def diff_body(before: int, after: int, diff: TextDiff) -> PageDiff:
    """Return the difference between two versions of a page as the API shows it.

    `before` and `after` are the numbers of the two versions.
    """
    return PageDiff.of(diff, before=before, after=after)


KINDS = {name: ChangeKind[name.name] for name in ChangeName}


def gap_of(after_ms: int, deleted_ms: int | None) -> ChangesGap | None:
    """Return the gap at the start of a list of changes that begins at `after_ms`. Return None if the list has no gap.

    `deleted_ms`: retention has deleted all changes up to this time. None: it has deleted none. Times are Unix ms.
    """
    if deleted_ms is None or deleted_ms < after_ms:
        return None
    return ChangesGap(reason="expired", deleted_until=moment_of(deleted_ms))
