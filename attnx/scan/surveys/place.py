"""Place: the weight on the previous, the next, the own and the first token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnx.measure import offsets
from attnx.records import Measurement, Trace

ABOUT = "weight on the previous, the next, the own and the first token"
ARRAYS = ("masked", "weights")
NEEDS: tuple[str, ...] = ()
MAY: tuple[str, ...] = ()
BATCHED = ("previous", "next", "self", "first")


def survey(trace: Trace, fields: Mapping[str, Any]) -> Sequence[Measurement]:
    """See `measure.offsets`."""
    return *(offsets.offset(trace, delta) for delta in (-1, 1, 0)), offsets.first(trace)
