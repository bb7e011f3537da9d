"""A prompt as a strip, from its first token to its last: how much weight each stretch got, and where spans begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.text import Text

from attnx.numerals import counted
from attnx.records import Array
from attnx.view.cells import cell_len, cut, fit, number, safe
from attnx.view.page import Page, page
from attnx.view.strokes import tint

_UP, _UP_ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*##"
WIDEST = 96


@dataclass(frozen=True, slots=True)
class Part:
    """A span of the prompt."""

    name: str
    text: str
    start: int
    """Its first token."""
    weight: float
    """Its share of the weight on all spans of the prompt."""


def prompt_strip(
    values: Array, tokens: int, parts: Sequence[Part], title: str, said: Sequence[str] = ()
) -> PromptStrip:
    """Draw a prompt.

    Args:
        values: [B], the weight of each of B stretches of equal length, their sinks left out.
        tokens: How many tokens they are.
        parts: The spans, in order.
        title: Stands above, cut to the width.
        said: Lines below.

    Returns:
        A renderable: a line of bars a token high by its mean weight, names of spans where they begin, what the bars
        are, then the spans.
    """
    return PromptStrip(np.asarray(values, np.float64), tokens, tuple(parts), title, tuple(said))


@dataclass(frozen=True, slots=True)
class PromptStrip:
    """See `prompt_strip`."""

    values: Array
    tokens: int
    parts: tuple[Part, ...]
    title: str
    said: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Fit the strip to the width, then list the spans."""
        here = page(console, options)
        wide = max(1, min(WIDEST, here.width, len(self.values)))
        cell = max(1, min(4, min(WIDEST, here.width) // wide))
        merged = np.array([part.sum() for part in np.array_split(self.values, wide)])
        high = float(np.nanmax(merged, initial=0.0))
        yield Text(cut(here.spell(safe(self.title)), here.width, ascii_only=here.ascii), "bold")
        yield self._bars(merged, high, cell, here)
        yield Text(self._names(wide, cell), "dim")
        bars = "a bar for each token" if wide == self.tokens else f"{counted(wide, 'bar')} for {self.tokens:,} tokens"
        yield Text(f"{bars}, sinks left out; tallest {number(high)}", "dim")
        if self.parts:
            yield Text("shares of the weight on all parts:", "dim")
        longest = max((cell_len(part.name) for part in self.parts), default=1)
        top = max((part.weight for part in self.parts), default=0.0)
        for part in self.parts:
            line = Text(no_wrap=True, overflow="ellipsis")
            line.append(f"{safe(part.name):>{longest}} ", "dim")
            line.append(f"{number(part.weight):>5} ")
            line.append(fit(here.spell(safe(" ".join(part.text.split()))), max(8, here.width - longest - 8)),
                        tint(part.weight / top if top > 0 else 0.0, here))  # fmt: skip
            line.rstrip()
            yield line
        for said in self.said:
            yield Text(here.spell(said), "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Any width will do."""
        return Extent(min(20, options.max_width), options.max_width)

    def _bars(self, merged: Array, high: float, cell: int, here: Page) -> Text:
        marks = _UP_ASCII if here.ascii else _UP
        line = Text(no_wrap=True, overflow="crop")
        for value in merged:
            share = float(value) / high if high > 0 and np.isfinite(value) else 0.0
            step = 0 if share <= 0 else max(1, round(share * (len(marks) - 1)))
            line.append(marks[step] * cell, tint(share, here))
        line.rstrip()
        return line

    def _names(self, wide: int, cell: int) -> str:
        out = ""
        for part in self.parts:
            at = min(wide - 1, part.start * wide // max(self.tokens, 1)) * cell
            if at >= cell_len(out) + (1 if out else 0):
                out = out.ljust(at) + safe(part.name)
        return out


__all__ = ["Part", "PromptStrip", "prompt_strip"]
