"""What is known of a value without running the model: its shape, its type, and its numbers if there are few."""

from __future__ import annotations

from dataclasses import dataclass

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


def fact_of(value: Array) -> Fact:
    """Everything about an array."""
    from onnx.helper import np_dtype_to_tensor_dtype

    try:
        dtype: int | None = int(np_dtype_to_tensor_dtype(value.dtype))
    except (KeyError, ValueError, TypeError):
        dtype = None
    return Fact(tuple(value.shape), dtype, value)


def ints(fact: Fact | None) -> list[int] | None:
    """The whole numbers that a fact holds, flattened; None where unknown."""
    return None if fact is None or fact.value is None else [int(v) for v in np.asarray(fact.value).ravel()]
