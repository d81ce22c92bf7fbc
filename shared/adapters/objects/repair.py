"""Repairs the WARC files (segments) that processes left unfinished when they died.

Each record of a file is one gzip member. The repair reads all members, and so finds the last whole record. The bytes
after the last whole record are called the torn tail. The repair cuts off only the torn tail.
"""

import fcntl
import mmap
import os
import re
from pathlib import Path
from typing import Final, cast

from isal import isal_zlib
from msgspec import Struct

from shared.adapters.objects.local import OPEN_SUFFIX, is_at, sync_folder

_MAGIC: Final = b"\x1f\x8b\x08"
_PIECE: Final = 16 * 1024
_MAX_RESIDENT: Final = 16 << 20
"""The repair reads about so many bytes of a mapped file, and then removes them from this process's memory."""
# The stub declares the exception as an instance.
_DAMAGE: Final = cast("type[Exception]", isal_zlib.error)
_HEADER_LIMIT: Final = 1 << 20
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_WARCINFO: Final = re.compile(rb"\r\nwarc-type:[ \t]*warcinfo[ \t]*\r\n", re.IGNORECASE)


class SegmentScan(Struct, frozen=True):
    """The whole records that were found in a WARC file.

    - `end`: the position after the last whole record.
    - `pages`: the number of whole records that are not `warcinfo` records.
    - `damaged`: ranges of bytes (start, end) before `end` that are not whole records.
    """

    end: int = 0
    pages: int = 0
    damaged: tuple[tuple[int, int], ...] = ()


class Repaired(Struct, frozen=True):
    """The result of repairing one WARC file.

    - `segment`: the name of the file.
    - `kept`: the number of bytes kept, 0 if the file was deleted. `cut`: the number of bytes cut from its end.
    - `damaged`: ranges of bytes (start, end) that were kept, but are not whole records.
    """

    segment: str
    kept: int
    cut: int
    damaged: tuple[tuple[int, int], ...] = ()


def repair_torn(folder: Path) -> list[Repaired]:
    """Repair the unfinished WARC files in `folder`: cut their torn tails, and rename the files to their final names.

    Return a result for each repaired file. Finished files, and files whose writer is alive (it has the lock), are
    skipped. The changes are synced to disk. The repair may be interrupted at any point and run again.

    A file is deleted if it has no whole record. It is also deleted if all its whole records are `warcinfo` records,
    because these only describe the file.
    """
    return [outcome for path in unfinished(folder) if (outcome := repair_segment(path)) is not None]


def unfinished(folder: Path) -> list[Path]:
    """Return the paths of the unfinished WARC files in `folder`, including those whose writer is alive."""
    return sorted(folder.glob(f"*{OPEN_SUFFIX}"))


def repair_segment(path: Path) -> Repaired | None:
    """Repair one of the `unfinished` files, as `repair_torn` does. Return None if the file was skipped.

    Raise OSError if the file cannot be read or changed. The file keeps its name then.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if not is_at(fd, path):
            return None
        size = os.fstat(fd).st_size
        scan = SegmentScan()
        if size:
            with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as data:
                scan = scan_records(data)
        name = path.name.removesuffix(OPEN_SUFFIX)
        if scan.pages == 0:
            path.unlink()
            repaired = Repaired(name, 0, size)
        else:
            if scan.end < size:
                os.ftruncate(fd, scan.end)
            os.fsync(fd)
            path.rename(path.with_name(name))
            repaired = Repaired(name, scan.end, size - scan.end, scan.damaged)
        sync_folder(path.parent)
        return repaired
    finally:
        os.close(fd)


class _Member(Struct):
    """The result of reading one gzip member of a WARC file.

    - `end`: the position after the member. `whole`: it is exactly one WARC record. `warcinfo`: it is a warcinfo record.
    - `unfinished`: the data ended before the member did.
    """

    end: int = 0
    whole: bool = False
    unfinished: bool = False
    warcinfo: bool = False


def scan_records(data: "mmap.mmap | bytes") -> SegmentScan:
    """Find the whole records in `data`, the content of a WARC file, by reading its gzip members one after another.

    Bytes that are not a whole record count as damage if a whole record follows them. Otherwise they are the torn tail,
    which may be cut off.
    """
    end = pages = position = released = 0
    damaged: list[tuple[int, int]] = []
    with memoryview(data) as view:
        while position < len(view):
            member = _read_member(view, position)
            if not member.whole:
                whole = _next_whole(data, view, position, unfinished=member.unfinished)
                if whole is None:
                    break
                damaged.append((position, whole))
                position = whole
                continue
            position = end = member.end
            pages += not member.warcinfo
            if isinstance(data, mmap.mmap) and end - released > _MAX_RESIDENT:
                # Otherwise a worker's memory would grow by the size of the file, and it would take no visits.
                data.madvise(mmap.MADV_DONTNEED)
                released = end
    return SegmentScan(end, pages, tuple(damaged))


def _next_whole(data: "mmap.mmap | bytes", view: memoryview, start: int, *, unfinished: bool) -> int | None:
    """Find the first whole record after the broken gzip member at `start`. Return its position, None if there is none.

    `unfinished` says how the member is broken:

    - False: the member has invalid data, or its content is not one WARC record. Any whole record after `start` counts.
    - True: the member has no invalid data, but its end was not found up to the end of the file. Two causes are
      possible: the file was cut off, or damage hides the end of the member and other records follow. A whole record
      after `start` counts, unless it is part of the member's content. For example, the content is a page that is a WARC
      file itself.
    """
    # With `unfinished`, records count if the member only looks unfinished. For example, a damaged flag in its header
    # can declare all bytes that follow as an extra field, which has no content. An archived page may be a WARC file
    # itself. Gzip can store content unchanged. Then the records of the archived page also occur in the bytes of `data`.
    content = _UnfinishedMember(view, start) if unfinished else None
    position = data.find(_MAGIC, start + 1)
    while position >= 0:
        if (content is None or not content.has_magic(position)) and _read_member(view, position).whole:
            return position
        position = data.find(_MAGIC, position + 1)
    return None


class _UnfinishedMember:
    """The content of a gzip member whose end is missing. It tells if bytes in the member are content, or a new record.

    Each record of a WARC file is a gzip member and begins with the magic number of gzip. The repair searches for this
    number to find the next record. But the number may also be content of the member: an archived page may be a gzip
    file itself, and gzip can store its bytes unchanged. No record begins at such a number. `has_magic` recognizes it.

    - `view`: the bytes of the WARC file.
    - `start`: the position of the member. Decompression from there reaches the end of the file without an error, but
      does not find the end of the member.
    """

    # The member is decompressed up to the end of a magic number. If the content then ends with the magic number, too,
    # gzip stored the number unchanged.

    def __init__(self, view: memoryview, start: int) -> None:
        self._view = view
        self._position = start
        self._decompressor = isal_zlib.decompressobj(wbits=31)
        self._tail = b""

    def has_magic(self, position: int) -> bool:
        """Return True if the gzip magic number at `position` is part of the archived page, stored unchanged.

        Each call must have a greater position than the call before.
        """
        end = position + len(_MAGIC)
        while self._position < end:
            piece = self._view[self._position : min(end, self._position + _PIECE)]
            self._tail = (self._tail + self._decompressor.decompress(piece))[-len(_MAGIC) :]
            self._position += len(piece)
        return self._tail == _MAGIC


def _read_member(view: memoryview, start: int) -> _Member:
    """Read the gzip member at position `start`. Return where it ends, and if it is one whole WARC record."""
    decompressor = isal_zlib.decompressobj(wbits=31)
    position, total, beginning, tail = start, 0, bytearray(), b""
    while not decompressor.eof:
        piece = view[position : position + _PIECE]
        if not piece:
            return _Member(unfinished=True)
        try:
            out = decompressor.decompress(piece)
        except _DAMAGE:
            return _Member()
        position += len(piece)
        total += len(out)
        tail = (tail + out)[-4:] if len(out) < 4 else out[-4:]
        if len(beginning) < _HEADER_LIMIT:
            beginning += out[: _HEADER_LIMIT - len(beginning)]
    return _judged(bytes(beginning), total, tail, position - len(decompressor.unused_data))


def _judged(beginning: bytes, total: int, tail: bytes, end: int) -> _Member:
    """Return the result of reading a gzip member, from facts about its decompressed content.

    The field `whole` is True if the content is exactly one WARC record: not shorter and not longer than the record's
    header says. Otherwise `whole` is False.

    - `beginning`: the first bytes of the content, with the header.
    - `total`: the length of the content. `tail`: its last 4 bytes.
    - `end`: the position after the member in the file.
    """
    header_end = beginning.find(b"\r\n\r\n") + 4
    header = beginning[:header_end]
    length = _LENGTH.search(header)
    whole = (
        header_end > 4
        and header.startswith(b"WARC/")
        and length is not None
        and total == header_end + int(length[1]) + 4
        and tail == b"\r\n\r\n"
    )
    return _Member(end=end, whole=whole, warcinfo=_WARCINFO.search(header) is not None)
