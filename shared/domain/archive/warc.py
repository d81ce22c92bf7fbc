"""Build WARC/1.1 records (ISO 28500:2017) as bytes from a fetched page.

The module does no I/O: record ids and times are arguments. A page becomes three records: `response` (or `revisit`),
`request` and `metadata`. In the last two, the header WARC-Concurrent-To has the id of the first. A body is stored
without its transfer coding and with its content coding. So `Transfer-Encoding` and a wrong `Content-Length` are renamed
to X-Crawler-..., and a correct length is added.
"""

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from msgspec import Struct

from shared.domain.archive.model import ArchivedCrawl, Exchange, RevisitProfile, labelled_sha1, payload_digest
from shared.domain.web.fetch import Answer

_END: Final = b"\r\n\r\n"
_FRAMING: Final = re.compile(rb"^(transfer-encoding|content-length)[ \t]*:[ \t]*([^\r\n]*)", re.I | re.M)
_BLANK_LINE: Final = re.compile(rb"\n[^!-~\n]*\n")
_HTTP_LATER: Final = re.compile(rb"^HTTP/[23](?:\.\d)?(?=\s)|(?<= )HTTP/[23](?:\.\d)?(?=\r?$)")
_CONTROLS: Final = dict.fromkeys([*range(32), *range(127, 160), 0x2028, 0x2029], " ")


class PageRecords(Struct, frozen=True):
    """The uncompressed WARC records of one page, in the order they are written, and the response's payload digest."""

    response: bytes
    request: bytes
    metadata: bytes
    digest: bytes


def page_records(exchange: Exchange, ids: tuple[str, str, str]) -> PageRecords:
    """Return the WARC records of one fetched URL. `ids` are the UUIDs of the response, request and metadata records."""
    answer = exchange.answer
    date = warc_date(exchange.fetched_at_ms)
    digest = _payload_digest_of(exchange)
    subject = f"WARC-Date: {date}\r\nWARC-Target-URI: {_line(answer.url)}\r\n"
    beside = f"{subject}WARC-Concurrent-To: <urn:uuid:{ids[0]}>\r\n"
    if answer.ip:
        beside += f"WARC-IP-Address: {answer.ip}\r\n"
    request_fields = ""
    if exchange.request_body:
        request_fields = f"WARC-Payload-Digest: {labelled_sha1(payload_digest(exchange.request_body))}\r\n"
    return PageRecords(
        response=_response(exchange, ids[0], subject, digest),
        request=_record(
            "request", ids[1], beside + request_fields, "application/http;msgtype=request",
            stored_request_head(answer), exchange.request_body,
        ),
        metadata=_record("metadata", ids[2], beside, "application/warc-fields", _metadata(exchange)),
        digest=digest,
    )  # fmt: skip


def warcinfo_record(crawl: ArchivedCrawl, segment: str, software: str, record_id: str, now_ms: int) -> bytes:
    """Return the first record of a WARC file: which software wrote it, for which crawl, under which robots policy."""
    fields = [
        ("software", software),
        ("format", "WARC File Format 1.1"),
        ("conformsTo", "https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/"),
        ("isPartOf", crawl.name),
        ("robots", crawl.robots),
        ("http-header-user-agent", crawl.user_agent),
    ]
    block = _fields([(name, value) for name, value in fields if value])
    header = f"WARC-Date: {warc_date(now_ms)}\r\nWARC-Filename: {segment}\r\n"
    return _record("warcinfo", record_id, header, "application/warc-fields", block)


def stored_response_head(answer: Answer) -> bytes:
    """Return the response's status line and headers as stored: well-formed lines in HTTP/1.1 form.

    A Transfer-Encoding or a wrong Content-Length is renamed to X-Crawler-..., and a correct length is added.
    """
    head = _well_formed(answer.response_head, answer.http_version)
    framing = [(name.lower(), value.strip()) for name, value in _FRAMING.findall(head)]
    if not framing:
        return head
    size = str(len(answer.body)).encode()
    lengths = [value for name, value in framing if name == b"content-length"]
    no_body = _never_has_body(answer) and not answer.body
    if len(lengths) == len(framing) and (no_body or all(value == size for value in lengths)):
        return head
    head = _FRAMING.sub(rb"X-Crawler-\1: \2", head)
    return head if no_body else b"%bContent-Length: %b\r\n\r\n" % (head[:-2], size)


def stored_request_head(answer: Answer) -> bytes:
    """Return the request line and headers as stored: as sent, with an HTTP/2 start line written as HTTP/1.1."""
    return _well_formed(answer.request_head, answer.http_version)


def warc_date(ms: int) -> str:
    """Return a time in Unix ms as WARC-Date writes it: ISO 8601 in UTC with microseconds."""
    seconds, rest = divmod(ms, 1000)
    return f"{_second(seconds)}.{rest:03d}000Z"


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _response(exchange: Exchange, record_id: str, subject: str, digest: bytes) -> bytes:
    answer, revisit = exchange.answer, exchange.revisit
    header = f"{subject}WARC-Payload-Digest: {labelled_sha1(digest)}\r\n"
    if answer.ip:
        header += f"WARC-IP-Address: {answer.ip}\r\n"
    if not answer.http_version.startswith("1"):
        header += f"WARC-Protocol: h{answer.http_version[0]}\r\n"
    head = stored_response_head(answer)
    if revisit is None:
        if answer.truncated is not None:
            header += f"WARC-Truncated: {answer.truncated.value}\r\n"
        return _record("response", record_id, header, "application/http;msgtype=response", head, answer.body)
    header += (
        f"WARC-Profile: {revisit.profile.value}\r\nWARC-Refers-To-Target-URI: {_line(revisit.url)}\r\n"
        f"WARC-Refers-To-Date: {warc_date(revisit.fetched_at_ms)}\r\n"
    )
    return _record("revisit", record_id, header, "application/http;msgtype=response", head)


def _payload_digest_of(exchange: Exchange) -> bytes:
    """Return the SHA-1 of the response's payload.

    An answer 304 has no payload. For it, return the digest of the payload that was stored earlier. If that digest is
    unknown, return the digest of the answer's own body.
    """
    revisit = exchange.revisit
    if revisit is not None and revisit.profile is RevisitProfile.NOT_MODIFIED and revisit.digest is not None:
        return revisit.digest
    return exchange.digest or payload_digest(exchange.answer.body)


def _record(kind: str, record_id: str, header: str, content_type: str, head: bytes, body: bytes = b"") -> bytes:
    """Return a WARC record whose block is `head + body`.

    `kind` is its WARC-Type, `record_id` a UUID. `header` has further WARC header lines, each with its line end.
    """
    sha1 = hashlib.sha1(head, usedforsecurity=False)
    sha1.update(body)
    start = (
        f"WARC/1.1\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:{record_id}>\r\n{header}"
        f"WARC-Block-Digest: {labelled_sha1(sha1.digest())}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(head) + len(body)}\r\n\r\n"
    )
    return b"".join((start.encode("utf-8", "backslashreplace"), head, body, _END))


def _metadata(exchange: Exchange) -> bytes:
    """Return the block of the metadata record: one line for each field.

    A field that Heritrix also writes has the name that Heritrix gives it.
    """
    answer = exchange.answer
    fields = [("fetchTimeMs", str(round(answer.timings.total_s * 1000)))]
    if exchange.depth is not None:
        fields.append(("depth", str(exchange.depth)))
    if exchange.seed:
        fields.append(("seed", ""))
    if exchange.via is not None:
        fields.append(("via", exchange.via))
    if answer.decode_error is not None:
        fields.append(("decodeError", answer.decode_error))
    fields.extend(exchange.notes)
    return b"".join((_fields(fields), *(_outlinks(urls, how) for how, urls in exchange.outlinks.items())))


def _outlinks(urls: Sequence[str], how: str) -> bytes:
    if not urls:
        return b""
    end = f" {_line(how)}\r\n"
    between = f"{end}outlink: "
    text = f"outlink: {between.join(urls)}{end}"
    if text.count("\n") != len(urls) or text.count("\r") != len(urls):
        text = f"outlink: {between.join(map(_line, urls))}{end}"
    return text.encode("utf-8", "backslashreplace")


def _fields(fields: Sequence[tuple[str, str]]) -> bytes:
    text = "".join([f"{name}: {_line(value)}\r\n" for name, value in fields])
    return text.encode("utf-8", "backslashreplace")


def _line(value: str) -> str:
    """Return `value` with each character replaced that could end a header line."""
    return value if value.isprintable() else value.translate(_CONTROLS)


def _never_has_body(answer: Answer) -> bool:
    return answer.status < 200 or answer.status in (204, 304) or answer.request_head.startswith(b"HEAD ")


def _well_formed(head: bytes, http_version: str) -> bytes:
    """Return `head` with CRLF line ends, and without blank lines except the one that ends it.

    A line without visible ASCII characters is blank. The start line of an HTTP/2 or HTTP/3 head is written as HTTP/1.1.
    """
    if not http_version.startswith("1"):
        start, newline, rest = head.partition(b"\n")
        head = _HTTP_LATER.sub(b"HTTP/1.1", start, count=1) + newline + rest
    if head.endswith(_END) and head.count(b"\n") == head.count(b"\r\n") and not _BLANK_LINE.search(head[:-2]):
        return head
    lines = (line.removesuffix(b"\r") for line in head.split(b"\n"))
    return b"\r\n".join([line for line in lines if any(33 <= byte <= 126 for byte in line)]) + _END
