"""The archive's vocabulary: what is stored of a fetch, and the location of a stored record."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shared.domain.ids import CrawlId
from shared.domain.web.fetch import Answer


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """The location of one compressed WARC record: a segment's final name, the offset of its gzip member, its length in
    bytes.

    It is valid while the segment is being written, and after it was finished.
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
    """The earlier capture that has the payload of this one: its URL, its fetch time, its payload digest if known."""

    profile: RevisitProfile
    url: str
    fetched_at_ms: int
    digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """Everything the archive keeps of one fetched URL.

    `depth` counts links from a seed (None: it is no URL of the crawl). `seed`: it is a seed. `via` is the URL that led
    to it, if known. `fetched_at_ms` is the UTC wall clock at the start of the request, in ms since 1970.

    `outlinks` are pairs of a URL and how it was found, in the form of Heritrix. That is a hop letter (L link, E
    embedded, R redirect, I inferred) and the element's path, such as "L a/@href". `notes` are further fields of the
    metadata record. `digest` is `payload_digest(answer.body)` if the caller has computed it already.
    """

    answer: Answer
    fetched_at_ms: int
    depth: int | None
    via: str | None = None
    outlinks: Sequence[tuple[str, str]] = ()
    notes: Sequence[tuple[str, str]] = ()
    request_body: bytes = b""
    digest: bytes | None = None
    revisit: Revisit | None = None
    seed: bool = False


@dataclass(frozen=True, slots=True)
class Archived:
    """The part of an outcome about a stored page: the location of the response (or revisit) record, and the payload's
    digest.
    """

    location: RecordLocation
    digest: bytes


@dataclass(frozen=True, slots=True)
class ArchivedCrawl:
    """The crawl's description in its segments, and the size at which they rotate.

    `robots` is the policy in force ("obey", "ignore"). A segment is closed before it would exceed `segment_bytes`,
    unless a single page is larger.
    """

    crawl_id: CrawlId
    name: str
    robots: str = "obey"
    user_agent: str = ""
    segment_bytes: int = 1 << 30


def labelled_sha1(sha1: bytes) -> str:
    """Return a SHA-1 in WARC's form: `sha1:` and 32 characters of base32."""
    return "sha1:" + base64.b32encode(sha1).decode("ascii")


def payload_digest(body: bytes) -> bytes:
    """Return the SHA-1 (20 bytes) of a body with its content coding, which the index and revisits compare."""
    return hashlib.sha1(body, usedforsecurity=False).digest()
