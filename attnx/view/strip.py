"""A measurement along one axis as a strip of bars up and down: how much each dimension adds or takes away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.text import Text

from attnx.errors import UsageError
from attnx.records import Array, Measurement
from attnx.view.cells import number, safe
from attnx.view.page import Page, page
from attnx.view.strokes import tint

_UP, _UP_ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*##"
_DOWN, _DOWN_ASCII = " ▔▔▀▀▀▀██", " .:-=+*##"
WIDEST = 128
"""Cells that a line of the strip takes at most."""


def strip(measurement: Measurement) -> Strip:
    """Draw a measurement of rank 1, positive values upwards and negative ones downwards.

    Args:
        measurement: One axis, such as the products of a query and a key by dimension.

    Returns:
        A renderable: two lines of bars, and a ruler of positions; more where the values do not fit on one line.

    Raises:
        UsageError: Another rank.
    """
    if measurement.values.ndim != 1:
        raise UsageError(f"{measurement.name} has {measurement.values.ndim} axes, and a strip shows one")
    return Strip(measurement)


@dataclass(frozen=True, slots=True)
class Strip:
    """See `strip`."""

    measurement: Measurement

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write as many cells a line as fit, all on one scale."""
        here, m = page(console, options), self.measurement
        values = np.asarray(m.values, np.float64)
        reach = float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0))
        wide = max(8, min(WIDEST, here.width))
        cell = 2 if 2 * len(values) <= wide else 1
        yield Text(here.spell(f"{safe(m.name)}, up adds, down takes away, tallest {number(reach)}"), "bold")
        for start in range(0, len(values), wide // cell):
            part = values[start : start + wide // cell]
            yield _line(np.maximum(part, 0.0), reach, cell, here, down=False)
            if (values < 0).any():
                yield _line(np.maximum(-part, 0.0), reach, cell, here, down=True)
            yield Text(_ruler(start, len(part), cell), "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Any width will do."""
        return Extent(min(16, options.max_width), options.max_width)


def _line(part: Array, reach: float, cell: int, here: Page, *, down: bool) -> Text:
    marks = (_DOWN_ASCII if here.ascii else _DOWN) if down else (_UP_ASCII if here.ascii else _UP)
    line = Text(no_wrap=True, overflow="crop")
    for value in part:
        share = 0.0 if reach <= 0 or not np.isfinite(value) else float(value) / reach
        step = 0 if share <= 0 else max(1, round(share * (len(marks) - 1)))
        line.append((marks[step] * (cell - 1 or 1)).ljust(cell), tint(share, here))
    line.rstrip()
    return line


def _ruler(start: int, count: int, cell: int) -> str:
    """Positions under the strip, every eighth."""
    out = ""
    for at in range(0, count, 8):
        out = out.ljust(at * cell) + str(start + at)
    return out
