"""Sharpness: the largest weight of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnx.measure import confidence
from attnx.records import Measurement, Trace

ABOUT = "largest weight, and the same without special tokens (confidence)"
ARRAYS = ("masked", "weights")
NEEDS: tuple[str, ...] = ()
MAY: tuple[str, ...] = ()
BATCHED = ("confidence", "largest weight")


def survey(trace: Trace, fields: Mapping[str, Any]) -> Sequence[Measurement]:
    """See `measure.confidence`."""
    return confidence.confidence(trace), confidence.largest(trace)
