"""From values to places on a colour scale, and the legend that says how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from rich.style import Style
from rich.text import Text

from attnx.errors import UsageError
from attnx.records import Array
from attnx.view import colour
from attnx.view.cells import in_unit, number
from attnx.view.colour import Ramp
from attnx.view.page import Page
from attnx.wording import Wording

ScaleKind = Literal["linear", "log", "row"]
SCALES: tuple[ScaleKind, ...] = ("linear", "log", "row")
DECADES = 3
"""How far down a log scale reaches: everything below a thousandth of the largest looks the same."""
HIDDEN, HIDDEN_ASCII = "·", "'"
MUTED, MUTED_ASCII = "╱", "/"
MISSING = "-"
_FAINT = Style(dim=True)


@dataclass(frozen=True, slots=True)
class Scale:
    """How values become colours."""

    kind: ScaleKind
    low: float
    """The value at the scale's start (what a log scale calls its floor; -high on a diverging scale)."""
    high: float
    ramp: Ramp

    def places(self, values: Array) -> Array:
        """Put values on the scale.

        Args:
            values: [Q,K]; NaN stays NaN.

        Returns:
            [Q,K], 0 to 1. On a "row" scale each row runs from 0 (or its smallest, where values are negative) to its
            own largest.
        """
        values = np.asarray(values, np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.kind == "row":
                there = np.isfinite(values)
                top = np.max(np.where(there, values, -np.inf), axis=-1, keepdims=True, initial=-np.inf)
                bottom = np.min(np.where(there, values, np.inf), axis=-1, keepdims=True, initial=np.inf)
                if self.ramp.diverging:
                    top = np.maximum(np.abs(top), np.abs(bottom))
                    bottom = -top
                elif self.low >= 0:
                    bottom = np.zeros_like(bottom)
                return _between(values, bottom, top)
            if self.kind == "log":
                floor = np.log10(self.low) if self.low > 0 else 0.0
                top = np.log10(self.high) if self.high > 0 else 0.0
                return _between(np.log10(np.where(values <= 0, self.low or 1.0, values)), floor, top)
            return _between(values, self.low, self.high)


def _between(values: Array, low: Array | float, high: Array | float) -> Array:
    """(values - low) / (high - low), held to 0..1; a scale without extent puts everything at its start."""
    wide = np.asarray(np.subtract(high, low))
    place = np.where(wide > 0, (values - low) / np.where(wide > 0, wide, 1), np.where(np.isfinite(values), 0.0, np.nan))
    return np.asarray(np.clip(place, 0, 1))


def choose(
    values: Array,
    kind: ScaleKind = "linear",
    *,
    diverging: bool = False,
    bounds: tuple[float | None, float | None] = (None, None),
) -> Scale:
    """Choose a scale for values.

    Args:
        values: Any shape, NaN for what must not count (hidden, muted).
        kind: "linear" from 0 (or the smallest, where values are negative) to the largest; "log" down to a thousandth
            of the largest; "row" as linear, for each row by itself.
        diverging: Two-sided and symmetric about 0, for differences.
        bounds: Ends to use instead of the data's.

    Returns:
        The scale.

    Raises:
        UsageError: An unknown kind, or log of values that are negative or have two sides.
    """
    if kind not in SCALES:
        raise UsageError(f"{kind!r} is not a scale", f"Choose from {', '.join(SCALES)}.")
    finite = np.asarray(values)[np.isfinite(values)]
    least = float(finite.min()) if finite.size else 0.0
    most = float(finite.max()) if finite.size else 0.0
    low = bounds[0] if bounds[0] is not None else min(least, 0.0) if least >= 0 else least
    high = bounds[1] if bounds[1] is not None else most
    if kind == "log":
        if diverging or least < 0:
            raise UsageError(
                "a log scale needs values that are never negative, and these are",
                Wording("Use <scale='linear'> or <scale='row'>, or show the weights."),
            )
        return Scale(kind, high / 10**DECADES, high, colour.SEQUENTIAL)
    if diverging:
        reach = max(abs(low), abs(high))
        return Scale(kind, -reach, reach, colour.DIVERGING)
    return Scale(kind, low, high, colour.SEQUENTIAL)


def legend(scale: Scale, page: Page, *, unit: str = "", hidden: bool, muted: str = "", missing: bool = False) -> Text:
    """Write the legend: the scale with its ends, and what the marks mean.

    Args:
        scale: The scale.
        page: Where it is drawn.
        unit: Of the values.
        hidden: Whether hidden cells occur.
        muted: What is muted, already safe; "" for nothing.
        missing: Whether values are missing for another reason.

    Returns:
        One line of text, to be wrapped by the caller's console between its parts.
    """
    line = Text()
    if scale.kind == "row":
        start = "-row's largest" if scale.ramp.diverging else "0" if scale.low >= 0 else "row's smallest"
        ends = (start, "row's largest")
    else:
        ends = (number(scale.low, 4 if scale.kind == "log" else 2), number(scale.high))
        if scale.kind == "log":
            ends = (f"≤ {ends[0]}" if not page.ascii else f"<= {ends[0]}", ends[1])
    line.append(f"{ends[0]} ")
    line.append_text(bar(scale.ramp, page))
    line.append(f" {ends[1]}")
    if in_unit(unit):
        line.append(f" {unit}", _FAINT)
    if scale.kind == "log":
        line.append(" log", _FAINT)
    if hidden:
        line.append(f"   {HIDDEN_ASCII if page.ascii else HIDDEN} hidden by the mask")
    if muted:
        line.append(f"   {MUTED_ASCII if page.ascii else MUTED} muted: {muted}")
    if missing:
        line.append(f"   {MISSING} no value")
    return line


def bar(ramp: Ramp, page: Page, width: int | None = None) -> Text:
    """Draw the scale itself: a strip of colours, or the shades one after the other."""
    smooth = colour.smooth(page.depth)
    if width is None:
        width = 16 if smooth else 10
    strip = Text()
    for at in range(width):
        place = at / (width - 1)
        char = " " if smooth else colour.shade(ramp, place, ascii_only=page.ascii)
        strip.append(char, colour.ink(ramp, place, page.depth))
    if not smooth:
        edge = "|" if page.ascii else "▏▕"
        strip = Text(edge[0]).append_text(strip).append(edge[-1])
    return strip
