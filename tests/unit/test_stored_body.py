"""A stored page read piece by piece is the one that is read whole, however it was cut, coded or damaged."""

import gzip
import tracemalloc
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib
from msgspec.structs import replace

from shared.domain.archive.model import Exchange, Revisit, RevisitProfile
from shared.domain.archive.stored_body import Member, NotARecord, StoredBody
from shared.domain.archive.warc import page_records
from shared.domain.web.fetch import Truncation
from tests.support.archive.exchanges import AT_MS, IDS, exchange
from tests.support.whole_records import parse_stored
from tests.unit.test_coding import bodies, codings, encode

MIB = 1 << 20


def stored(what: Exchange) -> bytes:
    """The response's record as a segment has it."""
    return isal_zlib.compress(page_records(what, IDS).response, 1, 31)


def member(record: bytes, piece: int = 1 << 16) -> Member:
    return lambda: (record[at : at + piece] for at in range(0, len(record), piece))


def coded(body: bytes, names: list[str]) -> Exchange:
    return exchange(encode(body, names), b"Content-Encoding: " + ", ".join(names).encode())


@given(bodies, codings, st.integers(1, 5000))
def test_piece_by_piece_is_the_same_as_whole(body: bytes, names: list[str], piece: int) -> None:
    record = stored(coded(body, names))
    whole = parse_stored(record)
    read = StoredBody(member(record, piece))
    assert (read.url, read.date, read.status, read.headers) == (whole.url, whole.date, whole.status, whole.headers)
    assert b"".join(read) == whole.decoded == body
    assert read.incomplete is None


@given(bodies, st.sampled_from([["gzip"], ["br"], ["zstd"], []]), st.integers(0, 3000))
def test_a_body_that_is_not_in_its_coding_comes_as_it_does_when_read_whole(
    body: bytes, names: list[str], at: int
) -> None:
    sent = encode(body, names)
    damaged = sent[:at] + b"\x55" + sent[at + 1 :]
    record = stored(exchange(damaged, b"Content-Encoding: " + ", ".join(names).encode()))
    whole = parse_stored(record)
    read = StoredBody(member(record))
    assert b"".join(read) == whole.decoded
    assert (read.incomplete == "undecodable") == (whole.decode_error is not None)


def test_a_coding_nobody_knows_leaves_the_body_as_it_is() -> None:
    read = StoredBody(member(stored(exchange(b"as it is", b"Content-Encoding: rot13"))))
    assert b"".join(read) == b"as it is"
    assert read.incomplete == "undecodable"


@given(st.data())
def test_damaged_record_is_refused_or_cut_and_never_taken_for_whole(data: st.DataObject) -> None:
    record = stored(exchange(bytes(range(256)) * 8, b"Content-Type: text/html"))
    at = data.draw(st.integers(0, len(record) - 1))
    cut = data.draw(st.booleans())
    damaged = record[:at] if cut else record[:at] + bytes([record[at] ^ 0x10]) + record[at + 1 :]
    try:
        whole = parse_stored(damaged).decoded
    except NotARecord:
        with pytest.raises(NotARecord):
            b"".join(StoredBody(member(damaged, 100)))
    else:  # a bit of the gzip header that nobody reads
        assert b"".join(StoredBody(member(damaged, 100))) == whole


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"WARC-Type: response", b"WARC-Type: warcinfo"),
        (b"WARC/1.1", b"WORC/1.1"),
        (b"HTTP/1.1 200", b"HTTQ/1.1 200"),
        (b"\r\n\r\n", b"\r\n \r\n"),
        (b"Content-Length: ", b"Content-Length: 1"),
        (b"Content-Length: ", b"Content-Length: -"),
        (b"Content-Length: ", b"Content-Length: " + b"9" * 5000),
    ],
    ids=["another type", "no record", "no answer", "no end of a head", "too long", "negative", "a number of no size"],
)
def test_what_is_no_stored_answer_is_refused(old: bytes, new: bytes) -> None:
    plain = page_records(exchange(b"body"), IDS).response
    with pytest.raises(NotARecord):
        b"".join(StoredBody(member(isal_zlib.compress(plain.replace(old, new), 1, 31))))


@pytest.mark.parametrize("coding", [b"gzip", b"br", b"zstd", b"deflate", b"rot13"])
def test_empty_body_with_a_coding_is_complete_and_must_end_there(coding: bytes) -> None:
    plain = page_records(exchange(b"", b"Content-Length: 0", b"Content-Encoding: " + coding), IDS).response
    read = StoredBody(member(isal_zlib.compress(plain, 1, 31)))
    assert (b"".join(read), read.incomplete, read.decode_error) == (b"", None, None)
    with pytest.raises(NotARecord, match="does not end where it says"):
        b"".join(StoredBody(member(isal_zlib.compress(plain + b"more", 1, 31))))


def test_a_revisit_names_the_capture_that_has_its_body() -> None:
    what = msgspec.structs.replace(
        exchange(b""), revisit=Revisit(RevisitProfile.NOT_MODIFIED, "http://a.test/", AT_MS, b"1" * 20)
    )
    read = StoredBody(member(stored(what)))
    assert read.refers_to == ("http://a.test/", "2023-11-14T22:13:20.123000Z")
    assert b"".join(read) == b""


def test_a_body_that_was_cut_when_it_was_fetched_says_so() -> None:
    whole = exchange(b"the beginning")
    read = StoredBody(
        member(stored(msgspec.structs.replace(whole, answer=replace(whole.answer, truncated=Truncation.LENGTH))))
    )
    assert b"".join(read) == b"the beginning"
    assert read.incomplete == "truncated"


def test_a_bomb_is_cut_at_the_limit_and_costs_no_memory() -> None:
    bomb = stored(exchange(gzip.compress(gzip.compress(b"\0" * (64 * MIB))), b"Content-Encoding: gzip, gzip"))
    tracemalloc.start()
    try:
        read = StoredBody(member(bomb), decoded_limit=32 * MIB)
        size = sum(map(len, read))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (size, read.incomplete) == (32 * MIB, "truncated")
    assert peak < 4 * MIB


def test_a_record_that_would_inflate_beyond_its_limit_is_refused() -> None:
    with pytest.raises(NotARecord, match="longer than"):
        b"".join(StoredBody(member(stored(exchange(b"\0" * (2 * MIB)))), record_limit=MIB))


def test_a_member_is_read_no_further_than_it_is_asked_for() -> None:
    taken = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken
        record = gzip_of_noise
        for at in range(0, len(record), 1000):
            taken += 1
            yield record[at : at + 1000]

    gzip_of_noise = stored(exchange(b"".join(bytes([n % 251, n % 13]) * (n % 7) for n in range(200_000))))
    read = StoredBody(counted)
    next(iter(read))
    assert taken < len(gzip_of_noise) / 1000
