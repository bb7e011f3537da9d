"""Lists of findings as columns side by side: names, numbers, and bars beside the numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.text import Text

from attnx.view.cells import cell_len, fit, number, safe
from attnx.view.page import Page, line, page
from attnx.view.strokes import bar

TEXT, BAR, FEWEST = 26, 16, 6
"""Text longer than this is cut before bars shrink; the widest bar; the narrowest bar, below which it is left out."""
LEAST = 8
"""Text is not cut shorter than this if that can be avoided."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    values: tuple[str | float | None, ...]
    """Text is left-aligned, numbers right-aligned; None is an empty cell, NaN a "-"."""
    decimals: int = 3
    bar: tuple[float, float] | None = None
    """Ends of the scale of the bar drawn after each number; None for no bar."""
    whole: bool = False
    """Whether its text must not be cut: numbers written out, two in a cell."""
    spare: bool = False
    """Whether it may be left out, and named under the table, if the width is too small."""

    @property
    def is_text(self) -> bool:
        """Whether it holds text."""
        return not any(isinstance(value, int | float) for value in self.values)


def column(
    name: str,
    values: Sequence[str | float | None] | np.ndarray,
    *,
    decimals: int = 3,
    bar: tuple[float, float] | None = None,
    whole: bool = False,
    spare: bool = False,
) -> Column:
    """Make a column; numbers of any kind become plain floats."""
    kept = tuple(v if v is None or isinstance(v, str) else float(v) for v in values)
    return Column(name, kept, decimals, bar, whole, spare)


def both(one: float, two: float) -> str:
    """Two numbers in one cell, before and after: "10.8→1.91"."""
    return f"{number(float(one)):>4}→{number(float(two)):<4}"


def columns(
    title: str,
    parts: Sequence[Column],
    *,
    strong: Collection[int] = (),
    faint: Collection[int] = (),
    notes: Sequence[str] = (),
    explained: Sequence[str] = (),
    gap: int = 2,
) -> Columns:
    """Show columns of equal length.

    Args:
        title: Stands above.
        parts: The first names the rows, and is repeated where the others do not fit side by side.
        strong: Rows to write bold.
        faint: Rows to write dim.
        notes: Lines under the table.
        explained: Lines below these: how the numbers are computed, and by whom. On a `screen` that has no room for both
            they come before the table.
        gap: Spaces between columns.

    Returns:
        A renderable that never cuts a number: spare columns give way first, then bars, then text, then columns go
        below one another.
    """
    lengths = {len(part.values) for part in parts}
    if len(lengths) > 1:
        raise ValueError(f"columns of different lengths: {sorted(lengths)}")
    said, told = (tuple(line for line in lines if line) for lines in (notes, explained))
    return Columns(title, tuple(parts), frozenset(strong), frozenset(faint), said, gap, told)


_Fitted = tuple[Column, int, int]
"""A column, the width of what it says, the width of its bars."""


@dataclass(frozen=True, slots=True)
class Columns:
    """See `columns`."""

    title: str
    parts: tuple[Column, ...]
    strong: frozenset[int]
    faint: frozenset[int]
    notes: tuple[str, ...]
    gap: int
    explained: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Fit the columns to the width, then write them row by row."""
        here = page(console, options)
        if self.title:
            yield Text(here.spell(safe(self.title)), "bold")
        parts, left = self._chosen(here)
        there = bool(self.parts) and len(self.parts[0].values) > 0  # headings alone are useless
        for at, block in enumerate(self._blocks(parts, here) if there else []):
            if at:
                yield Text("")
            yield from self._write(block, here)
        if left and there:
            yield Text(here.spell(f"a wider terminal shows {', '.join(safe(name) for name in left)} too"), "dim")
        for note in (*self.notes, *self.explained):
            yield line(note, "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Any width will do."""
        return Extent(min(40, options.max_width), options.max_width)

    def _chosen(self, here: Page) -> tuple[tuple[Column, ...], list[str]]:
        """The columns that are shown, and the names of spare ones for which there is no room."""
        kept, left = list(self.parts), list[str]()
        while self._total([(part, _least(part, here, TEXT), 0) for part in kept]) > here.width:
            spare = [at for at, part in enumerate(kept) if part.spare]
            if not spare:
                break
            left.insert(0, kept.pop(spare[-1]).name)
        return tuple(kept), left

    def _blocks(self, parts: Sequence[Column], here: Page) -> list[list[_Fitted]]:
        """Columns with the widths of their text and of their bars, in as many blocks as the width requires.

        If too wide, these give way in order: very long text, bars, other text; then columns move below.
        """
        whole = [(part, _wide(part, here), BAR if part.bar is not None else 0) for part in parts]
        whole = self._shorten(whole, here, TEXT)
        over, bars = self._total(whole) - here.width, sum(size > 0 for _, _, size in whole)
        if over > 0 and bars:
            size = BAR - -(-over // bars)
            size = size if size >= FEWEST else 0
            whole = [(part, wide, size if part.bar is not None else 0) for part, wide, _ in whole]
        shorter = self._shorten(whole, here, LEAST)
        lead, *rest = shorter if self._total(shorter) <= here.width else whole
        blocks: list[list[_Fitted]] = []
        current = [lead]
        for item in rest:
            if len(current) > 1 and self._total([*current, item]) > here.width:
                blocks.append(current)
                current = [lead]
            current.append(item)
        return [*blocks, current]

    def _total(self, block: Sequence[_Fitted]) -> int:
        return sum(wide + (size + 1 if size else 0) for _, wide, size in block) + self.gap * (len(block) - 1)

    def _shorten(self, block: Sequence[_Fitted], here: Page, least: int) -> list[_Fitted]:
        """Cut columns of text, the widest first and none below `least`, until all fit or none can give more."""
        out = list(block)
        floors = [_least(part, here, least) for part, _, _ in out]
        over = self._total(out) - here.width
        while over > 0:
            at = max(range(len(out)), key=lambda n: (out[n][1] > floors[n], out[n][1]))
            part, wide, size = out[at]
            if wide <= floors[at]:
                break
            out[at] = (part, wide - 1, size)
            over -= 1
        return out

    def _write(self, block: Sequence[_Fitted], here: Page) -> RenderResult:
        headings = [_heading(part, wide, here) for part, wide, _ in block]
        tall = max(len(lines) for lines in headings)
        for level in range(tall):
            line = Text(no_wrap=True, overflow="crop")
            for at, (part, wide, size) in enumerate(block):
                lines = headings[at]
                word = lines[level - (tall - len(lines))] if level >= tall - len(lines) else ""
                line.append(" " * self.gap if at else "")
                line.append(fit(word, wide, right=not part.is_text), "dim")
                line.append(" " * (size + 1) if size else "")
            line.rstrip()
            yield line
        for row in range(len(self.parts[0].values)):
            style = "bold" if row in self.strong else "dim" if row in self.faint else ""
            line = Text(no_wrap=True, overflow="crop")
            for at, (part, wide, size) in enumerate(block):
                value = part.values[row]
                line.append(" " * self.gap if at else "")
                line.append(fit(_cell(part, value, here), wide, right=not part.is_text, ascii_only=here.ascii), style)
                if size and part.bar is not None:
                    line.append(" ")
                    line.append_text(_bar(value, part.bar, size, here))
            line.rstrip()
            yield line


def _cell(part: Column, value: str | float | None, here: Page) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return here.spell(safe(value)) if value else ""
    return number(value, part.decimals)


def _wide(part: Column, here: Page) -> int:
    """The width of a column: its widest cell, and the longest word of its heading."""
    cells = max((cell_len(_cell(part, value, here)) for value in part.values), default=1)
    words = max((cell_len(here.spell(word)) for word in safe(part.name).split()), default=1) if part.name else 1
    whole = cell_len(here.spell(safe(part.name))) if part.name else 1
    return max(cells, words, min(whole, 9))


def _least(part: Column, here: Page, least: int) -> int:
    """The width of a column if its text is cut to so many cells."""
    wide = _wide(part, here)
    return min(wide, least) if part.is_text and not part.whole else wide


def _heading(part: Column, wide: int, here: Page) -> list[str]:
    """A column's name, over as many lines as its width requires."""
    lines: list[str] = []
    for word in here.spell(safe(part.name)).split() if part.name else []:
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= wide:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def _bar(value: str | float | None, ends: tuple[float, float], size: int, here: Page) -> Text:
    """A bar from the left, or, where the scale runs through 0, to both sides of the middle."""
    low, high = ends
    if not isinstance(value, float) or not np.isfinite(value) or high <= low:
        return Text(" " * size)
    if low >= 0:
        return bar((value - low) / (high - low), size, here)
    half = size // 2
    reach = max(-low, high)
    if value < 0:
        length = min(half, max(1, round(-value / reach * half))) if value else 0
        block = "#" if here.ascii else "█"
        left = bar(-value / reach, half, here)
        return Text(" " * (half - length)).append(block * length, left.style).append(" " * (size - half))
    return Text(" " * half).append_text(bar(value / reach, size - half, here))


__all__ = ["Column", "Columns", "both", "column", "columns"]
