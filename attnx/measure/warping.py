"""Dynamic time warping: align tokens with frames of sound, using normalised and smoothed cross-attention.

Source: openai-whisper, timing.py (find_alignment); transformers' _extract_token_timestamps, whose numbers these are.
"""

from __future__ import annotations

import numpy as np

from attnx.records import Array

WIDTH = 7
"""How many frames the median is taken over by default (configuration: median_filter_width)."""


def smoothed(weights: Array, width: int = WIDTH) -> Array:
    """How much more each token looks at a frame than the other tokens do: the mean over heads of filtered z-scores.

    Args:
        weights: [H,T,F], the weight of each token on each frame.
        width: How many frames the median is taken over; an odd number.

    Returns:
        float64 [T,F]. In each head and frame, the weights of all tokens have mean 0 and deviation 1 (0 if all are
        equal), before the median.
    """
    total = np.zeros(weights.shape[1:])
    for head in weights:  # one at a time: the decoder's upper half may have hundreds of heads
        wide = head.astype(np.float64)
        spread = wide.std(axis=0)
        scores = (wide - wide.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        total += median(np.where(spread > 0, scores, 0.0), width)
    return total / max(len(weights), 1)


def median(values: Array, width: int) -> Array:
    """The median of each value and its neighbours along the last axis, reflected at the ends; short rows unchanged.

    Raises:
        ValueError: The width is even and so has no middle.
    """
    if width < 1 or width % 2 == 0:
        raise ValueError(f"a median over {width} values has no middle")
    pad = width // 2
    if values.shape[-1] <= pad:
        return values
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(pad, pad)], mode="reflect")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1), axis=-1))


def warp(cost: Array) -> tuple[Array, Array]:
    """The cheapest path through a matrix, from its first cell to its last, moving down, right or diagonally.

    Ties go right; sums are float32, as in transformers.

    Args:
        cost: [T,F].

    Returns:
        The rows and columns of its cells, int [P] each.

    Source: Sakoe and Chiba 1978, Dynamic Programming Algorithm Optimization for Spoken Word Recognition.
    """
    rows, columns = cost.shape
    sums = np.full((rows + 1, columns + 1), np.inf, np.float32)
    came = np.full((rows + 1, columns + 1), 2, np.int8)
    sums[0, 0] = 0.0
    for diagonal in range(2, rows + columns + 1):  # the cells of an anti-diagonal only depend on earlier ones
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        both, down, right = sums[i - 1, j - 1], sums[i - 1, j], sums[i, j - 1]
        is_both, is_down = (both < down) & (both < right), (down < both) & (down < right)
        came[i, j] = np.where(is_both, 0, np.where(is_down, 1, 2))
        sums[i, j] = cost[i - 1, j - 1] + np.where(is_both, both, np.where(is_down, down, right))
    came[:, 0], came[0] = 1, 2
    path = []
    at, to = rows, columns
    while at > 0 or to > 0:
        path.append((at - 1, to - 1))
        step = came[at, to]
        at, to = at - (step != 2), to - (step != 1)
    back = np.array(path[::-1], np.int64).reshape(-1, 2)
    return back[:, 0], back[:, 1]


def frames(weights: Array, width: int = WIDTH) -> Array:
    """The frame at which the path of each token begins, int [T].

    Args:
        weights: [H,T,F].
        width: See `smoothed`.
    """
    if not weights.shape[1] or not weights.shape[2]:
        return np.zeros(weights.shape[1], np.int64)
    rows, columns = warp(-smoothed(weights, width))
    return columns[np.diff(rows, prepend=-1) > 0]


__all__ = ["WIDTH", "frames", "median", "smoothed", "warp"]
