"""Tables of text that fit the terminal. On a narrow one, columns are cut or left out.

A width is a number of terminal cells, not of characters: some characters use two cells.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len, set_cell_size

from cli.ctl.cells import Now

GAP: Final = 2
Cell = Callable[[Any, Now], str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    - `cell(row, now)`: returns the text of the column for a row.
    - `cut`: the minimum width to which the texts are cut if the table is too wide. 0: they are never cut.
    - `rank`: if cutting is not enough, columns are left out, the highest rank first. Rank 0 is always shown.
    - `right`: texts are aligned to the right.
    - `wide`: the column is shown only with `-o wide`.
    - `style(text)`: returns the rich style of a text.
    """

    title: str
    cell: Cell
    rank: int = 0
    cut: int = 0
    right: bool = False
    wide: bool = False
    style: Callable[[str], str] = lambda text: ""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that are shown, and the width of each in terminal cells."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]

    def line(self, texts: Sequence[str]) -> list[tuple[str, str]]:
        """Return the texts of a row, each with its style, padded or cut to the width of its column.

        `texts` has one text for each shown column. The caller joins the results to get the line.
        """
        line = []
        for place, (column, width, text) in enumerate(zip(self.columns, self.widths, texts, strict=True)):
            fitted = _fitted(text, width)
            space = " " * (width - cell_len(fitted))
            last = place == len(self.columns) - 1
            padded = space + fitted if column.right else fitted if last else fitted + space
            line.append((padded + ("" if last else " " * GAP), column.style(text)))
        return line

    def titles(self) -> list[str]:
        """Return the titles of the columns."""
        return [column.title for column in self.columns]


def offered(columns: Iterable[Column], *, wide: bool) -> tuple[Column, ...]:
    """Return the columns to show: all in the wide format, else those that are not marked `wide`."""
    return tuple(column for column in columns if wide or not column.wide)


def laid_out(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> Layout:
    """Choose the columns to show, and their widths, so that the table fits `width` cells (None: no limit).

    A row has one text for each column. If the table is too wide, columns are first cut to their minimum widths. If that
    is not enough, columns are left out, the highest rank first.
    """
    natural = [
        max([cell_len(column.title), *(cell_len(row[place]) for row in rows)]) for place, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    while width is not None:
        least = [min(natural[i], columns[i].cut) if columns[i].cut else natural[i] for i in kept]
        if sum(least) + GAP * (len(kept) - 1) <= width:
            break
        ranked = [i for i in kept if columns[i].rank > 0]
        if not ranked:
            break
        kept.remove(max(ranked, key=lambda i: (columns[i].rank, i)))
    widths = {i: natural[i] for i in kept}
    if width is not None:
        over = sum(widths.values()) + GAP * (len(kept) - 1) - width
        for i in sorted((i for i in kept if columns[i].cut), key=lambda i: -natural[i]):
            taken = max(0, min(over, widths[i] - columns[i].cut))
            widths[i] -= taken
            over -= taken
    return Layout(tuple(columns[i] for i in kept), tuple(widths[i] for i in kept))


def _fitted(text: str, width: int) -> str:
    """Return the text unchanged if it fits `width` cells. Otherwise cut it at its end and add an ellipsis."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"
