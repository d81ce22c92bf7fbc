"""Encodes rows as the bytes of a file, batch by batch: as JSON Lines, CSV or Parquet.

An encoder keeps few rows in memory: only Parquet buffers them, up to one row group. Encoding blocks the thread for some
milliseconds per thousand rows.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from shared.domain.reads.exports import Columns, Row

GROUP_ROWS: Final = 20_000
"""The least number of rows in a Parquet row group, except in the last one. A large batch makes a larger group."""


class RowEncoder(Protocol):
    """Encodes the rows of one file.

    The file consists of the bytes that each call of `add` returns, in order, and then those of `end`.
    """

    def add(self, rows: Sequence[Row]) -> bytes:
        """Encode more rows. Return the next bytes of the file, which are empty while rows are only buffered.

        The call may change the rows in place.
        """

    def end(self) -> bytes:
        """Finish the file and return its last bytes. If no row was added, they are a valid file without rows."""


class JsonLines:
    """Encodes each row as a JSON object on its own line. Times are ISO 8601 in UTC, with milliseconds.

    A column of type "json" contains JSON text, which is embedded as JSON.
    """

    def __init__(self, columns: Columns) -> None:
        self._times = _times(columns)
        self._json = [name for name, kind in columns.items() if kind == "json"]
        self._encoder = msgspec.json.Encoder()

    def add(self, rows: Sequence[Row]) -> bytes:
        for name in self._json:
            for row in rows:
                row[name] = None if row[name] is None else msgspec.Raw(row[name].encode())
        return self._encoder.encode_lines([_dated(row, self._times) for row in rows])

    def end(self) -> bytes:
        return b""


class Csv:
    """Encodes rows as comma-separated values with a header line (RFC 4180, UTF-8).

    A missing value is empty. Times are ISO 8601 in UTC, and booleans are `true` or `false`. A column of type "json"
    contains its JSON text.
    """

    def __init__(self, columns: Columns) -> None:
        self._times = _times(columns)
        self._truths = [name for name, kind in columns.items() if kind == "bool"]
        self._text = io.StringIO(newline="")
        self._writer = csv.DictWriter(self._text, fieldnames=list(columns))
        self._writer.writeheader()

    def add(self, rows: Sequence[Row]) -> bytes:
        for name in self._truths:
            for row in rows:
                row[name] = "true" if row[name] else "false"
        self._writer.writerows([_dated(row, self._times) for row in rows])
        return self._taken()

    def end(self) -> bytes:
        return self._taken()

    def _taken(self) -> bytes:
        text = self._text.getvalue()
        self._text.seek(0)
        self._text.truncate()
        return text.encode()


class Parquet:
    """Encodes rows as Parquet with zstd compression. A row group has at least `GROUP_ROWS` rows, except the last one.

    Times are timestamps in UTC. A column of type "json" contains its JSON text.
    """

    def __init__(self, columns: Columns) -> None:
        import pyarrow  # slow to load, and most processes never export
        import pyarrow.parquet

        types = {
            "string": pyarrow.string(),
            "json": pyarrow.string(),
            "bool": pyarrow.bool_(),
            "int32": pyarrow.int32(),
            "int64": pyarrow.int64(),
            "timestamp": pyarrow.timestamp("ms", tz="UTC"),
        }
        self._arrow = pyarrow
        self._schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
        self._sink = _Sink()
        self._writer = pyarrow.parquet.ParquetWriter(self._sink, self._schema, compression="zstd")
        self._batches: list[Any] = []
        self._rows = 0

    def add(self, rows: Sequence[Row]) -> bytes:
        if rows:
            self._batches.append(self._arrow.RecordBatch.from_pylist(rows, schema=self._schema))
            self._rows += len(rows)
        if self._rows >= GROUP_ROWS:
            self._write_group()
        return self._sink.taken()

    def end(self) -> bytes:
        if self._batches:
            self._write_group()
        self._writer.close()
        return self._sink.taken()

    def _write_group(self) -> None:
        table = self._arrow.Table.from_batches(self._batches)
        self._writer.write_table(table, row_group_size=self._rows)
        self._batches, self._rows = [], 0


class _Sink(io.RawIOBase):
    """A write-only file for the Parquet writer. It keeps the written bytes in memory until `taken` returns them."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._place = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._place += len(part)
        return len(part)

    def taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


ENCODERS: Final[Mapping[str, Callable[[Columns], RowEncoder]]] = {"jsonl": JsonLines, "csv": Csv, "parquet": Parquet}


def _times(columns: Columns) -> list[str]:
    return [name for name, kind in columns.items() if kind == "timestamp"]


def _dated(row: Row, times: Sequence[str]) -> Row:
    """Replace the values of the columns `times` (Unix ms or None) by ISO 8601 text, in place. Return the row."""
    for name in times:
        if row[name] is not None:
            at = datetime.fromtimestamp(row[name] / 1000, UTC)
            row[name] = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return row
