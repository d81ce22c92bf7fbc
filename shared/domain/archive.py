"""The archive's vocabulary: what is stored of a fetch, and where a stored record is found again."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shared.domain.fetch import Answer
from shared.domain.ids import CrawlId


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """Where one compressed WARC record lies: a segment's final name, the byte its gzip member starts at, its bytes.

    It stays valid while the segment is still being written and after it was finished.
    """

    segment: str
    offset: int
    length: int


class RevisitProfile(StrEnum):
    """Why a capture needs no second copy of its payload (WARC/1.1, section 6.7)."""

    IDENTICAL_PAYLOAD = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
    NOT_MODIFIED = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"


@dataclass(frozen=True, slots=True)
class Revisit:
    """The earlier capture that holds the payload of this one: its URL, its fetch time, its payload digest if known."""

    profile: RevisitProfile
    url: str
    fetched_at_ms: int
    digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """Everything the archive keeps of one fetched URL.

    `fetched_at_ms` is the UTC wall clock at the start of the request, in ms since 1970. `outlinks` are pairs of a
    URL and how it was found, the latter as Heritrix writes it: a hop letter (L link, E embedded, R redirect,
    I inferred) and the element's path, such as "L a/@href". `notes` are further fields of the metadata record.
    `digest` is `payload_digest(answer.body)` where the caller has computed it already.
    """

    answer: Answer
    fetched_at_ms: int
    depth: int
    via: str | None = None
    outlinks: Sequence[tuple[str, str]] = ()
    notes: Sequence[tuple[str, str]] = ()
    request_body: bytes = b""
    digest: bytes | None = None
    revisit: Revisit | None = None


@dataclass(frozen=True, slots=True)
class Archived:
    """What an outcome carries of a stored page: the response (or revisit) record's place and the payload's digest."""

    location: RecordLocation
    digest: bytes


@dataclass(frozen=True, slots=True)
class ArchivedCrawl:
    """What a crawl's segments say of it, and the size they rotate at.

    `robots` is the policy in force ("obey", "ignore"); a segment is closed before it would exceed `segment_bytes`,
    unless a single page is larger than that.
    """

    crawl_id: CrawlId
    name: str
    robots: str = "obey"
    user_agent: str = ""
    segment_bytes: int = 1 << 30


def labelled_sha1(sha1: bytes) -> str:
    """A SHA-1 as WARC writes it: `sha1:` and 32 characters of base32."""
    return "sha1:" + base64.b32encode(sha1).decode("ascii")


def payload_digest(body: bytes) -> bytes:
    """SHA-1 (20 bytes) of a body with its content coding kept: what the index and revisits compare."""
    return hashlib.sha1(body, usedforsecurity=False).digest()
