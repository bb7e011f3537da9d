"""Entropy: how widely a head spreads its weight."""

from __future__ import annotations

import numpy as np

from attnx.formula import entropy as row_entropy
from attnx.measure.rows import Rows, by_head, read, share_by_head
from attnx.records import Array, Axis, Measurement, Trace

SOURCE = "Clark et al. 2019, What Does BERT Look At?, section 3.3"


def entropy(trace: Trace) -> Measurement:
    """Entropy of every head: H = mean over queries of -sum_j a_ij ln a_ij.

    Rows that a sink keeps below 1 are normalised first. Padding, fully hidden rows and rows with NaN are left out.

    Args:
        trace: With weights [B,H,Q,K] at every site; the first sequence is measured.

    Returns:
        [S,H], nats, from 0 (one key takes all) to ln K (uniform).

    Raises:
        UnsupportedError: A site has no weights.

    Source: Clark et al. 2019, section 3.3 (without their smoothing of 0.0001/n).
    """
    return by_head(
        trace,
        lambda rows: rows.mean(row_entropy(rows.weights)),
        name="entropy",
        unit="nats",
        bounds=(0.0, None),
        formula="mean over queries of -sum a ln a, a row scaled to sum to 1",
        source=SOURCE,
    )


def entropy_share(trace: Trace) -> Measurement:
    """Entropy as a share of the maximum: mean over queries of H_i / ln n_i, n_i keys being visible.

    Rows that see a single key have no choice and are left out.

    Args:
        trace: With weights at every site; masked, if present, distinguishes hidden keys from keys without weight.

    Returns:
        [S,H], share, 0 to 1.

    Raises:
        UnsupportedError: A site has no weights.

    Source: attnx, after Clark et al. 2019, section 3.3.
    """
    return share_by_head(
        trace,
        lambda rows: rows.mean(row_entropy(rows.weights) / _most(rows)),
        name="entropy share",
        formula="mean over queries of H / ln(number of visible keys)",
        source="attnx, after " + SOURCE,
    )


def entropy_rows(trace: Trace, site: int) -> Measurement:
    """Entropy of every query row of one site.

    Args:
        trace: With weights at that site.
        site: Position in `trace.attentions`.

    Returns:
        [H,Q], nats; NaN for padding, fully hidden rows and rows with NaN.

    Source: Clark et al. 2019, section 3.3.
    """
    rows = read(trace, trace.attentions[site])
    return Measurement(
        name="entropy",
        unit="nats",
        axes=(Axis("head", rows.heads), Axis("query", rows.query_labels)),
        values=np.where(rows.real, row_entropy(rows.weights), np.nan),
        bounds=(0.0, None),
        source=SOURCE,
        formula="-sum a ln a, a row scaled to sum to 1",
    )


def _most(rows: Rows) -> Array:
    """The logarithm of n for every row, [H,Q]; NaN where fewer than two keys are visible."""
    seen = rows.visible.sum(axis=-1).astype(np.float64)
    return np.log(np.where(seen >= 2, seen, np.nan))
