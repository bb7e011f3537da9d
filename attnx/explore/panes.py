"""The panes of the explorer as Rich renderables: the grid of heads, the head, the row, the status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.style import Style
from rich.text import Text

from attnx.view import colour
from attnx.view.cells import safe
from attnx.view.heatmap import Heatmap, heatmap
from attnx.view.lines import Lines, lines
from attnx.view.page import Depth
from attnx.view.row import RowBars, row

if TYPE_CHECKING:
    from attnx.explore.desk import Desk

WIDE = 2
"""Columns of a head in the grid."""


def grid_width(desk: Desk) -> int:
    """Columns that the grid takes."""
    labels = desk.measurement.axes[0].labels
    widest = max(len(label) for label in labels)
    return max(widest + 1 + WIDE * int(desk.measurement.values.shape[1]), 24)


def grid(desk: Desk, height: int, depth: Depth) -> Text:
    """Layers by heads, each a block coloured by the measure; the head that is looked at is bracketed."""
    measure = desk.measurement
    values = np.asarray(measure.values, np.float64)
    low = float(np.nanmin(values)) if np.isfinite(values).any() else 0.0
    high = float(np.nanmax(values)) if np.isfinite(values).any() else 1.0
    out = Text(f"{measure.name}  {low:.2f} to {high:.2f}\n", no_wrap=True)
    labels = measure.axes[0].labels
    margin = max(len(label) for label in labels) + 1
    space = max(height - 3, 1)
    first = min(max(desk.site - space // 2, 0), max(len(labels) - space, 0))
    for s in range(first, min(first + space, len(labels))):
        out.append(labels[s].ljust(margin), Style(bold=s == desk.site))
        for h in range(values.shape[1]):
            value = values[s, h]
            here = (s, h) == (desk.site, desk.head)
            if np.isnan(value):
                out.append("··" if here else "  ", Style(reverse=here))
                continue
            place = (value - low) / (high - low) if high > low else 0.5
            block = colour.shade(colour.SEQUENTIAL, place) * WIDE if depth == "none" else " " * WIDE
            out.append("▐▌" if here else block, colour.ink(colour.SEQUENTIAL, place, depth))
        out.append("\n")
    shown = values[desk.site, desk.head] if desk.head < values.shape[1] else np.nan
    out.append(f"{desk.label}\n{measure.name} {shown:.3f}" if np.isfinite(shown) else desk.label)
    return out


def head(desk: Desk, height: int) -> Heatmap | Lines:
    """The head's matrix as a heatmap, or its weights as lines."""
    matrix = desk.matrix()
    muted = desk.muted()
    if desk.lines:
        return lines([matrix], query=desk.query, mute=muted, height=height)
    return heatmap(matrix, query=desk.query, mute=muted, height=height)


def looks(desk: Desk, height: int) -> RowBars:
    """Where the token under the cursor looks, as bars."""
    return row(desk.matrix(), desk.query, top=max(height - 2, 1), mute=desk.muted())


def status(desk: Desk) -> Text:
    """One line: model, head, token, stage, what is switched on."""
    pieces = desk.queries().pieces
    token = safe(pieces[desk.query]) if desk.query < len(pieces) else ""
    on = [name for name, flag in (("words", desk.words), ("mute", desk.mute), ("lines", desk.lines)) if flag]
    parts = [desk.model.name, desk.label, f"{desk.query} {token.strip()}", desk.stage, *on]
    text = Text("  ·  ".join(parts), no_wrap=True, overflow="ellipsis")
    if desk.note:
        text.append(f"   {safe(desk.note)}", Style(bold=True))
    return text
