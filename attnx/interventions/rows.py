"""Several runs as rows of one batch: which axis of each input and output is the batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnx.records import Array
from attnx.session.ort import Slot

TOGETHER = frozenset(("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "BatchNormalization"))
"""Operators that use one scale for all rows of a batch, so that a change in one row affects the others."""
AT_ONCE = 96 << 20
"""Bytes that the rows of one batch may take: one layer's matrices and the outputs."""
MOST = 32
"""The most rows per batch; short texts may have more."""
TOGETHER_AT = 2048
"""Up to this many tokens, more rows make each one cheaper."""


@dataclass(frozen=True, slots=True)
class Batch:
    """How a feed is repeated."""

    axes: Mapping[str, int]
    """Input -> its batch axis; inputs that have none are not repeated."""
    size: int
    """Rows of the feed itself."""

    def repeat(self, feed: Mapping[str, Array], times: int) -> dict[str, Array]:
        """The feed, repeated this many times."""
        return {
            name: np.concatenate([array] * times, self.axes[name]) if name in self.axes and times > 1 else array
            for name, array in feed.items()
        }


def batch_of(slots: Sequence[Slot], feed: Mapping[str, Array]) -> Batch | str:
    """The batch axis of every input, or the reason why several runs cannot be rows of one batch."""
    named = [s.shape[0] for s in slots if len(s.shape) > 1 and s.name in feed and isinstance(s.shape[0], str)]
    if not named:
        return "the model was exported for a batch of a fixed size"
    dim = max(named, key=named.count)
    axes: dict[str, int] = {}
    for slot in slots:
        if slot.name not in feed or not slot.shape:
            continue
        shape = slot.shape
        if dim in shape:
            axes[slot.name] = shape.index(dim)
        elif not isinstance(shape[0], int) and len(shape) > 1:
            axes[slot.name] = 0
        else:
            at = next((i for i, d in enumerate(shape) if isinstance(d, str) and "batch" in d.lower()), None)
            if at is not None:
                axes[slot.name] = at
    sizes = {feed[name].shape[axis] for name, axis in axes.items()}
    if len(sizes) != 1:
        return f"the inputs have batches of {', '.join(map(str, sorted(sizes)))}"
    return Batch(axes, sizes.pop())


def interacting(ops: Collection[str]) -> str | None:
    """Why rows of a batch are not independent in a graph with these operators; None if they are."""
    found = sorted(TOGETHER & set(ops) - {"BatchNormalization"})
    return f"{found[0]} takes one scale for all rows of a batch" if found else None


def split(array: Array, base: Sequence[int], times: int) -> list[Array]:
    """Split an output of a batch of `times` runs into one array each; `base` is the shape for one run alone."""
    if times == 1:
        return [array]
    axes = [i for i, (a, b) in enumerate(zip(array.shape, base, strict=False)) if a == times * b and a != b]
    if len(base) != array.ndim or len(axes) != 1:
        return [array] * times
    return np.split(array, times, axes[0])


def fitting(cells: int, outputs: int, size: int, tokens: int = TOGETHER_AT) -> int:
    """How many runs fit in one batch.

    Args:
        cells: Cells of one layer's largest matrix, for the whole feed.
        outputs: Bytes of one run's outputs.
        size: Rows of the feed.
        tokens: Number of tokens in all rows of the feed.
    """
    one = 12 * cells + 2 * outputs + 1
    most = max(MOST // max(1, min(size, MOST)), TOGETHER_AT // max(1, tokens))
    return int(max(1, min(most, AT_ONCE // one)))
