"""What a figure shows, before anything draws it: cells with axes, tokens along them, a title and a colour bar."""

from __future__ import annotations

from dataclasses import dataclass

from attnx.records import Array
from attnx.view.colour import PAPER, Ramp
from attnx.view.scale import Scale

FORMATS = (".png", ".svg", ".pdf")
DPI = 200
GROUND, HATCH = "#f4f4f4", "#c8c8c8"
"""What lies behind cells that the mask hides, and its lines."""
MUTED, MUTED_HATCH = "#e4e4e4", "#909090"
TEXT, TITLE = 8.0, 9.0
"""Sizes of letters, in points."""


def on_paper(ramp: Ramp) -> Ramp:
    """The colours of a scale on a white page."""
    return PAPER if ramp.diverging else ramp


@dataclass(frozen=True, slots=True)
class Figure:
    """A finished figure."""

    data: bytes
    notes: tuple[str, ...]
    """Notes: averaged blocks, characters that no font has."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """What is written along an axis."""

    name: str
    at: tuple[float, ...]
    """Where, in cells: 0 is the middle of the first."""
    labels: tuple[str, ...]
    """As they come; who draws them makes them safe."""
    size: float
    """In points."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Cells with axes and a colour bar."""

    values: Array
    """[R,C], NaN where nothing is drawn."""
    scale: Scale
    left: Ticks
    across: Ticks
    unit: str
    """What the colours stand for."""
    inches: tuple[float, float]
    """Width and height, of which the drawing may leave some."""
    title: str = ""
    muted: tuple[int, ...] = ()
    """Columns that are hatched over."""
    matrix: bool = True
    """One matrix: framed, its missing cells hatched, its columns named below. Else many of them: named above."""
    notes: tuple[str, ...] = ()
