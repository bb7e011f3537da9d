"""Contrast: which heads change with the meaning between the two texts of a minimal pair ("tired" / "wide")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnx.errors import UsageError
from attnx.measure.choice import shares, tops
from attnx.records import Measurement
from attnx.wording import Wording


@dataclass(frozen=True, slots=True)
class Contrast:
    """How the heads change between the two texts of a minimal pair."""

    change: Measurement
    """[S,H]: half the sum of the absolute changes of the candidates' shares, 0 to 1."""
    moved: tuple[tuple[int, int], ...]
    """(layer position, head) whose first candidate differs, largest change first."""
    fixed: tuple[tuple[int, int], ...]
    """(layer position, head) that name the same candidate both times."""
    right: tuple[tuple[int, int], ...]
    """Those that are right both times; empty if no answers were given."""


def contrast(one: Measurement, two: Measurement, answers: tuple[int, int] | None = None) -> Contrast:
    """Which heads change with the meaning: the same pronoun and candidates in two texts.

    Args:
        one: Coreference weights of the first text, [S,H,C].
        two: Weights of the second text, with as many candidates in the same order.
        answers: The right candidate in each text, if known.

    Returns:
        See `Contrast`.

    Raises:
        UsageError: The layers, heads or numbers of candidates differ.

    Source: attnx; minimal pairs after Levesque et al. 2012, "The Winograd Schema Challenge".
    """
    if one.axes[:2] != two.axes[:2] or one.values.shape != two.values.shape:
        raise UsageError(
            f"the texts cannot be compared: {one.values.shape} and {two.values.shape} layers, heads and candidates",
            Wording("Name the same candidates in both texts[ with <to>]."),
        )
    gap = np.abs(shares(two.values) - shares(one.values))
    nothing = np.isnan(gap).all(axis=-1)
    change = np.where(nothing, np.nan, np.where(np.isnan(gap), 0.0, gap).sum(axis=-1) / 2)
    first, second = tops(one.values), tops(two.values)
    order = np.argsort(-np.where(nothing, -1.0, change), axis=None, kind="stable")
    places = [(int(s), int(h)) for s, h in (np.unravel_index(int(at), change.shape) for at in order)]
    named = [at for at in places if first[at] >= 0 and second[at] >= 0]
    return Contrast(
        change=Measurement(
            name="change of shares",
            unit="share",
            axes=one.axes[:2],
            values=change,
            bounds=(0.0, 1.0),
            source="attnx",
            formula="sum over candidates of |share in two - share in one| / 2",
        ),
        moved=tuple(at for at in named if first[at] != second[at]),
        fixed=tuple(at for at in named if first[at] == second[at]),
        right=tuple(at for at in named if answers is not None and (first[at], second[at]) == answers),
    )
