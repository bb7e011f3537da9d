"""The attention formula in numpy: scores -> scaled -> capped -> masked -> weights -> context, and statistics of rows.

Arrays are float32 on the way in and out; sums run in float64, one [Q,K] matrix at a time so that memory stays bounded.
Letters: B batch, H query heads, Hkv key/value heads, Q query positions, K key positions, D, Dv head sizes.

Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1, and the ONNX Attention operator (softcap, mask).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from attnx.errors import UnsupportedError
from attnx.records import Array

HIDDEN = -9e3
"""A mask adds this or less: exporters write -10000, -1e9, the smallest float or -inf. ALiBi stays far above it."""
UNDERFLOW = -80.0
"""A bias at or below this also hides where the weight is exactly 0 (Swin writes -100): exp(-80) is under 1e-34."""
AT_ONCE = 1 << 18
"""Up to this many cells are computed together, beyond it some rows after others: 2 MB in float64."""
_CACHED = 1 << 16
"""So many of a large matrix at once: the arrays on the way stay in a processor's cache."""
_NOTHING = 750.0
"""The exponential of what is so far below 0 is exactly 0 in float64."""


def blocks(shape: Sequence[int], most: int | None = None) -> Iterator[tuple[int | slice, ...]]:
    """Where the rows of a stack of matrices are, at most `most` cells at a time and at least one row.

    Args:
        shape: [...,Q,K].
        most: How many cells; `AT_ONCE` where None.

    Yields:
        An index for each block of rows of each matrix, in order.
    """
    rows = max(1, (AT_ONCE if most is None else most) // max(1, shape[-1]))
    for at in np.ndindex(*shape[:-2]):
        for start in range(0, shape[-2], rows):
            yield (*at, slice(start, start + rows))


def repeat_heads(array: Array, heads: int) -> Array:
    """Give every query head its own key/value head (grouped-query attention).

    Args:
        array: [B,Hkv,...].
        heads: H, a multiple of Hkv. Head h reads key/value head h // (H / Hkv).

    Returns:
        [B,H,...]; the array itself where Hkv = H.

    Raises:
        UnsupportedError: Hkv does not divide H.

    Source: Ainslie et al. 2023, "GQA"; ONNX Attention, q_num_heads and kv_num_heads.
    """
    own = array.shape[1]
    if own == heads:
        return array
    if own == 0 or heads % own:
        raise UnsupportedError(f"{heads} query heads cannot share {own} key/value heads evenly")
    return np.repeat(array, heads // own, axis=1)


def scores(query: Array, key: Array) -> Array:
    """Unscaled scores, query x key^T.

    Args:
        query: [B,H,Q,D].
        key: [B,Hkv,K,D].

    Returns:
        float32 [B,H,Q,K].

    Source: Vaswani et al. 2017, equation 1.
    """
    key = repeat_heads(key, query.shape[1])
    if query.shape[-1] != key.shape[-1]:
        raise UnsupportedError(f"query has {query.shape[-1]} features a head and key has {key.shape[-1]}")
    out = np.empty((*query.shape[:3], key.shape[2]), np.float32)
    with np.errstate(over="ignore"):
        for at in np.ndindex(*query.shape[:2]):
            for cells, product in products(query[at], key[at]):
                out[at][cells] = product
    return out


def products(query: Array, key: Array) -> Iterator[tuple[tuple[slice, slice], Array]]:
    """Query x key^T of one head, a square of cells at a time: what it takes stays in a processor's cache.

    Args:
        query: [Q,D].
        key: [K,D].

    Yields:
        Which rows and keys, and their products, float64.
    """
    side = max(1, math.isqrt(AT_ONCE) // 2)
    rows, columns = query.astype(np.float64), key.astype(np.float64).T
    for top in range(0, len(query), side):
        for left in range(0, len(key), side):
            at = slice(top, top + side), slice(left, left + side)
            with np.errstate(invalid="ignore", over="ignore"):
                product = rows[at[0]] @ columns[:, at[1]]
            yield at, product


def scaled(scores: Array, scale: float | Sequence[float]) -> Array:
    """Scores times the scale: one number, or one per head.

    Args:
        scores: [B,H,Q,K] or [H,Q,K].
        scale: Usually 1/sqrt(D).

    Returns:
        Same shape and type as `scores`.

    Source: Vaswani et al. 2017, equation 1.
    """
    factor = np.asarray(scale, np.float64)
    if factor.ndim:
        factor = factor.reshape(-1, 1, 1)
    # Multiplied in float64, as above, but never held so.
    return np.multiply(scores, factor, out=np.empty(scores.shape, scores.dtype), casting="same_kind")


def capped(scaled: Array, softcap: float | None) -> Array:
    """Softcap: cap x tanh(scaled / cap); without a cap (None or 0), the input itself.

    Source: ONNX Attention-23, attribute softcap; Gemma 2 (Gemma Team 2024), section 2.
    """
    if not softcap:
        return scaled
    if scaled.size <= AT_ONCE or scaled.ndim < 2:
        return np.asarray(softcap * np.tanh(scaled.astype(np.float64) / softcap), dtype=scaled.dtype)
    out = np.empty_like(scaled)
    for at in blocks(scaled.shape):
        out[at] = softcap * np.tanh(scaled[at].astype(np.float64) / softcap)
    return out


def masked(capped: Array, bias: Array | None = None, visible: Array | None = None) -> Array:
    """The softmax's input: a bias added, and -inf where a key is hidden.

    Args:
        capped: [B,H,Q,K].
        bias: Broadcasts to it; added.
        visible: bool, broadcasts to it; False hides.

    Returns:
        float32 [B,H,Q,K].
    """
    out = capped if bias is None else capped + bias
    if visible is not None:
        out = np.where(visible, out, -np.inf)
    return np.asarray(out, dtype=capped.dtype)


def log_softmax(masked: Array, sink: Array | float | None = None) -> Array:
    """Logarithm of the softmax over the last axis; a fully hidden row is -inf throughout, a row with NaN is NaN.

    Args:
        masked: [...,K], any float type.
        sink: A logit that only enters the denominator; broadcasts to [...,1].

    Returns:
        float64 [...,K].
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        moved = np.array(masked, np.float64)
        _, total = powers(moved, sink, np.empty_like(moved))
        # A fully hidden row has total 0: log 0 - log 0 would be NaN where the answer is "no weight at all".
        return np.asarray(moved - np.where(total == 0.0, 0.0, np.log(total)))


def powers(masked: Array, sink: Array | float | None = None, out: Array | None = None) -> tuple[Array, Array]:
    """The terms of a softmax's denominator and their sum.

    Args:
        masked: float64 [...,K]; left less the largest of each row.
        sink: As for `log_softmax`.
        out: Where the terms go; over `masked` where None.

    Returns:
        exp(masked - largest), [...,K], and the sum of each row and the sink's term, [...,1].
    """
    top = np.max(masked, axis=-1, keepdims=True, initial=-np.inf)
    if sink is not None:
        top = np.maximum(top, sink)
    top = np.where(np.isneginf(top), 0.0, top)
    np.subtract(masked, top, out=masked)
    power = np.exp(masked, out=masked if out is None else out)
    total = np.sum(power, axis=-1, keepdims=True)
    return power, total if sink is None else total + np.exp(np.asarray(sink, np.float64) - top)


def softmax(masked: Array, sink: Array | None = None) -> Array:
    """Attention weights: the softmax over the keys.

    Args:
        masked: [B,H,Q,K] or [H,Q,K]; hidden cells -inf or very negative.
        sink: [H], one logit per head that takes a share of every row but has no column (attention sinks).

    Returns:
        float32, same shape. Rows sum to 1, less the sink's share; a fully hidden row (all -inf) is all 0, not NaN;
        a row with a NaN is NaN.

    Source: Vaswani et al. 2017, equation 1; sinks: Xiao et al. 2023, "Efficient Streaming Language Models with
    Attention Sinks", section 3; zero rows: ONNX Attention-24.
    """
    out = np.empty(masked.shape, np.float32)
    shares = None if sink is None else np.asarray(sink, np.float64).reshape(-1, 1, 1)
    if masked.size <= AT_ONCE:
        _put_shares(out, masked, shares)
        return out
    for at in blocks(masked.shape, min(AT_ONCE, _CACHED)):
        _put_shares(out[at], masked[at], None if shares is None else shares[at[-2]])
    return out


def _put_shares(out: Array, masked: Array, sink: Array | None) -> None:
    """The softmax of some rows [...,K], written to `out`; `sink` broadcasts to [...,1]."""
    keys = weighed(masked)
    out[..., : keys.start] = out[..., keys.stop :] = 0
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        power, total = powers(masked[..., keys].astype(np.float64), sink)
        out[..., keys] = np.divide(power, np.where(total == 0.0, 1.0, total), out=power)


def weighed(masked: Array) -> slice:
    """The keys outside which every row's weight is exactly 0 in float64: few under a causal mask or a window.

    Args:
        masked: Some rows, [...,Q,K].
    """
    everything = slice(0, masked.shape[-1])
    if not masked.size:
        return everything
    top = masked.max(axis=-1)
    if not top.max() < np.inf:  # a row with NaN or with infinity is NaN throughout
        return everything
    least = top.min(initial=np.inf, where=top != -np.inf)
    kept = np.flatnonzero(masked.reshape(-1, masked.shape[-1]).max(axis=0) >= np.float64(least) - _NOTHING)
    return slice(int(kept[0]), int(kept[-1]) + 1) if len(kept) else slice(0, 0)


def context(weights: Array, value: Array) -> Array:
    """Weights times value, per head, before the output projection.

    Args:
        weights: [B,H,Q,K].
        value: [B,Hkv,K,Dv].

    Returns:
        float32 [B,H,Q,Dv].

    Source: Vaswani et al. 2017, equation 1.
    """
    value = repeat_heads(value, weights.shape[1])
    out = np.empty((*weights.shape[:3], value.shape[-1]), np.float32)
    for at in np.ndindex(*weights.shape[:2]):
        with np.errstate(invalid="ignore", over="ignore"):
            rows = value[at].astype(np.float64)
            for some in blocks(weights.shape[2:]):
                out[at][some] = weights[at][some].astype(np.float64) @ rows
    return out


def added(masked: Array, capped: Array) -> Array:
    """What bias and mask added to the capped scores; exactly -inf where they hide a key.

    Args:
        masked: [...,Q,K].
        capped: Same shape.

    Returns:
        float64, same shape.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.asarray(np.subtract(masked, capped, dtype=np.float64))
    hidden = gap <= HIDDEN
    hidden |= masked == -np.inf
    return np.where(hidden, -np.inf, gap)


def visible(masked: Array | None, capped: Array | None = None, weights: Array | None = None) -> Array:
    """Which keys a query may look at.

    A cell is hidden where the mask put -inf there or added HIDDEN or less; where the weight came out as exactly 0
    after UNDERFLOW or less was added; and, where only weights are known, where the weight is 0 (indistinguishable
    from a weight too small for a float).

    Args:
        masked: [...,Q,K] or None.
        capped: Same shape or None (then the masked value itself is judged).
        weights: Same shape or None.

    Returns:
        bool, same shape.

    Raises:
        UnsupportedError: Neither masked nor weights are given.
    """
    if masked is None:
        if weights is None:
            raise UnsupportedError("neither masked scores nor weights are there, so what is hidden cannot be known")
        return np.asarray(weights != 0)
    if capped is None:
        return np.asarray(~(masked <= HIDDEN))
    others = [array for array in (capped, weights) if array is not None]
    if masked.ndim > 2 and masked.size > AT_ONCE and all(array.shape == masked.shape for array in others):
        seen = np.empty(masked.shape, bool)
        for at in blocks(masked.shape):
            seen[at] = visible(masked[at], capped[at], None if weights is None else weights[at])
        return seen
    put = added(masked, capped)
    hidden = np.isneginf(put)
    if weights is not None:
        hidden = hidden | ((put <= UNDERFLOW) & (weights == 0))
    return np.asarray(~hidden)


def sees_nothing(masked: Array, capped: Array | None = None, weights: Array | None = None) -> Array:
    """From which queries every key is hidden: what a softmax makes of such a row says nothing.

    Args:
        masked: [...,Q,K].
        capped: Same shape or None.
        weights: Same shape or None.

    Returns:
        bool [...,Q]; False where there is no key at all.
    """
    if not masked.shape[-1]:
        return np.zeros(masked.shape[:-1], bool)
    blind = np.asarray(masked.max(axis=-1) <= HIDDEN)
    if blind.any():  # such scores may also be the model's own: looked at cell by cell
        others = [None if array is None else array[blind] for array in (capped, weights)]
        blind[blind] = ~visible(masked[blind], *others).any(axis=-1)
    return blind


def normalise(weights: Array) -> Array:
    """Rows scaled to sum to 1 in float64; a row without weight becomes NaN.

    Args:
        weights: [...,K].
    """
    wide = np.asarray(weights, np.float64)
    total = wide.sum(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.asarray(wide / np.where(total > 0, total, np.nan))


def entropy(weights: Array) -> Array:
    """Entropy of each row in nats: -sum a ln a, with 0 ln 0 = 0.

    A row that sums to less than 1 (a sink's share is missing) is normalised first; a row without weight is NaN.

    Args:
        weights: [...,K].

    Returns:
        float64 [...].

    Source: Shannon 1948; for attention heads Clark et al. 2019, section 3.3.
    """
    row = normalise(weights)
    return np.asarray(-np.sum(row * np.log(np.where(row > 0, row, 1.0)), axis=-1) + 0.0)


def jensen_shannon(one: Array, two: Array) -> Array:
    """Jensen-Shannon divergence of two rows in nats, from 0 (equal) to ln 2 (disjoint); NaN for a row without weight.

    Args:
        one: [...,K].
        two: Broadcasts to it.

    Returns:
        float64 [...].

    Source: Lin 1991; between attention heads Clark et al. 2019, section 6.
    """
    first, second = normalise(one), normalise(two)
    mean = (first + second) / 2
    return np.maximum(entropy(mean) - (entropy(first) + entropy(second)) / 2, 0.0)


def gradient_size(weights: Array) -> Array:
    """How much of a gradient a softmax row lets through: sum a (1 - a), which is 1 - sum a^2 where the row sums to 1.

    It is the trace of the softmax's Jacobian diag(a) - a a^T: 0 for a one-hot row, 1 - 1/n for a uniform one.

    Args:
        weights: [...,K].

    Returns:
        float64 [...].

    Source: Vaswani et al. 2017, section 3.2.1 ("regions where it has extremely small gradients"); the trace: attnx.
    """
    wide = np.asarray(weights, np.float64)
    return np.asarray(np.sum(wide * (1.0 - wide), axis=-1))


def average(values: Array, axis: int | tuple[int, ...] | None = None, where: Array | None = None) -> Array:
    """Mean that ignores NaN (and False in `where`) and is NaN where nothing is left; never warns.

    Returns:
        float64 with `axis` removed.
    """
    wide = np.asarray(values, np.float64)
    if wide.size and (where is None or where.all()):
        # Fast path that leaves nothing out: any NaN makes the sum NaN, and only then is it searched for.
        total = wide.sum(axis=axis)
        if not np.isnan(total).any():
            return np.asarray(total / (wide.size // max(total.size, 1)))
    keep = ~np.isnan(wide) if where is None else ~np.isnan(wide) & where
    count = keep.sum(axis=axis)
    total = np.where(keep, wide, 0.0).sum(axis=axis)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))
