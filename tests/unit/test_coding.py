"""Content codings come off within the limit, and what was readable before an error is kept."""

import gzip
import tracemalloc
import zlib

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.coding import codings_of, decoded

_PACKED = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}


def _bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("coding", _PACKED)
@given(data=st.binary(min_size=1, max_size=2000))
def test_every_coding_comes_off(coding: str, data: bytes) -> None:
    result = decoded(_PACKED[coding](data), [coding], 10_000)
    assert (result.body, result.truncated, result.error) == (data, False, None)


@given(st.binary(min_size=1, max_size=2000))
def test_deflate_without_its_wrapper_comes_off(data: bytes) -> None:
    assert decoded(_bare_deflate(data), ["deflate"], 10_000).body == data


def test_codings_come_off_in_reverse_order() -> None:
    packed = brotli.compress(gzip.compress(b"text"))
    assert decoded(packed, codings_of(["gzip", " BR, identity"]), 100).body == b"text"


def test_all_members_of_a_gzip_body_are_read() -> None:
    assert decoded(gzip.compress(b"a") + gzip.compress(b"b") + b"\0\0", ["gzip"], 100).body == b"ab"


@pytest.mark.parametrize("coding", _PACKED)
def test_a_bomb_is_cut_at_the_limit_in_bounded_memory(coding: str) -> None:
    bomb = _PACKED[coding](b"\0" * (64 << 20))
    tracemalloc.start()
    try:
        result = decoded(bomb, [coding], 1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.truncated
    assert len(result.body) == 1 << 20
    assert peak < 8 << 20


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_what_was_readable_before_the_cut_is_kept_with_the_error(coding: str) -> None:
    data = bytes(range(256)) * 2000
    packed = _PACKED[coding](data)
    result = decoded(packed[: len(packed) - 10], [coding], 1 << 20)
    assert result.error is not None
    assert data.startswith(result.body)


def test_a_body_that_is_not_in_the_coding_it_claims_is_kept_as_it_is() -> None:
    result = decoded(b"<html>plain", ["gzip"], 100)
    assert result.body == b"<html>plain"
    assert result.error is not None


def test_an_unknown_coding_is_an_error_not_a_crash() -> None:
    assert decoded(b"x", ["rot13"], 100).error == "unknown content coding 'rot13'"
    assert decoded(b"x", ["gzip"] * 9, 100).error is not None


def test_no_coding_still_obeys_the_limit() -> None:
    assert decoded(b"12345", [], 3).body == b"123"
    assert decoded(b"", ["gzip"], 3).error is None
