"""Repair cuts what is torn and nothing else, wherever a dead writer stopped."""

import fcntl
import gzip
import mmap
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

from shared.adapters.local.resources import resident
from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.repair import Repaired, repair_segment, repair_torn, scan_records, unfinished
from shared.domain.archive.model import ArchivedCrawl
from shared.domain.archive.warc import page_records, warcinfo_record
from shared.domain.ids import CrawlId
from tests.support.archive.exchanges import AT_MS, IDS, exchange, members_of, read_all

NAME = "7-20231114221320-w-0001.warc.gz"
INFO = isal_zlib.compress(warcinfo_record(ArchivedCrawl(CrawlId(7), "c"), NAME, "orb/1", IDS[0], AT_MS), 1, 31)
PAGE = members_of(exchange(b"page " * 20))


def left_open(folder: Path, data: bytes, name: str = NAME) -> Path:
    path = folder / (name + ".open")
    path.write_bytes(data)
    return path


def ends_of_records(data: bytes) -> list[int]:
    """The byte every gzip member ends at, by the standard library."""
    ends, rest = [], data
    while rest:
        one = zlib.decompressobj(31)
        one.decompress(rest)
        rest = one.unused_data
        ends.append(len(data) - len(rest))
    return ends


WHOLE = INFO + PAGE + PAGE
ENDS = ends_of_records(WHOLE)


def test_a_cut_at_any_byte_keeps_exactly_the_whole_records() -> None:
    assert len(ENDS) == 7
    for cut in range(len(WHOLE) + 1):
        scan = scan_records(WHOLE[:cut])
        assert scan.end == max((end for end in ENDS if end <= cut), default=0)
        assert scan.pages == max(0, sum(end <= cut for end in ENDS) - 1)
        assert scan.damaged == ()


@pytest.mark.parametrize("cut", sorted({end + off for end in ENDS for off in (-1, 0, 1)} & set(range(len(WHOLE) + 1))))
def test_cut_segment_is_finalized_or_removed_when_without_page(tmp_path: Path, cut: int) -> None:
    left_open(tmp_path, WHOLE[:cut])
    kept = max((end for end in ENDS[1:] if end <= cut), default=0)
    assert repair_torn(tmp_path) == [Repaired(NAME, kept, cut - kept)]
    assert [entry.name for entry in tmp_path.iterdir()] == ([NAME] if kept else [])
    if kept:
        assert (tmp_path / NAME).read_bytes() == WHOLE[:kept]


@given(tail=st.one_of(st.binary(max_size=300), st.just(b"\0" * 5000), st.just(gzip.compress(b"no record"))))
def test_a_garbage_tail_is_cut(tail: bytes) -> None:
    scan = scan_records(INFO + PAGE + tail)
    assert (scan.end, scan.pages, scan.damaged) == (len(INFO + PAGE), 3, ())


def test_records_after_damage_are_kept_and_the_damage_is_told(tmp_path: Path) -> None:
    """They may have been synced; a disk that loses a block must not cost the rest of the segment."""
    left_open(tmp_path, INFO + PAGE + b"\0" * 700 + PAGE + b"torn")
    start = len(INFO + PAGE)
    assert repair_torn(tmp_path) == [Repaired(NAME, start + 700 + len(PAGE), 4, ((start, start + 700),))]
    assert len((tmp_path / NAME).read_bytes()) == start + 700 + len(PAGE)


def test_records_after_a_flipped_bit_of_a_gzip_header_are_kept() -> None:
    for bit in range(10 * 8):
        flipped = bytearray(PAGE)
        flipped[bit // 8] ^= 1 << bit % 8
        scan = scan_records(INFO + PAGE + flipped + PAGE)
        assert scan.end == len(INFO + 3 * PAGE), bit
        assert scan.damaged in ((), ((ENDS[3], ENDS[4]),)), "some bits have no meaning"


def test_records_after_a_member_that_only_looks_torn_are_kept(tmp_path: Path) -> None:
    """With the flag FEXTRA set, bytes of the record are the length of an extra field, which covers all that follows."""
    flipped = bytearray(PAGE)
    flipped[3] ^= 1 << 2
    left_open(tmp_path, INFO + PAGE + flipped + PAGE + PAGE[:50])
    assert repair_torn(tmp_path) == [Repaired(NAME, len(INFO + 3 * PAGE), 50, ((ENDS[3], ENDS[4]),))]


def test_a_torn_page_that_contains_whole_warc_records_is_still_torn() -> None:
    """What cannot be compressed further, such as a crawled WARC file, may lie in its record as it is."""
    storing = zlib.compressobj(0, wbits=31)
    record = page_records(exchange(b"." * 4000 + INFO + PAGE + b"." * 4000), IDS).response
    tail = storing.compress(record) + storing.flush()
    torn = tail[: tail.index(INFO + PAGE) + len(INFO + PAGE) + 100]
    scan = scan_records(INFO + PAGE + torn)
    assert (scan.end, scan.damaged) == (len(INFO + PAGE), ())


def test_records_longer_than_a_piece_of_reading_are_whole() -> None:
    big = members_of(exchange(os.urandom(200_000)))
    assert scan_records(INFO + big).end == len(INFO + big)
    assert scan_records(INFO + big + big[:100_000]).end == len(INFO + big)


def test_finished_segments_and_segments_of_live_writers_are_not_touched(tmp_path: Path) -> None:
    finished = tmp_path / NAME
    finished.write_bytes(INFO + PAGE + b"not ours to judge")
    live = LocalSegments(tmp_path).create("7-x-live-0001.warc.gz")
    live.commit([INFO, PAGE[:50]])
    assert repair_torn(tmp_path) == []
    assert finished.read_bytes().endswith(b"judge")
    assert (tmp_path / "7-x-live-0001.warc.gz.open").exists()
    live.abandon()
    assert [outcome.kept for outcome in repair_torn(tmp_path)] == [0]


def test_an_interrupted_repair_is_finished_by_the_next(tmp_path: Path) -> None:
    left_open(tmp_path, INFO + PAGE)
    assert repair_torn(tmp_path) == [Repaired(NAME, len(INFO + PAGE), 0)]
    assert repair_torn(tmp_path) == []
    assert [record.kind for record in read_all((tmp_path / NAME).read_bytes())][1] == "response"
    assert repair_torn(tmp_path / "missing") == []


def test_a_repair_waits_for_no_lock(tmp_path: Path) -> None:
    path = left_open(tmp_path, INFO + PAGE)
    with path.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert repair_torn(tmp_path) == []
    assert len(repair_torn(tmp_path)) == 1


def test_segment_that_cannot_be_repaired_keeps_its_name_and_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "7-20231114221320-w-0000.warc.gz.open").mkdir()
    whole = left_open(tmp_path, INFO + PAGE)
    refused, repaired = unfinished(tmp_path)
    with pytest.raises(OSError, match="directory"):
        repair_segment(refused)
    assert repair_segment(repaired) == Repaired(NAME, len(INFO + PAGE), 0)
    assert refused.exists()
    assert not whole.exists()


def test_scan_of_a_mapped_segment_keeps_little_of_it_in_memory(tmp_path: Path) -> None:
    big = isal_zlib.compress(page_records(exchange(os.urandom(4 << 20)), IDS).response, 1, 31)
    path = left_open(tmp_path, INFO + 24 * big)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        before = resident() or 0
        assert scan_records(data).end == len(data)
        assert (resident() or 0) - before < len(data) // 2
