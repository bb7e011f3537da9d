"""A measurement along its last axis (layers, as a rule) as sparklines, one for each entry of the axis before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.text import Text

from attnx.errors import UsageError
from attnx.records import Array, Measurement
from attnx.view.cells import cell_len, in_unit, label, number, safe
from attnx.view.matrix import axes as count_axes
from attnx.view.page import page
from attnx.view.strokes import spark

LABEL = 20
"""The widest that a label is written."""


def sparklines(measurement: Measurement, *, along: str | None = None, decimals: int = 2) -> Sparklines:
    """Show a measurement of rank 1 or 2 as sparklines.

    Args:
        measurement: One or two axes.
        along: Name of the axis that runs from left to right; the last where None.
        decimals: Digits after the point of the range beside each line.

    Returns:
        A renderable; all lines share one scale, so that they compare.

    Raises:
        UsageError: Another rank, no such axis.
    """
    values, axes = np.asarray(measurement.values, np.float64), measurement.axes
    if values.ndim not in (1, 2):
        raise UsageError(f"{measurement.name} has {count_axes(values.ndim)}, and sparklines show one or two")
    names = [axis.name for axis in axes]
    if along is not None and along not in names:
        raise UsageError(f"{measurement.name} has no axis {along!r}", f"It has {', '.join(names)}.")
    if values.ndim == 1:
        return Sparklines(measurement, values[None], (measurement.name,), axes[0].name, axes[0].labels, decimals)
    last = 1 if along is None else names.index(along)
    rows = values if last == 1 else values.T
    return Sparklines(measurement, rows, axes[1 - last].labels, names[last], axes[last].labels, decimals)


@dataclass(frozen=True, slots=True)
class Sparklines:
    """See `sparklines`."""

    measurement: Measurement
    rows: Array
    """[rows, along]."""
    names: tuple[str, ...]
    along: str
    steps: tuple[str, ...]
    """Labels along the lines."""
    decimals: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write a line for each entry: its name, its sparkline, its lowest and highest value."""
        here, m = page(console, options), self.measurement
        finite = self.rows[np.isfinite(self.rows)]
        bounds = m.bounds
        low = bounds[0] if bounds[0] is not None else float(finite.min(initial=0.0)) if finite.size else 0.0
        high = bounds[1] if bounds[1] is not None else float(finite.max()) if finite.size else 0.0
        names = min(max((cell_len(safe(name)) for name in self.names), default=1), LABEL, max(4, here.width // 3))
        tails = [self._tail(row) for row in self.rows]
        tail = max((cell_len(text) for text in tails), default=0)
        room = max(1, here.width - names - tail - 4)
        each = max(1, min(3, room // max(1, len(self.steps))))
        fits = min(len(self.steps), room // each)
        arrow = ">" if here.ascii else "→"
        yield Text(
            here.spell(safe(m.name) + (f" ({safe(unit)})" if (unit := in_unit(m.unit)) else "")),
            "bold",
            no_wrap=True,
            overflow="ellipsis",
        )
        shown = self.steps[:fits]
        ends = f"{shown[0]} {arrow} {shown[-1]}" if len(shown) > 1 else "".join(shown)
        yield Text(f" {' ' * names} {self.along} {here.spell(safe(ends))}", "dim", no_wrap=True, overflow="crop")
        for name, row, text in zip(self.names, self.rows, tails, strict=True):
            line = Text(no_wrap=True, overflow="crop")
            line.append(f" {label(name, names, ascii_only=here.ascii)} ")
            line.append_text(spark(row[:fits], low, high, here, width=each))
            line.append(f" {here.spell(text)}", "dim")
            yield line
        caption = [f"height: {number(low)} to {number(high)}"]
        if fits < len(self.steps):
            caption.append(f"{len(self.steps) - fits} of {len(self.steps)} do not fit")
        for note in (" · ".join(caption), *m.notes):
            yield Text(here.spell(safe(note)), "dim")

    def _tail(self, row: Array) -> str:
        """The range of one line, and where its highest is."""
        if not np.isfinite(row).any():
            return "no values"
        at = int(np.nanargmax(row))
        low, high = (number(float(value), self.decimals) for value in (np.nanmin(row), row[at]))
        return f"{low}–{high}, most at {safe(self.steps[at])}"

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Say what widths make sense."""
        return Extent(min(30, options.max_width), min(options.max_width, LABEL + 3 * len(self.steps) + 30))
