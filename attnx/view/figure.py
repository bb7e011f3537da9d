"""Figures for papers: heatmaps and the grid of heads with real axes, as PNG, SVG or PDF, by matplotlib.

matplotlib is an extra, and is imported only when a figure is drawn.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection

import numpy as np

from attnx.errors import UsageError
from attnx.records import Array, Stage, Trace
from attnx.view import scale
from attnx.view.matrix import Matrix, block_means, edges, without_hidden
from attnx.view.plot import Figure, Plot

PAGE = 9.0
"""Inches that a page is tall: a grid of many layers is drawn narrower, so that its heads stay square."""
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
    plot = Plot(ending)
    muted = np.isin(matrix.keys.at, list(mute))
    shown = matrix.shown
    shown[:, muted] = np.nan
    choice = scale.choose(shown, kind, diverging=diverging, bounds=bounds)
    rows, columns = shown.shape
    tall = min(3.0, max(0.35, rows / columns)) * inches * 0.8 + 1.2
    with plot.settings():
        figure, axes = plot.start(inches, tall)
        axes.patch.set(facecolor="#f4f4f4", hatch="////", edgecolor="#c8c8c8")
        image = plot.cells(axes, shown if kind != "row" else choice.places(shown), choice, kind)
        for at in np.flatnonzero(muted):
            axes.axvspan(at - 0.5, at + 0.5, facecolor="#e4e4e4", edgecolor="#909090", hatch="xxxx", linewidth=0)
        plot.ticks(axes.yaxis, matrix.queries, inches)
        plot.ticks(axes.xaxis, matrix.keys, inches)
        axes.tick_params(axis="x", rotation=90)
        axes.set_ylabel(matrix.queries.name)
        axes.set_xlabel(matrix.keys.name)
        plot.title(axes, " · ".join(part for part in (matrix.title, matrix.name) if part))
        unit = (
            "share of the row's largest"
            if kind == "row"
            else " ".join((matrix.name, f"({matrix.unit})" * bool(matrix.unit)))
        )
        plot.bar(figure, axes, image, unit.strip())
        return plot.finish(figure, matrix.notes)


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
    plot = Plot(ending)
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
    with plot.settings():
        figure, axes = plot.start(inches, inches * 0.9 * shape + 0.9)
        choice = scale.Scale("linear", min(0.0, float(np.nanmin(sheet, initial=0.0))), high, scale.choose(sheet).ramp)
        image = plot.cells(axes, sheet, choice, "linear")
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_xticks(np.arange(heads) * across + columns / 2, [str(head) for head in range(heads)])
        axes.set_yticks(np.arange(len(layers)) * down + rows / 2, plot.safe(trace.labels))
        axes.tick_params(length=0, labelsize=7)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set_xlabel(f"head (in each: query ↓, key →), {stage}")
        axes.set_ylabel("layer")
        plot.bar(figure, axes, image, stage if shared else "share of the head's largest")
        note = f"each cell is the mean of up to {block[0]} x {block[1]} (queries x keys)"
        return plot.finish(figure, (note,) if block != (1, 1) else ())


def _reduced(layer: Array, rows: int, columns: int, stage: Stage) -> tuple[Array, tuple[int, int]]:
    """Block means of [H,Q,K], hidden cells left out, and the size of the largest block."""
    down, across = edges(layer.shape[1], rows), edges(layer.shape[2], columns)
    shown = np.where((layer == 0) & (stage == "weights"), np.nan, layer)
    sizes = (int(np.diff([*down, layer.shape[1]]).max()), int(np.diff([*across, layer.shape[2]]).max()))
    return block_means(shown, down, across)[0], sizes


def _own(small: Array) -> Array:
    """Each head on its own scale: from 0 (or its smallest, where values are negative) to its largest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a head with no values stays NaN
        low = np.minimum(np.nanmin(small, axis=(1, 2), keepdims=True), 0)
        wide = np.nanmax(small, axis=(1, 2), keepdims=True) - low
    return np.asarray((small - low) / np.where(wide > 0, wide, 1))
