"""Every layer and head on one screen, each as a thumbnail of its matrix."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attnx.errors import UsageError
from attnx.numerals import counted
from attnx.records import Array, Stage, Trace
from attnx.view import colour, scale
from attnx.view.cells import cell_len, fit, in_ascii, number, safe
from attnx.view.colour import Ramp
from attnx.view.matrix import block_means, edges, without_hidden
from attnx.view.page import Page, page
from attnx.view.thumbs import Cells, dotted, draw

LEAST, MOST = 3, 16
"""Columns of the narrowest thumbnail that still shows a pattern, and of the widest useful one."""
PANELS = 6
AROUND = 4
"""Lines besides the thumbnails: title, legend, notes, the prompt."""
_FAINT, _STRONG = Style(dim=True), Style(bold=True)
_MARK, _MARK_ASCII = "▸", ">"


def grid(
    trace: Trace,
    stage: Stage = "weights",
    *,
    kind: scale.ScaleKind = "linear",
    shared: bool = False,
    diverging: bool = False,
    mute: Collection[int] = (),
    mark: Collection[tuple[int, int]] = (),
    height: int | None = None,
) -> Grid:
    """Draw every head of every site as a thumbnail.

    Args:
        trace: With that stage at some site at least; a site without it is left blank, and a note names it.
        stage: "weights", "masked", "scaled", ...
        kind: "linear", "log" or "row".
        shared: One scale for all heads; else every head runs to its own largest block, so that its pattern shows
            however faint it is.
        diverging: Two-sided about 0.
        mute: Key positions that are left out.
        mark: Heads to point at: (position in `trace.attentions`, head).
        height: Lines that may be used; the terminal's where None.

    Returns:
        A renderable. Thumbnails are block means, and the legend says of how many queries and keys. What the
        mask hides is left out of them, and so is a weight of exactly 0; blocks of nothing else are blank.

    Raises:
        UsageError: No site has the stage; log of values that are negative.
    """
    layers = tuple(without_hidden(attention, stage) for attention in trace.attentions)
    if all(layer is None for layer in layers):
        raise UsageError(f"no site has {stage}", f"Trace it with {stage} included.")
    if kind not in scale.SCALES:
        raise UsageError(f"{kind!r} is not a scale", f"Choose from {', '.join(scale.SCALES)}.")
    names = tuple(safe(name) for name in trace.labels)
    return Grid(
        safe(trace.model), stage, names, layers, kind, shared, diverging, frozenset(mute), frozenset(mark), height
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where thumbnails go."""

    panels: int
    """Groups of layers side by side."""
    heads: int
    """Heads in a line; more continue below."""
    wide: int
    """Columns of a thumbnail, without the gap."""
    tall: int
    """Lines of a thumbnail."""


@dataclass(frozen=True, slots=True)
class Grid:
    """See `grid`."""

    model: str
    stage: str
    names: tuple[str, ...]
    layers: tuple[Array | None, ...]
    """[H,Q,K] each."""
    kind: scale.ScaleKind
    shared: bool
    diverging: bool
    mute: frozenset[int]
    mark: frozenset[tuple[int, int]]
    height: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Plan, reduce every head to its thumbnail, draw line by line."""
        here = page(console, options)
        if self.height is not None:
            here = replace(here, height=self.height)
        plan = self._plan(here)
        heads = max(len(layer) for layer in self.layers if layer is not None)
        held = f"{counted(len(self.layers), 'layer')} × {counted(heads, 'head')}"
        title = f"{self.model} · {self.stage} · {held}"
        yield Text(here.spell(title), "bold", no_wrap=True, overflow="ellipsis")
        dots = dotted(plan.tall, here)
        across, down = (plan.wide, plan.tall) if here.ascii else (2 * plan.wide, (4 if dots else 2) * plan.tall)
        if not here.ascii:
            down -= 1  # the last row of blocks or dots stays empty and keeps layers apart
        thumbs, high, sizes = self._thumbs(down, across)
        ramp = colour.DIVERGING if self.diverging else colour.SEQUENTIAL
        cells = [None if thumb is None else draw(thumb, ramp, here, dots) for thumb in thumbs]
        yield from self._lines(plan, cells, here, heads)
        yield from self._legend(here, ramp, high, sizes, dots)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Take all the width there is."""
        return Extent(min(40, options.max_width), options.max_width)

    def _plan(self, here: Page) -> _Plan:
        """Choose how many panels of layers stand side by side: the most square and largest thumbnails that fit."""
        there = [layer.shape for layer in self.layers if layer is not None]
        heads, queries, keys = (max(shape[axis] for shape in there) for axis in range(3))
        beside = max(cell_len(here.spell(name)) for name in self.names) + 1
        down, across = (1, 1) if here.ascii else (2 if colour.smooth(here.depth) else 4, 2)
        most = max(LEAST, min(MOST, -(-keys // across)))
        tallest = -(-(queries + (not here.ascii)) // down)
        best: tuple[float, int, _Plan] | None = None
        for panels in range(1, min(PANELS, len(self.layers)) + 1):
            rows = -(-len(self.layers) // panels)
            wide = min(most, ((here.width + 1) // panels - beside) // heads - 1)
            if wide < LEAST:
                continue
            tall = max(1, min(tallest, (wide + 1) // 2))
            if here.height is not None:
                tall = min(tall, (here.height - AROUND - 1) // rows)
            if tall < 1:
                continue
            size = min(wide, 2 * tall)
            if best is None or (size, -panels) > best[:2]:
                best = (size, -panels, _Plan(panels, heads, wide, tall))
        if best is not None:
            return best[2]
        fit_heads = max(1, min(heads, (here.width - beside) // (LEAST + 1)))
        wide = min(most, max(LEAST, (here.width - beside) // fit_heads - 1))
        squat = fit_heads < heads or here.height is not None
        return _Plan(1, fit_heads, wide, 1 if squat else max(1, min(tallest, (wide + 1) // 2)))

    def _thumbs(self, down: int, across: int) -> tuple[list[Array | None], float, tuple[int, int]]:
        """Reduce every head to block means and put them on the scale.

        Returns:
            Places [H,rows,columns] for each layer (NaN where hidden or muted); the largest value of a shared scale;
            the most queries and keys in a block.
        """
        small: list[Array | None] = []
        sizes = (1, 1)
        for layer in self.layers:
            if layer is None:
                small.append(None)
                continue
            rows, columns = edges(layer.shape[1], down), edges(layer.shape[2], across)
            blocks = (np.diff([*rows, layer.shape[1]]).max(), np.diff([*columns, layer.shape[2]]).max())
            sizes = (max(sizes[0], int(blocks[0])), max(sizes[1], int(blocks[1])))
            shown = layer
            if self.stage == "weights":
                shown = np.where(layer == 0, np.nan, layer)
            if self.mute:
                shown = np.where(np.isin(np.arange(layer.shape[2]), list(self.mute)), np.nan, shown)
            small.append(block_means(shown, rows, columns)[0])
        there = [part[np.isfinite(part)] for part in small if part is not None]
        low = min((float(part.min()) for part in there if part.size), default=0.0)
        high = max((float(part.max()) for part in there if part.size), default=0.0)
        if self.kind == "log" and low < 0:
            scale.choose(np.array([low, high]), "log")  # raises an error that says why
        return [None if part is None else self._places(part, low, high) for part in small], high, sizes

    def _places(self, part: Array, low: float, high: float) -> Array:
        axes = -1 if self.kind == "row" else (-2, -1)
        there = np.isfinite(part)
        top: Array | float = np.max(np.where(there, part, -np.inf), axis=axes, keepdims=True)
        bottom: Array | float = np.min(np.where(there, part, np.inf), axis=axes, keepdims=True)
        if self.shared and self.kind != "row":
            top, bottom = high, low
        if self.diverging:
            top = np.maximum(np.abs(top), np.abs(bottom))
            bottom = np.negative(top)
        elif low >= 0:
            bottom = np.zeros_like(bottom)
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.kind == "log":
                part = np.log10(np.where(part <= 0, 1e-300, part) / top) / scale.DECADES + 1
                return np.asarray(np.clip(part, 0, 1))
            wide = np.subtract(top, bottom)
            return np.asarray(np.clip(np.where(wide > 0, (part - bottom) / wide, np.where(there, 0.0, np.nan)), 0, 1))

    def _lines(self, plan: _Plan, cells: Sequence[Cells | None], here: Page, heads: int) -> Iterator[Segment]:
        beside = max(cell_len(here.spell(name)) for name in self.names) + 1
        rows = -(-len(self.layers) // plan.panels)
        arrow = _MARK_ASCII if here.ascii else _MARK
        for start in range(0, heads, plan.heads):
            group = range(start, min(heads, start + plan.heads))
            for _ in range(plan.panels):
                yield Segment(" " * beside)
                for head in group:
                    name = f"H{head}" if plan.wide >= len(f"H{heads - 1}") else str(head)
                    yield Segment(fit(name, plan.wide + 1), _FAINT)
            yield Segment.line()
            for row in range(rows):
                for line in range(plan.tall):
                    for panel in range(plan.panels):
                        layer = panel * rows + row
                        if layer >= len(self.layers):
                            continue
                        marked = line == 0 and (layer, start) in self.mark
                        yield Segment(fit(here.spell(self.names[layer]) if line == 0 else "", beside - 1), _FAINT)
                        yield Segment(arrow if marked else " ", _STRONG)
                        drawn = cells[layer]
                        for head in group:
                            if drawn is None or head >= len(drawn):
                                yield Segment(" " * (plan.wide + 1))
                                continue
                            strip = drawn[head][line] if line < len(drawn[head]) else []
                            used = sum(len(segment.text) for segment in strip)
                            yield from strip
                            follows = (layer, head + 1) in self.mark and line == 0 and head + 1 in group
                            yield Segment(" " * (plan.wide - used) + (arrow if follows else " "), _STRONG)
                    yield Segment.line()

    def _legend(self, here: Page, ramp: Ramp, high: float, sizes: tuple[int, int], dots: bool) -> RenderResult:
        arrows = ("v", ">") if here.ascii else ("↓", "→")
        line = Text(f"query {arrows[0]}  key {arrows[1]}   ")
        what = "row's largest" if self.kind == "row" else number(high) if self.shared else "each head's largest"
        if dots and here.depth == "none":
            line.append(f"dot: {'away from 0 by ' if self.diverging else ''}≥ 1/3 of {what}")
        else:
            line.append(f"-{what} " if self.diverging else "0 ")
            line.append_text(scale.bar(ramp, here))
            line.append(f" {what}")
            line.append(", dots from 1/3 on" if dots else "")
        line.append(", log" if self.kind == "log" else "")
        yield Text(in_ascii(line.plain)) if here.ascii else line
        caption = []
        if sizes != (1, 1):
            caption.append(f"a block is the mean of up to {sizes[0]} x {sizes[1]} (queries x keys)")
        if self.empty:
            caption.append("blank: hidden" if not dots else "hidden: no dot")
        if self.mute:
            caption.append(f"{len(self.mute)} {'key' if len(self.mute) == 1 else 'keys'} muted")
        if missing := [name for name, layer in zip(self.names, self.layers, strict=True) if layer is None]:
            caption.append(f"no {self.stage}: {', '.join(missing)}")
        if caption:
            yield Text(here.spell(" · ".join(caption)), "dim")

    @property
    def empty(self) -> bool:
        """Whether any cell is hidden: not finite, or a weight of exactly 0."""
        return any(
            bool((layer == 0).any() if self.stage == "weights" else not np.isfinite(layer).all())
            for layer in self.layers
            if layer is not None
        )
