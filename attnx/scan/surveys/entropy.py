"""Entropy: how widely a head spreads its weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnx.measure import entropy
from attnx.records import Measurement, Trace

ABOUT = "entropy, and its share of the most possible"
ARRAYS = ("masked", "weights")
NEEDS: tuple[str, ...] = ()
MAY: tuple[str, ...] = ()
BATCHED = ("entropy", "entropy share")


def survey(trace: Trace, fields: Mapping[str, Any]) -> Sequence[Measurement]:
    """See `measure.entropy`."""
    return entropy.entropy(trace), entropy.entropy_share(trace)
