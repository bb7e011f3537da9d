"""How queries, keys, values and contexts are laid out, where no axis could be followed to find out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from attnx.records import Array


@dataclass(frozen=True, slots=True)
class Operand:
    """How the axes of a query, key, value or context are laid out, once heads are split from features."""

    length: int
    """The axis that counts the tokens."""
    batch: int
    heads: int | None
    """The axes that hold texts and heads; None where there is one head and no axis for it."""
    split: bool
    """Heads and features share one axis of the tensor itself."""

    def layout(self, letter: str, heads: int) -> str:
        """The layout as written in `Place.layout`."""
        words = {self.length: letter, self.batch: "b", self.heads: f"h:{heads}"}
        outer = [words[i] for i in range(2 + (self.heads is not None))]
        return " ".join([*outer[:-1], f"({outer[-1]} d)"] if self.split else [*outer, "d"])

    def arranged(self, array: Array, heads: int) -> Array:
        """Rearrange an array of that layout to [B,H,length,D]."""
        view = array.reshape(*array.shape[:-1], heads, -1) if self.split else array
        if self.heads is None:
            return view.transpose(self.batch, self.length, 2)[:, None]
        return view.transpose(self.batch, self.heads, self.length, 3)


def matched(weights: Array, value: Array, made: Array, key: Operand, query: Operand) -> tuple[Operand, Operand] | None:
    """The layouts of value and context for which weights x value = context.

    Args:
        weights: [B,H,Q,K].
        value: As the graph has it.
        made: The context as the graph makes it.
        key: The key's layout, which is tried first for the value.
        query: The query's, likewise for the context.
    """
    heads = weights.shape[1]
    for one in _layouts(value, heads, key):
        asked = one.arranged(value, heads)
        if asked.shape[:3] != (*weights.shape[:2], weights.shape[3]):
            continue
        context = weights @ asked
        for two in _layouts(made, heads, query):
            own = two.arranged(made, heads)
            if own.shape == context.shape and np.array_equal(own, context):
                return one, two
    return None


def _layouts(array: Array, heads: int, first: Operand) -> list[Operand]:
    """The layouts that an array may have."""
    found: list[Operand] = []
    if array.ndim == 4:
        found = [Operand(length, batch, head, False) for length, batch, head in permutations(range(3))]
    elif array.ndim == 3 and heads == 1:
        found = [Operand(length, batch, None, False) for length, batch in permutations(range(2))]
    elif array.ndim == 3 and array.shape[-1] % heads == 0:
        found = [Operand(length, batch, 2, True) for length, batch in permutations(range(2))]
    return sorted(found, key=lambda layout: layout != first)
