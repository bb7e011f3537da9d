"""Sinks: the weight on the first token, and on the token that gathers most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnx.measure import sinks
from attnx.records import Measurement, Trace

ABOUT = "importance of the first token, and the share and position of the key that gathers most"
ARRAYS = ("masked", "weights")
NEEDS: tuple[str, ...] = ()
MAY: tuple[str, ...] = ()
BATCHED = ("sink", "strongest key", "strongest key position")


def survey(trace: Trace, fields: Mapping[str, Any]) -> Sequence[Measurement]:
    """See `measure.sinks`."""
    found = sinks.sinks(trace)
    return found.first, found.strongest, found.token
