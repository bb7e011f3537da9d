"""matplotlib for figures in papers: imported late, with fonts for the tokens and reproducible files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnx.errors import UsageError
from attnx.installed import pip
from attnx.records import Array
from attnx.view import scale
from attnx.view.cells import safe
from attnx.view.matrix import Side

FORMATS = (".png", ".svg", ".pdf")
DPI = 200
TICKS = 64
"""The most tokens written along an axis; of more, only every n-th."""
FLAT = 20_000
"""Cells that are drawn as vectors; more go into an image, with vector axes round it."""
_FONTS = (
    "Noto Sans CJK KR", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans KR", "Noto Sans JP", "Noto Sans SC",
    "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo", "Hiragino Sans", "Yu Gothic", "MS Gothic",
    "Microsoft YaHei", "PingFang SC", "WenQuanYi Zen Hei", "Arial Unicode MS", "Noto Sans Devanagari",
    "Noto Sans Arabic", "Noto Sans Thai", "Noto Sans Hebrew", "Noto Sans Symbols 2", "Noto Emoji", "Symbola",
    "Segoe UI Symbol",
)  # fmt: skip
"""Fonts tried in this order after matplotlib's own, if installed."""
_BOX = "□"


@dataclass(frozen=True, slots=True)
class Figure:
    """A finished figure."""

    data: bytes
    notes: tuple[str, ...]
    """Notes: averaged blocks, characters that no font has."""


class Plot:
    """matplotlib, imported late, with fonts that have the tokens' characters and settings that fit papers."""

    def __init__(self, ending: str, own: str = "DejaVu Sans") -> None:
        if ending not in FORMATS:
            raise UsageError(f"{safe(ending)!r} is not a format of a figure", f"Use {', '.join(FORMATS)}.")
        try:
            import matplotlib
            import matplotlib.figure
            import matplotlib.patches
            from matplotlib import colors, font_manager
        except ImportError as error:
            raise UsageError(
                "figures need matplotlib, which is not installed",
                f"{pip('figures')}; .svg, .html and .txt of the terminal's view work without it.",
            ) from error
        self.ending, self.matplotlib, self.colors = ending, matplotlib, colors
        installed = {font.name: font.fname for font in font_manager.fontManager.ttflist}
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
            cmap = self.matplotlib.colormaps["PuOr_r"]  # light in the middle, like paper
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
        """Write the tokens along an axis; of many, only every n-th, with positions."""
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
            # Missing glyphs are counted above and reported in a note; in SVG the reader's fonts may have them.
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
