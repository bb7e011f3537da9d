"""Colour scales that are perceptually even and safe for colour-blind readers, down to a terminal without colours.

A place on a scale is a number from 0 to 1. `cell` turns it into a character and a Rich style for the colours that
there are: 24 bits, the nearest of xterm's 256 (kept in order of lightness), shade characters tinted with the theme's
own 8 colours, or shade characters alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from rich.color import Color
from rich.style import Style

from attnx.records import Array
from attnx.view.page import Depth

RGB = tuple[int, int, int]
LEVELS = 256
"""Levels of a scale; finer than an eye or an 8-bit channel can distinguish."""

_VIRIDIS = (
    "440154 470d60 48186a 482374 472d7b 453781 424086 3e4989 3b528b 375b8d 33638d",
    "2f6b8e 2c728e 297a8e 26828e 23898e 21918c 1f978b 1f9f88 21a685 27ad81 31b57b",
    "3dbc74 4cc26c 5cc863 6ece58 81d34d 95d840 aadc32 c0df25 d5e21a eae51a fde725",
)
_PUOR = "2d004b 542788 8073ac b2abd2 d8daeb f7f7f7 fee0b6 fdb863 e08214 b35806 7f3b08"


@dataclass(frozen=True, slots=True, eq=False)
class Ramp:
    """A colour scale. Compared by identity: cells look up their colours by it, and hashing all its colours is slow."""

    name: str
    diverging: bool
    """True where 0.5 is the middle that both sides move away from."""
    colours: tuple[RGB, ...]
    """`LEVELS` colours."""


# --- OKLab: equal steps look equal. Source: Ottosson, "A perceptual color space for image processing", 2020. ---
_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def oklab(rgb: Array) -> Array:
    """Convert sRGB to OKLab.

    Args:
        rgb: [..., 3], 0 to 255.

    Returns:
        [..., 3]: lightness 0 to 1, then the green-red and the blue-yellow axis.
    """
    part = np.asarray(rgb, dtype=np.float64) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return np.asarray(np.cbrt(linear @ _LMS.T) @ _LAB.T)


def _srgb(lab: Array) -> Array:
    """Convert OKLab [..., 3] to sRGB [..., 3], 0 to 255, clipped to what a screen can show."""
    linear = ((lab @ np.linalg.inv(_LAB).T) ** 3) @ np.linalg.inv(_LMS).T
    linear = np.clip(linear, 0, 1)
    part = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(np.rint(part * 255).astype(int))


def _through(colours: str) -> tuple[RGB, ...]:
    """All levels of a scale that goes through these colours in even steps."""
    stops = np.array([[int(word[i : i + 2], 16) for i in (0, 2, 4)] for word in colours.split()])
    at = np.linspace(0, 1, len(stops))
    wanted = np.linspace(0, 1, LEVELS)
    channels = [np.rint(np.interp(wanted, at, stops[:, c])).astype(int) for c in range(3)]
    return tuple((int(r), int(g), int(b)) for r, g, b in zip(*channels, strict=True))


def _two_sided() -> tuple[RGB, ...]:
    """Blue, dark grey, orange: even in lightness by OKLab, and equally light on both sides.

    Blue and orange stay apart in every common kind of colour blindness; the middle is dark, like the low end of the
    sequential scale, so that "nothing" recedes.
    """

    def polar(lightness: float, chroma: float, hue: float) -> Array:
        return np.array([lightness, chroma * np.cos(np.deg2rad(hue)), chroma * np.sin(np.deg2rad(hue))])

    middle, blue, orange = polar(0.27, 0.0, 0), polar(0.77, 0.125, 238), polar(0.77, 0.135, 60)
    away = np.abs(np.linspace(-1, 1, LEVELS))[:, None]
    left = np.linspace(-1, 1, LEVELS)[:, None] < 0
    lab = middle + away * (np.where(left, blue, orange) - middle)
    lab[:, 1:] *= away**-0.3  # hue changes before lightness, so that the sign of small differences shows
    return tuple((int(r), int(g), int(b)) for r, g, b in _srgb(lab))


SEQUENTIAL = Ramp("viridis", False, _through(" ".join(_VIRIDIS)))
"""Dark purple to yellow. Source: van der Walt and Smith, viridis (matplotlib 1.5, CC0), 33 samples, interpolated."""
DIVERGING = Ramp("blue-orange", True, _two_sided())
"""Blue for less, dark grey for none, orange for more."""
PAPER = Ramp("purple-orange", True, _through(_PUOR))
"""The same on a white page, light in the middle like the page: purple for less, orange for more. Source: Brewer,
ColorBrewer 2.0, PuOr."""

HEADS: tuple[RGB, ...] = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (213, 94, 0), (204, 121, 167), (0, 114, 178),
)  # fmt: skip
"""Colours for things without an order. Source: Okabe and Ito, "Color universal design", 2008, without black."""
HEADS_16 = (3, 6, 2, 11, 1, 5, 4)
"""The theme's nearest to each of `HEADS`."""

# --- 256 colours ---------------------------------------------------------------------------------------------------
_CUBE = (0, 95, 135, 175, 215, 255)


def xterm(number: int) -> RGB:
    """Give the sRGB of one of xterm's fixed colours, 16 to 255 (the first 16 belong to the user's theme)."""
    if number >= 232:
        grey = 8 + 10 * (number - 232)
        return (grey, grey, grey)
    rest = number - 16
    return (_CUBE[rest // 36], _CUBE[rest // 6 % 6], _CUBE[rest % 6])


_PURPLE_TO_YELLOW = (53, 54, 24, 30, 36, 71, 77, 113, 148, 184, 220)
_GREY_TO_BLUE = (235, 236, 237, 23, 24, 31, 67, 74, 75, 117)
_GREY_TO_ORANGE = (235, 236, 237, 58, 94, 130, 137, 173, 208, 215)
"""Xterm's colours along each scale, in order. Taking the nearest of all 240 for each level mixes in greys and loud
neighbours, which read as structure that is not there."""


@lru_cache(maxsize=8)
def _numbers(ramp: Ramp) -> tuple[int, ...]:
    """Pick one of xterm's colours for each level: the nearest in OKLab without ever a step back along the scale."""

    def path(levels: Array, numbers: tuple[int, ...], greys: int = 0) -> list[int]:
        there = oklab(np.array([xterm(number) for number in numbers]))
        cost = ((oklab(levels)[:, None] - there[None]) ** 2).sum(-1)
        cost[len(levels) // 6 :, :greys] = np.inf  # greys have no side, so they keep to the very middle
        best, came = cost[0], []
        for row in cost[1:]:
            lowest = np.minimum.accumulate(best)
            came.append(np.maximum.accumulate(np.where(best == lowest, np.arange(len(best)), 0)))
            best = lowest + row
        at = int(best.argmin())
        chosen = [at]
        for back in reversed(came):
            at = int(back[at])
            chosen.append(at)
        return [numbers[i] for i in reversed(chosen)]

    levels = np.array(ramp.colours)
    if not ramp.diverging:
        return tuple(path(levels, _PURPLE_TO_YELLOW))
    half = LEVELS // 2
    return (*reversed(path(levels[:half][::-1], _GREY_TO_BLUE, 3)), *path(levels[half:], _GREY_TO_ORANGE, 3))


# --- no colours, or the theme's ------------------------------------------------------------------------------------
SHADES = " ░▒▓█"
SHADES_ASCII = " .:o@"
LESS = " -=≡#"
LESS_ASCII = " -=%&"
"""The shades of a diverging scale's lower side: strokes, which differ from the upper side's even without colour."""
_TINTS, _MORE, _FEWER = (4, 4, 6, 2, 3), (3, 3, 3, 3, 3), (4, 4, 6, 6, 6)


def level(place: float) -> int:
    """Turn a place on a scale into a level, 0 to `LEVELS` - 1."""
    return min(LEVELS - 1, max(0, int(place * LEVELS)))


def shade(ramp: Ramp, place: float, *, ascii_only: bool = False) -> str:
    """Give the shade character of a place; five of them, equal steps."""
    return _shade(ramp.diverging, level(place), ascii_only)[0]


@lru_cache(maxsize=4 * LEVELS)
def _shade(diverging: bool, at: int, ascii_only: bool) -> tuple[str, int]:
    """Give the shade character and the theme's colour for a level."""
    more, less = (SHADES_ASCII, LESS_ASCII) if ascii_only else (SHADES, LESS)
    if not diverging:
        step = at * len(more) // LEVELS
        return more[step], _TINTS[step]
    away = (at - (LEVELS - 1) / 2) / (LEVELS / 2)
    step = min(len(more) - 1, int(abs(away) * len(more)))
    return (more[step], _MORE[step]) if away > 0 else (less[step], _FEWER[step])


@lru_cache(maxsize=8 * LEVELS)
def _colour(ramp: Ramp, at: int, depth: Depth) -> Color:
    if depth == "true":
        return Color.from_rgb(*ramp.colours[at])
    if depth == "256":
        return Color.from_ansi(_numbers(ramp)[at])
    return Color.from_ansi(_shade(ramp.diverging, at, False)[1])


def colour(ramp: Ramp, place: float, depth: Depth) -> Color | None:
    """Give the colour of a place on a scale.

    Args:
        ramp: The scale.
        place: 0 to 1.
        depth: The colours that there are.

    Returns:
        A Rich colour; None without colours.
    """
    return None if depth == "none" else _colour(ramp, level(place), depth)


def smooth(depth: Depth) -> bool:
    """Tell whether there are enough colours for a cell to be its colour alone, without a shade character."""
    return depth in ("true", "256")


@lru_cache(maxsize=8 * LEVELS)
def _ink(ramp: Ramp, at: int, depth: Depth) -> Style:
    rgb = ramp.colours[at] if depth == "true" else xterm(_numbers(ramp)[at])
    part = np.array(rgb) / 255
    luminance = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722)
    dark = luminance < 0.179  # where white and black are read equally well. Source: WCAG 2.2, contrast ratio
    return Style(
        color=Color.from_rgb(255, 255, 255) if dark else Color.from_rgb(0, 0, 0), bgcolor=_colour(ramp, at, depth)
    )


def ink(ramp: Ramp, place: float, depth: Depth) -> Style:
    """Give the style for text on a place's colour: black or white, whichever is read more easily.

    Args:
        ramp: The scale.
        place: 0 to 1.
        depth: The colours that there are.

    Returns:
        Text and background colour; with 16 colours the text takes the tint and the background stays the theme's;
        without colours the empty style.
    """
    if depth == "none":
        return Style.null()
    if depth == "16":
        return Style(color=_colour(ramp, level(place), depth))
    return _ink(ramp, level(place), depth)


def head_style(index: int, depth: Depth) -> Style:
    """Give a colour to the i-th of several heads, the same in every view; the colours repeat after seven."""
    at = index % len(HEADS)
    if depth == "none":
        return Style.null()
    return Style(color=Color.from_ansi(HEADS_16[at]) if depth == "16" else Color.from_rgb(*HEADS[at]))
