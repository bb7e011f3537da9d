"""Distance: how far a head looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnx.measure import distance
from attnx.records import Measurement, Trace

ABOUT = "mean distance, and the weight within two tokens"
ARRAYS = ("masked", "weights")
NEEDS: tuple[str, ...] = ()
MAY: tuple[str, ...] = ()
BATCHED = ("mean distance", "locality")


def survey(trace: Trace, fields: Mapping[str, Any]) -> Sequence[Measurement]:
    """See `measure.distance`."""
    return distance.mean_distance(trace), distance.locality(trace)
