"""Patches of a picture as tokens: where each one lies, and what it is called (r3c5)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnx.records import Array, Tokens
from attnx.session.ort import Slot

_LARGEST_PREFIX = 2
"""[CLS] and [DIST] may stand before the patches of a picture, and registers that the configuration speaks of."""
_NO_PICTURE = {"past", "cache", "query", "key", "value", "mask", "bias"}
"""Words of names of inputs with four dimensions that are none."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A picture, or the latent of one, as the model was fed it."""

    name: str
    """The input."""
    height: int
    width: int
    registers: int = 0
    """Register tokens that the configuration speaks of."""
    patch: int | None = None
    """Side of a patch, where the configuration says it."""
    latent: bool = False
    """Whether it is no picture in colours but what another model made of one: then patches are all there is."""
    queries: int | None = None
    """How many objects a detector looks for, where the configuration says it."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How the tokens of a sequence lie on a picture."""

    rows: int
    columns: int
    prefix: int = 0
    """Tokens before the first patch."""

    def place(self, position: int) -> tuple[int, int] | None:
        """Row and column of a token; None for one that is no patch."""
        at = position - self.prefix
        return divmod(at, self.columns) if 0 <= at < self.rows * self.columns else None


def find_frames(slots: Sequence[Slot], feed: Mapping[str, Array], config: Mapping[str, Any]) -> tuple[Frame, ...]:
    """The inputs that are pictures: float [B,C,height,width] or [B,height,width,C], with at most 32 channels."""
    vision = next((p for key in ("vision_config", "encoder") if isinstance(p := config.get(key), dict)), config)
    patch, registers = vision.get("patch_size"), vision.get("num_register_tokens", 0)
    frames = []
    for slot in slots:
        array = feed.get(slot.name)
        words = set(re.split(r"[^a-z]+", slot.name.lower()))
        if array is None or array.ndim != 4 or array.dtype.kind != "f" or words & _NO_PICTURE:
            continue
        last = array.shape[3] in (1, 3, 4) and array.shape[1] not in (1, 3, 4)
        height, width = (array.shape[1], array.shape[2]) if last else (array.shape[2], array.shape[3])
        colours = array.shape[3] if last else array.shape[1]
        if colours <= 32:
            frames.append(
                Frame(
                    slot.name,
                    height,
                    width,
                    registers if isinstance(registers, int) else 0,
                    patch if isinstance(patch, int) else None,
                    colours not in (1, 3),
                    objects if isinstance(objects := config.get("num_queries"), int) else None,
                )
            )
    return tuple(frames)


def find_grid(length: int, frame: Frame) -> Grid | None:
    """The grid of square patches that a sequence of `length` tokens can be of, with the fewest tokens besides.

    The side of a patch that the configuration gives comes first, then every other that fits.
    """
    best: Grid | None = None
    most = 0 if frame.latent else _LARGEST_PREFIX + frame.registers
    for side in dict.fromkeys([*([frame.patch] if frame.patch else []), *range(1, min(frame.height, frame.width) + 1)]):
        rows, columns = frame.height // side, frame.width // side
        prefix = length - rows * columns
        if not 0 <= prefix <= most or rows * columns < 4:
            continue
        if side == frame.patch:
            return Grid(rows, columns, prefix)
        exact = frame.height % side == 0 and frame.width % side == 0
        if (exact or prefix <= 1) and (best is None or prefix < best.prefix):
            best = Grid(rows, columns, prefix)
    return best


def pieces(grid: Grid, registers: int = 0) -> tuple[list[str], list[bool]]:
    """Names of the tokens of a grid and whether each is special: [CLS], [REG0], then r0c0, r0c1, ..."""
    others = grid.prefix - registers
    names = ["[CLS]", "[DIST]", *(f"[EXTRA{i}]" for i in range(2, grid.prefix))][: max(others, 0)]
    names += [f"[REG{i}]" for i in range(grid.prefix - len(names))]
    special = [True] * len(names)
    for row in range(grid.rows):
        names += [f"r{row}c{column}" for column in range(grid.columns)]
    return names, special + [False] * (grid.rows * grid.columns)


def grid_tokens(
    length: int, frames: Sequence[Frame], make: Callable[[Sequence[str], Sequence[bool]], Tokens]
) -> Tokens | None:
    """Tokens for a sequence of patches; None where no picture was fed that it fits."""
    for frame in frames:
        if length == frame.queries:
            return make([f"object {i}" for i in range(length)], [False] * length)
        grid = find_grid(length, frame)
        if grid is not None:
            named = make(*pieces(grid, frame.registers))
            return replace(named, text=f"{grid.rows} × {grid.columns} patches of {frame.name}")
    return None


def grid_of(tokens: Tokens) -> Grid | None:
    """The grid that tokens were named by; None where they are no patches."""
    first = next((i for i, piece in enumerate(tokens.pieces) if piece == "r0c0"), None)
    if first is None:
        return None
    last = tokens.pieces[-1]
    if not (last.startswith("r") and "c" in last):
        return None
    row, _, column = last[1:].partition("c")
    if not (row.isdigit() and column.isdigit()):
        return None
    grid = Grid(int(row) + 1, int(column) + 1, first)
    return grid if first + grid.rows * grid.columns == len(tokens) else None


def as_map(values: Array, grid: Grid) -> Array:
    """The last axis, [...,tokens], as [...,rows,columns]; what is no patch is left out."""
    patches = values[..., grid.prefix : grid.prefix + grid.rows * grid.columns]
    return np.ascontiguousarray(patches.reshape(*values.shape[:-1], grid.rows, grid.columns))
