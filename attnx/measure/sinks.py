"""Sinks: tokens on which heads park weight that they have no use for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnx.formula import average
from attnx.measure.rows import SINK, Rows, head_axes, read, share_by_head, stack
from attnx.records import Array, Axis, Measurement, Trace

SOURCE = "Gu et al. 2025, When Attention Sink Emerges in Language Models, section 3"


@dataclass(frozen=True, slots=True)
class Sinks:
    """Where the weight of every head gathers."""

    first: Measurement
    """[S,H]: importance of the first token."""
    strongest: Measurement
    """[S,H]: largest share of a head's whole weight that one key takes."""
    token: Measurement
    """[S,H]: position of that key."""
    labels: tuple[tuple[str, ...], ...]
    """[S][K]: the keys of every site, to name those positions."""
    rate: Measurement
    """[S+1]: share of heads whose first token's importance is above epsilon, by layer and over all."""
    epsilon: float
    """The threshold used."""


def sink(trace: Trace) -> Measurement:
    """Importance of the first token of every head: alpha_1 = mean over queries that see it of a_{i,1}.

    Gu et al. define alpha_k = 1/(T-k+1) sum_{i>=k} a_ik for a causal model: the mean over the queries that see key k.
    A bidirectional model is measured likewise, over all its queries. The first token is the first that is not padding.

    Args:
        trace: With weights [B,H,Q,K].

    Returns:
        [S,H], share, 0 to 1.

    Raises:
        UnsupportedError: A site has no weights.

    Source: Gu et al. 2025, section 3.
    """

    def compute(rows: Rows) -> Array:
        real = rows.key_flags(rows.keys.mask)
        return rows.importance()[:, int(np.argmax(real)) if real.any() else 0]

    return share_by_head(
        trace,
        compute,
        name="sink",
        formula="mean over the queries that see the first token of their weight on it",
        source=SOURCE,
    )


def sinks(trace: Trace, epsilon: float = SINK) -> Sinks:
    """Sinks of every head: importance of the first token, the token that takes the most weight, and the sink rate.

    "Takes the most" is by share of the head's whole weight, sum_i a_ik / sum a, so that a late token of a causal model,
    which few queries see, cannot win because of those few.

    Args:
        trace: With weights [B,H,Q,K].
        epsilon: Threshold of the sink rate.

    Returns:
        See `Sinks`; shares, positions and rates.

    Raises:
        UnsupportedError: A site has no weights.

    Source: Gu et al. 2025, section 3 (importance, sink rate with epsilon 0.3); the strongest token: attnx.
    """
    strongest, token, labels = [], [], []
    for attention in trace.attentions:
        rows = read(trace, attention)
        weights = np.where(rows.real[..., None], rows.weights, 0.0).astype(np.float64)
        total = weights.sum(axis=(1, 2))
        share = weights.sum(axis=1) / np.where(total > 0, total, np.nan)[:, None]
        strongest.append(np.max(np.where(np.isnan(share), -np.inf, share), axis=1, initial=-np.inf))
        strongest[-1][~(total > 0)] = np.nan
        token.append(np.where(total > 0, np.argmax(share, axis=1) if share.shape[1] else 0, np.nan))
        labels.append(rows.key_labels)
    first = sink(trace)
    axes = head_axes(trace, [len(row) for row in strongest])
    past = np.where(np.isnan(first.values), np.nan, (first.values > epsilon).astype(np.float64))
    rates = np.append(average(past, axis=1), average(past))
    return Sinks(
        first=first,
        strongest=Measurement(
            name="strongest key",
            unit="share",
            axes=axes,
            values=stack(strongest),
            bounds=(0.0, 1.0),
            source="attnx",
            formula="max over keys of sum_i a_ik / sum a",
        ),
        token=Measurement(
            name="strongest key position",
            unit="position",
            axes=axes,
            values=stack(token),
            bounds=(0.0, None),
            source="attnx",
            formula="the key with the largest sum_i a_ik",
        ),
        labels=tuple(labels),
        rate=Measurement(
            name="sink rate",
            unit="share of heads",
            axes=(Axis("layer", (*trace.labels, "all")),),
            values=rates,
            bounds=(0.0, 1.0),
            source=SOURCE,
            formula=f"share of heads whose first token has importance > {epsilon:g}",
        ),
        epsilon=epsilon,
    )
