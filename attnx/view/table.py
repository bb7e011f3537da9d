"""Numbers as a table: a matrix with shaded cells that never wraps or is silently cut, and any measurement."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.style import Style
from rich.table import Table
from rich.text import Text

from attnx.errors import UsageError
from attnx.records import Array, Measurement
from attnx.view import colour, scale
from attnx.view.cells import cell_len, fit, in_unit, label, number, safe, trimmed
from attnx.view.matrix import Matrix, Side, axes, of_measurement
from attnx.view.page import Page, page

LABEL, HEADING = 18, 7
"""The widest that a row's and a column's label are written where space is short."""
BANDS = 4
"""A matrix that is wider than the terminal is folded into at most so many bands of keys; a wider one is cut."""
FEWEST, NARROW = 3, 3
"""Columns that are shown even where the terminal is too narrow for them; the width of the narrowest, with its gap."""


def matrix_table(
    matrix: Matrix,
    *,
    kind: scale.ScaleKind = "linear",
    diverging: bool = False,
    bounds: tuple[float | None, float | None] = (None, None),
    mute: Collection[int] = (),
    query: int | None = None,
    decimals: int = 2,
    rows: int | None = None,
) -> MatrixTable:
    """Write a matrix as a table of numbers on shaded cells.

    Args:
        matrix: [Q,K].
        kind: The colour scale.
        diverging: Two-sided about 0.
        bounds: Ends of the scale; the data's where None.
        mute: Key positions that are written without colour and do not count for the scale.
        query: Position of a query to mark; where the table is too wide to fold, the columns round it are shown.
        decimals: Digits after the point.
        rows: The most rows; all where None. Fewer are cut round the query, keys likewise, and a note says so.

    Returns:
        A renderable.

    Raises:
        UsageError: No such scale or query; a log scale of negative values.
    """
    if query is not None:
        matrix.row_of(query)
    muted = np.isin(matrix.keys.at, list(mute))
    choice = scale.choose(matrix.shown[:, ~muted], kind, diverging=diverging, bounds=bounds)
    return MatrixTable(matrix, choice, frozenset(mute), query, decimals, rows)


def table(
    measurement: Measurement,
    *,
    kind: scale.ScaleKind = "linear",
    diverging: bool = False,
    decimals: int = 2,
    shaded: bool = True,
) -> MeasurementTable:
    """Write any measurement of rank 1 to 3 as a table.

    Args:
        measurement: Rank 1 becomes a column; rank 2 rows by columns; rank 3 one table for each entry of its first
            axis.
        kind: The colour scale, one for all of it (or for each row).
        diverging: Two-sided about 0.
        decimals: Digits after the point.
        shaded: Whether the cells carry colour.

    Returns:
        A renderable; under the numbers stand the formula, the source and the notes.

    Raises:
        UsageError: Another rank.
    """
    if not 1 <= measurement.values.ndim <= 3:
        raise UsageError(
            f"{measurement.name} has {axes(measurement.values.ndim)}, and a table shows one to three",
            "Write it as JSON, or choose one layer or head.",
        )
    return MeasurementTable(measurement, scale.choose(measurement.values, kind, diverging=diverging), decimals, shaded)


@dataclass(frozen=True, slots=True)
class MatrixTable:
    """See `matrix_table`."""

    matrix: Matrix
    scale: scale.Scale
    mute: frozenset[int]
    query: int | None
    decimals: int
    rows: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Fit the columns to the width, then write."""
        here = page(console, options)
        whole = self.matrix
        rows = self.rows or len(whole.queries)
        near = whole.window(rows, max(FEWEST, here.width // NARROW), self.query)  # no more can be shown
        grid = _Grid(near, self.scale, self.mute, self.query, self.decimals, here)
        fold = self.rows is None and len(whole.keys) <= BANDS * grid.columns
        matrix = whole if fold else whole.window(rows, grid.columns, self.query)
        yield Text(here.spell(safe(" · ".join(part for part in (matrix.title, matrix.name) if part))), "bold")
        for at, band in enumerate(_bands(matrix, grid.columns)):
            if at:
                yield Text()
            yield replace(grid, matrix=band).table()
        muted = " ".join(dict.fromkeys(safe(p).strip() for p in _names(whole.keys, self.mute)))
        missing = np.isnan(matrix.shown) & ~matrix.hidden
        yield scale.legend(
            self.scale,
            here,
            unit=matrix.unit,
            hidden=bool(matrix.hidden.any()),
            muted=muted,
            missing=bool(missing.any()),
        )
        for note in matrix.notes:
            yield Text(here.spell(note), "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Any width will do, from a few columns on."""
        return Extent(min(40, options.max_width), options.max_width)


@dataclass(frozen=True, slots=True)
class MeasurementTable:
    """See `table`."""

    measurement: Measurement
    scale: scale.Scale
    decimals: int
    shaded: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write one table, or one for each entry of the first of three axes."""
        here = page(console, options)
        m = self.measurement
        unit = f" ({m.unit})" if in_unit(m.unit) else ""
        for name, part in self._parts():
            yield Text(here.spell(safe(" · ".join(bit for bit in (name, m.name + unit) if bit))), "bold")
            ramp = self.scale if self.shaded else None
            grid = _Grid(part, ramp, frozenset(), None, self.decimals, here)
            for band in _bands(part, grid.columns):
                yield replace(grid, matrix=band).table()
        if self.shaded and m.values.ndim > 1:
            missing = bool(np.isnan(np.asarray(m.values, float)).any())
            yield scale.legend(self.scale, here, unit=m.unit, hidden=False, missing=missing)
        for line in (m.formula, m.source and f"Source: {m.source}", *m.notes):
            if line:
                yield Text(here.spell(safe(line)), "dim")

    def _parts(self) -> Iterable[tuple[str, Matrix]]:
        m = self.measurement
        if m.values.ndim == 1:
            side = Side(m.name, (m.name,), (0,), (False,), 1)
            first = m.axes[0]
            down = Side(
                first.name,
                first.labels,
                tuple(range(len(first.labels))),
                (False,) * len(first.labels),
                len(first.labels),
            )
            column: Array = m.values[:, None]
            yield "", Matrix(m.name, m.unit, column, down, side, np.zeros(column.shape, bool), bounds=m.bounds)
        elif m.values.ndim == 2:
            yield "", of_measurement(m)
        else:
            for at, name in enumerate(m.axes[0].labels):
                title = name if name[:1].isalpha() else f"{m.axes[0].name} {name}"
                yield title, of_measurement(replace(m, axes=m.axes[1:], values=m.values[at]))


@dataclass(frozen=True, slots=True)
class _Grid:
    """The rows and columns, at widths that are known before Rich lays them out."""

    matrix: Matrix
    scale: scale.Scale | None
    mute: frozenset[int]
    query: int | None
    decimals: int
    page: Page

    @property
    def texts(self) -> list[list[str]]:
        """Every number as it is written; a hidden cell is its mark."""
        hidden = scale.HIDDEN_ASCII if self.page.ascii else scale.HIDDEN
        return [
            [hidden if hid else number(float(value), self.decimals) for value, hid in zip(row, hides, strict=True)]
            for row, hides in zip(self.matrix.values, self.matrix.hidden, strict=True)
        ]

    @property
    def beside(self) -> int:
        labels = [cell_len(self._name(row)) for row in range(len(self.matrix.queries))]
        corner = len(self._corner())
        return min(max([corner, *labels]), max(LABEL, corner, self.page.width // 5), max(6, self.page.width // 3)) + 1

    @property
    def column(self) -> int:
        """How wide one column is: its numbers with their shades, and of the keys as much as there is room for."""
        widest = max((len(text) for row in self.texts for text in row), default=1) + self._shaded
        keys = max((cell_len(safe(piece).strip()) for piece in self.matrix.keys.labels), default=1)
        least, most = max(widest, 4) + 1, max(widest, min(keys, HEADING), 3) + 1
        share = (self.page.width - self.beside) // max(1, len(self.matrix.keys))
        if max(widest, keys, 3) < share:
            return max(widest, keys, 3) + 1
        return max(min(least, most), min(most, share))

    @property
    def columns(self) -> int:
        """How many columns fit."""
        return max(FEWEST, (self.page.width - self.beside) // self.column)

    @property
    def _shaded(self) -> bool:
        """Whether a cell needs a shade character because colour alone cannot carry it."""
        return self.scale is not None and not colour.smooth(self.page.depth)

    def _corner(self) -> str:
        down, right = ("v", ">") if self.page.ascii else ("↓", "→")
        if len(self.matrix.keys) == 1:
            return self.matrix.queries.name
        return f"{self.matrix.queries.name} {down} {self.matrix.keys.name} {right}"

    def _name(self, row: int) -> str:
        side = self.matrix.queries
        text = safe(side.labels[row])
        if side.name != "query":
            return text
        text = trimmed(side.labels[row])
        mark = "" if self.query is None else " "
        if self.query is not None and self.matrix.row_of(self.query) == row:
            mark = ">" if self.page.ascii else "▸"
        return f"{mark}{side.at[row]:>{len(str(side.total - 1))}} {text}"

    def table(self) -> Table:
        """Lay it out; nothing wraps, since every cell has its exact width."""
        width, beside, ascii_only = self.column, self.beside, self.page.ascii
        out = Table(box=None, show_edge=False, pad_edge=False, padding=0, header_style="")
        out.add_column(Text(self._corner(), "dim"), no_wrap=True, width=beside)
        for piece, special in zip(self.matrix.keys.labels, self.matrix.keys.special, strict=True):
            heading = " " + label(piece, width - 1, right=True, ascii_only=ascii_only)
            out.add_column(Text(heading, "dim" if special else ""), no_wrap=True, width=width, justify="right")
        places = None if self.scale is None else self.scale.places(self.matrix.shown)
        texts = self.texts
        for row in range(len(self.matrix.queries)):
            chosen = self.query is not None and self.matrix.row_of(self.query) == row
            weight = "bold" if chosen else "dim" if self.matrix.queries.special[row] else ""
            text = self._name(row)
            name = Text(fit(self.page.spell(text), beside, ascii_only=ascii_only), weight)
            out.add_row(
                name, *(self._cell(texts[row][at], places, row, at, width) for at in range(len(self.matrix.keys)))
            )
        return out

    def _cell(self, text: str, places: Array | None, row: int, at: int, width: int) -> Text:
        muted = self.matrix.keys.at[at] in self.mute
        place = np.nan if places is None else float(places[row, at])
        if np.isnan(place) or muted or self.scale is None:
            plain = places is None and not self.matrix.hidden[row, at]
            return Text(fit(text + " " * self._shaded, width, right=True), Style.null() if plain else Style(dim=True))
        style = colour.ink(self.scale.ramp, place, self.page.depth)
        if self._shaded:
            # The theme's dark colours are hard to read as text, so the number keeps the terminal's own.
            shade = colour.shade(self.scale.ramp, place, ascii_only=self.page.ascii)
            return Text(fit(text, width - 1, right=True)).append(shade, style)
        return Text(fit(text, width, right=True), style)


def _bands(matrix: Matrix, columns: int) -> Iterable[Matrix]:
    """A matrix cut into as few bands of keys as fit, all but as wide."""
    count = max(1, -(-len(matrix.keys) // columns))
    size = max(1, -(-len(matrix.keys) // count))
    for start in range(0, max(1, len(matrix.keys)), size):
        span = slice(start, start + size)
        yield replace(matrix, values=matrix.values[:, span], hidden=matrix.hidden[:, span], keys=matrix.keys[span])


def _names(side: Side, chosen: Collection[int]) -> Sequence[str]:
    return [piece for piece, at in zip(side.labels, side.at, strict=True) if at in chosen]
