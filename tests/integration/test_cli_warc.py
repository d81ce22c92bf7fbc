"""`orb warc` writes a stored body as it is read, and says what is wrong with it."""

import gzip
import sqlite3
import sys
import tracemalloc
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from isal import isal_zlib

from cli.data import warc
from cli.main import main
from cli.terminal.exits import Exit
from shared.domain.archive.model import Exchange, Revisit, RevisitProfile
from shared.domain.archive.warc import page_records
from tests.support.archive.crawl_folder import SEED, made
from tests.support.archive.exchanges import AT_MS, IDS, exchange

MIB = 1 << 20
GZIP = b"Content-Encoding: gzip"


def stored(path: Path, what: Exchange, *, damaged: bool = False) -> Path:
    """Return a crawl's folder whose pages are all stored as `what`. `damaged`: the record lacks its last bytes."""
    crawl = made(path)
    record = isal_zlib.compress(page_records(what, IDS).response, 1, 31)[: -9 if damaged else None]
    (path / "archive" / "other.warc.gz").write_bytes(record)
    with closing(sqlite3.connect(path / "crawl.db")) as database, database:
        database.execute(
            "UPDATE fetches SET segment = 'other.warc.gz', \"offset\" = 0, length = ? WHERE page", (len(record),)
        )
    return crawl.path


def test_warc_of_a_bomb_needs_memory_of_a_few_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored(tmp_path / "a.crawl", exchange(gzip.compress(b"\0" * (64 * MIB)), GZIP))
    with (tmp_path / "out").open("w") as out, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", out)
        tracemalloc.start()
        try:
            assert main(["warc", str(folder), SEED]) == Exit.OK
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (tmp_path / "out").stat().st_size == 64 * MIB
    assert peak < 16 * MIB


def test_warc_of_a_damaged_record_writes_its_beginning_and_refuses(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = stored(tmp_path / "a.crawl", exchange(b"0123456789" * MIB), damaged=True)
    assert main(["warc", str(folder), SEED, "--headers"]) == Exit.USAGE
    out, err = capfdbinary.readouterr()
    head, _, body = out.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert len(body) > 9 * MIB
    assert (b"0123456789" * MIB).startswith(body)
    assert b"cannot be read from other.warc.gz at byte 0: cut short" in err


def test_warc_of_a_body_over_its_limit_says_that_it_is_cut(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warc, "_MAX", MIB)
    folder = stored(tmp_path / "a.crawl", exchange(gzip.compress(b"\0" * (2 * MIB)), GZIP))
    assert main(["warc", str(folder), SEED]) == Exit.OK
    out, err = capfdbinary.readouterr()
    assert out == b"\0" * MIB
    assert f"the body is longer than {MIB} bytes".encode() in err


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate", "gzip, br"])
def test_warc_of_an_empty_body_with_a_coding_reports_no_damage(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], coding: str
) -> None:
    encoding = b"Content-Encoding: " + coding.encode()
    folder = stored(tmp_path / "a.crawl", exchange(b"", b"Content-Length: 0", encoding))
    assert main(["warc", str(folder), SEED]) == Exit.OK
    assert capfdbinary.readouterr() == (b"", b"")


def test_warc_of_a_revisit_with_a_coding_only_names_the_capture(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    revisit = Revisit(RevisitProfile.NOT_MODIFIED, SEED, AT_MS, b"1" * 20)
    folder = stored(tmp_path / "a.crawl", msgspec.structs.replace(exchange(b"", GZIP), revisit=revisit))
    assert main(["warc", str(folder), SEED]) == Exit.OK
    out, err = capfdbinary.readouterr()
    assert (out, err.count(b"\n")) == (b"", 1)
    assert b"unchanged since 2023-11-14T22:13:20.123000Z" in err
