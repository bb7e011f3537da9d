"""Every measure of every head, as `attnx heads` shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnx.measure import describe_heads
from attnx.records import Measurement, Trace

ABOUT = "all of entropy, distance, place, tokens, sharpness and repeats, and the sink on the first token"
ARRAYS = ("masked", "weights")
NEEDS: tuple[str, ...] = ()
MAY: tuple[str, ...] = ()
BATCHED = (
    "entropy", "entropy share", "mean distance", "locality", "confidence", "largest weight", "previous", "next", "self",
    "first", "special", "punctuation", "sink", "duplicate", "induction",
)  # fmt: skip


def survey(trace: Trace, fields: Mapping[str, Any]) -> Sequence[Measurement]:
    """See `measure.describe_heads`."""
    return describe_heads(trace).measures
