"""Patches of a picture as tokens: where each one is, and its name (r3c5)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnx.records import Array, Tokens
from attnx.session.ort import Slot
from attnx.tokens.config import Config

_LARGEST_PREFIX = 2
"""[CLS] and [DIST] may come before the patches of a picture, and registers that the configuration mentions."""
_NO_PICTURE = {"past", "cache", "query", "key", "value", "mask", "bias"}
"""Words in the names of four-dimensional inputs that are not pictures."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A picture, or its latent, as it was fed to the model."""

    name: str
    """The input."""
    height: int
    width: int
    registers: int = 0
    """Number of register tokens by the configuration."""
    patch: int | None = None
    """Side of a patch, if the configuration gives it."""
    latent: bool = False
    """Whether it is another model's latent rather than a colour picture: then all tokens are patches."""
    queries: int | None = None
    """How many objects a detector looks for, if the configuration gives it."""
    line: bool = False
    """Whether the graph takes pictures of fixed height and any width, as models that read a line of text do."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The layout of a sequence's tokens on a picture."""

    rows: int
    columns: int
    prefix: int = 0
    """Tokens before the first patch."""

    def place(self, position: int) -> tuple[int, int] | None:
        """Row and column of a token; None for one that is not a patch."""
        at = position - self.prefix
        return divmod(at, self.columns) if 0 <= at < self.rows * self.columns else None


def find_frames(slots: Sequence[Slot], feed: Mapping[str, Array], config: Config) -> tuple[Frame, ...]:
    """The inputs that are pictures: float or 8 bits, [B,C,height,width] or [B,height,width,C], of at most 32 channels.

    Raises:
        ModelError: A field of the configuration has the wrong type or value.
    """
    vision = config.part("vision_config") or (
        config.part("encoder") if isinstance(config.get("encoder"), dict) else None
    )
    patch = _patch(config if vision is None else vision)
    registers = (config if vision is None else vision).whole("num_register_tokens", 0, 0, 1 << 16)
    queries = config.maybe_whole("num_queries", 1, 1 << 20)
    frames = []
    for slot in slots:
        array = feed.get(slot.name)
        words = set(re.split(r"[^a-z]+", slot.name.lower()))
        if array is None or array.ndim != 4 or words & _NO_PICTURE or not _is_pixels(array):
            continue
        last = array.shape[3] in (1, 3, 4) and array.shape[1] not in (1, 3, 4)
        high, wide, deep = (1, 2, 3) if last else (2, 3, 1)
        channels = array.shape[deep]
        if channels > 32:
            continue
        line = len(slot.shape) == 4 and isinstance(slot.shape[high], int) and not isinstance(slot.shape[wide], int)
        height, width = array.shape[high], array.shape[wide]
        frames.append(Frame(slot.name, height, width, registers, patch, channels not in (1, 3), queries, line))
    return tuple(frames)


def _is_pixels(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype == np.uint8


def _patch(config: Config) -> int | None:
    """The side of a patch; None where it is not given, or patches are not square."""
    value = config.get("patch_size")
    sides = value if isinstance(value, list) and value else [value]
    if any(side != sides[0] for side in sides):
        return None
    return Config({"patch_size": sides[0]}, config.where).maybe_whole("patch_size", 1, 1 << 20)


def find_grid(length: int, frame: Frame) -> Grid | None:
    """The grid of square patches that fits a sequence of `length` tokens, with the fewest other tokens.

    The configuration's side of a patch is tried first, then every other that fits. For a line of text, the tokens are
    its columns.
    """
    if frame.line and 1 < length < frame.width and frame.width % length == 0:
        return Grid(1, length)
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
    if best is None and frame.line and length > 1:
        steps = [step for step in (frame.width // length, frame.width // length + 1) if step > 1]
        if any(length in (frame.width // step, -(-frame.width // step)) for step in steps):
            return Grid(1, length)
    return best


def pieces(grid: Grid, registers: int = 0) -> tuple[list[str], list[bool]]:
    """Names of the tokens of a grid and whether each is special: [CLS], [REG0], then r0c0, ...; of a line c0, ..."""
    others = grid.prefix - registers
    names = ["[CLS]", "[DIST]", *(f"[EXTRA{i}]" for i in range(2, grid.prefix))][: max(others, 0)]
    names += [f"[REG{i}]" for i in range(grid.prefix - len(names))]
    special = [True] * len(names)
    for row in range(grid.rows):
        names += [f"{f'r{row}' if grid.rows > 1 else ''}c{column}" for column in range(grid.columns)]
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
            what = f"{grid.rows} × {grid.columns} patches" if grid.rows > 1 else f"{grid.columns} columns"
            return replace(named, text=f"{what} of {frame.name}")
    return None


def grid_of(tokens: Tokens) -> Grid | None:
    """The grid that tokens were named by; None where they are no patches."""
    first = next((i for i, piece in enumerate(tokens.pieces) if piece in ("r0c0", "c0")), None)
    last = re.fullmatch(r"(?:r([0-9]{1,9}))?c([0-9]{1,9})", tokens.pieces[-1]) if first is not None else None
    if first is None or last is None:
        return None
    grid = Grid(int(last[1] or 0) + 1, int(last[2]) + 1, first)
    return grid if first + grid.rows * grid.columns == len(tokens) else None


def as_map(values: Array, grid: Grid) -> Array:
    """The last axis, [...,tokens], as [...,rows,columns]; what is no patch is left out."""
    patches = values[..., grid.prefix : grid.prefix + grid.rows * grid.columns]
    return np.ascontiguousarray(patches.reshape(*values.shape[:-1], grid.rows, grid.columns))
