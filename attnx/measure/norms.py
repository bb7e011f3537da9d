"""Norms: attention weighted by the norms of the vectors it moves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnx.errors import InputError, UsageError
from attnx.formula import normalise, repeat_heads
from attnx.measure.rows import Rows, read
from attnx.records import Array, Attention, Axis, Measurement, Trace

SOURCE = "Kobayashi et al. 2020, Attention is Not Only a Weight"


@dataclass(frozen=True, slots=True)
class Norms:
    """Value-weighted attention of one site."""

    heads: Measurement
    """[H,Q,K]: ||a_ij f(x_j)|| of every head."""
    shares: Measurement
    """[H,Q,K]: the same, each row as shares."""
    values: Measurement
    """[H,K]: ||f(x_j)||."""
    together: Measurement | None
    """[Q,K]: ||sum over heads of a_ij f(x_j)||; None if not requested, or without W_O (heads only add up after it)."""


def value_norms(
    trace: Trace,
    site: int,
    output: Array | None = None,
    *,
    together: bool = True,
    sizes: Array | None = None,
    gram: Array | None = None,
) -> Norms:
    """Attention weighted by norms: ||a_ij v_j||, and with W_O ||a_ij v_j W_O||.

    Args:
        trace: With weights [B,H,Q,K] and value [B,Hkv,K,Dv] at that site.
        site: Position in `trace.attentions`.
        output: W_O as [H,Dv,E], the slice of the output projection that reads each head. Without it the norm is of the
            value vectors alone, and the Measurement says so.
        together: Whether to add up the heads after W_O; the time for this grows with Q K E.
        gram: `gram_of(output)`, if known: it is the same for all texts.
        sizes: ||v W_O|| as [H,K], if the graph gave that instead of the value; `output` and `together` are ignored.

    Returns:
        See `Norms`; norms of vectors, without a unit.

    Raises:
        UsageError: There is no such site.
        UnsupportedError: Weights or value are missing.
        InputError: W_O does not fit.

    Source: Kobayashi et al. 2020, section 3: f(x) = (x W_V + b_V) W_O.
    """
    if not 0 <= site < len(trace.attentions):
        raise UsageError(f"there is no site {site}", f"Sites run from 0 to {len(trace.attentions) - 1}.")
    attention = trace.attentions[site]
    rows = read(trace, attention)
    heads = rows.weights.shape[0]
    behind = output is not None or sizes is not None
    value = np.zeros(0)
    if sizes is None:
        value = repeat_heads(attention.need("value")[:1], heads)[0].astype(np.float64)
        if output is not None and output.shape[:2] != (heads, value.shape[-1]):
            raise InputError(f"W_O is {output.shape}, but {heads} heads of {value.shape[-1]} values read it")
        sizes = _sizes(value, output, gram)
        if output is not None and together:
            value = np.matmul(value, output.astype(np.float64))
    else:
        output = None  # norms are not enough to add up the heads
    weights = _counted(rows)
    carried = weighted(rows, sizes)
    axes = (Axis("head", rows.heads), Axis("query", rows.query_labels), Axis("key", rows.key_labels))
    vector = "v W_O" if behind else "v"
    notes = ("without W_O: norms of the value vectors, before the output projection",) if not behind else ()

    def measured(name: str, unit: str, axes: tuple[Axis, ...], values: Array, formula: str) -> Measurement:
        upper = 1.0 if unit == "share" else None
        return Measurement(name, unit, axes, values, (0.0, upper), SOURCE, formula, notes)

    added = None
    if output is not None and together:
        summed = np.empty(carried.shape[1:])
        for query in range(len(summed)):
            summed[query] = np.linalg.norm(np.einsum("hk,hke->ke", weights[:, query], value), axis=-1)
        added = measured("norm of the heads' sum", "", axes[1:], summed, "||sum over heads of a v W_O||")
    return Norms(
        heads=measured("weighted norm", "", axes, carried, f"||a {vector}||"),
        shares=measured("weighted norm share", "share", axes, normalise(carried), f"||a {vector}|| / sum over keys"),
        values=measured("value norm", "", (axes[0], axes[2]), sizes, f"||{vector}||"),
        together=added,
    )


def weighted(rows: Rows, sizes: Array) -> Array:
    """||a_ij f(x_j)|| of every head, float64 [H,Q,K], from ||f(x_j)|| [H,K]; NaN in rows that do not count.

    Raises:
        InputError: There are not as many norms as heads and keys.
    """
    heads, _, keys = rows.weights.shape
    if sizes.shape != (heads, keys):
        raise InputError(f"norms are {sizes.shape}, but {heads} heads look at {keys} keys")
    return np.asarray(_counted(rows) * sizes.astype(np.float64)[:, None, :])


def _counted(rows: Rows) -> Array:
    """The weights in float64, NaN in rows that do not count."""
    wide = rows.weights.astype(np.float64)
    return wide if rows.real.all() else np.where(rows.real[..., None], wide, np.nan)


def gram_of(output: Array) -> Array:
    """W W^T of each head's slice of W_O [H,Dv,E], float64 [H,Dv,Dv]."""
    matrices = output.astype(np.float64)
    return np.asarray(np.matmul(matrices, matrices.swapaxes(1, 2)))


def sizes_behind(attention: Attention, gram: Array) -> Array | None:
    """||v W_O|| of every key, from the value and `gram_of(W_O)` alone.

    Returns:
        float64 [H,K]; None where W_O has another shape, or where too much of a vector cancels for squares: then W_O
        itself is needed.
    """
    value = repeat_heads(attention.need("value")[:1], attention.need("weights").shape[1])[0].astype(np.float64)
    if gram.shape != (len(value), value.shape[-1], value.shape[-1]):
        return None
    sizes, unsure = _by_gram(value, gram)
    return None if unsure.any() else sizes


def _by_gram(value: Array, gram: Array) -> tuple[Array, Array]:
    """|v W|^2 = v (W W^T) v^T takes a fraction of v W: |v W| [H,K], and bool [H]: where squares are not accurate."""
    squares = np.einsum("hkd,hkd->hk", np.matmul(value, gram), value)
    whole = np.einsum("hkd,hkd->hk", value, value) * np.einsum("hdd->h", gram)[:, None]
    unsure = ~(squares >= 1e-8 * whole).all(axis=1)  # too much of a vector cancels for what is left
    return np.sqrt(np.maximum(squares, 0.0)), unsure


def _sizes(value: Array, output: Array | None, gram: Array | None) -> Array:
    """|v| of v [H,K,Dv], or |v W_O| with W_O [H,Dv,E], as [H,K]."""
    if output is None:
        return np.asarray(np.linalg.norm(value, axis=-1))
    out, unsure = _by_gram(value, gram_of(output) if gram is None else gram)
    for head in np.flatnonzero(unsure):
        out[head] = np.linalg.norm(value[head] @ output[head].astype(np.float64), axis=-1)
    return out
