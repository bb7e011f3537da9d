"""Rows of a softmax as the terms of its sum, and what is measured of them without making the weights first."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from attnx.formula import powers
from attnx.records import Array

_FAR = -1e300
"""Stands in for minus infinity, so that 0 times it is 0."""


class SoftmaxRows:
    """Rows of a softmax, float64 [H,Q,K]; what is measured of each is [H,Q].

    Args:
        logits: Its input, -inf where a key is hidden; overwritten.
        sink: The sink's logit, [H,1,1]; None without a sink.
    """

    def __init__(self, logits: Array, sink: Array | None = None) -> None:
        self._sunk: Array | None = None
        """The sink's logit less the row's largest, [H,Q]."""
        if sink is not None:
            top = np.max(logits, axis=-1, keepdims=True, initial=-np.inf)
            self._sunk = np.maximum(sink - np.maximum(top, sink), _FAR)[..., 0]
        with np.errstate(invalid="ignore", over="ignore"):
            self._terms, total = powers(logits, sink, np.empty_like(logits))
        self._total = total[..., 0]
        self._sum = self._total if sink is None else self._terms.sum(axis=-1)
        self._moved = np.maximum(logits, _FAR, out=logits)
        """The logits less the row's largest."""

    @cached_property
    def _mean(self) -> Array:
        """The sum of the terms times their logits."""
        return np.asarray(np.einsum("hqk,hqk->hq", self._terms, self._moved))

    def entropy(self) -> Array:
        """As `formula.entropy` of the weights: nats, of rows scaled to sum to 1; NaN for a row without weight."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.maximum(np.log(self._sum) - self._mean / self._sum, 0.0))

    def largest(self) -> Array:
        """The largest weight."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self._terms.max(axis=-1, initial=0.0) / self._total)

    def gradient(self) -> Array:
        """As `formula.gradient_size` of the weights: the sum of a (1 - a)."""
        with np.errstate(invalid="ignore"):
            squares = np.einsum("hqk,hqk->hq", self._terms, self._terms) / self._total
            return np.asarray((self._sum - squares) / self._total)

    def divergence(self, other: SoftmaxRows) -> Array:
        """KL(self || other): the sum of a ln(a / b), the sink's share among them; nats, at least 0."""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            apart = self._mean - np.einsum("hqk,hqk->hq", self._terms, other._moved)
            if self._sunk is not None and other._sunk is not None:
                apart += np.exp(self._sunk) * (self._sunk - other._sunk)
            totals = np.log(self._total) - np.log(other._total)
            return np.asarray(np.maximum(apart / self._total - totals, 0.0))

    def distance(self, other: SoftmaxRows) -> Array:
        """Half the sum of |a - b|."""
        with np.errstate(invalid="ignore"):
            gap = self._terms / self._total[..., None]
            gap -= other._terms / other._total[..., None]
        return np.asarray(np.abs(gap, out=gap).sum(axis=-1) / 2)
