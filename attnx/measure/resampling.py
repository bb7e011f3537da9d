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


def interval(drawn: Array, level: float) -> tuple[float, float]:
    """Lower and upper end of the interval that holds the middle of what was drawn: percentiles, as of `np.quantile`.

    Bit for bit what that gives, which loads `numpy.ma` to sort two numbers.

    Args:
        drawn: float64 [draws], at least one; NaN if one of them is.
        level: The share that the interval holds.

    Source: Hyndman and Fan 1996, definition 7.
    """
    ordered = np.sort(drawn)  # NaN last
    if np.isnan(ordered[-1]):
        return float("nan"), float("nan")
    places = [(len(ordered) - 1) * share for share in ((1 - level) / 2, (1 + level) / 2)]
    low, high = (_between(ordered, place) for place in places)
    return low, high


def _between(ordered: Array, place: float) -> float:
    """The value at a place that may lie between two: interpolated from the nearer one."""
    at = int(place)
    beyond = place - at
    one, next_ = float(ordered[at]), float(ordered[min(at + 1, len(ordered) - 1)])
    return next_ - (next_ - one) * (1 - beyond) if beyond >= 0.5 else one + (next_ - one) * beyond


__all__ = ["halves", "interval", "redrawn"]
