"""The cells of a matrix that measures of heads need: only their weights leave the session, not the matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnx.records import Array, Tokens

WITHIN = 2
"""The largest distance that `locality` counts as near."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Selected cells of a matrix, grouped by purpose."""

    flat: Array
    """int64 [P]: i x K + j."""
    row: Array
    """int64 [P]: i, from the first to the last within each part."""
    parts: Mapping[object, slice]
    """Offset -2 to 2, "duplicate", "induction" -> its part of the cells."""
    starts: Mapping[object, Array]
    """Where each row begins in each part."""

    def sums(self, values: Array, part: object, count: int) -> Array:
        """Sum over the cells of each row, float64 [H,Q]; NaN for rows without any."""
        at, starts = self.parts[part], self.starts[part]
        rows = self.row[at]
        out = np.full((len(values), count), np.nan)
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 == len(starts) - 1:
            out[:, rows[0] : rows[-1] + 1] = values[:, at]  # a diagonal
        elif len(rows):
            out[:, rows[starts]] = np.add.reduceat(values[:, at], starts, axis=1, dtype=np.float64)
        return out


def cells_of(tokens: Tokens) -> Cells:
    """The cells that measures of heads need: near the diagonal, earlier copies, and what followed them."""
    count = len(tokens)
    ids = np.asarray(tokens.ids).reshape(-1)
    plain = ~np.asarray(tokens.special, bool)
    found: dict[object, tuple[Array, Array]] = {}
    for offset in range(-WITHIN, WITHIN + 1):
        rows = np.arange(max(0, -offset), min(count, count - offset))
        found[offset] = (rows, rows + offset)
    earlier = np.tri(count, k=-1, dtype=bool) & (ids[:, None] == ids[None, :])
    earlier &= plain[:, None] & plain[None, :]
    row, column = np.divmod(np.flatnonzero(earlier), max(count, 1))
    followed = column < row - 1  # the token after a copy comes before the query
    found["duplicate"] = (row, column)
    found["induction"] = (row[followed], column[followed] + 1)
    parts: dict[object, slice] = {}
    start = 0
    for part, (rows, _) in found.items():
        parts[part] = slice(start, start + len(rows))
        start += len(rows)
    at = np.concatenate([rows for rows, _ in found.values()]).astype(np.int64)
    keys = np.concatenate([columns for _, columns in found.values()]).astype(np.int64)
    starts = {part: np.flatnonzero(np.diff(rows, prepend=-1)) for part, (rows, _) in found.items()}
    return Cells(at * count + keys, at, parts, starts)


def repeats(cells: Cells) -> int:
    """How many queries have an induction target."""
    return len(np.unique(cells.row[cells.parts["induction"]]))
