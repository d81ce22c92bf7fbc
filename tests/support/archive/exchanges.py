"""Exchanges to archive, and what an independent reader (warcio) makes of the result."""

import base64
import hashlib
import io
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import brotli
from isal import isal_zlib
from warcio.archiveiterator import ArchiveIterator
from warcio.bufferedreaders import BufferedReader

from shared.domain.archive.model import Exchange
from shared.domain.archive.warc import page_records
from shared.domain.web.fetch import Answer, Timings

IDS = (
    "00000000-0000-4000-8000-000000000001",
    "00000000-0000-4000-8000-000000000002",
    "00000000-0000-4000-8000-000000000003",
)
REQUEST = b"GET /page HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n"
ROOT = Path(__file__).parents[3]
AT_MS = 1_700_000_000_123


def answer(
    body: bytes = b"<html>page</html>",
    *lines: bytes,
    status: int = 200,
    url: str = "http://example.org/page",
    request_head: bytes = REQUEST,
    **more: Any,
) -> Answer:
    """An answer whose head has these header lines; `headers` are parsed from them."""
    head = b"\r\n".join([b"HTTP/1.1 %d Whatever" % status, *lines, b"", b""])
    pairs = (line.partition(b":") for line in lines)
    headers = tuple((name.decode("latin-1").lower(), value.decode("latin-1").strip()) for name, _, value in pairs)
    fields: dict[str, Any] = {"decoded": body, "ip": "192.0.2.7", "timings": Timings(total_s=0.25), **more}
    return Answer(
        url=url, status=status, headers=headers, request_head=request_head, response_head=head, body=body, **fields
    )


def exchange(body: bytes = b"<html>page</html>", *lines: bytes, depth: int = 0, **more: Any) -> Exchange:
    return Exchange(answer(body, *lines, **more), AT_MS, depth)


def sha1(data: bytes) -> str:
    return "sha1:" + base64.b32encode(hashlib.sha1(data).digest()).decode()


class Unbrotli:
    """Brotli as warcio wants it: it sets an attribute, which the decompressor of brotli 1.2 does not allow."""

    unused_data: bytes | None = None

    def __init__(self) -> None:
        self.decompress = brotli.Decompressor().process


BufferedReader.DECOMPRESSORS["br"] = Unbrotli


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as warcio reads it, with the verdict of its digest check."""

    kind: str
    warc: dict[str, str]
    http: list[tuple[str, str]]
    payload: bytes
    digests_hold: bool | None


def read_all(data: bytes) -> list[ReadRecord]:
    """Every record of a segment; the payload with transfer and content coding removed, as replay does it."""
    found = []
    for record in ArchiveIterator(io.BytesIO(data), check_digests=True):
        payload = record.content_stream().read()
        # The checker judges when the last stored byte is read; a decoder may stop before it.
        record.raw_stream.read()
        found.append(
            ReadRecord(
                kind=record.rec_type,
                warc=dict(record.rec_headers.headers),
                http=list(record.http_headers.headers) if record.http_headers else [],
                payload=payload,
                digests_hold=record.digest_checker.passed,
            )
        )
    return found


def members_of(what: Exchange) -> bytes:
    """The page's three records, one gzip member each."""
    records = page_records(what, IDS)
    return b"".join(isal_zlib.compress(part, 1, 31) for part in (records.response, records.request, records.metadata))


def response_of(what: Exchange) -> ReadRecord:
    return read_all(members_of(what))[0]


def warcio_check(*segments: Path) -> str:
    """What `warcio check` complains of; empty when it is content."""
    command = [
        sys.executable,
        "-c",
        "import tests.support.archive.exchanges; from warcio.cli import main; main()",
        "check",
        *map(str, segments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)
    return done.stdout + done.stderr + (f"exit code {done.returncode}" if done.returncode else "")
