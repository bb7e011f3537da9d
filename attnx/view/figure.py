"""Figures for papers: heatmaps and the grid of heads with real axes, as PNG (by Pillow), SVG or PDF (by matplotlib).

matplotlib is an extra that brings Pillow along; either is imported only when a figure is drawn.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from attnx.errors import UsageError
from attnx.records import Array, Stage, Trace
from attnx.view import scale
from attnx.view.drawing import TEXT, Drawing, Figure, Ticks
from attnx.view.matrix import Matrix, Side, block_means, edges, without_hidden

PAGE = 9.0
"""Inches that a page is tall: a grid of many layers is drawn narrower, so that its heads stay square."""
TICKS = 64
"""The most tokens written along an axis; of more, only every n-th."""
NUMBERS = 7.0
"""Size of the numbers of layers and heads, in points."""
CELLS = 128
"""Cells a side of a head in the grid, before blocks are averaged."""


def heatmap_figure(
    matrix: Matrix,
    ending: str = ".svg",
    *,
    kind: scale.ScaleKind = "linear",
    diverging: bool = False,
    bounds: tuple[float | None, float | None] = (None, None),
    mute: Collection[int] = (),
    inches: float = 5.0,
) -> Figure:
    """Draw a matrix with its tokens along both axes and a colour bar.

    Args:
        matrix: [Q,K].
        ending: One of `FORMATS`.
        kind: The colour scale.
        diverging: Two-sided about 0.
        bounds: Ends of the scale; the data's where None.
        mute: Key positions that are hatched and do not count for the scale.
        inches: Width of the figure.

    Returns:
        The file's content and notes.

    Raises:
        UsageError: Another format, no such scale, or matplotlib is not installed.
    """
    muted = np.isin(matrix.keys.at, list(mute))
    shown = matrix.shown
    shown[:, muted] = np.nan
    choice = scale.choose(shown, kind, diverging=diverging, bounds=bounds)
    rows, columns = shown.shape
    tall = min(3.0, max(0.35, rows / columns)) * inches * 0.8 + 1.2
    unit = "share of the row's largest"
    if kind != "row":
        unit = " ".join((matrix.name, f"({matrix.unit})" * bool(matrix.unit))).strip()
    drawing = Drawing(
        shown,
        choice,
        _tokens(matrix.queries, inches),
        _tokens(matrix.keys, inches),
        unit,
        (inches, tall),
        title=" · ".join(part for part in (matrix.title, matrix.name) if part),
        muted=tuple(np.flatnonzero(muted).tolist()),
        notes=matrix.notes,
    )
    return _drawn(drawing, ending)


def grid_figure(
    trace: Trace,
    ending: str = ".svg",
    stage: Stage = "weights",
    *,
    shared: bool = False,
    inches: float = 7.0,
) -> Figure:
    """Draw every layer and head as a small heatmap.

    Args:
        trace: With that stage at some site.
        ending: One of `FORMATS`.
        stage: What is drawn, without what the mask hides; a weight of exactly 0 counts as hidden.
        shared: One scale for all heads; else each runs to its own largest.
        inches: Width of the figure.

    Returns:
        The file's content and notes.

    Raises:
        UsageError: Another format, no site with that stage, or matplotlib is not installed.
    """
    layers = [without_hidden(attention, stage) for attention in trace.attentions]
    there = [layer for layer in layers if layer is not None]
    if not there:
        raise UsageError(f"no site has {stage}", f"Trace it with {stage} included.")
    rows = min(CELLS, max(layer.shape[1] for layer in there))
    columns = min(CELLS, max(layer.shape[2] for layer in there))
    heads = max(len(layer) for layer in there)
    gap_down, gap_across = max(1, rows // 12), max(1, columns // 12)
    down, across = rows + gap_down, columns + gap_across
    sheet = np.full((len(layers) * down - gap_down, heads * across - gap_across), np.nan)
    block, high = (1, 1), 0.0
    for at, layer in enumerate(layers):
        if layer is None:
            continue
        small, size = _reduced(layer, rows, columns, stage)
        block = (max(block[0], size[0]), max(block[1], size[1]))
        high = max(high, float(np.nanmax(small, initial=0.0)))
        for head, part in enumerate(small if shared else _own(small)):
            sheet[at * down : at * down + part.shape[0], head * across : head * across + part.shape[1]] = part
    if not shared:
        high = 1.0
    shape = sheet.shape[0] / sheet.shape[1]
    inches = max(2.5, min(inches, PAGE / shape))
    choice = scale.Scale("linear", min(0.0, float(np.nanmin(sheet, initial=0.0))), high, scale.choose(sheet).ramp)
    note = f"each cell is the mean of up to {block[0]} x {block[1]} (queries x keys)"
    middles = np.arange(len(layers)) * down + rows / 2, np.arange(heads) * across + columns / 2
    names = tuple(str(head) for head in range(heads))
    drawing = Drawing(
        sheet,
        choice,
        Ticks("layer", tuple(middles[0].tolist()), tuple(trace.labels), NUMBERS),
        Ticks(f"head (in each: query ↓, key →), {stage}", tuple(middles[1].tolist()), names, NUMBERS),
        stage if shared else "share of the head's largest",
        (inches, inches * 0.9 * shape + 0.9),
        matrix=False,
        notes=(note,) if block != (1, 1) else (),
    )
    return _drawn(drawing, ending)


def _drawn(drawing: Drawing, ending: str) -> Figure:
    """A PNG by Pillow, which is there at once; vectors by matplotlib."""
    if ending == ".png":
        from attnx.view.raster import draw as draw_png

        return draw_png(drawing)
    from attnx.view.plot import draw

    return draw(drawing, ending)


def _tokens(side: Side, inches: float) -> Ticks:
    """The tokens along an axis; of many, only every n-th, with positions."""
    step = max(1, -(-len(side) // TICKS))
    at = range(0, len(side), step)
    names = [side.labels[i].strip() or side.labels[i] for i in at]
    if step > 1:
        names = [f"{side.at[i]} {name}" for i, name in zip(at, names, strict=True)]
    size = min(TEXT, max(3.5, inches * 72 * 0.6 / max(1, len(at))))
    return Ticks(side.name, tuple(at), tuple(names), size)


def _reduced(layer: Array, rows: int, columns: int, stage: Stage) -> tuple[Array, tuple[int, int]]:
    """Block means of [H,Q,K], hidden cells left out, and the size of the largest block."""
    down, across = edges(layer.shape[1], rows), edges(layer.shape[2], columns)
    shown = np.where((layer == 0) & (stage == "weights"), np.nan, layer)
    sizes = (int(np.diff([*down, layer.shape[1]]).max()), int(np.diff([*across, layer.shape[2]]).max()))
    return block_means(shown, down, across)[0], sizes


def _own(small: Array) -> Array:
    """Each head on its own scale: from 0 (or its smallest, where values are negative) to its largest."""
    # As nanmin and nanmax, without their warning: a head with no values stays NaN.
    low = np.minimum(np.fmin.reduce(small, axis=(1, 2), keepdims=True), 0)
    wide = np.fmax.reduce(small, axis=(1, 2), keepdims=True) - low
    return np.asarray((small - low) / np.where(wide > 0, wide, 1))
