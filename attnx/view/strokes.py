"""Small drawings that views are made of: bars, sparklines, and a canvas of braille dots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.style import Style
from rich.text import Text

from attnx.records import Array
from attnx.view import colour
from attnx.view.colour import SEQUENTIAL
from attnx.view.page import Page

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇"  # the full block is left out: it would touch the line above
_LEVELS_ASCII = "_.-~=+#"


def bar(share: float, width: int, page: Page, style: Style | None = None) -> Text:
    """Draw a horizontal bar.

    Args:
        share: Its length, 0 to 1 of `width`; NaN draws nothing.
        width: Cells.
        page: Where it is drawn.
        style: Its colour; that of its length on the sequential scale where None.

    Returns:
        Text of exactly `width` cells. A share above 0 shows at least an eighth of a cell.
    """
    if not share > 0:
        return Text(" " * width)
    share = min(1.0, share)
    if page.ascii:
        text = "#" * max(1, round(share * width))
    else:
        eighths = max(1, round(share * width * 8))
        text = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return Text(text.ljust(width), tint(share, page) if style is None else style)


def tint(share: float, page: Page) -> Style:
    """Give the sequential scale's colour for a stroke on the terminal's own background (the darkest part left out)."""
    if page.depth == "none":
        return Style.null()
    return Style(color=colour.colour(SEQUENTIAL, 0.3 + 0.7 * min(1.0, max(0.0, share)), page.depth))


def spark(values: Sequence[float] | Array, low: float, high: float, page: Page, *, width: int = 1) -> Text:
    """Draw a sparkline: one column a value, higher for more.

    Args:
        values: In order; NaN leaves a gap.
        low: The value of the lowest mark.
        high: The value of the highest.
        page: Where it is drawn.
        width: Cells for each value.

    Returns:
        Text of `width` cells a value.
    """
    marks = _LEVELS_ASCII if page.ascii else _LEVELS
    line = Text()
    for value in np.asarray(values, np.float64):
        if not np.isfinite(value):
            line.append(" " * width)
            continue
        share = 0.0 if high <= low else float(np.clip((value - low) / (high - low), 0, 1))
        line.append(marks[min(len(marks) - 1, int(share * len(marks)))] * width, tint(share, page))
    return line


class Canvas:
    """Braille dots, two by four to a cell; each cell takes the style of the strongest stroke through it.

    Args:
        width: Cells across.
        height: Cells down.
    """

    _BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._dots = np.zeros((height * 4, width * 2), bool)
        self._strength = np.zeros((height, width))
        self._style: list[list[Style]] = [[Style.null()] * width for _ in range(height)]

    def dot(self, x: int, y: int, strength: float, style: Style) -> None:
        """Set a dot; outside the canvas nothing happens."""
        if not (0 <= x < self.width * 2 and 0 <= y < self.height * 4):
            return
        self._dots[y, x] = True
        if strength >= self._strength[y // 4, x // 2]:
            self._strength[y // 4, x // 2] = strength
            self._style[y // 4][x // 2] = style

    def curve(self, start: float, stop: float, strength: float, thickness: int, style: Style) -> None:
        """Join a height on the left edge with one on the right, level at both ends.

        Args:
            start: Height at the left, in cells from the top; a half is the middle of a cell.
            stop: Height at the right.
            strength: Which stroke wins a cell's style.
            thickness: Dots, 1 to 3.
            style: Of the stroke.
        """
        columns = self.width * 2
        along = np.linspace(0, 1, columns)
        height = 4 * (start + (stop - start) * along * along * (3 - 2 * along)) - 1
        before = height[0]
        for x, y in enumerate(height):
            # A steep stroke covers every dot between two columns, or it would break up.
            first, last = sorted((round(before), round(y)))
            if last - first > 1:
                first, last = (first + 1, last) if y > before else (first, last - 1)
            else:
                first = last = round(y)
            for at in range(first, last + 1):
                for extra in range(thickness):
                    self.dot(x, at + extra - (thickness - 1) // 2, strength, style)
            before = y

    def line(self, row: int) -> Text:
        """Give one row of the canvas as text."""
        bits = (self._dots[row * 4 : row * 4 + 4].reshape(4, self.width, 2).transpose(1, 0, 2) * self._BITS).sum((1, 2))
        text = Text()
        for at, code in enumerate(bits):
            text.append(chr(0x2800 + int(code)) if code else " ", self._style[row][at] if code else Style.null())
        return text

    def line_ascii(self, row: int) -> Text:
        """Give one row of the canvas where braille cannot be written: more dots, a heavier character."""
        count = self._dots[row * 4 : row * 4 + 4].reshape(4, self.width, 2).sum((0, 2))
        text = Text()
        for at, dots in enumerate(count):
            text.append(" .-=*####"[int(dots)], self._style[row][at])
        return text
