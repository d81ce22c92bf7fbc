"""What a crawl left on disk, read with independent tools: warcio for the segments, plain JSON for the index."""

import base64
import hashlib
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warcio.archiveiterator import ArchiveIterator


@dataclass(frozen=True, slots=True)
class Record:
    """A response or revisit record: its type, its URL, its payload (content coding kept) and payload digest."""

    kind: str
    url: str
    status: int
    payload: bytes
    digest: str


def segments(folder: Path) -> list[Path]:
    """The WARC segments of the crawl in `folder`."""
    return sorted((folder / "archive").glob("*.warc.gz"))


def index_lines(folder: Path) -> Iterator[dict[str, Any]]:
    """The fields of every line of the CDXJ index, with its sort key as `key`; AssertionError if it is not sorted."""
    for path in sorted((folder / "archive").glob("*.cdxj")):
        before = b""
        for line in path.read_bytes().splitlines():
            if line.startswith(b"!"):
                continue
            assert before <= line, f"{path.name} is not sorted at {line[:80]!r}"
            before = line
            key, _, fields = line.split(b" ", 2)
            row: dict[str, Any] = json.loads(fields)
            yield {**row, "key": key.decode()}


def record_at(folder: Path, segment: str, offset: int, length: int) -> Record:
    """The one record that lies at the place an index names, and nothing but it; AssertionError if that is not so."""
    name = segment if segment.endswith(".warc.gz") else f"{segment}.warc.gz"
    with (folder / "archive" / Path(name).name).open("rb") as file:
        file.seek(offset)
        member = file.read(length)
    assert len(member) == length, f"{name} ends inside the record at {offset}"
    found = []
    for record in ArchiveIterator(io.BytesIO(member)):
        assert record.rec_type in ("response", "revisit"), f"a {record.rec_type} record lies at {offset} of {name}"
        found.append(
            Record(
                record.rec_type,
                record.rec_headers.get_header("WARC-Target-URI"),
                int(record.http_headers.get_statuscode()),
                record.raw_stream.read(),
                record.rec_headers.get_header("WARC-Payload-Digest"),
            )
        )
    assert len(found) == 1, f"{len(found)} records lie at {offset} of {name}"
    return found[0]


def metadata(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The URL and the fields of every metadata record, without its outlinks."""
    for segment in segments(folder):
        with segment.open("rb") as file:
            for record in ArchiveIterator(file):
                if record.rec_type == "metadata":
                    lines = record.raw_stream.read().decode().splitlines()
                    fields = dict(line.split(": ", 1) for line in lines if not line.startswith("outlink: "))
                    yield record.rec_headers.get_header("WARC-Target-URI"), fields


def payloads(folder: Path, url: str) -> list[bytes]:
    """Return the payloads of every response record of a URL, by reading all segments."""
    found = []
    for path in segments(folder):
        with path.open("rb") as file:
            found += [
                record.raw_stream.read()
                for record in ArchiveIterator(file)
                if record.rec_type == "response" and record.rec_headers.get_header("WARC-Target-URI") == url
            ]
    return found


def payload_digest(payload: bytes) -> str:
    """The WARC-Payload-Digest of `payload`."""
    return f"sha1:{base64.b32encode(hashlib.sha1(payload).digest()).decode()}"


def check_with_warcio(paths: list[Path]) -> None:
    """`warcio check` over every segment: record framing and all digests; AssertionError with what it found."""
    assert paths, "there is no segment to check"
    command = [sys.executable, "-W", "ignore", "-m", "warcio.cli", "check", *map(str, paths)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]


def check_crawl(out: Path, summary: dict[str, Any], expected: set[str]) -> None:
    """Check that a crawl stored each page once and every record at its indexed place, with balanced counters."""
    assert (summary["end"], summary["state"], summary["finished_reason"]) == ("finished", "finished", "complete")
    index = list(index_lines(out))
    pages = Counter(line["url"] for line in index if line["status"] == "200")
    assert set(pages) == expected
    repeated = {url: count for url, count in Counter(line["url"] for line in index).items() if count > 1}
    assert repeated == {}
    assert summary["identities"] == {"urls": 0, "links": 0}
    assert summary["dead_letters"] == 0
    counters = summary["counters"]
    assert (counters["queued"], counters["leased"]) == (0, 0)
    assert counters["pages"] == len(expected)
    check_with_warcio(segments(out))
    for line in index:
        record = record_at(out, line["filename"], int(line["offset"]), int(line["length"]))
        assert (record.url, str(record.status)) == (line["url"], line["status"])
