"""Figures for papers: heatmaps and the grid of heads with real axes, as PNG, SVG or PDF, by matplotlib.

matplotlib is an extra, and is imported only when a figure is drawn.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnx.errors import UsageError
from attnx.records import Array, Quantity, Trace
from attnx.view import scale
from attnx.view.cells import safe
from attnx.view.matrix import Matrix, Side, block_means, edges

FORMATS = (".png", ".svg", ".pdf")
DPI = 200
PAGE = 9.0
"""Inches that a page is tall: a grid of many layers is drawn narrower, so that its heads stay square."""
TICKS = 64
"""Tokens written along an axis; of more, every so many."""
CELLS = 128
"""Cells a side of a head in the grid, before blocks are averaged."""
FLAT = 20_000
"""Cells that are drawn as vectors; more go into an image, with vector axes round it."""
_FONTS = (
    "Noto Sans CJK KR", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans KR", "Noto Sans JP", "Noto Sans SC",
    "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo", "Hiragino Sans", "Yu Gothic", "MS Gothic",
    "Microsoft YaHei", "PingFang SC", "WenQuanYi Zen Hei", "Arial Unicode MS", "Noto Sans Devanagari",
    "Noto Sans Arabic", "Noto Sans Thai", "Noto Sans Hebrew", "Noto Sans Symbols 2", "Noto Emoji", "Symbola",
    "Segoe UI Symbol",
)  # fmt: skip
"""Asked for in this order, after matplotlib's own, where they are installed."""
_BOX = "□"


@dataclass(frozen=True, slots=True)
class Figure:
    """A finished figure."""

    data: bytes
    notes: tuple[str, ...]
    """What the user should know: averaged blocks, characters that no font has."""


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
    plot = _Plot(ending)
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
    stage: Quantity = "weights",
    *,
    shared: bool = False,
    inches: float = 7.0,
) -> Figure:
    """Draw every layer and head as a small heatmap.

    Args:
        trace: With that stage at some site.
        ending: One of `FORMATS`.
        stage: What is drawn; a weight of exactly 0 counts as hidden.
        shared: One scale for all heads; else each runs to its own largest.
        inches: Width of the figure.

    Returns:
        The file's content and notes.

    Raises:
        UsageError: Another format, no site with that stage, or matplotlib is not installed.
    """
    plot = _Plot(ending)
    layers = [getattr(attention, stage) for attention in trace.attentions]
    there = [layer[0] for layer in layers if layer is not None]
    if not there:
        raise UsageError(f"No site has {stage}.", f"Trace it with {stage} included.")
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
        small, size = _reduced(layer[0], rows, columns, stage)
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
        said = f"each cell is the mean of up to {block[0]} x {block[1]} (queries x keys)"
        return plot.finish(figure, (said,) if block != (1, 1) else ())


def _reduced(layer: Array, rows: int, columns: int, stage: Quantity) -> tuple[Array, tuple[int, int]]:
    """Block means of [H,Q,K], hidden cells left out, and the size of the largest block."""
    down, across = edges(layer.shape[1], rows), edges(layer.shape[2], columns)
    shown = np.where((layer == 0) & (stage == "weights"), np.nan, layer)
    sizes = (int(np.diff([*down, layer.shape[1]]).max()), int(np.diff([*across, layer.shape[2]]).max()))
    return block_means(shown, down, across)[0], sizes


def _own(small: Array) -> Array:
    """Each head on its own scale: from 0 (or its smallest, where values are negative) to its largest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a head without any value stays NaN
        low = np.minimum(np.nanmin(small, axis=(1, 2), keepdims=True), 0)
        wide = np.nanmax(small, axis=(1, 2), keepdims=True) - low
    return np.asarray((small - low) / np.where(wide > 0, wide, 1))


class _Plot:
    """matplotlib, imported late, with fonts that have the tokens' characters and settings that fit papers."""

    def __init__(self, ending: str) -> None:
        if ending not in FORMATS:
            raise UsageError(f"{safe(ending)!r} is no format of a figure.", f"Use {', '.join(FORMATS)}.")
        try:
            import matplotlib
            import matplotlib.figure
            from matplotlib import colors, font_manager
        except ImportError as error:
            raise UsageError(
                "Figures need matplotlib, which is not installed.",
                "pip install 'attnx[figures]'; .svg, .html and .txt of the terminal's view work without it.",
            ) from error
        self.ending, self.matplotlib, self.colors = ending, matplotlib, colors
        installed = {font.name: font.fname for font in font_manager.fontManager.ttflist}
        own = "DejaVu Sans"
        self.families = [own, *(name for name in _FONTS if name in installed)]
        files = [font_manager.findfont(own), *(installed[name] for name in self.families[1:])]
        self.known: set[int] = set().union(*(font_manager.get_font(file).get_charmap() for file in files))
        self.missing: dict[str, None] = {}

    def settings(self) -> Any:
        """Text stays text in SVG and PDF, and two runs give the same bytes."""
        return self.matplotlib.rc_context(
            {
                "font.family": self.families,
                "font.size": 8,
                "axes.linewidth": 0.5,
                "hatch.linewidth": 0.4,
                "svg.fonttype": "none",
                "svg.hashsalt": "attnx",
                "pdf.fonttype": 42,
                "text.usetex": False,
                "text.parse_math": False,
                "axes.unicode_minus": True,
            }
        )

    def start(self, wide: float, tall: float) -> tuple[Any, Any]:
        """Give a figure and its axes, without pyplot: no window, no global state."""
        figure = self.matplotlib.figure.Figure(figsize=(wide, tall), dpi=DPI, layout="constrained")
        return figure, figure.add_subplot()

    def safe(self, pieces: Iterable[str]) -> list[str]:
        """Make tokens fit to write; what no font has becomes a box and is remembered (in SVG it stays text)."""
        out = []
        for piece in pieces:
            text = safe(piece)
            lost = [char for char in text if ord(char) not in self.known and not char.isspace()]
            self.missing |= dict.fromkeys(lost)
            out.append(text if self.ending == ".svg" else "".join(_BOX if char in lost else char for char in text))
        return out

    def cells(self, axes: Any, values: Array, choice: scale.Scale, kind: scale.ScaleKind) -> Any:
        """Draw the cells: vectors where they are few."""
        cmap: Any = self.colors.ListedColormap(np.array(choice.ramp.colours) / 255, name=choice.ramp.name)
        if choice.ramp.diverging:
            cmap = self.matplotlib.colormaps["PuOr_r"]  # light in the middle, as paper is
        low, high = (0.0, 1.0) if kind == "row" else (choice.low, choice.high)
        if kind == "row" and choice.ramp.diverging:
            values, low = values * 2 - 1, -1.0
        high = high if high > low else low + 1
        norm = (
            self.colors.LogNorm(low, high, clip=True) if kind == "log" and low > 0 else self.colors.Normalize(low, high)
        )
        data = np.ma.masked_invalid(np.where(values <= 0, low, values) if kind == "log" else values)
        rows, columns = values.shape
        if rows * columns <= FLAT and self.ending != ".png":
            image = axes.pcolormesh(
                np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5, data, cmap=cmap, norm=norm,
                linewidth=0, antialiased=False,
            )  # fmt: skip
            axes.set_xlim(-0.5, columns - 0.5)
            axes.set_ylim(rows - 0.5, -0.5)
            axes.set_aspect("equal")
            return image
        return axes.imshow(data, cmap=cmap, norm=norm, interpolation="nearest", aspect="equal")

    def ticks(self, axis: Any, side: Side, inches: float) -> None:
        """Write the tokens along an axis; of many, every so many, with their positions."""
        step = max(1, -(-len(side) // TICKS))
        at = list(range(0, len(side), step))
        names = [side.labels[i].strip() or side.labels[i] for i in at]
        if step > 1:
            names = [f"{side.at[i]} {name}" for i, name in zip(at, names, strict=True)]
        axis.set_ticks(at, self.safe(names))
        axis.set_tick_params(length=2, labelsize=min(8.0, max(3.5, inches * 72 * 0.6 / max(1, len(at)))))

    def title(self, axes: Any, text: str) -> None:
        """Set the title."""
        axes.set_title(self.safe([text])[0], fontsize=9)

    def bar(self, figure: Any, axes: Any, image: Any, unit: str) -> None:
        """Add the colour bar."""
        colour_bar = figure.colorbar(
            image, cax=axes.inset_axes((1.02, 0, 0.025, 1)), format=lambda value, _: f"{value:g}"
        )
        colour_bar.ax.minorticks_off()
        colour_bar.set_label(self.safe([unit])[0])
        colour_bar.outline.set_linewidth(0.5)

    def finish(self, figure: Any, notes: Sequence[str]) -> Figure:
        """Write the file."""
        out = io.BytesIO()
        dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
        with warnings.catch_warnings():
            # Missing glyphs are counted above and said in a note; in SVG the reader's fonts may have them.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            figure.savefig(
                out, format=self.ending[1:], metadata=dates[self.ending], bbox_inches="tight", pad_inches=0.03
            )
        if self.missing:
            chars = "".join(list(self.missing)[:20])
            drawn = "the viewer's fonts will draw them" if self.ending == ".svg" else "they are drawn as boxes"
            notes = (
                *notes,
                f"No installed font has {chars}: {drawn}. Noto Sans CJK has Korean, Japanese and Chinese.",
            )
        return Figure(out.getvalue(), tuple(notes))
