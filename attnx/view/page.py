"""The page that a view is drawn on (width, height, colours, characters), a line of text on it, and counts in words.

A view asks for its page when it is printed, not when it is created, so that one renderable serves a terminal, a pipe,
an SVG and the explorer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.text import Text

from attnx.numerals import counted
from attnx.records import Trace
from attnx.view.cells import in_ascii, safe

Depth = Literal["true", "256", "16", "none"]
"""How many colours there are: 24 bits, the 256 of xterm, the 16 of the terminal's theme, none."""

SCREEN = 24
"""Lines of the smallest screen that an answer is to fit on; what a pipe gets is no longer."""
UNBOUNDED, PROSE = 10_000, 80
"""From so many columns on a page has no width of its own (a pipe): tables take what they need, prose wraps at 80."""
_DEPTHS: dict[str, Depth] = {"truecolor": "true", "256": "256", "standard": "16", "windows": "16"}


@dataclass(frozen=True, slots=True)
class Page:
    """A place to draw on."""

    width: int
    """Columns."""
    height: int | None
    """Lines that fit on one screen; None where there is no screen (a pipe, a file)."""
    depth: Depth
    ascii: bool
    """True where the encoding cannot write blocks, braille or CJK."""

    def spell(self, text: str) -> str:
        """Write safe text with the available characters."""
        return in_ascii(text) if self.ascii else text


def page(console: Console, options: ConsoleOptions) -> Page:
    """Describe where a renderable is being drawn.

    Args:
        console: The console it is printed on.
        options: What it grants; `options.height` (inside a layout) wins over the screen's height.

    Returns:
        The page. `NO_COLOR`, `TERM=dumb` and a pipe all come out as depth "none".
    """
    height = options.height
    if height is None and console.is_terminal:
        height = console.height
    return Page(options.max_width, height, depth_of(console), options.ascii_only)


def screen_lines(console: Console, options: ConsoleOptions) -> int | None:
    """Lines of the screen that an answer is to fit on, the prompt's included.

    Returns:
        Those that the layout grants, else the terminal's; `SCREEN` of a pipe; None of a file, which is recorded and
        which nobody has to scroll back in.
    """
    if options.height is not None or console.record:
        return options.height
    return console.height if console.is_terminal else SCREEN


def depth_of(console: Console) -> Depth:
    """Find how many colours a console shows."""
    if console.no_color or console.color_system is None:
        return "none"
    return _DEPTHS.get(console.color_system, "16")


def line(text: str, style: str = "") -> Line:
    """Show a line; it wraps where it is too long.

    Args:
        text: Any text: it is no markup, and what could move the cursor is spelled out. "" is an empty line.
        style: "bold", "dim" or none.

    Returns:
        A renderable.
    """
    return Line(text, style)


@dataclass(frozen=True, slots=True)
class Line:
    """See `line`."""

    text: str
    style: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write it with the available characters."""
        text = Text(page(console, options).spell(safe(self.text)) if self.text else "", self.style)
        yield text if options.max_width < UNBOUNDED or not self.text else text.wrap(console, PROSE)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Any width will do."""
        return Extent(min(10, options.max_width), options.max_width)


def length(trace: Trace) -> str:
    """The tokens of a trace, of both sides where it has two, with the dot of every heading between them."""
    if trace.memory is None:
        return counted(len(trace.tokens), "token")
    return f"{counted(len(trace.memory), 'encoder token')} · {counted(len(trace.tokens), 'decoder token')}"
