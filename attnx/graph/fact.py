"""What is known of a value without running the model: its shape, its type, and its numbers if there are few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from attnx.records import Array

Shape = tuple[int | None, ...]
"""Sizes; None for an unknown one."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of a value."""

    shape: Shape | None = None
    """None where even the rank is unknown."""
    dtype: int | None = None
    """ONNX's TensorProto data type."""
    value: Array | None = None


UNKNOWN = Fact()
_KEPT = 16 << 20
"""The most bytes of numbers that are kept to be compared with others."""


def fact_of(value: Array) -> Fact:
    """Everything about an array."""
    return Fact(value.shape, type_of(value.dtype), value)


@cache
def type_of(dtype: np.dtype[Any]) -> int | None:
    """ONNX's number for a type of numpy; None where it has none."""
    from onnx.helper import np_dtype_to_tensor_dtype

    try:
        return int(np_dtype_to_tensor_dtype(dtype))
    except (KeyError, ValueError, TypeError):
        return None


class Inferred:
    """Facts worked out for nodes, kept for nodes that are alike: of one kind, with inputs of which the same is known.

    Equal facts are made one object, so that what is known of an input is compared by its identity.
    """

    def __init__(self) -> None:
        self._facts: dict[tuple[object, ...], Fact] = {}
        self._made: dict[tuple[object, ...], tuple[Sequence[Fact], Sequence[Fact]]] = {}
        self._room = _KEPT

    def one(self, fact: Fact) -> Fact:
        """The one object for facts that are equal to this one."""
        value = fact.value
        if value is None:
            return self._facts.setdefault((fact.shape, fact.dtype), fact)
        if value.dtype.hasobject or not self._room:
            return fact
        key = (value.shape, fact.shape, fact.dtype, value.dtype, value.tobytes())
        found = self._facts.get(key)
        if found is None and value.nbytes > self._room:
            self._room = 0  # from here on, nothing is remembered
        elif found is None:
            self._facts[key] = found = fact
            self._room -= value.nbytes
        return fact if found is None else found

    def made(
        self, how: tuple[object, ...], inputs: Sequence[Fact], make: Callable[[], Sequence[Fact]]
    ) -> Sequence[Fact]:
        """What is made of inputs: remembered, or worked out.

        Args:
            how: Says, together with the inputs, all that the result depends on.
            inputs: What is known of the inputs.
            make: Works out the result.
        """
        if not self._room:
            return make()
        key = (*how, *map(id, inputs))
        found = self._made.get(key)
        if found is None:
            # The inputs are held, so that no other fact can have their identity.
            found = self._made[key] = inputs, [self.one(fact) for fact in make()]
        return found[1]


def ints(fact: Fact | None) -> list[int] | None:
    """The whole numbers that a fact holds, flattened; None where unknown."""
    return None if fact is None or fact.value is None else [int(v) for v in np.asarray(fact.value).ravel()]
