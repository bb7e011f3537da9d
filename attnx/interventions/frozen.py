"""A norm (and factors) between two tensors of the stream as a linear map, its statistics frozen at a run's own.

The nodes in between are not parsed but probed: apart from its bias, a norm is odd in its input, its size is one number
per position, and its factor for each feature can be measured with any vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.errors import UnsupportedError
from attnx.interventions.points import Point
from attnx.interventions.tail import part
from attnx.records import Array
from attnx.run.check import TOLERANCE, difference

if TYPE_CHECKING:
    from attnx.interventions.unedited import Unedited


@dataclass(frozen=True, slots=True, eq=False)
class Frozen:
    """y = size x centred(x) x weight + bias, with the size from a run."""

    size: Array
    """float64 [B,Q,1]."""
    weight: Array
    """float64 [E]."""
    bias: Array
    """float64 [E]."""
    centred: bool
    """Whether the mean over features is subtracted first."""

    def linear(self, vectors: Array, row: int, position: int) -> Array:
        """Apply it, without the bias, to vectors [...,E] added at a position."""
        wide = np.asarray(vectors, np.float64)
        if self.centred:
            wide = wide - wide.mean(axis=-1, keepdims=True)
        return np.asarray(wide * self.size[row, position] * self.weight)


def same(batch: int, queries: int, width: int) -> Frozen:
    """The identity: nothing in between."""
    return Frozen(np.ones((batch, queries, 1)), np.ones(width), np.zeros(width), False)


def frozen(all_: Unedited, name: str, begin: Point, end: Point, what: str) -> Frozen:
    """The map between two tensors, frozen in a run.

    Args:
        all_: The model and its feeds.
        name: The feed.
        begin: The tensor that is normed.
        end: The resulting tensor.
        what: Its name in messages.

    Raises:
        UnsupportedError: It is not a norm, or is more than a norm and factors.
    """
    before, after = (np.asarray(array, np.float64) for array in all_.take(name, [begin, end]))
    if begin.place.value == end.place.value:
        return same(*before.shape)
    run = part(all_, name, begin, {"end": end.place.value})
    tensor = all_.tensor(name, end)

    def made(vector: Array) -> Array:
        raw = run(np.broadcast_to(vector, before.shape).astype(np.float32))["end"]
        return np.asarray(tensor.ordered(raw)[0, 0], np.float64)

    probe = np.where(np.arange(before.shape[-1]) % 2, -1.0, 1.0)
    plus, minus, moved = made(probe), made(-probe), made(probe + 1.0)
    bias = (plus + minus) / 2
    close = TOLERANCE["float32" if all_.exact else "low"]
    centred = difference(moved, plus) <= close
    whole = probe - probe.mean() if centred else probe
    weight = (plus - bias) / whole
    x = before - before.mean(axis=-1, keepdims=True) if centred else before
    ones = x * weight
    size = ((after - bias) * ones).sum(-1, keepdims=True) / np.maximum((ones * ones).sum(-1, keepdims=True), 1e-300)
    found = Frozen(size, weight, bias, bool(centred))
    gap = difference(size * ones + bias, after)
    if not gap <= close:
        raise UnsupportedError(
            f"{what} is more than a norm and factors (what they make is off by {gap:.2g}), and is not taken apart"
        )
    return found
