"""A clean and a corrupt text: check that they have the same number of tokens, and find where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnx.errors import UsageError
from attnx.interventions.feeds import Planned
from attnx.records import Tokens

AROUND, MOST = 1, 12
"""How many tokens are named before the difference; how many at most."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One position at which the two texts have different tokens."""

    position: int
    clean: str
    corrupt: str
    side: str = "decoder"
    """"encoder" for the tokens that a decoder's cross-attention reads."""


def differences(clean: Planned, corrupt: Planned) -> tuple[Difference, ...]:
    """Where two texts differ.

    Raises:
        UsageError: They have different numbers of tokens; both tokenisations are named.
    """
    found: list[Difference] = []
    sides = [("decoder", clean.tokens, corrupt.tokens)]
    if clean.trace.memory is not None and corrupt.trace.memory is not None:
        sides.insert(0, ("encoder", clean.trace.memory, corrupt.trace.memory))
    for side, one, two in sides:
        if len(one) != len(two):
            raise UsageError(
                f"the clean text has {len(one)} tokens and the corrupt one {len(two)}: {_apart(one, two)}",
                "Choose words that take the same number of tokens: activations are patched position by position.",
            )
        for at, (own, other) in enumerate(zip(one.ids, two.ids, strict=True)):
            if own != other:
                found.append(Difference(at, one.pieces[at].strip(), two.pieces[at].strip(), side))
    return tuple(found)


def differing_inputs(clean: Planned, corrupt: Planned) -> tuple[str, ...]:
    """Names of the graph's inputs that differ between the two runs: what differs if no token does."""
    return tuple(name for name, array in clean.feed.items() if not np.array_equal(array, corrupt.feed.get(name, ())))


def _apart(one: Tokens, two: Tokens) -> str:
    """The two tokenisations, from the first to the last difference."""
    first = next((at for at, (a, b) in enumerate(zip(one.ids, two.ids, strict=False)) if a != b), None)
    begin = min(len(one), len(two)) if first is None else first
    most = min(len(one), len(two)) - begin
    end = next((n for n in range(most) if one.ids[len(one) - 1 - n] != two.ids[len(two) - 1 - n]), most)
    start = max(0, begin - AROUND)
    named = [_named(tokens.pieces[start : min(len(tokens), len(tokens) - end + AROUND)]) for tokens in (one, two)]
    return f"from position {start} on, '{named[0]}' against '{named[1]}'"


def _named(pieces: Sequence[str]) -> str:
    shown = [piece.strip() or piece for piece in pieces]
    return " | ".join(shown if len(shown) <= MOST else [*shown[:MOST], "..."])


__all__ = ["Difference", "differences", "differing_inputs"]
