"""A matrix as a picture: one cell per query-key pair, as full cells, half blocks, or shade characters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.text import Text

from attnx.records import Array
from attnx.view import colour, scale
from attnx.view.cells import safe
from attnx.view.matrix import Matrix, Side
from attnx.view.page import Page, page
from attnx.view.picture import Picture, label_width, marks, range_width

Fit = Literal["auto", "window", "blocks"]
STACK, SHORT = 8, 4
"""The most lines for a token above its column, and the most where lines are few."""
AROUND = 3
"""Lines above and below the picture and its headings: the title, the legend, the prompt."""
NARROWEST = 8
"""Rows and columns that are drawn even on a smaller screen."""


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
        beside = label_width(matrix.queries, here.width)
        picture = Picture(matrix, choice, muted, self.query, width, half, tall, here, beside)
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
        """Report the possible widths."""
        labels = label_width(self.matrix.queries, options.max_width)
        most = labels + 2 * len(self.matrix.keys) + labels
        return Extent(min(options.max_width, 40), min(options.max_width, max(40, most)))

    def _fitted(self, here: Page) -> tuple[Matrix, int, bool, int]:
        """Choose the form: what is drawn, how wide a cell is, whether a line holds two rows, how tall headings are.

        In order of preference: every cell two columns by one line; every cell in half blocks; a part of the matrix
        round the query; blocks of cells averaged.
        """
        matrix = self.matrix
        rows, columns = len(matrix.queries), len(matrix.keys)
        beside = label_width(matrix.queries, here.width)
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
        room = max(NARROWEST, here.width - side * (beside if fits else range_width(matrix.queries)))
        width = 2 if fits else 1
        above = 2 if width == 1 else min(SHORT, tallest)
        most = rows
        if lines is not None:
            most = (lines - above - 1) * (2 if smooth else 1)
        elif columns * width > room:
            most = max(NARROWEST, rows * room // (columns * width))
        return matrix.blocks(most, room // width), width, smooth, min(STACK, above)


def _muted(side: Side, mute: Collection[int]) -> Array:
    """Which columns consist of muted positions only."""
    stops = [*side.at[1:], side.at[-1] + side.block] if side.at else []
    return np.array([all(at in mute for at in range(a, b)) for a, b in zip(side.at, stops, strict=True)], bool)
