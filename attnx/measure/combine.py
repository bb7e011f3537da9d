"""Combine several heads or layers into one matrix: only on request, and labelled as such."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from attnx.errors import UsageError
from attnx.records import Array, Attention, Trace
from attnx.wording import Wording

How = Literal["mean", "max"]


def combine(parts: Sequence[Array], how: How) -> Array:
    """Mean or largest value, cell by cell.

    Rows of a mean of weights still sum to 1; rows of the largest do not. A cell that is hidden (-inf) in one part is
    hidden in their mean.

    Args:
        parts: At least one, all of the same shape.
        how: "mean" or "max".

    Returns:
        float32 of that shape.

    Raises:
        UsageError: The shapes differ.

    Source: attnx.
    """
    shapes = sorted({part.shape for part in parts})
    if len(shapes) != 1:
        found = " and ".join("x".join(map(str, shape)) for shape in shapes)
        raise UsageError(
            f"matrices of {found} cannot be put together",
            Wording("Choose layers that look at the same tokens[ (<layers>)]."),
        )
    stacked = np.stack([np.asarray(part, np.float64) for part in parts])
    return np.asarray(stacked.mean(axis=0) if how == "mean" else stacked.max(axis=0), np.float32)


def over_heads(trace: Trace) -> Trace:
    """The mean over the heads of every site, as a trace with one head per site.

    Args:
        trace: With weights [B,H,Q,K].

    Returns:
        Weights [B,1,Q,K] and no other array, because a mean of softmaxes is not the softmax of a mean.

    Raises:
        UnsupportedError: A site has no weights.

    Source: attnx.
    """
    means = []
    for attention in trace.attentions:
        mean = attention.need("weights").mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
        means.append(Attention(attention.site, weights=mean, origin={"weights": "computed"}, checks=attention.checks))
    return replace(trace, attentions=tuple(means))
