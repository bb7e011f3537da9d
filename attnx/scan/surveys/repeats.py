"""Repeats: the weight on earlier copies of a token, and on what followed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnx.measure import REPEATS, duplicate, induction
from attnx.records import Measurement, Trace

ABOUT = "weight on earlier copies of a token (duplicate), and on what followed them (induction)"
ARRAYS = ("masked", "weights")
NEEDS: tuple[str, ...] = ()
MAY: tuple[str, ...] = ()
BATCHED = ("duplicate", "induction")


def survey(trace: Trace, fields: Mapping[str, Any]) -> Sequence[Measurement]:
    """See `measure.duplicate` and `measure.induction`."""
    return duplicate.duplicate(trace), induction.induction(trace, REPEATS)
