"""The folder of a backup and its files. The folder appears at its path only when it is complete.

manifest.json   the source cluster, the time of the snapshot, and the checksum of every other file; written last
tables/*.gz     one file for each table, rows in the order of their keys
reports.gz      the reports that are not applied in the tables yet
items.gz        the items that the tables do not contain yet
events.gz       the stream of events
keys.gz         the contents of etcd, for information only: a restore writes none of it

A file is a gzip stream of frames: four bytes of length (big-endian), then a MessagePack value.
"""

import gzip
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from cli.local.folder_lock import held
from cli.terminal.exits import Environment, Usage
from shared.domain.software import VERSION

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
REPORTS: Final = "reports.gz"
EVENTS: Final = "events.gz"
ITEMS: Final = "items.gz"
KEYS: Final = "keys.gz"

_LOCK: Final = "lock"
"""The file that a command locks while it writes a backup. A complete backup has none."""

_LENGTH: Final = 4
_MAX_FRAME: Final = 1 << 30
_CHUNK: Final = 1 << 20


class Part(msgspec.Struct, frozen=True):
    """The manifest's entry for one file of a backup.

    `values` is the number of rows, messages or keys in the file. `bytes` is its size on disk. Only the file of a table
    has `columns`.
    """

    file: str
    values: int
    bytes: int
    sha256: str
    columns: tuple[str, ...] = ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a backup: the source cluster, the time of the snapshot, and an entry for each file.

    - `schema`: the newest migration that the source database had.
    - `epoch`, `partitions`: the epoch of the cluster, and its number of partitions.
    - `tables`: the file of each table, in the order in which a restore writes them.
    - `numbers`: the greatest id generated so far, for each table with generated ids.
    """

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
    items: Part
    events: Part
    keys: Part | None = None

    def parts(self) -> Iterator[Part]:
        """Yield the manifest's entry for every file of the backup."""
        yield from self.tables.values()
        yield from (part for part in (self.reports, self.items, self.events, self.keys) if part is not None)


class PartWriter:
    """Writes one file of a backup: frames in a gzip stream."""

    def __init__(self, folder: Path, file: str, columns: tuple[str, ...]) -> None:
        self._path = folder / file
        self._file = file
        self._columns = columns
        self._values = 0
        self._out = gzip.GzipFile(self._path, "wb", compresslevel=1, mtime=0)

    def add(self, value: Any, values: int = 1) -> None:
        """Write `value` to the file as one frame: its length, then its MessagePack encoding.

        `values`: the number of rows, messages or keys in `value`. It is added to the count for the manifest.
        """
        data = msgspec.msgpack.encode(value)
        self._out.write(len(data).to_bytes(_LENGTH))
        self._out.write(data)
        self._values += values

    def close(self) -> None:
        """Close the file, even if it is incomplete. Do nothing after `end`."""
        self._out.close()

    def end(self) -> Part:
        """Complete the file, sync it to disk, and return its entry for the manifest."""
        self._out.close()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        return Part(self._file, self._values, self._path.stat().st_size, _checksum(self._path), self._columns)


class NewBackup:
    """The folder of a backup that is being written. `finish` writes its manifest and completes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def part(self, file: str, columns: tuple[str, ...] = ()) -> Iterator[PartWriter]:
        """Create the file `file` in the backup, and yield a writer for the file.

        The caller must call the writer's `end` as the last step of the `with` block. Only `end` completes the file. If
        the block raises before, the file is closed incomplete. `columns` are the columns of the table in the file. They
        are empty if the file contains no table.
        """
        writer = PartWriter(self._folder, file, columns)
        try:
            yield writer
        finally:
            writer.close()

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, which completes the backup."""
        with (self._folder / MANIFEST).open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def new_backup(path: Path) -> Iterator[NewBackup]:
    """Create a folder for a backup, for the `with` block to fill. It appears at `path` only if the block succeeds.

    Raise Usage if `path` exists and is not an empty folder. Raise Environment if the backup cannot be written, or if
    another command is writing it. Only the current user can read the folder, because a backup contains dead letters,
    key digests and specs.
    """
    # The name is the same for all commands that write `path`, so that the next one replaces what a killed one has left.
    staged = path.with_name(f".{path.name}.part")
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise Usage(f"{path} already exists: choose a new folder.")
        if staged.is_symlink():  # its target is not ours to clear
            raise Environment(f"cannot write the backup {path}: {staged} is a link; remove it.")
        staged.mkdir(parents=True, exist_ok=True, mode=0o700)
        staged.chmod(0o700)
        with held(staged / _LOCK, command="orb backup", flag="DIR"):
            try:
                _clear(staged)
                (staged / "tables").mkdir(mode=0o700)
                yield NewBackup(staged)
                staged.replace(path)
            except BaseException:
                _remove(staged)
                raise
            (path / _LOCK).unlink()
    except OSError as error:
        raise Environment(f"cannot write the backup {path}: {error.strerror or error}.") from error


def _clear(staged: Path) -> None:
    """Remove everything in the folder but its lock."""
    for entry in staged.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()


def _remove(staged: Path) -> None:
    """Remove the folder of a backup that failed. Leave what cannot be removed to the next command that writes it.

    The lock is removed after the other files, because without it another command may already write in the folder.
    """
    with suppress(OSError):  # the caller raises the error that the backup failed with
        _clear(staged)
        (staged / _LOCK).unlink()
        staged.rmdir()


class Backup:
    """Reads a complete backup: its manifest and the contents of its files."""

    def __init__(self, path: Path) -> None:
        """Read the manifest of the backup at `path`.

        Raise Usage if it is missing or unreadable, or if a newer release wrote it in a format that this release cannot
        read.
        """
        self.path: Final = path
        try:
            self.manifest: Final = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
        except FileNotFoundError:
            raise Usage(f"{path} is not a backup: it has no {MANIFEST}.") from None
        except (OSError, msgspec.MsgspecError) as error:
            raise Usage(f"cannot read {path / MANIFEST}: {error}.") from error
        if self.manifest.format > FORMAT:
            raise Usage(
                f"{path} has format {self.manifest.format}, which this release cannot read: use a newer release."
            )

    def verify(self) -> None:
        """Compare the checksum of every file with the manifest.

        Raise Environment if files are missing or damaged. The message names them all.
        """
        wrong = [part.file for part in self.manifest.parts() if not self._whole(part)]
        if wrong:
            raise Environment(f"the backup {self.path} is damaged: {', '.join(wrong)}.")

    def frames(self, part: Part) -> Iterator[Any]:
        """Yield the value of each frame in a file of the backup, as passed to `PartWriter.add`.

        Raise Environment if the file is cut off or cannot be read.
        """
        try:
            with gzip.open(self.path / part.file, "rb") as file:
                while head := file.read(_LENGTH):
                    size = int.from_bytes(head)
                    data = file.read(size) if size <= _MAX_FRAME else b""
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
