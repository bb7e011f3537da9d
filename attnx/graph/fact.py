"""What is known of a value without running the model: its shape, its type, and its numbers if there are few."""

from __future__ import annotations

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


def ints(fact: Fact | None) -> list[int] | None:
    """The whole numbers that a fact holds, flattened; None where unknown."""
    return None if fact is None or fact.value is None else [int(v) for v in np.asarray(fact.value).ravel()]
