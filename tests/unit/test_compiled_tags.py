"""The compiled tag scanner gives the very result of the one in Python, and the lock back while it scans a long page."""

import random
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.scanners import compiled_scanner
from tests.support.web.broken_markup import FOREIGN_PIECES, HOSTILE, PIECES, joined, spoiled
from tests.support.web.corpora import pages_of_every
from workers.parse.start_tags import ScanTags
from workers.parse.tags import scan_tags

_RANDOM_DOCUMENTS = 6000
_SHORT_DOCUMENTS = 1500


@pytest.fixture(scope="module")
def compiled() -> ScanTags:
    return compiled_scanner()


def modes() -> Iterator[tuple[bool, bool]]:
    return ((images, xml) for images in (False, True) for xml in (False, True))


def assert_same(compiled: ScanTags, html: bytes, limit: int = 1_000_000) -> None:
    for images, xml in modes():
        expected = scan_tags(html, images=images, xml=xml, limit=limit)
        assert compiled(html, images=images, xml=xml, limit=limit) == expected, (html[:4000], images, xml, limit)


def test_real_pages_and_their_beginnings_are_scanned_alike(compiled: ScanTags) -> None:
    for number, path in enumerate(pages_of_every(17)):
        page = path.read_bytes()
        assert_same(compiled, page)
        assert_same(compiled, page[: len(page) * (number % 10) // 10], limit=number % 40)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pages_are_scanned_alike(compiled: ScanTags, name: str) -> None:
    for size in (0, 37, 1000, 100_000):
        assert_same(compiled, HOSTILE[name](size))


@given(
    st.lists(st.sampled_from(PIECES + FOREIGN_PIECES).map(str.encode) | st.binary(max_size=6), max_size=16),
    st.integers(0, 6) | st.just(1_000_000),
)
def test_broken_documents_are_scanned_alike(compiled: ScanTags, pieces: list[bytes], limit: int) -> None:
    assert_same(compiled, b"".join(pieces), limit)


def test_spoiled_pages_are_scanned_alike(compiled: ScanTags, short: bool) -> None:
    seed = random.randrange(1_000_000)
    draw = random.Random(seed)
    pages = [path.read_bytes() for path in pages_of_every(151)]
    for number in range(_SHORT_DOCUMENTS if short else _RANDOM_DOCUMENTS):
        document = spoiled(draw, pages) if number % 2 else joined(draw)
        images, xml, limit = bool(number & 2), bool(number & 4), draw.choice((1, 3, 1_000_000))
        expected = scan_tags(document, images=images, xml=xml, limit=limit)
        assert compiled(document, images=images, xml=xml, limit=limit) == expected, (seed, number, document)


def test_every_cut_of_a_document_is_scanned_alike(compiled: ScanTags) -> None:
    whole = (
        b'<!doctype html><html lang=x><title>a</title><a id="i" href="1" class="c">x</a><a href=\'2\' rel=next/>'
        b"<!-- <a href=3> --!><script><!--<script></script>--></script><![CDATA[<a>]]><svg><title>t</title><script/>"
        b"</svg><template shadowrootmode = 'open'><a href=4></template><template><a href=5></template></a b='>'>"
        b"<iframe src=6></iframe><?x><img srcset=7><plaintext><a href=8>"
    )
    for end in range(len(whole) + 1):
        assert_same(compiled, whole[:end])
        assert_same(compiled, whole[end:])


def test_other_threads_run_while_a_long_page_is_scanned(compiled: ScanTags) -> None:
    """The interpreter switches threads only where one gives up its lock, here: during the scan, or never."""
    page = b"<p>" * (32 << 20 >> 2)
    counted = 0
    begun, ended = threading.Event(), threading.Event()

    def count() -> None:
        nonlocal counted
        while not ended.is_set():
            counted += 1
            begun.set()
            time.sleep(0)  # gives up the lock

    counting = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    counting.start()
    try:
        begun.wait()
        sys.setswitchinterval(1000)
        before = counted
        for _ in range(50):  # the machine may keep the other thread from its processors during one scan
            compiled(page)
            if counted > before:
                break
        assert counted > before
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        counting.join()


def test_what_is_no_bytes_is_refused(compiled: ScanTags) -> None:
    with pytest.raises(TypeError):
        compiled("<a href=1>")  # type: ignore[arg-type]  # what the test is about
