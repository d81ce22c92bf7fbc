"""The archive on a real disk: killed, out of room, shared by two crawls, and judged by an independent tool."""

import asyncio
import gzip
import io
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import brotli
import pytest
from warcio.archiveiterator import ArchiveIterator

from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.repair import repair_torn
from shared.domain.archive.model import ArchivedCrawl, Exchange, RecordLocation, Revisit, RevisitProfile, payload_digest
from shared.domain.ids import CrawlId
from shared.ports.archive import ArchiveUnavailable, RecordUnreadable
from tests.support.archive.exchanges import AT_MS, answer, exchange, warcio_check
from tests.support.whole_records import read_response
from workers.archive import WarcArchive

ROOT = Path(__file__).parents[2]
HTML = b"<html>" + b"text " * 5000 + b"</html>"

_EVERY_SHAPE = [
    exchange(HTML, b"Content-Length: %d" % len(HTML)),
    exchange(HTML, b"Transfer-Encoding: chunked"),
    exchange(gzip.compress(HTML), b"Content-Encoding: gzip", b"Transfer-Encoding: chunked"),
    exchange(brotli.compress(HTML), b"Content-Encoding: br"),
    exchange(gzip.compress(HTML)[:500], b"Content-Encoding: gzip", b"Content-Length: 9999"),
    exchange(b"not gzip", b"Content-Encoding: gzip"),
    exchange(b"", b"Content-Length: 0"),
    exchange(b"", status=204),
    exchange(b"", b"ETag: x", status=304),
    exchange(b"", b"Location: /elsewhere", status=301),
    exchange(os.urandom(1_500_000)),
    exchange(b"over two", http_version="2"),
    exchange(b"odd", b"\xff\xfe: \x00", b" ", b"no colon", b"Content-Length: +3"),
    Exchange(answer(HTML), AT_MS, 2, "http://example.org/", {"L a/@href": ["http://example.org/a"] * 300}),
    Exchange(
        answer(HTML), AT_MS, 0, revisit=Revisit(RevisitProfile.IDENTICAL_PAYLOAD, "http://example.org/page", AT_MS)
    ),
]


def opened(folder: Path) -> WarcArchive:
    return WarcArchive(LocalSegments(folder), worker_id="w1", software="orb/test", wall_ms=lambda: AT_MS)


def test_every_response_shape_passes_warcio_and_reads_by_location(tmp_path: Path) -> None:
    async def body() -> None:
        archive = opened(tmp_path)
        writer = archive.writer(ArchivedCrawl(CrawlId(1), "shapes"))
        kept = [await writer.append(one) for one in _EVERY_SHAPE]
        await writer.sync()
        store = LocalSegments(tmp_path)
        while_open = [read_response(store, archived.location) for archived in kept]
        await archive.close()
        assert [read_response(store, archived.location) for archived in kept] == while_open
        for one, archived, read in zip(_EVERY_SHAPE, kept, while_open, strict=True):
            assert read.status == one.answer.status
            assert read.url == one.answer.url
            if one.revisit is None:
                assert read.body == one.answer.body
                assert archived.digest == payload_digest(one.answer.body)
            else:
                assert read.refers_to == ("http://example.org/page", "2023-11-14T22:13:20.123000Z")

    asyncio.run(body())
    (segment,) = tmp_path.iterdir()
    assert segment.name == "1-20231114221320-w1-0001.warc.gz"
    assert warcio_check(segment) == ""


def test_our_reader_and_warcio_decode_alike(tmp_path: Path) -> None:
    whole = [one for one in _EVERY_SHAPE if one.revisit is None]

    async def body() -> list[RecordLocation]:
        archive = opened(tmp_path)
        writer = archive.writer(ArchivedCrawl(CrawlId(1), "shapes"))
        locations = [(await writer.append(one)).location for one in whole]
        await archive.close()
        return locations

    for location in asyncio.run(body()):
        ours = read_response(LocalSegments(tmp_path), location)
        with (tmp_path / location.segment).open("rb") as segment:
            segment.seek(location.offset)
            record = next(iter(ArchiveIterator(io.BytesIO(segment.read(location.length)))))
            assert record.content_stream().read() == ours.decoded
            assert record.http_headers.get_statuscode() == str(ours.status)


def test_two_crawls_in_one_process_write_to_their_own_segments(tmp_path: Path) -> None:
    async def body() -> None:
        archive = opened(tmp_path)
        writers = [archive.writer(ArchivedCrawl(CrawlId(number), f"crawl {number}")) for number in (1, 2)]
        for number in range(40):
            archived = await writers[number % 2].append(exchange(b"%d" % (number % 2)))
            assert archived.location.segment.startswith(f"{number % 2 + 1}-")
        await asyncio.gather(*(writer.sync() for writer in writers))
        await archive.close()

    asyncio.run(body())
    segments = sorted(tmp_path.iterdir())
    assert [segment.name[:2] for segment in segments] == ["1-", "2-"]
    assert warcio_check(*segments) == ""


_WRITER = """
    import asyncio, sys
    from pathlib import Path
    from shared.adapters.objects.local import LocalSegments
    from shared.domain.archive.model import ArchivedCrawl
    from shared.domain.ids import CrawlId
    from shared.ports.archive import ArchiveFull
    from tests.support.archive.exchanges import AT_MS, exchange
    from workers.archive import WarcArchive

    def opened():
        return WarcArchive(LocalSegments(Path(sys.argv[1])), worker_id=sys.argv[2], software="t", wall_ms=lambda: AT_MS)

    def told(number, archived):
        print(number, archived.location.segment, archived.location.offset, archived.location.length, flush=True)
"""

_ENDLESS = """
    async def main():
        writer = opened().writer(ArchivedCrawl(CrawlId(1), "killed", segment_bytes=400_000))
        number = 0
        while True:
            batch = []
            for _ in range(7):
                batch.append((number, await writer.append(exchange(b"%d " % number * 3000))))
                number += 1
            await writer.sync()
            for one in batch:
                told(*one)

    asyncio.run(main())
"""


def _script(*parts: str) -> str:
    return "".join(map(textwrap.dedent, parts))


@pytest.mark.faults
@pytest.mark.parametrize("synced_pages", [1, 50, 400])
def test_what_was_synced_before_a_sigkill_is_readable_after_the_repair(tmp_path: Path, synced_pages: int) -> None:
    command = [sys.executable, "-c", _script(_WRITER, _ENDLESS), str(tmp_path), "w1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [writer.stdout.readline() for _ in range(synced_pages)]
        assert repair_torn(tmp_path) == [], "its writer lives"
        writer.send_signal(signal.SIGKILL)
        told += [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    repaired = repair_torn(tmp_path)
    assert repaired
    segments = sorted(tmp_path.iterdir())
    assert all(segment.name.endswith(".warc.gz") for segment in segments)
    assert warcio_check(*segments) == ""
    store = LocalSegments(tmp_path)
    for line in told:
        number, segment, offset, length = line.split()
        read = read_response(store, RecordLocation(segment, int(offset), int(length)))
        assert read.body == f"{number} ".encode() * 3000


_SHORT_OF_ROOM = """
    import resource

    async def main():
        archive = opened()
        writer = archive.writer(ArchivedCrawl(CrawlId(1), "full"))
        first = await writer.append(exchange(b"before"))
        await writer.sync()
        (segment,) = Path(sys.argv[1]).iterdir()
        durable = segment.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (durable + 1000, resource.RLIM_INFINITY))
        second = await writer.append(exchange(bytes(range(256)) * 2))
        third = await writer.append(exchange(b"third"))
        for _ in range(2):
            try:
                await writer.sync()
            except ArchiveFull as failure:
                assert "free some disk space" in str(failure) and failure.retry_in > 0
            else:
                raise AssertionError("there was no room")
            assert segment.stat().st_size == durable, "cut back to whole records"
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await writer.sync()
        await archive.close()
        for number, archived in enumerate((first, second, third)):
            told(number, archived)

    asyncio.run(main())
"""


def test_full_disk_leaves_whole_records_and_writing_resumes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _script(_WRITER, _SHORT_OF_ROOM), str(tmp_path), "w1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    bodies = []
    for line in done.stdout.splitlines():
        _, segment, offset, length = line.split()
        bodies.append(read_response(LocalSegments(tmp_path), RecordLocation(segment, int(offset), int(length))).body)
    assert bodies == [b"before", bytes(range(256)) * 2, b"third"]
    assert warcio_check(*tmp_path.iterdir()) == ""


def test_a_segment_is_hidden_from_tools_until_it_is_finished(tmp_path: Path) -> None:
    async def body() -> None:
        archive = opened(tmp_path)
        await archive.writer(ArchivedCrawl(CrawlId(1), "c")).append(exchange())
        assert [entry.suffix for entry in tmp_path.iterdir()] == [".open"]
        await archive.close()
        assert [entry.suffix for entry in tmp_path.iterdir()] == [".gz"]

    asyncio.run(body())


def test_second_process_in_same_second_takes_other_names(tmp_path: Path) -> None:
    async def body() -> None:
        first, second = opened(tmp_path), opened(tmp_path)
        crawl = ArchivedCrawl(CrawlId(1), "c")
        one = await first.writer(crawl).append(exchange())
        two = await second.writer(crawl).append(exchange())
        await first.close()
        three = await opened(tmp_path).writer(crawl).append(exchange())
        assert len({one.location.segment, two.location.segment, three.location.segment}) == 3
        await second.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    "location",
    [
        RecordLocation("1-none.warc.gz", 0, 10),
        RecordLocation("1-there.warc.gz", 1, 40),
        RecordLocation("1-there.warc.gz", 0, 10_000),
        RecordLocation("1-there.warc.gz", 0, 40),
        RecordLocation("1-there.warc.gz", 0, 1 << 60),
        RecordLocation("1-there.warc.gz", -1, 40),
        RecordLocation("1-there.warc.gz", 1 << 60, 40),
    ],
    ids=["no such segment", "not a record", "past the end", "half a record", "of no size", "before it", "behind it"],
)
def test_a_wrong_location_is_one_clear_error(tmp_path: Path, location: RecordLocation) -> None:
    (tmp_path / "1-there.warc.gz").write_bytes(gzip.compress(os.urandom(200)))
    with pytest.raises(RecordUnreadable):
        read_response(LocalSegments(tmp_path), location)


@pytest.mark.parametrize(
    "name", ["../secret", "a/../../secret", "/etc/hostname", "..", ".hidden", "", "a\0b", "x" * 300]
)
def test_a_location_cannot_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"mine")
    (tmp_path / "archive" / "a").mkdir(parents=True)
    segments = LocalSegments(tmp_path / "archive")
    with pytest.raises(RecordUnreadable, match="not a segment's name"):
        segments.read(RecordLocation(name, 0, 1))
    with pytest.raises(RecordUnreadable, match="not a segment's name"):
        segments.read_up_to(name, 0, 1)


def test_record_in_a_folder_that_is_away_is_unavailable_and_not_lost(tmp_path: Path) -> None:
    with pytest.raises(ArchiveUnavailable, match="check that it is mounted"):
        LocalSegments(tmp_path / "away").read(RecordLocation("1-there.warc.gz", 0, 1))


def test_a_stored_bomb_is_read_under_its_limit(tmp_path: Path) -> None:
    async def body() -> RecordLocation:
        archive = opened(tmp_path)
        bomb = exchange(gzip.compress(b"\0" * (20 << 20)), b"Content-Encoding: gzip")
        location = (await archive.writer(ArchivedCrawl(CrawlId(1), "c")).append(bomb)).location
        await archive.close()
        return location

    read = read_response(LocalSegments(tmp_path), asyncio.run(body()), decoded_limit=1 << 20)
    assert len(read.decoded) == 1 << 20
    assert read.decoded_truncated
