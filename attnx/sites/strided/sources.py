"""What rearranged scores are made from, and what their weights are multiplied by: one tensor each, or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from attnx.graph.fact import Fact
from attnx.records import Array

_MOST_CELLS = 1 << 26


@dataclass(frozen=True, slots=True)
class Beside:
    """Tensors used side by side though the graph does not join them: keys of a block, and keys that all queries see."""

    parts: tuple[str, ...]
    axis: int

    def whole(self, shapes: Sequence[tuple[int, ...] | None]) -> tuple[int, ...] | None:
        """The shape of the joined tensor; None where the parts do not fit together."""
        first, axis = shapes[0], self.axis
        if first is None or any(s is None or len(s) != len(first) for s in shapes):
            return None
        rest = {(*s[:axis], *s[axis + 1 :]) for s in shapes if s is not None}
        return (*first[:axis], sum(s[axis] for s in shapes if s), *first[axis + 1 :]) if len(rest) == 1 else None


@dataclass(frozen=True, slots=True)
class Source:
    """What scores are made from."""

    query: str
    key: str
    size: int
    """The number of features that their product sums over."""
    products: tuple[str, ...]
    """The products, whose sizes show the lengths at which such a graph runs."""
    chosen: tuple[str, str] | None = None
    """Where only some tokens have queries: the rows that these are projected from, and what those were taken from."""
    beside: Beside | None = None
    """Where several tensors hold the keys: `key` is then the name for all of them joined."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The tensors that hold keys."""
        return (self.key,) if self.beside is None else self.beside.parts


@dataclass(frozen=True, slots=True)
class Weighed:
    """What the weights are multiplied by."""

    weights: tuple[str, ...]
    """The weights of each softmax."""
    value: str
    contexts: tuple[str, ...]
    """Tensors that may be the sums of values, the likeliest first."""
    beside: Beside | None = None
    """Where several tensors hold the values: `value` is then the name for all of them joined."""

    @property
    def values(self) -> tuple[str, ...]:
        """The tensors that hold values."""
        return (self.value,) if self.beside is None else self.beside.parts


def together(facts: Mapping[str, Fact], parts: Sequence[str], beside: Beside | None) -> tuple[int, ...] | None:
    """The shape of one tensor, or of several joined."""
    shapes = [known_shape(facts.get(part)) for part in parts]
    whole = shapes[0] if beside is None else beside.whole(shapes)
    return whole if whole is not None and prod(whole) <= _MOST_CELLS else None


def cut(
    facts: Mapping[str, Fact], parts: Sequence[str], beside: Beside | None, whole: Array, names: Sequence[str] = ()
) -> dict[str, Array]:
    """A joined array cut into its parts, by their names or by others."""
    if beside is None:
        return {(names or parts)[0]: whole}
    ends = np.cumsum([(facts[part].shape or ())[beside.axis] or 0 for part in parts])[:-1]
    return dict(zip(names or parts, np.split(whole, ends, axis=beside.axis), strict=True))


def known_shape(fact: Fact | None) -> tuple[int, ...] | None:
    """A shape that is fully known and has no more cells than are worth carrying."""
    if fact is None or not fact.shape or None in fact.shape:
        return None
    whole = tuple(int(d) for d in fact.shape if d is not None)
    return whole if 0 < prod(whole) <= _MOST_CELLS else None
