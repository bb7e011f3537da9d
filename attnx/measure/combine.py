"""Combine: one matrix of several heads or layers. Only ever on request, and named for what it is."""

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

    The mean of weights has rows that sum to 1 again; the largest has not. A cell that is hidden (-inf) in one part is
    so in their mean.

    Args:
        parts: At least one, all of one shape.
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
    """The mean over the heads of every site, as a trace of one head a site.

    Args:
        trace: With weights [B,H,Q,K].

    Returns:
        Weights [B,1,Q,K]; no other array, for a mean of softmaxes is not the softmax of any mean.

    Raises:
        UnsupportedError: A site has no weights.

    Source: attnx.
    """
    means = []
    for attention in trace.attentions:
        mean = attention.need("weights").mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
        means.append(Attention(attention.site, weights=mean, origin={"weights": "computed"}, checks=attention.checks))
    return replace(trace, attentions=tuple(means))
