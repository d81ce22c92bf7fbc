"""Rows of every table, drawn from the columns themselves: what copies databases must not know any of them."""

import random
from typing import Any

from sqlalchemy import Boolean, Column, Connection, Integer, LargeBinary, SmallInteger, String, Table

from shared.adapters.sql.engine.access_schema import metadata

_TEXTS = ("plain", "Ünïcödé 漢字 🕷", "two\nlines\tand a tab", 'it\'s "quoted"; -- %s :x ?', "")
ALONE = {"cluster": 1, "report_holds": 0}
"""Tables with as many rows as this, and no more."""


def fill(connection: Connection, rows: int, seed: int = 1) -> None:
    """Give every table so many rows, in no order of their keys."""
    draw = random.Random(seed)
    for table in metadata.sorted_tables:
        drawn = [_row(table, n, draw) for n in range(ALONE.get(table.name, rows))]
        draw.shuffle(drawn)
        if drawn:
            connection.execute(table.insert(), drawn)


def _row(table: Table, n: int, draw: random.Random) -> dict[str, Any]:
    keys = list(table.primary_key.columns)
    row = {column.name: _value(column, n, draw) for column in table.columns}
    # All but the last of a key repeat, so that pages end between rows that share them; the last tells them apart.
    return row | {key.name: _key(key, n if key is keys[-1] else n // 7) for key in keys}


def _key(column: Column[Any], n: int) -> Any:
    match column.type:
        case LargeBinary():
            return n.to_bytes(16)
        case String():
            return f"{_TEXTS[n % 2]}-{n}"
        case _:
            return n + 1


def _value(column: Column[Any], n: int, draw: random.Random) -> Any:
    if column.nullable and draw.random() < 0.3:
        return None
    match column.type:
        case Boolean():
            return draw.random() < 0.5
        case LargeBinary():
            return draw.randbytes(column.type.length or 40)
        case String():
            text = _TEXTS[n % len(_TEXTS)]
            return (
                f"{n}"
                if column.unique or column.name in ("name", "host", "state", "target", "certificate", "key_id")
                else text[: column.type.length]
            )
        case SmallInteger():
            return draw.randint(-(1 << 15), (1 << 15) - 1)
        case Integer() if type(column.type) is Integer:
            return draw.randint(-(1 << 28), 1 << 28)  # some indexes add two of them
        case _:
            return draw.randint(-(1 << 50), 1 << 50)
