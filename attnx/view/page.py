"""What a view must know of the place it is drawn on: width, height, how many colours, which characters.

Views ask this when they are printed, not when they are made, so that one renderable serves a terminal, a pipe, an SVG
and the explorer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions

from attnx.view.cells import in_ascii

Depth = Literal["true", "256", "16", "none"]
"""How many colours there are: 24 bits, the 256 of xterm, the 16 of the terminal's theme, none."""

_DEPTHS: dict[str, Depth] = {"truecolor": "true", "256": "256", "standard": "16", "windows": "16"}


@dataclass(frozen=True, slots=True)
class Page:
    """A place to draw on."""

    width: int
    """Columns."""
    height: int | None
    """Lines that fit on one screen; None where nothing scrolls away (a pipe, a file)."""
    depth: Depth
    ascii: bool
    """True where the encoding cannot write blocks, braille or CJK."""

    def spell(self, text: str) -> str:
        """Write safe text with the characters that there are."""
        return in_ascii(text) if self.ascii else text


def page(console: Console, options: ConsoleOptions) -> Page:
    """Describe where a renderable is being drawn.

    Args:
        console: The console that asks.
        options: What it grants; `options.height` (inside a layout) wins over the screen's height.

    Returns:
        The page. `NO_COLOR`, `TERM=dumb` and a pipe all come out as depth "none".
    """
    height = options.height
    if height is None and console.is_terminal:
        height = console.height
    return Page(options.max_width, height, depth_of(console), options.ascii_only)


def depth_of(console: Console) -> Depth:
    """Tell how many colours a console shows."""
    if console.no_color or console.color_system is None:
        return "none"
    return _DEPTHS.get(console.color_system, "16")
