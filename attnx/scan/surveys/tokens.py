"""Tokens: the weight on special tokens and on punctuation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnx.measure import special
from attnx.records import Measurement, Trace

ABOUT = "weight on special tokens and on punctuation"
ARRAYS = ("masked", "weights")
NEEDS: tuple[str, ...] = ()
MAY: tuple[str, ...] = ()
BATCHED = ("special", "punctuation")


def survey(trace: Trace, fields: Mapping[str, Any]) -> Sequence[Measurement]:
    """See `measure.special`."""
    return special.special(trace), special.punctuation(trace)
