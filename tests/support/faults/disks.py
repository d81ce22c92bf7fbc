"""Small disks, mounted where the machine lets us, and filled until they have no byte left."""

import asyncio
import errno
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.engines.postgres import PostgresServer

ARCHIVE_MIB: Final = 96
TABLES_MIB: Final = 256
"""Of PostgreSQL's tables and indexes. Its log lies elsewhere and keeps its room: without any, the server dies."""
BALLAST: Final = "ballast"
_PATIENCE_S: Final = 30.0


def mounted(stack: ExitStack, at: Path, mib: int) -> str | None:
    """Mount a file system of that size on the folder, for the stack; the reason where the machine does not let us.

    A process of its own takes the mount away, at the stack's end or when the process of the test dies before it.
    """
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(at)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no mount here"
    if ended.returncode:
        return ended.stderr.strip() or f"mount ended with {ended.returncode}"
    keeper = subprocess.Popen(
        ["sh", "-c", 'cat && umount --lazy "$0"', str(at)], stdin=subprocess.PIPE, start_new_session=True
    )
    stack.callback(_let_go, keeper)
    return None


def small(stack: ExitStack, at: Path, mib: int) -> None:
    """As `mounted`; where the machine does not let us, the test is skipped."""
    refused = mounted(stack, at, mib)
    if refused is not None:
        pytest.skip(f"no small disk can be mounted: {refused}")


def _let_go(keeper: "subprocess.Popen[bytes]") -> None:
    keeper.communicate(timeout=_PATIENCE_S)
    assert keeper.returncode == 0, keeper.args


def of_tables(stack: ExitStack, served: PostgresServer) -> Path:
    """A small disk that the server may write to, for the stack."""
    at = served.place()
    refused = mounted(stack, at, TABLES_MIB)
    assert refused is None, refused
    return served.given(at)


def database(stack: ExitStack, served: PostgresServer, tables: Path | None) -> str:
    """The URL of a new database, whose tables lie on that disk and are dropped with the stack."""
    url = asyncio.run(served.database(below=tables))
    if tables is not None:
        stack.callback(lambda: asyncio.run(served.forget(url)))
    return url


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """No byte is free on the disk for the block."""
    path = disk / BALLAST
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    try:
        yield
    finally:
        path.unlink()
