"""A line of text from anywhere, safe to print wherever it is printed."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.text import Text

from attnx.view.cells import safe
from attnx.view.page import page


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
        """Write it with the characters that there are."""
        yield Text(page(console, options).spell(safe(self.text)) if self.text else "", self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Any width will do."""
        return Extent(min(10, options.max_width), options.max_width)
