"""A matrix as a picture: a cell a query-key pair, in full cells, in half blocks, or in shade characters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attnx.records import Array
from attnx.view import colour, scale
from attnx.view.cells import cell_len, clusters, fit, label, safe, stack
from attnx.view.colour import Ramp
from attnx.view.matrix import Matrix, Side
from attnx.view.page import Depth, Page, page

Fit = Literal["auto", "window", "blocks"]
LABEL, STACK, SHORT = 14, 8, 4
"""The widest a token is written beside its row, the tallest above its column, and the tallest where lines are few."""
AROUND = 3
"""Lines above and below the picture and its headings: the title, the legend, the prompt."""
NARROWEST = 8
"""Rows and columns that are drawn even where the screen is smaller than them."""
_FAINT, _STRONG = Style(dim=True), Style(bold=True)


def heatmap(
    matrix: Matrix,
    *,
    kind: scale.ScaleKind = "linear",
    diverging: bool = False,
    bounds: tuple[float | None, float | None] = (None, None),
    mute: Collection[int] = (),
    query: int | None = None,
    how: Fit = "auto",
    height: int | None = None,
) -> Heatmap:
    """Draw a matrix as a heatmap.

    Args:
        matrix: [Q,K].
        kind: The colour scale: "linear", "log" or "row" (each query's row to its own largest).
        diverging: Two-sided about 0, for differences.
        bounds: Ends of the scale; the data's where None.
        mute: Key positions that are hatched and do not count for the scale (a sink that swamps the rest).
        query: Position of a query to mark, and to keep in sight.
        how: What happens to a matrix that is too large: "window" cuts round the query, "blocks" averages blocks of
            cells, "auto" is window where there is a query and blocks where there is none. Both say so.
        height: Lines that may be used; the terminal's where None, without limit where there is no terminal.

    Returns:
        A renderable that fits itself to the width, height, colours and encoding it is printed with.

    Raises:
        UsageError: No such scale or query; a log scale of negative values.
    """
    if query is not None:
        matrix.row_of(query)
    values = matrix.shown
    muted = np.isin(matrix.keys.at, list(mute))
    choice = scale.choose(values[:, ~muted], kind, diverging=diverging, bounds=bounds)
    return Heatmap(matrix, choice, frozenset(mute), query, how, height, bounds)


@dataclass(frozen=True, slots=True)
class Heatmap:
    """See `heatmap`."""

    matrix: Matrix
    scale: scale.Scale
    mute: frozenset[int]
    query: int | None
    how: Fit
    height: int | None
    bounds: tuple[float | None, float | None]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Fit, then draw."""
        here = page(console, options)
        if self.height is not None:
            here = replace(here, height=self.height)
        muted_names = " ".join(
            dict.fromkeys(
                safe(piece).strip()
                for piece, at in zip(self.matrix.keys.labels, self.matrix.keys.at, strict=True)
                if at in self.mute
            )
        )
        matrix, width, half, tall = self._fitted(here)
        values = matrix.shown
        muted = _muted(matrix.keys, self.mute)
        choice = self.scale
        if matrix.queries.block > 1 or matrix.keys.block > 1:
            choice = scale.choose(
                values[:, ~muted], self.scale.kind, diverging=self.scale.ramp.diverging, bounds=self.bounds
            )
        title = " · ".join(part for part in (matrix.title, matrix.name) if part)
        yield Text(here.spell(safe(title)), "bold", no_wrap=True, overflow="ellipsis")
        picture = _Picture(matrix, choice, muted, self.query, width, half, tall, here)
        yield from picture.header()
        yield from picture.body()
        missing = np.isnan(values) & ~matrix.hidden & ~muted
        yield scale.legend(
            choice,
            here,
            unit=matrix.unit,
            hidden=bool(matrix.hidden.any()),
            muted=muted_names,
            missing=bool(missing.any()),
        )
        for note in matrix.notes:
            yield Text(here.spell(safe(note)), "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Say what widths make sense."""
        labels = _label_width(self.matrix.queries, options.max_width)
        most = labels + 2 * len(self.matrix.keys) + labels
        return Extent(min(options.max_width, 40), min(options.max_width, max(40, most)))

    def _fitted(self, here: Page) -> tuple[Matrix, int, bool, int]:
        """Choose the form: what is drawn, how wide a cell is, whether a line holds two rows, how tall headings are.

        In order of preference: every cell two columns by one line; every cell in half blocks; a part of the matrix
        round the query; blocks of cells averaged.
        """
        matrix = self.matrix
        rows, columns = len(matrix.queries), len(matrix.keys)
        beside = _label_width(matrix.queries, here.width)
        tallest = min(STACK, marks(matrix.keys.labels))
        smooth = colour.smooth(here.depth) and not here.ascii
        room = max(NARROWEST, here.width - beside)
        lines = None if here.height is None else max(NARROWEST, here.height - AROUND)
        if 2 * columns <= room and (lines is None or rows + min(SHORT, tallest) <= lines):
            return matrix, 2, False, tallest if lines is None else min(tallest, lines - rows)
        halves = max(NARROWEST, here.width - 2 * beside)
        if smooth and 2 * columns <= halves and lines is not None and -(-rows // 2) + min(SHORT, tallest) <= lines:
            return matrix, 2, True, min(tallest, lines - -(-rows // 2))
        if self.how == "window" or (self.how == "auto" and self.query is not None):
            short = min(SHORT, tallest)
            return (
                matrix.window(room // 2 if lines is None else lines - short - 1, room // 2, self.query),
                2,
                False,
                short,
            )
        side = 2 if smooth else 1
        fits = 2 * columns <= here.width - side * beside
        room = max(NARROWEST, here.width - side * (beside if fits else _range_width(matrix.queries)))
        width = 2 if fits else 1
        above = 2 if width == 1 else min(SHORT, tallest)
        most = rows
        if lines is not None:
            most = (lines - above - 1) * (2 if smooth else 1)
        elif columns * width > room:
            most = max(NARROWEST, rows * room // (columns * width))
        return matrix.blocks(most, room // width), width, smooth, min(STACK, above)


@dataclass(frozen=True, slots=True)
class _Picture:
    """The cells and the labels round them."""

    matrix: Matrix
    scale: scale.Scale
    muted: Array
    query: int | None
    width: int
    half: bool
    tall: int
    page: Page

    @property
    def beside(self) -> int:
        return _label_width(self.matrix.queries, self.page.width)

    def header(self) -> Iterator[Segment]:
        """Name the axes, and the keys: downwards where a column has room for a wide character, else by position."""
        down, right = ("v", ">") if self.page.ascii else ("↓", "→")
        queries, keys = f"{self.matrix.queries.name} {down}", f"{self.matrix.keys.name} {right}"
        tall = 1 if self.width < 2 else min(self.tall, marks(self.matrix.keys.labels))
        together = len(queries) + 2 + len(keys) < self.beside
        if not together and (tall < 2 or len(queries) >= self.beside or len(keys) >= self.beside):
            yield Segment(f" {queries}  {keys}", _FAINT)
            yield Segment.line()
            queries = keys = ""
        columns = [stack(piece, tall, self.width, ascii_only=self.page.ascii) for piece in self.matrix.keys.labels]
        for line in range(tall):
            last = queries if line == tall - 1 else ""
            first = keys if line == 0 else ""
            gap = max(0, self.beside - len(last) - len(first) - 2)
            yield Segment(f" {last}{' ' * gap}{first} ", _FAINT)
            if self.width < 2:
                yield Segment(_ruler(self.matrix.keys), _FAINT)
            else:
                for column, special in zip(columns, self.matrix.keys.special, strict=True):
                    yield Segment(column[line], _FAINT if special else Style.null())
            yield Segment.line()

    def body(self) -> Iterator[Segment]:
        """Draw the rows, each with its token; two rows in half blocks have one token on either side."""
        places = self.scale.places(self.matrix.shown)
        count = len(self.matrix.queries)
        for row in range(0, count, 2 if self.half else 1):
            yield from self._label(row)
            if self.half:
                below = places[row + 1] if row + 1 < count else None
                hidden = self.matrix.hidden[row] & (self.matrix.hidden[row + 1] if row + 1 < count else True)
                yield from self._pairs(places[row], below, hidden)
                if row + 1 < count:
                    yield from self._label(row + 1, right=True)
            else:
                yield from self._cells(places[row], self.matrix.hidden[row])
            yield Segment.line()

    def _label(self, row: int, *, right: bool = False) -> Iterator[Segment]:
        side = self.matrix.queries
        chosen = self.query is not None and self.matrix.row_of(self.query) == row
        style = _STRONG if chosen else _FAINT if side.special[row] else Style.null()
        digits = len(str(side.total - 1))
        token = self.beside - digits - 3
        ascii_only = self.page.ascii
        mark = (">" if ascii_only else "▸") if chosen else " "
        if side.block > 1 or token < 2:
            text = label(side.labels[row], self.beside - 2, right=not right, ascii_only=ascii_only)
            yield Segment(f" {text} " if right else f"{mark}{text} ", style)
            return
        at = f"{side.at[row]:>{digits}}"
        if right:
            name = label(side.labels[row], token, ascii_only=ascii_only)
            yield Segment(" ")
            yield Segment(at, _FAINT)
            yield Segment(f" {name}{mark if chosen else ''}".rstrip(), style)
            return
        yield Segment(mark, style)
        yield Segment(at, _FAINT)
        yield Segment(f" {label(side.labels[row], token, ascii_only=ascii_only)} ", style)

    def _cells(self, places: Array, hidden: Array) -> Iterator[Segment]:
        ramp, depth, ascii_only = self.scale.ramp, self.page.depth, self.page.ascii
        for place, hid, mut in zip(places, hidden, self.muted, strict=True):
            if mut or hid or np.isnan(place):
                yield Segment(fit(self._mark(mut, hid) * (2 if mut and self.width == 2 else 1), self.width), _FAINT)
            elif colour.smooth(depth):
                yield Segment(" " * self.width, colour.ink(ramp, place, depth))
            else:
                yield Segment(
                    colour.shade(ramp, place, ascii_only=ascii_only) * self.width, colour.ink(ramp, place, depth)
                )

    def _pairs(self, above: Array, below: Array | None, hidden: Array) -> Iterator[Segment]:
        for at, mut in enumerate(self.muted):
            top = -1 if mut or np.isnan(above[at]) else colour.level(above[at])
            low = -1 if mut or below is None or np.isnan(below[at]) else colour.level(below[at])
            if top < 0 and low < 0:
                yield Segment(fit(self._mark(mut, hidden[at]), self.width), _FAINT)
            else:
                char, style = _pair(self.scale.ramp, top, low, self.page.depth)
                yield Segment(char * self.width, style)

    def _mark(self, muted: bool, hidden: bool) -> str:
        if muted:
            return scale.MUTED_ASCII if self.page.ascii else scale.MUTED
        if hidden:
            return scale.HIDDEN_ASCII if self.page.ascii else scale.HIDDEN
        return scale.MISSING


@lru_cache(maxsize=65536)
def _pair(ramp: Ramp, top: int, low: int, depth: Depth) -> tuple[str, Style]:
    """Give the half block and its style for two levels, one above the other; -1 leaves a half empty."""
    middle = 0.5 / colour.LEVELS
    upper = None if top < 0 else colour.colour(ramp, top / colour.LEVELS + middle, depth)
    lower = None if low < 0 else colour.colour(ramp, low / colour.LEVELS + middle, depth)
    if upper is None:
        return "▄", Style(color=lower)
    if lower is None:
        return "▀", Style(color=upper)
    return ("▀", Style(color=upper, bgcolor=lower)) if upper != lower else (" ", Style(bgcolor=upper))


def _label_width(side: Side, width: int) -> int:
    """Columns beside the picture: mark, position, token, a space either side; for blocks a range of positions."""
    digits = len(str(max(0, side.total - 1)))
    if side.block > 1:
        return _range_width(side)
    longest = max((cell_len(safe(piece)) for piece in side.labels), default=1)
    return min(max(4, longest) + digits + 3, LABEL + digits + 3, max(8, width // 3))


def _range_width(side: Side) -> int:
    """Columns beside a picture of blocks: "100–104" with a space either side."""
    return max(8, 2 * len(str(max(0, side.total - 1))) + 3)


def _muted(side: Side, mute: Collection[int]) -> Array:
    """Which columns stand for muted positions alone."""
    stops = [*side.at[1:], side.at[-1] + side.block] if side.at else []
    return np.array([all(at in mute for at in range(a, b)) for a, b in zip(side.at, stops, strict=True)], bool)


def _ruler(side: Side) -> str:
    """Positions above columns of one cell: whole numbers only, every fifth column or as often as there is room."""
    line = ""
    for column, at in enumerate(side.at):
        text = str(at)
        if column % 5 == 0 and (not line or len(line) < column) and column + len(text) <= len(side):
            line = line.ljust(column) + text
    return line


def marks(labels: Sequence[str]) -> int:
    """Give the height of the tallest label in characters."""
    return max((sum(1 for _ in clusters(safe(piece).strip())) for piece in labels), default=1)
