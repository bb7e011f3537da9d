"""One file a measurement: records in, Measurements out. numpy only; measures do not import one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable
    from attnx.records import Trace


REPEATS = 8
"""With fewer repeated tokens a text gives no induction score. Source: attnx."""


def describe_heads(trace: Trace) -> HeadTable:
    """Every measure of every head of a trace, and a named kind for each head.

    Args:
        trace: With weights [B,H,Q,K] at every site; masked tells hidden keys from keys of no weight.

    Returns:
        One [S,H] measure each: entropy, entropy share, mean distance, locality, confidence, largest weight, previous,
        next, self, first, special, punctuation, sink, duplicate, induction.

    Raises:
        UnsupportedError: A site has no weights.
    """
    from attnx.measure import confidence, distance, duplicate, entropy, heads, induction, offsets, sinks, special

    return heads.table(
        (
            entropy.entropy(trace),
            entropy.entropy_share(trace),
            distance.mean_distance(trace),
            distance.locality(trace),
            confidence.confidence(trace),
            confidence.largest(trace),
            offsets.offset(trace, -1),
            offsets.offset(trace, 1),
            offsets.offset(trace, 0),
            offsets.first(trace),
            special.special(trace),
            special.punctuation(trace),
            sinks.sink(trace),
            duplicate.duplicate(trace),
            induction.induction(trace, REPEATS),
        )
    )
