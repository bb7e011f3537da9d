"""matplotlib for figures in papers: imported late, with fonts for the tokens and reproducible files."""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from attnx.errors import UsageError, lacks_memory
from attnx.records import Array
from attnx.view import drawing as paper
from attnx.view import scale
from attnx.view.cells import safe
from attnx.view.drawing import DPI, FORMATS, Drawing, Figure, Ticks, on_paper
from attnx.view.fonts import BOX, FALLBACK, OWN, installed, lost_note, not_installed

FLAT = 20_000
"""Cells that are drawn as vectors; more go into an image, with vector axes round it."""

_DRAWING = threading.Lock()
"""matplotlib's settings and Python's filters of warnings are one for all threads of a process."""

_GLYPHS = "(?#attnx)Glyph .* missing from"
"""A filter that nobody else has: it is taken out again."""


@contextlib.contextmanager
def _unwarned() -> Iterator[None]:
    """Drop matplotlib's warning of missing glyphs: `Plot.safe` notes them, and in SVG the reader's fonts may have them.

    `warnings.catch_warnings` would put back the filters as they were, and with them undo what other threads set since.
    """
    warnings.filterwarnings("ignore", message=_GLYPHS)
    try:
        yield
    finally:
        for ours in [one for one in warnings.filters if getattr(one[1], "pattern", None) == _GLYPHS]:
            with contextlib.suppress(ValueError):  # another thread has put back other filters
                cast(list[object], warnings.filters).remove(ours)


def draw(drawing: Drawing, ending: str) -> Figure:
    """Draw it with matplotlib.

    Args:
        drawing: What to draw.
        ending: One of `FORMATS`.

    Returns:
        The file's content and notes.

    Raises:
        UsageError: Another format, or matplotlib is not installed.
    """
    plot = Plot(ending)
    kind = drawing.scale.kind
    with plot.settings():
        figure, axes = plot.start(*drawing.inches)
        if drawing.matrix:
            axes.patch.set(facecolor=paper.GROUND, hatch="////", edgecolor=paper.HATCH)
        values = drawing.values if kind != "row" else drawing.scale.places(drawing.values)
        image = plot.cells(axes, values, drawing.scale, kind)
        for at in drawing.muted:
            axes.axvspan(
                at - 0.5, at + 0.5, facecolor=paper.MUTED, edgecolor=paper.MUTED_HATCH, hatch="xxxx", linewidth=0
            )
        plot.ticks(axes.yaxis, drawing.left)
        plot.ticks(axes.xaxis, drawing.across)
        if drawing.matrix:
            axes.tick_params(length=2)
            axes.tick_params(axis="x", rotation=90)
        else:
            _bare(axes)
        axes.set_ylabel(drawing.left.name)
        axes.set_xlabel(drawing.across.name)
        if drawing.title:
            axes.set_title(plot.safe([drawing.title])[0], fontsize=paper.TITLE)
        plot.bar(figure, axes, image, drawing.unit)
        return plot.finish(figure, drawing.notes)


def _bare(axes: Any) -> None:
    """Many matrices side by side: no frame round all, no marks, columns named above."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")


class Plot:
    """matplotlib, imported late, with fonts that have the tokens' characters and settings that fit papers."""

    def __init__(self, ending: str, own: str = OWN) -> None:
        if ending not in FORMATS:
            raise UsageError(f"{safe(ending)!r} is not a format of a figure", f"Use {', '.join(FORMATS)}.")
        try:
            import matplotlib
            import matplotlib.figure
            import matplotlib.patches
            from matplotlib import colors, font_manager
        except ImportError as error:
            if lacks_memory(error):
                raise
            raise not_installed() from error
        self.ending, self.matplotlib, self.colors = ending, matplotlib, colors
        there = installed()
        self.families = [own, *(name for name in FALLBACK if name in there)]
        files = [font_manager.findfont(own), *(there[name][0] for name in self.families[1:])]
        self.known: set[int] = set().union(*(font_manager.get_font(file).get_charmap() for file in files))
        self.missing: dict[str, None] = {}

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Text stays text in SVG and PDF, and two runs give the same bytes; one thread after another."""
        with (
            _DRAWING,
            _unwarned(),
            self.matplotlib.rc_context(
                {
                    "font.family": self.families,
                    "font.size": paper.TEXT,
                    "axes.linewidth": 0.5,
                    "hatch.linewidth": 0.4,
                    "svg.fonttype": "none",
                    "svg.hashsalt": "attnx",
                    "pdf.fonttype": 42,
                    "text.usetex": False,
                    "text.parse_math": False,
                    "axes.unicode_minus": True,
                }
            ),
        ):
            yield

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
            out.append(text if self.ending == ".svg" else "".join(BOX if char in lost else char for char in text))
        return out

    def cells(self, axes: Any, values: Array, choice: scale.Scale, kind: scale.ScaleKind) -> Any:
        """Draw the cells: vectors where they are few."""
        ramp = on_paper(choice.ramp)
        cmap = self.colors.ListedColormap(np.array(ramp.colours) / 255, name=ramp.name)
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

    def ticks(self, axis: Any, ticks: Ticks) -> None:
        """Write the labels along an axis."""
        axis.set_ticks(ticks.at, self.safe(ticks.labels))
        axis.set_tick_params(labelsize=ticks.size)

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
        figure.savefig(out, format=self.ending[1:], metadata=dates[self.ending], bbox_inches="tight", pad_inches=0.03)
        if self.missing:
            drawn = "the viewer's fonts will draw them" if self.ending == ".svg" else "they are drawn as boxes"
            notes = (*notes, lost_note(self.missing, drawn))
        return Figure(out.getvalue(), tuple(notes))
