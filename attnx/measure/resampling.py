"""Split examples into two halves, one to choose on and one to judge on; and bootstrap resampling."""

from __future__ import annotations

import numpy as np

from attnx.records import Array


def halves(groups: Array, seed: int) -> tuple[Array, Array]:
    """Split examples into two halves without splitting a group: bool [N] each.

    Args:
        groups: int [N], the group of each example, counted from 0 without gaps.
        seed: The same seed gives the same halves.
    """
    count = int(groups.max()) + 1
    first = np.isin(groups, np.random.default_rng(seed).permutation(count)[: (count + 1) // 2])
    return first, ~first


def redrawn(groups: int, draws: int, seed: int) -> Array:
    """Groups drawn with replacement, int [draws, groups].

    Source: Efron and Tibshirani 1993, chapter 13.
    """
    return np.random.default_rng([seed, 1]).integers(0, groups, size=(draws, groups))


__all__ = ["halves", "redrawn"]
