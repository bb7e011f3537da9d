"""A part of the screen that is drawn line by line: only changed lines are redrawn.

Textual's own Static measures and draws all of its content at every update, and redoes the whole layout; that
takes longer than everything the explorer computes for a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.segment import Segment
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget


class Pane(Widget):
    """Lines at a fixed place."""

    class Resized(Message):
        """A pane has a new size and must be redrawn."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._lines: list[Strip] = []

    def on_resize(self) -> None:
        """Report the new size, which is only known now, after the layout."""
        self.post_message(self.Resized())

    def show(self, lines: Iterable[Sequence[Segment]]) -> None:
        """Show these lines from the top; the rest stays empty."""
        width, height = self.size
        base = self.rich_style
        new = [
            Strip(Segment.apply_style(line, base)).adjust_cell_length(width, base)
            for line, _ in zip(lines, range(height), strict=False)
        ]
        old, self._lines = self._lines, new
        changed = [y for y in range(max(len(old), len(new))) if old[y : y + 1] != new[y : y + 1]]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def draw(self, console: Console, content: Iterable[RenderableType]) -> None:
        """Show renderables, one under the other."""
        options = console.options.update(width=self.size.width, height=None)
        options.max_height = self.size.height
        self.show(line for part in content for line in Segment.split_lines(console.render(part, options)))

    def render_line(self, y: int) -> Strip:
        """Return one of the displayed lines."""
        return self._lines[y] if y < len(self._lines) else Strip.blank(self.size.width, self.rich_style)
