"""A view as it looks in a terminal, drawn by matplotlib: for .png and .pdf files of views that are not matrices.

Blocks and braille dots are drawn as shapes, not as letters: no font decides whether they meet.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME, TerminalTheme

from attnx.view.cells import clusters
from attnx.view.drawing import Figure
from attnx.view.plot import Plot

FONT = "DejaVu Sans Mono"
ADVANCE = 0.602
"""The width of one of its characters, in its size."""
TALL = 1.25
"""The height of a line, in the size of a character."""
POINTS = 9.0
WIDTH = 100
_EDGE = 1.0
_THEME = SVG_EXPORT_THEME
_QUARTERS = dict(zip("▘▝▖▗▀▄▌▐▚▞▛▜▙▟█", (1, 2, 4, 8, 3, 12, 5, 10, 9, 6, 7, 11, 13, 14, 15), strict=True))
"""Upper left 1, upper right 2, lower left 4, lower right 8."""
_SHADES = {"░": 0.25, "▒": 0.5, "▓": 0.75}
_DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and line of each braille dot, by its bit."""
RGB = tuple[float, float, float]


def portrait(view: RenderableType, ending: str = ".png", width: int = WIDTH) -> Figure:
    """Draw a view as a terminal with 24-bit colours would show it.

    Args:
        view: Any renderable.
        ending: One of `plot.FORMATS`.
        width: Columns.

    Returns:
        The file's content, and what no installed font could draw.

    Raises:
        UsageError: Another format, or matplotlib is not installed.
    """
    plot = Plot(ending, FONT)
    console = Console(
        file=io.StringIO(), width=width, height=10_000, force_terminal=True, color_system="truecolor",
        legacy_windows=False, force_jupyter=False, _environ={},
    )  # fmt: skip
    lines = list(Segment.split_lines(console.render(view, console.options.update(height=None))))
    while lines and not "".join(segment.text for segment in lines[-1]).strip():
        lines.pop()
    widest = max((sum(cell_len(segment.text) for segment in line) for line in lines), default=1)
    columns, rows = widest + 2 * _EDGE, len(lines) + 2 * _EDGE / TALL
    with plot.settings():
        figure, axes = plot.start(columns * ADVANCE * POINTS / 72, rows * TALL * POINTS / 72)
        figure.set_layout_engine("none")
        axes.set_position((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(-_EDGE, widest + _EDGE)
        axes.set_ylim(len(lines) + _EDGE / TALL, -_EDGE / TALL)
        ground = _rgb(_THEME.background_color)
        axes.add_patch(_rectangle(plot, -_EDGE, -_EDGE, columns + 1, rows + 2, ground))
        _Canvas(plot, axes).draw(lines)
        return plot.finish(figure, ())


class _Canvas:
    """Shapes and letters, a cell one unit wide and one tall."""

    def __init__(self, plot: Plot, axes: Any) -> None:
        self.plot, self.axes = plot, axes
        self.shapes: list[np.ndarray] = []
        self.colours: list[RGB] = []

    def draw(self, lines: list[list[Segment]]) -> None:
        """Draw every line; grounds first, so that no letter lies under one."""
        letters = []
        for y, line in enumerate(lines):
            x = 0
            for text, style, _ in line:
                front, back = _colours(style or Style.null())
                wide = cell_len(text)
                if back is not None and wide:
                    self._box(x, y, wide, 1, back)
                for at, part in _runs(text):
                    letters.append((x + at, y, part, front, back, bool(style and style.bold)))
                x += wide
        for x, y, part, front, back, bold in letters:
            self._mark(x, y, part, front, back or _rgb(_THEME.background_color), bold)
        from matplotlib.collections import PolyCollection

        self.axes.add_collection(
            PolyCollection(self.shapes, facecolors=self.colours, edgecolors=self.colours, linewidths=0.05)
        )

    def _mark(self, x: float, y: float, part: str, front: RGB, back: RGB, bold: bool) -> None:
        if part in _QUARTERS:
            for bit, (left, top) in enumerate(((0, 0), (0.5, 0), (0, 0.5), (0.5, 0.5))):
                if _QUARTERS[part] >> bit & 1:
                    self._box(x + left, y + top, 0.5, 0.5, front)
        elif part in _SHADES:
            self._box(x, y, 1, 1, _mixed(front, back, _SHADES[part]))
        elif "▁" <= part <= "▇":  # from below, by eighths
            share = (ord(part) - ord("▁") + 1) / 8
            self._box(x, y + 1 - share, 1, share, front)
        elif "▉" <= part <= "▏":  # from the left, by eighths
            self._box(x, y, 1 - (ord(part) - ord("▉") + 1) / 8, 1, front)
        elif part in "▔▕":
            self._box(x + 0.875 * (part == "▕"), y, 0.125 if part == "▕" else 1, 1 if part == "▕" else 0.125, front)
        elif "\u2800" <= part <= "\u28ff":
            for bit, (column, line) in enumerate(_DOTS):
                if ord(part) - 0x2800 >> bit & 1:
                    self._dot(x + 0.25 + column / 2, y + 0.125 + line / 4, front)
        else:
            (shown,) = self.plot.safe([part])
            self.axes.text(
                x, y + 0.5, shown, color=front, fontsize=POINTS, va="center_baseline", ha="left",
                fontweight="bold" if bold else "normal",
            )  # fmt: skip

    def _box(self, x: float, y: float, wide: float, tall: float, colour: RGB) -> None:
        self.shapes.append(np.array([(x, y), (x + wide, y), (x + wide, y + tall), (x, y + tall)]))
        self.colours.append(colour)

    def _dot(self, x: float, y: float, colour: RGB) -> None:
        turn = np.linspace(0, 2 * np.pi, 9)[:-1]
        across = 0.2
        self.shapes.append(np.stack([x + across * np.cos(turn), y + across * ADVANCE / TALL * np.sin(turn)], axis=1))
        self.colours.append(colour)


def _runs(text: str) -> Iterator[tuple[int, str]]:
    """Where each part of a text stands: letters of one cell together, blocks, dots and wide characters alone."""
    at, start, run = 0, 0, ""
    for cluster in clusters(text):
        wide = cell_len(cluster)
        plain = wide == 1 and len(cluster) == 1 and cluster != " " and not "\u2580" <= cluster <= "\u28ff"
        if plain:
            start = start if run else at
            run += cluster
        else:
            if run:
                yield start, run
                run = ""
            if cluster.strip():
                yield at, cluster
        at += wide
    if run:
        yield start, run


def _colours(style: Style, theme: TerminalTheme = _THEME) -> tuple[RGB, RGB | None]:
    """The colours of the letters and of the ground, None for the terminal's own."""
    front = _rgb(style.color.get_truecolor(theme) if style.color else theme.foreground_color)
    back = _rgb(style.bgcolor.get_truecolor(theme, foreground=False)) if style.bgcolor else None
    if style.reverse:
        front, back = back or _rgb(theme.background_color), front
    if style.dim:
        front = _mixed(front, back or _rgb(theme.background_color), 0.6)
    return front, back


def _rgb(colour: Any) -> RGB:
    red, green, blue = colour
    return red / 255, green / 255, blue / 255


def _mixed(front: RGB, back: RGB, share: float) -> RGB:
    red, green, blue = (a * share + b * (1 - share) for a, b in zip(front, back, strict=True))
    return red, green, blue


def _rectangle(plot: Plot, x: float, y: float, wide: float, tall: float, colour: RGB) -> Any:
    return plot.matplotlib.patches.Rectangle((x, y), wide, tall, facecolor=colour, linewidth=0)
