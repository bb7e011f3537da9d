"""A measurement with one axis as a list of bars."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.text import Text

from attnx.errors import UsageError
from attnx.records import Measurement
from attnx.view.cells import cell_len, in_unit, label, number, safe, trimmed
from attnx.view.matrix import axes
from attnx.view.page import page
from attnx.view.strokes import bar

LABEL, BAR = 22, 50
"""The widest that a label is written, and a bar drawn."""


def bars(measurement: Measurement, *, top: int | None = None, decimals: int = 2) -> Bars:
    """Show a measurement of rank 1 as bars.

    Args:
        measurement: One axis.
        top: Show only this many, the largest first; None shows all, in their own order.
        decimals: Digits after the point.

    Returns:
        A renderable. Bars run from 0 (or the smallest value, where it is negative) to the largest that is possible,
        or else that occurs.

    Raises:
        UsageError: Another rank.
    """
    if measurement.values.ndim != 1:
        raise UsageError(
            f"{measurement.name} has {axes(measurement.values.ndim)}, and bars show one",
            "Choose a layer or a head, or show it as a table.",
        )
    return Bars(measurement, top, decimals)


@dataclass(frozen=True, slots=True)
class Bars:
    """See `bars`."""

    measurement: Measurement
    top: int | None
    decimals: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write a line for each entry, then what the numbers are."""
        here, m = page(console, options), self.measurement
        values = np.asarray(m.values, np.float64)
        order = list(range(len(values)))
        if self.top is not None:
            order = sorted(order, key=lambda at: (np.isnan(values[at]), -values[at]))[: self.top]
        finite = values[np.isfinite(values)]
        low = min(0.0, float(finite.min(initial=0.0)))
        high = m.bounds[1] if m.bounds[1] is not None else float(finite.max(initial=0.0))
        written = [number(float(values[at]), self.decimals) for at in order]
        figures = max((cell_len(text) for text in written), default=1)
        names = max((cell_len(trimmed(m.axes[0].labels[at])) for at in order), default=1)
        names = min(names, LABEL, max(4, here.width // 3))
        length = max(4, min(BAR, here.width - names - figures - 4))
        yield Text(
            here.spell(safe(m.name) + (f" ({safe(unit)})" if (unit := in_unit(m.unit)) else "")),
            "bold",
            no_wrap=True,
            overflow="ellipsis",
        )
        for at, text in zip(order, written, strict=True):
            line = Text(no_wrap=True, overflow="crop")
            line.append(f" {label(m.axes[0].labels[at], names, ascii_only=here.ascii)} ")
            line.append(f"{text:>{figures}} ", "" if np.isfinite(values[at]) else "dim")
            share = (float(values[at]) - low) / (high - low) if high > low else 0.0
            line.append_text(bar(share, length, here))
            line.rstrip()
            yield line
        caption = [f"bars: {number(low)} to {number(high)}"]
        if (left := len(values) - len(order)) > 0:
            caption.append(f"{left} more")
        for text in (" · ".join(caption), m.formula, m.source and f"Source: {m.source}", *m.notes):
            if text:
                yield Text(here.spell(safe(text)), "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Report the possible widths."""
        return Extent(min(24, options.max_width), min(options.max_width, LABEL + BAR + 10))
