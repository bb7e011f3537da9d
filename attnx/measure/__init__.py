"""One file per measurement: records in, Measurements out. numpy only; measures do not import one another.

    import attnx
    from attnx import measure

    trace = attnx.open().trace("The animal didn't cross the street because it was too tired.")
    measure.describe_heads(trace)                     every measure of every head, and each head's kind
    measure.scaling.all_heads(trace)                  the softmax with and without scaling
    measure.coreference.coreference(trace, it, them)  the antecedent; mentions.find_pronouns(trace.tokens) finds "it"
    measure.pair.pair(trace, 5, 11, 10, 2)            one query-key pair, step by step
    measure.visibility.visibility(trace, 5)           which keys each query can see
    measure.rollout.rollout(trace)                    attention through the layers; flow.flow, norms.value_norms
    measure.similarity.similar(trace, 5, 11)          heads that look at the same tokens
    measure.difference.difference(trace, other)       two runs, head by head
    measure.vectors.contexts(...)                     a word's vectors in two texts, from `attnx.run.states.states`
    measure.cost.cost(model.sites, [64, 1024])        what attention costs

Each of these modules loads on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable
    from attnx.records import Trace


REPEATS = 8
"""With fewer repeated tokens, a text has no induction score. Source: attnx."""
WANTS = {"induction": f"{REPEATS} tokens or more that repeat", "duplicate": "a token that repeats"}
"""What a text needs for a measure to have a value; measures not listed here need nothing special."""


def describe_heads(trace: Trace, *, rest: bool = True) -> HeadTable:
    """Every measure of every head of a trace, and a named kind for each head.

    Args:
        trace: With weights [B,H,Q,K] at every site; masked distinguishes hidden keys from keys without weight.
        rest: Also measure what each head does with the weight that is not on the first token.

    Returns:
        One [S,H] measure each: entropy, entropy share, mean distance, locality, confidence, largest weight, previous,
        next, self, first, special, punctuation, sink, duplicate, induction.

    Raises:
        UnsupportedError: A site has no weights.
    """
    from attnx.measure import (
        confidence,
        distance,
        duplicate,
        entropy,
        heads,
        induction,
        offsets,
        remainder,
        sinks,
        special,
    )

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
        ),
        remainder.remainder(trace, special.is_punctuation, REPEATS) if rest else (),
    )


def __getattr__(name: str) -> Any:
    """The module of a measurement, loaded on first use."""
    if not name.startswith("_"):
        try:
            return import_module(f"attnx.measure.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"attnx.measure.{name}":
                raise
    raise AttributeError(f"module 'attnx.measure' has no attribute {name!r}")
