"""Norms: attention weighted by the size of what it carries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnx.errors import InputError, UsageError
from attnx.formula import normalise, repeat_heads
from attnx.read.rows import read
from attnx.records import Array, Axis, Measurement, Trace

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
    """[Q,K]: ||sum over heads of a_ij f(x_j)||; None without W_O, since heads only meet behind it, or not asked for."""


def value_norms(trace: Trace, site: int, output: Array | None = None, *, together: bool = True) -> Norms:
    """Attention weighted by norms: ||a_ij v_j||, and with W_O ||a_ij v_j W_O||.

    Args:
        trace: With weights [B,H,Q,K] and value [B,Hkv,K,Dv] at that site.
        site: Position in `trace.attentions`.
        output: W_O as [H,Dv,E], the slice of the output projection that reads each head. Without it the norm is of the
            value vectors alone, and the Measurement says so.
        together: Whether to add the heads up behind W_O, which takes time that grows with Q K E.

    Returns:
        See `Norms`; sizes of vectors, no unit.

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
    value = repeat_heads(attention.need("value")[:1], heads)[0].astype(np.float64)
    if output is not None:
        if output.shape[:2] != (heads, value.shape[-1]):
            raise InputError(f"W_O is {output.shape}, but {heads} heads of {value.shape[-1]} values read it")
        sizes = None if together else _sizes_behind(value, output.astype(np.float64))
        if sizes is None:
            value = np.matmul(value, output.astype(np.float64))
            sizes = np.linalg.norm(value, axis=-1)
    else:
        sizes = np.linalg.norm(value, axis=-1)
    weights = np.where(rows.real[..., None], rows.weights.astype(np.float64), np.nan)
    carried = weights * sizes[:, None, :]
    axes = (Axis("head", rows.heads), Axis("query", rows.query_labels), Axis("key", rows.key_labels))
    vector = "v" if output is None else "v W_O"
    notes = ("without W_O: norms of the value vectors, before the output projection",) if output is None else ()

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


def _sizes_behind(value: Array, output: Array) -> Array | None:
    """|v W_O| of v [H,K,Dv] behind W_O [H,Dv,E] as [H,K], in a fraction of the time: |v W|^2 = v (W W^T) v^T.

    None where too much of a vector cancels on the way for the squares to tell what is left.
    """
    gram = np.matmul(output, output.transpose(0, 2, 1))
    squares = np.einsum("hkd,hkd->hk", np.matmul(value, gram), value)
    whole = np.einsum("hkd,hkd->hk", value, value) * np.trace(gram, axis1=1, axis2=2)[:, None]
    return np.sqrt(squares) if (squares >= 1e-8 * whole).all() else None
