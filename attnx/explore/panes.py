"""The panes of the explorer: the grid of heads, the head, the row, the status; as segments and Rich renderables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attnx.records import Array
from attnx.view import colour
from attnx.view.cells import cut, fit, number, safe
from attnx.view.heatmap import heatmap
from attnx.view.lines import lines
from attnx.view.page import Depth
from attnx.view.row import RowBars, row
from attnx.view.table import matrix_table

if TYPE_CHECKING:
    from attnx.explore.desk import Desk

AROUND = 5
"""Lines of the grid in addition to its rows: name, heads, scale, the current head, its value."""
TABLE = 5
"""Lines of a table in addition to its rows: title, keys, legend, what is cut off."""
_FAINT, _STRONG = Style(dim=True), Style(bold=True)


def grid_width(desk: Desk, most: int, height: int) -> int:
    """The number of columns that the grid takes, up to a maximum."""
    heads = int(desk.measurement.values.shape[1])
    return min(max(_margin(desk) + heads * _block(desk, most, height)[0] + 1, 24), most)


def _margin(desk: Desk) -> int:
    return max(len(label) for label in desk.measurement.axes[0].labels) + 2


def _block(desk: Desk, width: int, height: int) -> tuple[int, int]:
    """Columns and lines per head: the largest with which all heads fit, otherwise the smallest."""
    layers, heads = desk.measurement.values.shape
    for wide, tall in ((4, 2), (2, 1)):
        if _margin(desk) + wide * int(heads) <= width and tall * int(layers) + AROUND <= height * 2 // 3:
            return wide, tall
    return (2, 1) if _margin(desk) + 2 * int(heads) <= width else (1, 1)


def grid(desk: Desk, width: int, height: int, depth: Depth) -> list[list[Segment]]:
    """Layers by heads, each a block coloured by the measure; the current head is marked.

    Args:
        desk: The state of the explorer.
        width: Columns.
        height: Lines; if not all layers fit, those around the current one are shown.
        depth: The number of colours available.

    Returns:
        At most `height` lines.
    """
    measure = desk.measurement
    values = np.asarray(measure.values, np.float64)
    there = values[np.isfinite(values)]
    low, high = (float(there.min()), float(there.max())) if there.size else (0.0, 1.0)
    places = np.clip((values - low) / (high - low) if high > low else np.where(np.isnan(values), np.nan, 0.5), 0, 1)
    labels, margin = measure.axes[0].labels, _margin(desk)
    wide, tall = _block(desk, width, height)
    room = max((height - AROUND) // tall, 1)
    first = min(max(desk.site - room // 2, 0), max(len(labels) - room, 0))
    shown = min(max((width - margin) // wide, 1), values.shape[1])
    left = min(max(desk.head - shown // 2, 0), values.shape[1] - shown)
    out = [[Segment(cut(safe(measure.name), width), _STRONG)], _names(desk.head, left, shown, margin, wide)]
    for site in range(first, min(first + room, len(labels))):
        here = site == desk.site
        name = Segment(f"{'▸' if here else ' '}{labels[site]}".ljust(margin), _STRONG if here else _FAINT)
        blocks = _blocks(places[site, left : left + shown], desk.head - left if here else -1, wide, depth)
        out += [[name if line == 0 else Segment(" " * margin), *blocks] for line in range(tall)]
    out.append(_legend(number(low), number(high), depth, min(10, max(3, width - 14))))
    value = values[desk.site, desk.head] if desk.head < values.shape[1] else np.nan
    out.append([Segment(cut(f"{desk.place} {desk.kind}".strip(), width), _STRONG)])
    out.append([Segment(cut(f"{safe(measure.name)} {number(float(value), 3)}", width))])
    return out[:height]


def _names(head: int, left: int, shown: int, margin: int, wide: int) -> list[Segment]:
    """The numbers of the heads, every other one if they would touch; the current one in bold."""
    out = [Segment(" " * margin)]
    step = 1 if wide > 2 or (left + shown <= 10 and wide > 1) else 2 if wide > 1 else 4
    used = 0
    for at in range(left, left + shown):
        text = str(at)
        if at % step == 0 and used <= (at - left) * wide and (at - left) * wide + len(text) <= shown * wide:
            out.append(Segment(" " * ((at - left) * wide - used)))
            out.append(Segment(text, _STRONG if at == head else _FAINT))
            used = (at - left) * wide + len(text)
    return out


def _blocks(places: Array, cursor: int, wide: int, depth: Depth) -> list[Segment]:
    out = []
    for at, place in enumerate(places):
        if np.isnan(place):
            out.append(Segment("·" * wide if at == cursor else " " * wide, Style(reverse=at == cursor)))
            continue
        style = colour.ink(colour.SEQUENTIAL, place, depth)
        block = " " if colour.smooth(depth) else colour.shade(colour.SEQUENTIAL, place)
        if at == cursor:
            mark = "▐▌".center(wide) if wide > 1 else "◆"
            out.append(Segment(mark, style if depth != "none" else Style(reverse=True)))
        else:
            out.append(Segment(block * wide, style))
    return out


def _legend(low: str, high: str, depth: Depth, width: int) -> list[Segment]:
    """The colour scale with its ends."""
    ramp = [at / (width - 1) for at in range(width)]
    strip = [
        Segment(
            " " if colour.smooth(depth) else colour.shade(colour.SEQUENTIAL, place),
            colour.ink(colour.SEQUENTIAL, place, depth),
        )
        for place in ramp
    ]
    return [Segment(f" {low} "), *strip, Segment(f" {high}")]


def head(desk: Desk, height: int | None) -> RenderableType:
    """The head's matrix as a heatmap, as lines, or as numbers.

    Raises:
        AttnxError: The site does not have the stage, or failed its checks.
    """
    matrix, muted = desk.matrix(), desk.muted()
    if desk.view == "lines":
        return lines([matrix], query=desk.query, mute=muted, height=height)
    if desk.view == "numbers":
        rows = None if height is None else max(height - TABLE, 1)
        return matrix_table(matrix, kind=desk.scale, mute=muted, query=desk.query, rows=rows)
    return heatmap(matrix, query=desk.query, mute=muted, height=height, kind=desk.scale)


def looks(desk: Desk, height: int) -> RowBars:
    """Where the token under the cursor looks, as bars."""
    return row(desk.matrix(), desk.query, top=max(height - 2, 1), mute=desk.muted())


def status(desk: Desk, width: int) -> list[Segment]:
    """One line: the last message, or else model, head, token, stage and active options; and where to find help."""
    pieces = desk.queries().pieces
    token = safe(pieces[desk.query]).strip() if desk.query < len(pieces) else ""
    on = ("words", desk.words), ("mute", desk.mute), ("no sinks", desk.sinks)
    switched = [name for name, flag in on if flag] + ([] if desk.scale == "linear" else [f"{desk.scale} colours"])
    parts = [safe(desk.model.name), desk.place, f"{desk.query} {token}", desk.stage, *switched]
    status = f" {safe(desk.note)}" if desk.note else f" {' · '.join(parts)}"
    help_ = " ? help "
    room = max(width - len(help_), 0)
    return [Segment(fit(status, room), _STRONG if desk.note else Style.null()), Segment(help_[: width - room])]


def text_lines(text: str) -> Sequence[RenderableType]:
    """A message in place of what cannot be shown."""
    return [Text(safe(line), "dim") for line in text.splitlines()]
