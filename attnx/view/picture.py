"""The cells of a heatmap and the labels round them, as segments: neighbours that look the same are one segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from rich.segment import Segment
from rich.style import Style

from attnx.records import Array
from attnx.view import colour, scale
from attnx.view.cells import cell_len, clusters, fit, label, safe, stack, trimmed
from attnx.view.colour import Ramp
from attnx.view.matrix import Matrix, Side
from attnx.view.page import Depth, Page

LABEL = 14
"""The widest that a token is written beside its row."""
_FAINT, _STRONG = Style(dim=True), Style(bold=True)
_TOP = colour.LEVELS - 1
_MUTED, _HIDDEN, _MISSING = -3, -2, -1
"""Cells that have no level of the scale."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A matrix whose form has been chosen: how wide a cell is, whether a line holds two rows, how tall headings are."""

    matrix: Matrix
    scale: scale.Scale
    muted: Array
    query: int | None
    width: int
    half: bool
    tall: int
    page: Page
    beside: int
    """Columns beside the picture; see `label_width`."""

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
        """One row; neighbours that look the same are one segment, which is less to write over a slow line."""
        levels = np.where(np.isnan(places), _MISSING, np.clip(np.nan_to_num(places) * colour.LEVELS, 0, _TOP))
        codes = np.where(self.muted, _MUTED, np.where(hidden, _HIDDEN, levels)).astype(int)
        starts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        for start, stop in pairwise(starts):
            char, style = self._look(int(codes[start]))
            yield Segment(char * (stop - start), style)

    def _look(self, code: int) -> tuple[str, Style]:
        """The characters and the style of one cell: of a level of the scale, or of what has none."""
        if code < 0:
            mark = self._mark(code == _MUTED, code == _HIDDEN)
            return fit(mark * (2 if code == _MUTED and self.width == 2 else 1), self.width), _FAINT
        ramp, depth = self.scale.ramp, self.page.depth
        place = (code + 0.5) / colour.LEVELS
        style = colour.ink(ramp, place, depth)
        if colour.smooth(depth):
            return " " * self.width, style
        return colour.shade(ramp, place, ascii_only=self.page.ascii) * self.width, style

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


def label_width(side: Side, width: int) -> int:
    """Columns beside the picture: mark, position, token, a space either side; for blocks a range of positions."""
    digits = len(str(max(0, side.total - 1)))
    if side.block > 1:
        return range_width(side)
    longest = max((cell_len(trimmed(piece)) for piece in side.labels), default=1)
    return min(max(4, longest) + digits + 3, LABEL + digits + 3, max(8, width // 3))


def range_width(side: Side) -> int:
    """Columns beside a picture of blocks: "100–104" with a space either side."""
    return max(8, 2 * len(str(max(0, side.total - 1))) + 3)


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
    return max(map(_marks, labels), default=1)


@lru_cache(maxsize=16384)
def _marks(piece: str) -> int:
    return sum(1 for _ in clusters(safe(piece).strip()))
