"""What a head does with the weight off its sink: its pattern without the first token, each row rescaled to 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnx.formula import average
from attnx.measure.rows import Rows, head_axes, read, stack
from attnx.records import Array, Axis, Measurement, Tokens, Trace

LEFT = 0.01
"""A row counts if more than this share of its weight is left; less would only be rounding. Source: attnx."""
FORMULAS: Mapping[str, str] = {
    "previous": "mean over queries of a(i, i-1) / r(i), r(i) = sum over j of a(i, j) less a(i, first)",
    "next": "mean over queries of a(i, i+1) / r(i)",
    "self": "mean over queries of a(i, i) / r(i)",
    "induction": "mean over repeated tokens of the weight on what followed their earlier copies / r(i)",
    "punctuation": "mean over queries of the weight on punctuation / r(i), the first token left out",
    "entropy share": "mean over queries of H of a / r(i) / ln(number of visible keys), both without the first token",
}
"""Measures of what is left, and how each is computed."""
SOURCE = "attnx, after Gu et al. 2025, section 3"


@dataclass(frozen=True, slots=True)
class RowSums:
    """Sums over the keys of each row, [...,Q], for the heads of a site, of one text or several."""

    total: Array
    """sum a; 0 for a row that does not count."""
    left: Array
    """The same without the first token."""
    entropy: Array
    """sum a ln a without the first token."""
    seen: Array
    """How many keys are visible, including the first token."""
    sees: Array
    """bool: whether the first token is visible."""
    cells: Mapping[str, Array]
    """By measure, the weight that it counts: NaN if there is no such key, or it is the first token."""


def shares(rows: RowSums) -> dict[str, Array]:
    """The measures of what is left, from sums over the keys of each row.

    With t the weight of a row, and r what is left of it without the first token, rows with r > `LEFT` t count. Each
    cell is divided by r; the entropy of what is left is ln r - (sum a ln a) / r over the other keys, and its share is
    of ln n, where n is the number of visible keys other than the first token.

    Args:
        rows: The sums of a site, for one text or several.

    Returns:
        float64 [...] by name of `FORMULAS`; NaN where no row counts.

    Source: attnx.
    """
    total, left = rows.total.astype(np.float64), rows.left.astype(np.float64)
    counts = (total > 0) & (left > LEFT * total)
    safe = np.where(counts, left, 1.0)
    out = {name: average(np.broadcast_to(c, left.shape) / safe, -1, counts) for name, c in rows.cells.items()}
    entropy = np.maximum(np.log(safe) - rows.entropy / safe, 0.0)
    others = np.broadcast_to(rows.seen - rows.sees, left.shape)
    most = np.log(np.maximum(others, 2))
    out["entropy share"] = average(entropy / most, -1, counts & (others >= 2))
    return out


def remainder(
    trace: Trace, punctuation: Callable[[Tokens], Sequence[bool]], at_least: int = 1
) -> tuple[Measurement, ...]:
    """The measures of every head's weight without the first token.

    The first token's column is removed from the pattern and each row is rescaled to sum to 1: on what is left,
    previous, next, self, induction, punctuation and entropy share are computed as on the whole. The first token is
    that of `sinks.sink`: the first that is not padding.

    Args:
        trace: With weights [B,H,Q,K]; masked tells hidden keys from keys of no weight.
        punctuation: Which tokens are punctuation.
        at_least: With fewer queries that repeat a token, induction is NaN.

    Returns:
        [S,H] each, shares, 0 to 1; NaN where nothing is left in any row.

    Raises:
        UnsupportedError: A site has no weights.

    Source: attnx.
    """
    columns = [_site(read(trace, attention), punctuation, at_least) for attention in trace.attentions]
    axes = head_axes(trace, [len(next(iter(column.values()))) for column in columns])
    return measurements({name: stack([column[name] for column in columns]) for name in FORMULAS}, axes)


def measurements(values: Mapping[str, Array], axes: tuple[Axis, ...]) -> tuple[Measurement, ...]:
    """Values [S,H] by name as measurements."""
    return tuple(
        Measurement(name, "share", axes, values[name], (0.0, 1.0), source=SOURCE, formula=formula)
        for name, formula in FORMULAS.items()
    )


def _site(rows: Rows, punctuation: Callable[[Tokens], Sequence[bool]], at_least: int) -> dict[str, Array]:
    real = rows.key_flags(rows.keys.mask)
    first = int(np.argmax(real)) if real.any() else 0
    weights = np.where(rows.real[..., None], rows.weights, 0.0).astype(np.float64)
    size = weights.shape[-1]
    if not size:
        return {name: rows.none() for name in FORMULAS}
    nothing = np.full(weights.shape[:2], np.nan)
    cells = {}
    for name, delta in (("previous", -1), ("next", 1), ("self", 0)):
        target = None if rows.position is None else rows.position + delta
        cells[name] = nothing if target is None else np.where(target == first, np.nan, rows.at(target))
    copies, cells["induction"] = rows.copies(2), nothing
    if copies is not None:
        after = np.zeros_like(copies)
        after[:, 1:] = copies[:, :-1]
        repeated = after.any(axis=1)
        if repeated.sum() >= at_least:
            cells["induction"] = np.where(repeated, np.where(after, weights, 0.0).sum(axis=-1), np.nan)
    marked = rows.key_flags(punctuation(rows.keys)) & (np.arange(size) != first)
    cells["punctuation"] = weights[..., marked].sum(axis=-1)
    visible = rows.visible
    rest = np.delete(weights, first, axis=-1)
    logs = np.log(np.where(rest > 0, rest, 1.0))
    return shares(
        RowSums(
            total=weights.sum(axis=-1), left=rest.sum(axis=-1), entropy=(rest * logs).sum(axis=-1),
            seen=visible.sum(axis=-1), sees=visible[..., first], cells=cells,
        )
    )  # fmt: skip


__all__ = ["FORMULAS", "LEFT", "RowSums", "measurements", "remainder", "shares"]
