"""Similarity: which heads look at the same things."""

from __future__ import annotations

import numpy as np

from attnx.errors import UsageError
from attnx.formula import average, jensen_shannon
from attnx.measure.rows import Rows, head_axes, read, stack
from attnx.records import Array, Axis, Measurement, Trace

SOURCE = "Clark et al. 2019, section 6"
FORMULA = "mean over queries of the Jensen-Shannon divergence of two rows"


def similar(trace: Trace, site: int, head: int) -> Measurement:
    """Distance of every head to one head: mean over queries of JS(a^head_i || a^other_i).

    Args:
        trace: With weights [B,H,Q,K].
        site: Position in `trace.attentions` of the head to compare with.
        head: Its number.

    Returns:
        [S,H], nats, 0 (the same) to ln 2; NaN if a site's rows are over other tokens.

    Raises:
        UsageError: There is no such head.
        UnsupportedError: A site has no weights.

    Source: Clark et al. 2019, section 6 (they sum over tokens; this is the mean, so that texts are comparable).
    """
    if not 0 <= site < len(trace.attentions):
        raise UsageError(f"there is no site {site}", f"Sites run from 0 to {len(trace.attentions) - 1}.")
    one = read(trace, trace.attentions[site])
    if not 0 <= head < len(one.weights):
        raise UsageError(f"{trace.labels[site]} has no head {head}", f"Its heads run from 0 to {len(one.weights) - 1}.")
    columns: list[Array] = []
    for attention in trace.attentions:
        rows = read(trace, attention)
        columns.append(_to(one, head, rows) if _alike(one, rows) else np.full(len(rows.weights), np.nan))
    return Measurement(
        name="head distance",
        unit="nats",
        axes=head_axes(trace, [len(column) for column in columns]),
        values=stack(columns),
        bounds=(0.0, float(np.log(2))),
        source=SOURCE,
        formula=FORMULA,
        notes=(f"distance to {trace.labels[site]} H{head}",),
    )


def distances(trace: Trace) -> Measurement:
    """Distance of every head to every other: [N,N] over all heads of all sites, N the number of heads.

    Args:
        trace: With weights [B,H,Q,K]. Time grows with N^2 Q K.

    Returns:
        [N,N], nats, 0 on the diagonal, symmetric; NaN between sites over different tokens.

    Raises:
        UnsupportedError: A site has no weights.

    Source: Clark et al. 2019, section 6.
    """
    sites = [read(trace, attention) for attention in trace.attentions]
    labels = tuple(f"{trace.labels[s]} H{h}" for s, rows in enumerate(sites) for h in range(len(rows.weights)))
    where = np.cumsum([0, *(len(rows.weights) for rows in sites)])
    values = np.full((len(labels), len(labels)), np.nan)
    for s, one in enumerate(sites):
        for h in range(len(one.weights)):
            for t in range(s, len(sites)):
                if _alike(one, sites[t]):
                    line = _to(one, h, sites[t])
                    values[where[s] + h, where[t] : where[t + 1]] = line
                    values[where[t] : where[t + 1], where[s] + h] = line
    return Measurement(
        name="head distance",
        unit="nats",
        axes=(Axis("head", labels), Axis("other head", labels)),
        values=values,
        bounds=(0.0, float(np.log(2))),
        source=SOURCE,
        formula=FORMULA,
    )


def _alike(one: Rows, two: Rows) -> bool:
    """Whether rows of two sites are over the same tokens."""
    return one.weights.shape[1:] == two.weights.shape[1:] and one.keys is two.keys and one.queries is two.queries


def _to(one: Rows, head: int, others: Rows) -> Array:
    """Mean JS of one head with each head of a site, over rows that are real in both: [H]."""
    both = one.real[head] & others.real
    return average(jensen_shannon(one.weights[head], others.weights), axis=1, where=both)
