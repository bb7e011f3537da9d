"""Means and standard deviations of a site's heads, from blocks of some rows of some heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnx.records import Array


class Means:
    """Means over the real rows of each head, of blocks of some rows of some heads; NaN is left out."""

    def __init__(self) -> None:
        self._sums: dict[object, dict[int, tuple[Array, Array]]] = {}

    @property
    def known(self) -> bool:
        """Whether anything was added."""
        return bool(self._sums)

    def add(self, name: object, first: int, values: Array, real: Array) -> None:
        """Add rows.

        Args:
            name: What they are.
            first: The block's first head.
            values: [N,H,Q]: N of them for each row.
            real: bool [H,Q].
        """
        keep = real & ~np.isnan(values)
        found = np.where(keep, values, 0.0).sum(axis=-1), keep.sum(axis=-1)
        before = self._sums.setdefault(name, {}).get(first)
        self._sums[name][first] = found if before is None else (before[0] + found[0], before[1] + found[1])

    def of(self, name: object) -> Array:
        """The means, [H,N]; NaN where no row is left."""
        blocks = [np.where(n > 0, total / np.maximum(n, 1), np.nan).T for total, n in self._sums[name].values()]
        return np.concatenate(blocks)


class Spreads:
    """Standard deviations over the cells of each head, of blocks of some rows of some heads; NaN is left out.

    Source: Chan, Golub, LeVeque 1983, "Algorithms for Computing the Sample Variance" (joining parts of a sample).
    """

    def __init__(self) -> None:
        self._parts: dict[int, tuple[Array, Array, Array]] = {}

    def add(self, first: int, each: Sequence[Array], cells: Array) -> None:
        """Add rows.

        Args:
            first: The block's first head.
            each: [H,Q,K] each.
            cells: bool [H,Q,K]: those that count.
        """
        found = [_squares(values, cells) for values in each]
        count, mean, squares = (np.stack([one[i] for one in found], axis=-1) for i in range(3))
        if first in self._parts:
            n, m, s = self._parts[first]
            whole = np.maximum(n + count, 1)
            gap = mean - m
            count, mean, squares = n + count, m + gap * count / whole, s + squares + gap**2 * n * count / whole
        self._parts[first] = count, mean, squares

    def of(self) -> Array:
        """The deviations, [H,N]; NaN where no cell is left."""
        return np.concatenate(
            [np.sqrt(np.where(n > 0, s / np.maximum(n, 1), np.nan)) for n, _, s in self._parts.values()]
        )


def _squares(values: Array, cells: Array) -> tuple[Array, Array, Array]:
    """How many cells of each head count, their mean, and the sum of the squares of what they differ from it; [H]."""
    kept = np.where(cells, values, 0.0)
    total = kept.sum(axis=(1, 2))
    if np.isnan(total).any():  # of a NaN among them, or of infinite numbers
        cells = cells & ~np.isnan(values)
        kept = np.where(cells, values, 0.0)
        total = kept.sum(axis=(1, 2))
    count = cells.sum(axis=(1, 2))
    mean = total / np.maximum(count, 1)
    kept -= mean[:, None, None]
    kept *= cells
    return count, mean, np.einsum("hqk,hqk->h", kept, kept)
