"""Thumbnails of matrices: quarter blocks in two colours a cell, braille dots where colours or lines are few."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from rich.segment import Segment
from rich.style import Style

from attnx.records import Array
from attnx.view import colour
from attnx.view.colour import Ramp
from attnx.view.page import Depth, Page

DOT = 1 / 3
"""In dots, a block counts from this share of the scale on."""
Cells = list[list[list[Segment]]]
"""For each head, for each line, the segments of its thumbnail."""


def dotted(tall: int, here: Page) -> bool:
    """Tell whether thumbnails are drawn in braille dots: where colours are few, or lines."""
    return not here.ascii and (not colour.smooth(here.depth) or tall == 1)


def draw(thumbs: Array, ramp: Ramp, here: Page, dots: bool) -> Cells:
    """Draw the thumbnails [H,rows,columns] of one layer."""
    if here.ascii:
        return [
            [
                [Segment("".join(" " if np.isnan(p) else colour.shade(ramp, p, ascii_only=True) for p in row))]
                for row in thumb
            ]
            for thumb in thumbs
        ]
    step = 4 if dots else 2
    rows, columns = -(-thumbs.shape[1] // step) * step, -(-thumbs.shape[2] // 2) * 2
    full = np.full((len(thumbs), rows, columns), np.nan)
    full[:, : thumbs.shape[1], : thumbs.shape[2]] = thumbs
    tiles = full.reshape(len(thumbs), rows // step, step, columns // 2, 2).transpose(0, 1, 3, 2, 4)
    draw = _braille if dots else _quarters
    return [[[draw(tile, ramp, here.depth) for tile in line] for line in thumb] for thumb in tiles]


_BITS = (0x01, 0x08, 0x02, 0x10, 0x04, 0x20, 0x40, 0x80)


def _braille(tile: Array, ramp: Ramp, depth: Depth) -> Segment:
    """Draw 4 x 2 blocks as dots, in the colour of the largest."""
    flat = tile.ravel()
    away = np.abs(flat - 0.5) * 2 if ramp.diverging else flat
    on = np.nan_to_num(away, nan=0.0) >= DOT
    if not on.any():
        return Segment(" ")
    code = sum(bit for bit, lit in zip(_BITS, on, strict=True) if lit)
    return Segment(chr(0x2800 + code), _solid(ramp, colour.level(float(flat[np.nanargmax(away)])), depth))


_QUARTERS = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"


def _quarters(tile: Array, ramp: Ramp, depth: Depth) -> Segment:
    """Draw 2 x 2 blocks in two colours, the mean of the higher and of the lower ones; hidden blocks stay empty."""
    flat = [-1 if np.isnan(p) else colour.level(float(p)) for p in tile.ravel()]
    return Segment(*_quartered(ramp, (flat[0], flat[1], flat[2], flat[3]), depth))


@lru_cache(maxsize=65536)
def _quartered(ramp: Ramp, levels: tuple[int, int, int, int], depth: Depth) -> tuple[str, Style]:
    shown = [level for level in levels if level >= 0]
    if not shown:
        return " ", Style.null()
    if len(shown) < 4:
        bits = sum(1 << at for at, level in enumerate(levels) if level >= 0)
        return _QUARTERS[bits], _solid(ramp, sum(shown) // len(shown), depth)
    middle = (min(shown) + max(shown)) / 2
    high = [level for level in shown if level > middle]
    low = [level for level in shown if level <= middle]
    if not high:
        return " ", Style(bgcolor=_solid(ramp, low[0], depth).color)
    bits = sum(1 << at for at, level in enumerate(levels) if level > middle)
    back = _solid(ramp, sum(low) // len(low), depth).color
    return _QUARTERS[bits], _solid(ramp, sum(high) // len(high), depth) + Style(bgcolor=back)


@lru_cache(maxsize=4096)
def _solid(ramp: Ramp, level: int, depth: Depth) -> Style:
    return Style(color=colour.colour(ramp, (level + 0.5) / colour.LEVELS, depth))
