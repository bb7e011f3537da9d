"""Word alignment: links between the words of a sentence and of its translation, derived from attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from attnx.records import Array

How = Literal["intersection", "union", "grow-diag"]
HOWS: tuple[How, ...] = ("intersection", "union", "grow-diag")
"""Ways to combine the alignments of two directions."""
Link = tuple[int, int]
"""A word of the source and a word of the target, both from 0."""
_AROUND = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def strongest(weights: Array) -> Array:
    """Link each target word to the source word on which it has the most weight.

    Args:
        weights: [...,T,S], the weight of each target word on each source word; NaN counts as no weight.

    Returns:
        bool [...,T,S], at most one link per row: the first in a tie, none if there is no weight at all.
    """
    filled = np.nan_to_num(np.asarray(weights, np.float64), nan=0.0)
    if not filled.shape[-1]:
        return np.zeros(filled.shape, bool)
    at = filled.argmax(axis=-1)
    there = np.take_along_axis(filled, at[..., None], axis=-1) > 0
    return np.asarray((np.arange(filled.shape[-1]) == at[..., None]) & there)


def agreement(weights: Array) -> Array:
    """How well a matrix agrees with itself in the other direction: 2 |A and B| / (|A| + |B|), 1 at best.

    A links each target word to its strongest source word, B each source word to its strongest target word. It needs no
    gold links, so it can choose a layer. Chen et al. choose by the agreement of two models, one per direction; here
    both directions come from one matrix.

    Args:
        weights: [...,T,S].

    Returns:
        float64 [...]; 0 where there is no link.

    Source: after Chen et al. 2020, Accurate Word Alignment Induction from Neural Machine Translation, section 3.2.
    """
    there = strongest(weights)
    back = np.swapaxes(strongest(np.swapaxes(weights, -1, -2)), -1, -2)
    total = there.sum(axis=(-1, -2)) + back.sum(axis=(-1, -2))
    return np.asarray(2.0 * (there & back).sum(axis=(-1, -2)) / np.maximum(total, 1))


def symmetrise(forward: Array, backward: Array, how: How) -> Array:
    """Combine two alignments, one from each direction.

    Args:
        forward: bool [T,S].
        backward: bool [T,S], from a model of the other direction, transposed.
        how: Links that both have; that either has; or "grow-diag": those of both, then those of either that touch
            one of these, diagonally too, and have a word that is not linked yet.

    Returns:
        bool [T,S].

    Source: Koehn et al. 2003, Statistical Phrase-Based Translation, section 4; grow-diag: Koehn et al. 2005, figure 1.
    """
    if how == "union":
        return np.asarray(forward | backward)
    made, either = np.array(forward & backward), forward | backward
    if how == "intersection":
        return made
    targets, sources = made.shape
    added = True
    while added:
        added = False
        for t in range(targets):
            for s in range(sources):
                if not made[t, s]:
                    continue
                for down, across in _AROUND:
                    i, j = t + down, s + across
                    inside = 0 <= i < targets and 0 <= j < sources
                    if inside and either[i, j] and not made[i, j] and not (made[i].any() and made[:, j].any()):
                        made[i, j] = added = True
    return made


def listed(links: Array) -> tuple[Link, ...]:
    """Links of a bool matrix [T,S] as pairs of source and target word, in the order of the source."""
    return tuple((int(s), int(t)) for s, t in np.argwhere(np.asarray(links).T))


def pharaoh(links: Iterable[Link]) -> str:
    """Links as "0-0 1-2": source word and target word, counted from 0 (the format of Pharaoh, Moses, fast_align)."""
    return " ".join(f"{s}-{t}" for s, t in links)


__all__ = ["HOWS", "How", "Link", "agreement", "listed", "pharaoh", "strongest", "symmetrise"]
