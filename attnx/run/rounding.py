"""How far rows of weights may be off 1 because each weight was rounded to a whole number of steps.

Integer graphs give weights in steps of 1/256 or so: over many keys, what is rounded away adds up.
"""

from __future__ import annotations

import numpy as np

from attnx import formula
from attnx.records import Array

_COARSEST, _FINEST, _WHOLE = 1 / 64, 1 / 2048, 1e-2
"""The largest and smallest step that rounded weights may have, and how near to whole numbers of it they must be."""
_EDGE, _PRECISION = 0.02, 1e-3
"""How near to half a step a weight may be rounded up or down, in steps, and relative to the weight: kernels compute
shares with less precision than this does."""


def step_of(weights: Array) -> float:
    """The step of which all weights are whole numbers; 0 if they were not rounded.

    Args:
        weights: [B,H,Q,K], or sums of them over groups of keys, [B,H,Q,M].
    """
    step = float(weights.min(initial=1.0, where=weights > 0))
    count = weights[:1, :, -1:] / np.float32(step)  # the last queries see the most keys
    if not _FINEST <= step <= _COARSEST or np.abs(count - np.round(count)).max(initial=0.0) > _WHOLE:
        return 0.0
    return step


def allowed(total: Array, step: float, keys: int) -> Array:
    """How far each row's sum may be off 1, where only the sum is known.

    A weight is off by half a step at most, and only those that are not 0 can have been rounded up: at most as many as
    the sum has steps. Without the scores, nothing tells a key of no weight from one whose weight was rounded to 0.

    Args:
        total: Sums of rows, any shape.
        step: From `step_of`; nothing is allowed where it is 0.
        keys: How many keys a row has at most.

    Returns:
        float64, same shape.
    """
    if not step:
        return np.zeros(total.shape)
    count = np.where(total > 1, np.minimum(total / step, keys), keys)
    return np.asarray((count / 2 + 1) * step)


def allowed_of_scores(total: Array, masked: Array, step: float) -> Array:
    """The same where the softmax's input is known, so that each weight's own rounding is.

    Args:
        total: Sums of rows [N].
        masked: The softmax's input [N,K].
        step: From `step_of`, not 0.

    Returns:
        float64 [N].
    """
    out = np.empty(total.shape)
    for (at,) in formula.blocks(masked.shape):
        share = np.exp(formula.log_softmax(masked[at])) / step
        most, least = (np.round(share * (1 + sign * _PRECISION) + sign * _EDGE).sum(axis=-1) * step for sign in (1, -1))
        # A step more, as 1 itself may be out of range; nothing for a row that rounding would have left elsewhere.
        fits = (total[at] >= least - step) & (total[at] <= most + step)
        out[at] = np.where(fits, np.where(total[at] > 1, most - 1, 1 - least) + step, 0.0)
    return out


__all__ = ["allowed", "allowed_of_scores", "step_of"]
