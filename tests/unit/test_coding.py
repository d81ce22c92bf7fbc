"""Content codings come off exactly, in order, and never beyond the cap."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from functools import partial

import brotli
import pytest
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.domain.web.coding import MAX_MEMBERS, Decoding, decode

MIB = 1024 * 1024


def raw_deflate(data: bytes) -> bytes:
    squeezer = zlib.compressobj(wbits=-15)
    return squeezer.compress(data) + squeezer.flush()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": partial(brotli.compress, quality=5),  # the best takes twenty times as long
    "zstd": zstandard.ZstdCompressor().compress,
}
bodies = st.binary(max_size=2000) | st.builds(
    lambda unit, times: unit * times, st.binary(max_size=50), st.integers(0, 9000)
)
codings = st.lists(st.sampled_from(sorted(ENCODERS)), max_size=4)


def encode(body: bytes, names: list[str]) -> bytes:
    for name in names:
        body = ENCODERS[name](body)
    return body


@given(bodies, codings)
def test_what_was_encoded_comes_back(body: bytes, names: list[str]) -> None:
    decoded = decode(encode(body, names), ", ".join(names), 10 * MIB)
    assert (decoded.data, decoded.error, decoded.truncated) == (body, None, False)


@given(bodies, st.lists(st.sampled_from(sorted(ENCODERS)), min_size=1, max_size=3), st.integers(0, 3000))
def test_output_never_exceeds_the_cap_and_says_so(body: bytes, names: list[str], cap: int) -> None:
    decoded = decode(encode(body, names), ",".join(names), cap)
    assert body.startswith(decoded.data)
    assert len(decoded.data) <= cap
    if len(body) > cap:
        assert decoded.truncated


@given(bodies, st.sampled_from(sorted(ENCODERS)), st.data())
def test_data_cut_anywhere_gives_a_prefix_and_an_error(body: bytes, name: str, data: st.DataObject) -> None:
    whole = encode(body, [name])
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assume(part)
    decoded = decode(part, name, 10 * MIB)
    assert body.startswith(decoded.data)
    assert decoded.error is not None or decoded.data == body


@given(st.binary(max_size=300), st.sampled_from(sorted(ENCODERS)))
def test_any_bytes_end_as_a_value(junk: bytes, name: str) -> None:
    decoded = decode(junk, name, 4096)
    assert len(decoded.data) <= 4096


@pytest.mark.parametrize("name", sorted(ENCODERS))
@pytest.mark.parametrize("size", [1 << 19, 3 * MIB + 1])
def test_large_body_that_compresses_well_is_whole(name: str, size: int) -> None:
    """The br library kept the end of such a body, so that it counted as damaged."""
    body = (b"<p>one line of a page\n" * (size // 20))[:size]
    assert decode(encode(body, [name]), name, 10 * MIB) == decode(body, "", 10 * MIB)


def test_raw_deflate_is_told_from_the_zlib_format() -> None:
    body = b"raw deflate as old servers send it " * 200
    assert decode(raw_deflate(body), "deflate", MIB).data == body


def test_gzip_of_several_members_is_one_body() -> None:
    assert decode(gzip.compress(b"one ") + gzip.compress(b"two"), "gzip", MIB).data == b"one two"


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
def test_gzip_with_a_corrupt_second_member_is_an_error(piece: int) -> None:
    second = bytearray(gzip.compress(b"two" * 999))
    second[-8] ^= 1
    body = gzip.compress(b"one ") + second
    decoding = Decoding((body[at : at + piece] for at in range(0, len(body), piece)), "gzip", MIB)
    assert b"".join(decoding).startswith(b"one ")
    assert decoding.error is not None
    assert decode(gzip.compress(b"one") + b"\x1f\x8b\x07junk", "gzip", MIB).error is not None


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
@pytest.mark.parametrize("rest", [b"\0", b"\x1f\0", b"\x1f\x1f\x8b", b"\x8b\x1f"])
def test_bytes_after_gzip_without_its_magic_are_ignored(rest: bytes, piece: int) -> None:
    body = gzip.compress(b"one ") + gzip.compress(b"two") + rest
    decoding = Decoding((body[at : at + piece] for at in range(0, len(body), piece)), "gzip", MIB)
    assert (b"".join(decoding), decoding.error) == (b"one two", None)


def test_zstd_of_several_frames_is_one_body() -> None:
    pack = zstandard.ZstdCompressor().compress
    assert decode(pack(b"one ") + pack(b"two"), "zstd", MIB).data == b"one two"


@pytest.mark.parametrize("rest", [b"(junk)", b"\x28\xb5\x2f\xfejunk", b"Zoom", b"\x50\x2a\x4d\x19", b"\r\n", b"\0"])
@pytest.mark.parametrize("piece", [1, 3, 4096])
def test_bytes_after_zstd_without_its_magic_are_ignored(rest: bytes, piece: int) -> None:
    packed = ENCODERS["zstd"](b"page" * 99) + rest
    decoding = Decoding((packed[n : n + piece] for n in range(0, len(packed), piece)), "zstd", MIB)
    assert (b"".join(decoding), decoding.error) == (b"page" * 99, None)


@pytest.mark.parametrize("piece", [1, 3, 4096])
def test_later_zstd_frame_is_decoded_wherever_it_is_cut(piece: int) -> None:
    pack, skippable = ENCODERS["zstd"], b"\x53\x2a\x4d\x18\x02\0\0\0ab"
    packed = pack(b"one ") + skippable + pack(b"two") + b"junk"
    decoding = Decoding((packed[n : n + piece] for n in range(0, len(packed), piece)), "zstd", MIB)
    assert (b"".join(decoding), decoding.error) == (b"one two", None)


@pytest.mark.parametrize("kept", [1, 3, 4, 9])
def test_zstd_frame_that_is_cut_after_another_is_an_error(kept: int) -> None:
    pack = ENCODERS["zstd"]
    decoded = decode(pack(b"one ") + pack(b"two")[:kept], "zstd", MIB)
    assert (decoded.data, decoded.error) == (b"one ", "zstd: the data ends early")


@pytest.mark.parametrize("name", sorted(set(ENCODERS) - {"br"}))
def test_bytes_after_the_coded_data_are_ignored(name: str) -> None:
    decoded = decode(ENCODERS[name](b"page" * 99) + b"\r\n\0\0trailing", name, MIB)
    assert (decoded.data, decoded.error) == (b"page" * 99, None)


def test_the_part_before_an_error_is_kept() -> None:
    broken = bytearray(gzip.compress(bytes(range(256)) * 4000, 0))
    broken[900_000] ^= 0xFF
    decoded = decode(bytes(broken), "gzip", 10 * MIB)
    assert decoded.error is not None
    assert decoded.data


def test_an_unknown_coding_leaves_the_body_and_says_so() -> None:
    decoded = decode(b"<html>", "utf-8", MIB)
    assert (decoded.data, decoded.error) == (b"<html>", "unknown content coding 'utf-8'")


def test_identity_and_an_empty_body_need_no_decoding() -> None:
    assert decode(b"<html>", "identity", MIB).error is None
    assert decode(b"", "gzip", MIB).error is None


def test_more_codings_than_anyone_needs_are_refused() -> None:
    assert "5 content codings" in (decode(b"x", "gzip, gzip, gzip, gzip, gzip", MIB).error or "")


@pytest.mark.parametrize(
    "names", [["gzip"], ["deflate"], ["br"], ["zstd"], ["gzip", "gzip"], ["gzip", "br"], ["zstd", "zstd"]]
)
def test_a_bomb_never_takes_much_more_memory_than_the_cap(names: list[str]) -> None:
    bomb = encode(bytes(64 * MIB), names)
    cap = 4 * MIB
    tracemalloc.start()
    try:
        decoded = decode(bomb, ",".join(names), cap)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(decoded.data), decoded.truncated) == (cap, True)
    assert peak < 4 * cap + 16 * MIB
    assert decoded.error is None


def test_a_bomb_that_unpacks_to_nothing_ends_at_the_cap_of_its_inner_stage() -> None:
    empty_members = gzip.compress(gzip.compress(b"") * 200_000)
    decoded = decode(empty_members, "gzip, gzip", 64 * 1024)
    assert (decoded.data, decoded.truncated) == (b"", True)


@pytest.mark.parametrize(("name", "noun"), [("gzip", "members"), ("zstd", "frames")])
def test_only_the_first_members_of_a_body_are_decoded(name: str, noun: str) -> None:
    """1.5 million members without data, 76 KB on the wire, took 16 s."""
    member, empty = ENCODERS[name](b"page"), ENCODERS[name](b"")
    whole = member + empty * (MAX_MEMBERS - 2) + member
    assert decode(whole, name, MIB) == decode(b"pagepage", "", MIB)
    more = encode(whole + member, [name])
    decoded = decode(more, f"{name}, {name}", MIB)
    assert (decoded.data, decoded.error) == (b"pagepage", f"{name}: more than {MAX_MEMBERS} {noun}")
