"""Choosing among candidates by their weights: shares, the first one, the margin, and a verdict with all three."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnx.records import Array


@dataclass(frozen=True, slots=True)
class Verdict:
    """The antecedent according to one way of reading the attention."""

    method: str
    """ "best head", "layer mean", "mean of all heads", "rollout", "uniform", "nearest", "first", ..."""
    where: str
    """Which head or layer; "" for the whole model."""
    candidate: int | None
    """Index of the candidate; None if there is a tie for first or no candidate gets any weight."""
    shares: tuple[float, ...]
    """Each candidate's share among the candidates; NaN for one that cannot be seen."""
    lead: float
    """First share minus second share; NaN where there is no weight. (The same of weights is their margin.)"""


def shares(weights: Array) -> Array:
    """Weights [...,C] as shares of their sum; NaN where no candidate gets weight."""
    total = np.where(np.isnan(weights), 0.0, weights).sum(axis=-1, keepdims=True)
    return np.asarray(weights / np.where(total > 0, total, np.nan))


def _sorted(weights: Array) -> Array:
    """Candidates from small to large with a 0 in front (so that one candidate has a second), NaN as 0."""
    filled = np.where(np.isnan(weights), 0.0, weights)
    return np.sort(np.concatenate([np.zeros((*filled.shape[:-1], 1)), filled], axis=-1), axis=-1)


def margin(weights: Array) -> Array:
    """Largest minus second largest over the last axis; the largest itself with one candidate; NaN if all are NaN."""
    ordered = _sorted(weights)
    return np.where(np.isnan(weights).all(axis=-1), np.nan, ordered[..., -1] - ordered[..., -2])


def tops(weights: Array) -> Array:
    """Index of the first candidate; -1 if there is a tie for first or none has weight."""
    top = np.argmax(np.where(np.isnan(weights), -1.0, weights), axis=-1)
    return np.where(margin(weights) > 0, top, -1)


def verdict(method: str, where: str, weights: Array) -> Verdict:
    """The verdict from candidates' weights [C]."""
    top, parts = int(tops(weights)), shares(weights)
    return Verdict(method, where, top if top >= 0 else None, tuple(parts.tolist()), float(margin(parts)))
