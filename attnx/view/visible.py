"""Who may look at whom: a cell a query and key, filled where the key is visible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.text import Text

from attnx.errors import UsageError
from attnx.records import Measurement
from attnx.view.cells import cell_len, fit, in_ascii, safe
from attnx.view.matrix import block_means, edges
from attnx.view.page import page

LABEL = 14
"""The widest that a query is written."""
FEWEST, AROUND = 6, 8
"""Lines that are drawn even on a tiny screen; lines that stand above and below the matrix."""


def visible(measurement: Measurement, *, height: int | None = None) -> Visible:
    """Draw a visibility matrix.

    Args:
        measurement: [Q,K], 1 visible, 0 hidden, between them where heads differ.
        height: Lines that may be used; the terminal's where None.

    Returns:
        A renderable. Where the text does not fit, a cell stands for a block of queries and keys, and a note says so.

    Raises:
        UsageError: Another rank.
    """
    if measurement.values.ndim != 2:
        raise UsageError(f"{measurement.name} has {measurement.values.ndim} axes, and this view shows two")
    return Visible(measurement, height)


@dataclass(frozen=True, slots=True)
class Visible:
    """See `visible`."""

    measurement: Measurement
    height: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Reduce to what fits, then write a line a query."""
        here, m = page(console, options), self.measurement
        rows, columns = m.values.shape
        digits = len(str(max(0, rows - 1)))
        names = [safe(name.strip() or name) for name in m.axes[0].labels]
        beside = min(LABEL, max((cell_len(here.spell(name)) for name in names), default=1)) + digits + 2
        room = self.height or here.height
        down = edges(rows, max(FEWEST, room - AROUND) if room is not None else rows)
        across = edges(columns, max(FEWEST, here.width - beside))
        cell = 2 if beside + 2 * len(across) <= here.width and len(across) == columns else 1
        means, _ = block_means(np.asarray(m.values, np.float64), down, across)
        blocks = (np.diff([*down, rows]).max(initial=0), np.diff([*across, columns]).max(initial=0))
        full, part, none = ("#", "+", ".") if here.ascii else ("█", "▒", "·")
        yield Text(_ruler(across, cell, beside), "dim")
        for at, start in enumerate(down):
            line = Text(no_wrap=True, overflow="crop")
            line.append(f"{start:>{digits}} ", "dim")
            stop = int(down[at + 1]) if at + 1 < len(down) else rows
            if stop - start > 1:
                name = f"to {stop - 1}"
            else:
                name = in_ascii(names[start]) if here.ascii else names[start]
            line.append(fit(name, beside - digits - 2, ascii_only=here.ascii) + " ")
            for value in means[at]:
                mark = full if value >= 1 else none if value <= 0 else part
                line.append(mark * cell if mark == full else mark.ljust(cell), "" if mark != none else "dim")
            line.rstrip()
            yield line
        caption = [f"query down, key across; {full} visible, {none} hidden"]
        if ((means > 0) & (means < 1)).any():
            caption.append(f"{part} in part" if max(blocks) > 1 else f"{part} for some heads")
        if max(blocks) > 1:
            caption.append(f"a cell stands for up to {blocks[0]} x {blocks[1]}")
        yield Text(here.spell("; ".join(caption)), "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Any width will do."""
        return Extent(min(30, options.max_width), options.max_width)


def _ruler(across: np.ndarray, cell: int, beside: int) -> str:
    """Positions of keys, every tenth cell."""
    out = ""
    for at in range(0, len(across), 10):
        out = out.ljust(beside + at * cell) + str(int(across[at]))
    return out
