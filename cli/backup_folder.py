"""The folder of a backup: what it is made of, written so that it is there whole or not at all.

manifest.json   what was taken, from where and when, and the checksum of every other file; written last
tables/*.gz     one file for each table, rows in the order of their keys
reports.gz      the reports behind the positions in `tables/partitions.gz`
items.gz        the items behind the position in `tables/item_writer.gz`
events.gz       the stream of events
keys.gz         what stood in etcd, for whoever wants to look: a restore writes none of it

A file is a gzip stream of frames: four bytes of length (big-endian), then a MessagePack value.
"""

import gzip
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from cli.exits import Environment, Usage
from shared.domain.software import VERSION

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
REPORTS: Final = "reports.gz"
EVENTS: Final = "events.gz"
ITEMS: Final = "items.gz"
KEYS: Final = "keys.gz"

_LENGTH: Final = 4
_MOST_FRAME: Final = 1 << 30
_CHUNK: Final = 1 << 20


class Part(msgspec.Struct, frozen=True):
    """A file: how many values its frames hold together, its size and checksum. `columns`: of a table."""

    file: str
    values: int
    bytes: int
    sha256: str
    columns: tuple[str, ...] = ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`schema`: the newest migration of the database that was read. `numbers`: the greatest that tables gave to rows.
    `tables` are in the order in which they are to be written."""

    format: int = FORMAT
    id: str
    cluster: str
    taken_at_ms: int
    software: str = VERSION
    schema: str
    store: str
    epoch: int
    partitions: int
    tables: dict[str, Part]
    numbers: dict[str, int]
    reports: Part
    events: Part
    keys: Part | None = None
    items: Part | None = None

    def parts(self) -> Iterator[Part]:
        """Every file."""
        yield from self.tables.values()
        yield from (part for part in (self.reports, self.events, self.keys, self.items) if part is not None)


class PartWriter:
    """A file being written."""

    def __init__(self, folder: Path, file: str, columns: tuple[str, ...]) -> None:
        self._path = folder / file
        self._file = file
        self._columns = columns
        self._values = 0
        self._out = gzip.GzipFile(self._path, "wb", compresslevel=1, mtime=0)

    def add(self, value: Any, values: int = 1) -> None:
        """Write a frame that counts as so many values."""
        data = msgspec.msgpack.encode(value)
        self._out.write(len(data).to_bytes(_LENGTH))
        self._out.write(data)
        self._values += values

    def close(self) -> None:
        """Leave it as it is."""
        self._out.close()

    def end(self) -> Part:
        """Everything is in it, and on the disk."""
        self._out.close()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        return Part(self._file, self._values, self._path.stat().st_size, _checksum(self._path), self._columns)


class NewBackup:
    """A folder that nobody can take for a backup yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def part(self, file: str, columns: tuple[str, ...] = ()) -> Iterator[PartWriter]:
        """A file to write, closed in any case; `end` it to have its Part."""
        writer = PartWriter(self._folder, file, columns)
        try:
            yield writer
        finally:
            writer.close()

    def finish(self, manifest: Manifest) -> None:
        """What makes it one."""
        with (self._folder / MANIFEST).open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def new_backup(path: Path) -> Iterator[NewBackup]:
    """A new folder at `path`, which appears when the block has ended well. It may be read by its owner alone: dead
    letters, keys' digests and specs are in it. Usage when there is something already."""
    staged = path.with_name(f".{path.name}.part")
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise Usage(f"there is something at {path} already: name a folder that is not there.")
        shutil.rmtree(staged, ignore_errors=True)
        (staged / "tables").mkdir(parents=True, mode=0o700)
        staged.chmod(0o700)
        yield NewBackup(staged)
        staged.replace(path)
    except OSError as error:
        raise Environment(f"cannot write the backup {path}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


class Backup:
    """A backup as it lies there."""

    def __init__(self, path: Path) -> None:
        """Usage when it is none, or one of a later format."""
        self.path: Final = path
        try:
            self.manifest: Final = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
        except FileNotFoundError:
            raise Usage(f"{path} is no backup: it has no {MANIFEST}.") from None
        except (OSError, msgspec.MsgspecError) as error:
            raise Usage(f"cannot read {path / MANIFEST}: {error}.") from error
        if self.manifest.format > FORMAT:
            raise Usage(f"{path} is of format {self.manifest.format}, unknown here: use a newer Orbweaver.")

    def verify(self) -> None:
        """Read every file and compare. Environment with all that are missing or damaged."""
        wrong = [part.file for part in self.manifest.parts() if not self._whole(part)]
        if wrong:
            raise Environment(f"the backup {self.path} is damaged: {', '.join(wrong)}.")

    def frames(self, part: Part) -> Iterator[Any]:
        """The values in a file's frames. Environment when it ends within one."""
        try:
            with gzip.open(self.path / part.file, "rb") as file:
                while head := file.read(_LENGTH):
                    size = int.from_bytes(head)
                    data = file.read(size) if size <= _MOST_FRAME else b""
                    if len(head) != _LENGTH or len(data) != size:
                        raise Environment(f"{self.path / part.file} ends within a frame.")
                    yield msgspec.msgpack.decode(data)
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            raise Environment(f"cannot read {self.path / part.file}: {error}.") from error

    def _whole(self, part: Part) -> bool:
        try:
            return _checksum(self.path / part.file) == part.sha256
        except OSError:
            return False


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
