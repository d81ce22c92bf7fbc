"""The index: lines that pywb reads, sorted bytewise, in bounded memory, never visible in part."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.adapters.objects.cdxj import write_index
from shared.domain.archive.cdxj import IndexRow, cdxj_line
from shared.domain.archive.model import RecordLocation, base32, payload_digest


def row(surt: str = "org,example)/", at: int = 1_700_000_000_999, number: int = 0, **more: Any) -> IndexRow:
    place = RecordLocation("7-x-0001.warc.gz", number, 120)
    return IndexRow(surt, at, "http://example.org/", "text/html", 200, payload_digest(b""), place, **more)


def test_a_line_has_the_fields_that_pywb_reads_as_strings() -> None:
    key, timestamp, fields = cdxj_line(row()).split(b" ", 2)
    assert (key, timestamp) == (b"org,example)/", b"20231114221320")
    assert json.loads(fields) == {
        "url": "http://example.org/",
        "mime": "text/html",
        "status": "200",
        "digest": "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ",
        "length": "120",
        "offset": "0",
        "filename": "7-x-0001.warc.gz",
    }


@given(st.binary(max_size=40).filter(lambda data: len(data) % 5 == 0))
def test_base32_is_that_of_the_standard_library(data: bytes) -> None:
    assert base32(data) == base64.b32encode(data).decode()


def test_a_revisit_is_listed_as_one() -> None:
    assert json.loads(cdxj_line(row(revisit=True)).split(b" ", 2)[2])["mime"] == "warc/revisit"


def test_a_key_that_would_split_the_line_is_refused() -> None:
    with pytest.raises(ValueError, match="not an index key"):
        cdxj_line(row("org,example)/a b"))


@pytest.mark.parametrize(("rows", "run_lines"), [(0, 3), (1, 3), (3, 3), (1000, 7), (5000, 1)])
def test_many_runs_merge_to_the_same_index_as_one_sort(tmp_path: Path, rows: int, run_lines: int) -> None:
    items = [row(f"org,h{(n * 7919) % 613})/", number=n) for n in range(rows)]
    path = tmp_path / "index.cdxj"
    assert write_index(iter(items), path, run_lines=run_lines) == rows
    assert path.read_bytes().splitlines() == sorted(map(cdxj_line, items))
    assert [entry.name for entry in tmp_path.iterdir()] == ["index.cdxj"]


@given(st.lists(st.text(alphabet="ab,)/\xe9", min_size=1, max_size=4), max_size=20))
def test_the_order_is_bytewise(tmp_path_factory: pytest.TempPathFactory, keys: list[str]) -> None:
    path = tmp_path_factory.mktemp("index") / "index.cdxj"
    write_index([row(key) for key in keys], path, run_lines=2)
    lines = path.read_bytes().split(b"\n")[:-1]
    assert lines == sorted(lines)
    assert len(lines) == len(keys)


def test_an_error_half_way_leaves_the_old_index_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "index.cdxj"
    path.write_bytes(b"old\n")

    def rows() -> Iterator[IndexRow]:
        yield row()
        raise RuntimeError("the database went away")

    with pytest.raises(RuntimeError, match="went away"):
        write_index(rows(), path, run_lines=1)
    assert path.read_bytes() == b"old\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["index.cdxj"]
