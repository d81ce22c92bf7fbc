"""Segments, the WARC files of an archive, in a local folder.

While a segment is written, its file is named `<name>.open`, and its writer has an flock on it. `finish` renames the
file to `<name>`. The suffix marks the file as unfinished. The lock shows that the writer is alive, so another process
does not repair the file.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from shared.domain.archive.model import RecordLocation
from shared.ports.archive import ArchiveFull, ArchiveUnavailable, RecordUnreadable

OPEN_SUFFIX: Final = ".open"
_LONGEST_NAME: Final = 255 - len(OPEN_SUFFIX)
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class LocalSegments:
    """Creates and reads the WARC files (segments) in a local folder (`shared.ports.archive.SegmentStore`).

    The first segment creates the folder. `private`: only this user may open it.
    """

    def __init__(self, folder: Path, *, private: bool = False) -> None:
        self._folder = folder
        self._mode = 0o700 if private else 0o777

    def __repr__(self) -> str:
        return f"<LocalSegments {self._folder}>"

    def create(self, name: str) -> "LocalSegment":
        with _named_errors(name):
            path = self._path(name)
            if not self._folder.is_dir():
                self._folder.mkdir(mode=self._mode, parents=True, exist_ok=True)
                sync_folder(self._folder.parent)
            if path.exists():
                raise FileExistsError(errno.EEXIST, "segment name already used", str(path))
            while True:
                fd = os.open(_open_path(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX)
                    # Between the two calls a repair may have removed the empty file as a dead writer's.
                    if is_at(fd, _open_path(path)):
                        return LocalSegment(path, fd)
                except BaseException:
                    os.close(fd)
                    raise
                os.close(fd)

    def read(self, location: RecordLocation) -> bytes:
        data = self.read_up_to(location.segment, location.offset, location.length)
        if len(data) != location.length:
            raise RecordUnreadable(f"segment {location.segment} ends before byte {location.offset + location.length}")
        return data

    def read_up_to(self, name: str, offset: int, max_count: int) -> bytes:
        if offset < 0 or max_count < 0:
            raise RecordUnreadable(f"segment {name} has no {max_count} bytes at {offset}")
        fd = self._open_for_reading(name)
        try:
            with _named_errors(name):
                # The location comes from an outcome and may be wrong, so allocate at most the file's size.
                return os.pread(fd, max(0, min(max_count, os.fstat(fd).st_size - offset)), offset)
        finally:
            os.close(fd)

    def size(self, name: str) -> int:
        fd = self._open_for_reading(name)
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _open_for_reading(self, name: str) -> int:
        """Open the segment for reading, finished or unfinished, and return its file descriptor.

        Raise RecordUnreadable if there is no such segment, and ArchiveUnavailable if there is no folder.
        """
        try:
            path = self._path(name)
        except ValueError as error:
            raise RecordUnreadable(str(error)) from error
        for candidate in (path, _open_path(path), path):  # `finish` may rename the file after the first attempt
            with _named_errors(name), contextlib.suppress(FileNotFoundError):
                return os.open(candidate, os.O_RDONLY | os.O_CLOEXEC)
        if not self._folder.is_dir():  # It may be a file system that is not mounted now.
            raise ArchiveUnavailable(f"there is no folder {self._folder}: check that it is mounted")
        raise RecordUnreadable(f"there is no segment {name} in {self._folder}")

    def _path(self, name: str) -> Path:
        if not name or name.startswith(".") or "/" in name or "\0" in name or len(name.encode()) > _LONGEST_NAME:
            raise ValueError(f"not a segment's name: {name!r}")
        return self._folder / name


class LocalSegment:
    """A WARC file (segment) to which records are appended (`shared.ports.archive.Segment`).

    `commit` writes after the last durable byte, so it overwrites what a failed attempt wrote.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._durable = 0
        self._entered = False
        self._renamed = False

    def __repr__(self) -> str:
        state = "closed" if self._fd < 0 else "open"
        return f"<LocalSegment {self.name} {state} durable={self._durable}>"

    @property
    def name(self) -> str:
        return self._path.name

    def commit(self, members: Sequence[bytes]) -> None:
        data = memoryview(b"".join(members))
        with _named_errors(self.name):
            try:
                self._write(data)
                os.fdatasync(self._fd)
                if not self._entered:
                    sync_folder(self._path.parent)
                    self._entered = True
            except OSError as failure:
                # After a failed sync the kernel may mark lost pages as clean, so nothing after `_durable` is trusted.
                try:
                    os.ftruncate(self._fd, self._durable)
                except OSError as second:
                    failure.add_note(f"cutting {self.name} back to {self._durable} bytes failed too: {second}")
                raise
        self._durable += len(data)

    def _write(self, data: memoryview) -> None:
        written = 0
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], self._durable + written)

    def finish(self) -> None:
        with _named_errors(self.name):
            if not self._renamed:
                os.rename(_open_path(self._path), self._path)
                self._renamed = True
            sync_folder(self._path.parent)
        self.abandon()

    def abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_at(fd: int, path: Path) -> bool:
    """Return True if the open file `fd` is still the file at `path`: it was not renamed, replaced or deleted."""
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), named)


def sync_folder(folder: Path) -> None:
    """Make the creations, renames and deletions of files in `folder` durable, so that they survive a power loss."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_path(path: Path) -> Path:
    return path.with_name(path.name + OPEN_SUFFIX)


@contextlib.contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Convert an OSError of the `with` block to ArchiveFull or ArchiveUnavailable, whose message names the segment.

    FileExistsError is not converted.
    """
    try:
        yield
    except FileExistsError:
        raise
    except OSError as failure:
        if failure.errno in _NO_ROOM:
            reason = f"no room for archive segment {name}: {failure.strerror}; free some disk space"
            raise ArchiveFull(reason) from failure
        raise ArchiveUnavailable(f"archive segment {name}: {failure}") from failure
