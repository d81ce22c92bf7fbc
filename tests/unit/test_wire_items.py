"""Items on the wire: read by every later version, refused as a whole when malformed, and never cut in two pages."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId
from shared.domain.reads.items import PageItems, TakenItem
from shared.wire.items import MAX_BYTES, crawl_of, decode_items, encode_items, items_subject
from shared.wire.messages import Malformed

PAGE = PageItems(
    HostId(4099), Fingerprint(bytes(range(16))), "https://a.test/ä?b=\u2603", LeaseId(8195), 2, 1_751_328_000_123,
    (TakenItem(bytes(range(16, 32)), "product", b'{"title":"Bolt \\"M8\\"","price":null,"tags":["a",1,2.5,true]}'),),
)  # fmt: skip
SAMPLE = (
    b'{"type":"items/1","crawl":7,"name":"shop","pages":[{"page":"4099-000102030405060708090a0b0c0d0e0f",'
    b'"url":"https://a.test/\xc3\xa4?b=\xe2\x98\x83","fetch":"8195-2","at_ms":1751328000123,"items":['
    b'{"id":"101112131415161718191a1b1c1d1e1f","rule":"product",'
    b'"data":{"title":"Bolt \\"M8\\"","price":null,"tags":["a",1,2.5,true]}}]}]}'
)
"""As a released program wrote it: it is read for ever."""


def message(**changes: Any) -> bytes:
    """The sample with fields of its page changed."""
    plain = msgspec.json.decode(SAMPLE)
    plain["pages"][0].update(changes)
    return msgspec.json.encode(plain)


def test_what_was_written_once_is_read_and_written_for_ever() -> None:
    assert decode_items(SAMPLE) == (7, [PAGE])
    assert list(encode_items(CrawlId(7), "shop", [PAGE])) == [SAMPLE]
    assert items_subject(CrawlId(7)) == "items.7"


def test_a_page_without_items_is_told_too() -> None:
    (data,) = encode_items(CrawlId(7), "shop", [PAGE._replace(items=())])
    assert decode_items(data) == (7, [PAGE._replace(items=())])


def test_what_a_newer_version_adds_is_passed_over() -> None:
    newer = msgspec.json.encode({**msgspec.json.decode(message(more={"a": [1]})), "spec": 3})
    assert decode_items(newer) == (7, [PAGE])


def test_many_pages_go_in_messages_within_bounds_and_no_page_in_two() -> None:
    item = PAGE.items[0]._replace(data=b'{"t":"' + b"x" * 60_000 + b'"}')
    pages = [PAGE._replace(fingerprint=Fingerprint(n.to_bytes(16)), items=(item,) * (1 + n % 4)) for n in range(40)]
    messages = list(encode_items(CrawlId(7), "shop", pages))
    assert 1 < len(messages) < len(pages)
    assert max(map(len, messages)) <= MAX_BYTES
    assert [page for data in messages for page in decode_items(data)[1]] == pages


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"{}", b"[1]", b"[" * 100_000, SAMPLE[:-1], SAMPLE.replace(b"items/1", b"items/2"),
        SAMPLE.replace(b'"crawl":7', b'"crawl":0'), SAMPLE.replace(b'"crawl":7', b'"crawl":9223372036854775808'),
        message(page="4099"), message(page="4099-00"), message(page="9223372036854775808-" + "0" * 32),
        message(fetch="8195"), message(fetch="-1-2"), message(fetch="9223372036854775808-1"),
        message(at_ms=-1), message(at_ms=2**63), message(items=[{"id": "x", "rule": "r", "data": {}}]),
        message(items=[{"id": "0" * 32, "rule": "r", "data": [1]}]), message(items=[{"id": "0" * 32, "rule": "r"}]),
        SAMPLE.replace(b'"price":null', b'"price":nul'),
    ],
)  # fmt: skip
def test_what_is_no_such_message_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_items(data)
    assert crawl_of(data) in (0, 7)


@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_no_bytes_are_anything_but_a_message_or_malformed(data: bytes) -> None:
    try:
        decode_items(data)
    except Malformed:
        assert crawl_of(data) == 0


def test_data_is_one_line_whoever_wrote_it() -> None:
    spread = SAMPLE.replace(b'"price":null', b'"price" :\n null')
    assert decode_items(spread) == (7, [PAGE])
