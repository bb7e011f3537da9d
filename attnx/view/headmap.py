"""Every head of every layer as a mark on a small map, which takes a line a layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.style import Style
from rich.text import Text

from attnx.records import Array, Measurement
from attnx.view import colour, scale
from attnx.view.cells import cell_len, number, safe
from attnx.view.page import Page, page


def headmap(heads: Measurement, decimals: int = 1) -> Headmap:
    """Draw a measurement by layer and head as a small map.

    Args:
        heads: [layer, head].
        decimals: Of the ends of its scale.

    Returns:
        A renderable: a line that names the scale, then one for each layer; wider than the terminal, it is not drawn.
    """
    return Headmap(heads, decimals)


@dataclass(frozen=True, slots=True)
class Headmap:
    """See `headmap`."""

    heads: Measurement
    decimals: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it without the empty line above."""
        yield from headmap_lines(self.heads, page(console, options), None, self.decimals)[1:]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Any width will do."""
        return Extent(min(40, options.max_width), options.max_width)


def headmap_lines(heads: Measurement, here: Page, room: int | None, decimals: int = 1) -> list[Text]:
    """Draw layer by head as a small map with its scale; nothing where it does not fit.

    Above it stands an empty line, or, in few lines and columns, instead of that the first and the last head.

    Where lines are few and colours are many, a line holds two layers in half blocks.

    Args:
        heads: [layer, head].
        here: The page.
        room: Lines that there are; None for as many as it takes.
        decimals: Of the ends of its scale.
    """
    choice = scale.choose(heads.values)
    places = choice.places(heads.values)
    down, across = places.shape
    names = max((len(name) for name in heads.axes[0].labels), default=1)
    wide = 2 if names + 1 + 2 * across <= here.width else 1
    half = room is not None and down + 2 > room and colour.smooth(here.depth)
    if names + 1 + wide * across > here.width or (room is not None and -(-down // (1 + half)) + 2 > room):
        return []
    title = Text(here.spell(f"{safe(heads.name)}  "), no_wrap=True, overflow="ellipsis")
    title.append(f"{number(choice.low, decimals)} ", "dim").append_text(scale.bar(choice.ramp, here, 5))
    title.append(f" {number(choice.high, decimals)}", "dim")
    ends = heads.axes[1].labels[0], heads.axes[1].labels[-1]
    said = f"  columns: {ends[0]} to {ends[1]}" if across > 1 else f"  column: {ends[0]}"
    gap = wide * across - len(ends[0]) - len(ends[1])
    top = Text()
    if cell_len(title.plain) + len(said) <= here.width:
        title.append(here.spell(said), "dim")
    elif gap > 0:
        top = Text(f"{'':>{names}} {ends[0]}{' ' * gap}{ends[1]}", "dim", no_wrap=True)
    lines = [Text(), title] if not top.plain or room is None else [title]
    lines += [top] if top.plain else []
    for at in range(0, down, 1 + half):
        line = Text(no_wrap=True).append(f"{heads.axes[0].labels[at]:>{names}} ")
        for head in range(across):
            pair = places[at : at + 1 + half, head]
            if half:
                char, style = _halves(choice.ramp, pair, here)
            elif np.isnan(pair[0]):
                char, style = " ", Style.null()
            else:
                char = " " if colour.smooth(here.depth) else colour.shade(choice.ramp, pair[0], ascii_only=here.ascii)
                style = colour.ink(choice.ramp, pair[0], here.depth)
            line.append(char * wide, style)
        lines.append(line)
    return lines


def _halves(ramp: colour.Ramp, pair: Array, here: Page) -> tuple[str, Style]:
    """The half block and its style for one layer over another; what is missing stays empty."""
    upper, lower = (None if np.isnan(p) else colour.colour(ramp, p, here.depth) for p in (*pair, np.nan)[:2])
    if upper is None:
        return (" ", Style.null()) if lower is None else ("▄", Style(color=lower))
    return "▀", Style(color=upper, bgcolor=lower)
