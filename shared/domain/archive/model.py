"""Values of the archive: everything stored of a fetched URL, and where a stored record is."""

import hashlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from shared.domain.ids import CrawlId
from shared.domain.web.fetch import Answer

_DIGITS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS: Final = [first + second for first in _DIGITS for second in _DIGITS]


class RecordLocation(Struct, frozen=True):
    """Where a compressed WARC record is stored.

    `segment` is the final name of its WARC file, `offset` and `length` are in bytes. The location is valid while the
    file is being written, and afterwards.
    """

    segment: str
    offset: int
    length: int


class RevisitProfile(StrEnum):
    """Why a `revisit` record without a payload is stored for a fetched page (WARC/1.1, section 6.7).

    IDENTICAL_PAYLOAD: an earlier record has the same payload. NOT_MODIFIED: the server answered 304.
    """

    IDENTICAL_PAYLOAD = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
    NOT_MODIFIED = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"


class Revisit(Struct, frozen=True):
    """A reference to the earlier stored fetch whose payload a `revisit` record shares.

    `url`, `fetched_at_ms` and `digest` are those of the earlier fetch. `digest` is None if it is not known.
    """

    profile: RevisitProfile
    url: str
    fetched_at_ms: int
    digest: bytes | None = None


class Exchange(Struct, frozen=True, gc=False):
    """Everything that the archive stores of one fetched URL.

    - `depth`: the number of links from a seed. None if the URL does not belong to the crawl, such as a robots.txt.
    - `seed`: the URL is a seed. `via`: the URL that led to it, if known.
    - `fetched_at_ms`: the UTC wall clock at the start of the request, in ms since 1970.
    - `outlinks`: the URLs of the links, by how they were found. A key has the form of Heritrix, such as "L a/@href": a
      letter (L link, E embedded, R redirect, I inferred) and the element's path.
    - `notes`: further fields of the metadata record.
    - `digest`: `payload_digest(answer.body)` if the caller has computed it already, else None.
    """

    answer: Answer
    fetched_at_ms: int
    depth: int | None
    via: str | None = None
    outlinks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: Sequence[tuple[str, str]] = ()
    request_body: bytes = b""
    digest: bytes | None = None
    revisit: Revisit | None = None
    seed: bool = False


class Archived(Struct, frozen=True):
    """Where a fetched page was stored: the `location` of its response or revisit record.

    `digest` is the SHA-1 of the payload.
    """

    location: RecordLocation
    digest: bytes


class ArchivedCrawl(Struct, frozen=True):
    """The facts about a crawl that its WARC files (segments) record, and the greatest size of a segment.

    `robots` is the policy in force ("obey", "ignore"). A segment is closed before it would exceed `segment_bytes`,
    unless a single page is larger.
    """

    crawl_id: CrawlId
    name: str
    robots: str = "obey"
    user_agent: str = ""
    segment_bytes: int = 1 << 30


def labelled_sha1(sha1: bytes) -> str:
    """Return a SHA-1 as WARC writes it: `sha1:` and 32 characters of base32."""
    return "sha1:" + base32(sha1)


def base32(data: bytes) -> str:
    """Return the base32 text of `data`, whose length is a multiple of 5 bytes: RFC 4648, upper case, no padding.

    `base64.b32encode` takes three times as long for a SHA-1, and a page has several.
    """
    text: list[str] = []
    for at in range(0, len(data), 5):
        bits = int.from_bytes(data[at : at + 5])
        text += (_PAIRS[bits >> 30], _PAIRS[bits >> 20 & 1023], _PAIRS[bits >> 10 & 1023], _PAIRS[bits & 1023])
    return "".join(text)


def payload_digest(body: bytes) -> bytes:
    """Return the SHA-1 (20 bytes) of a response body as received, with its content coding: the digest in WARC files."""
    return hashlib.sha1(body, usedforsecurity=False).digest()
