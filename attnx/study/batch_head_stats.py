"""The measures of heads for all texts of a batch at once: the numbers of attnx.measure, to float32's rounding.

Most are sums over fixed cells of a matrix: the positions of special tokens, punctuation and repeated tokens
decide which. These sums are one product, the weights [B,H,n*n] times the cells' shares [B,n*n,C], so that the weights
are read once for all of them. The other measures (entropies, largest weights) are computed row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from attnx.measure import REPEATS
from attnx.measure.remainder import FORMULAS, RowSums, shares
from attnx.measure.special import is_punctuation
from attnx.records import Array, Attention, Tokens
from attnx.run.batch import Batch
from attnx.study.head_table import REST

LONG = 256
"""The longest texts measured this way; for longer ones the cells' shares would take as much memory as the weights."""
WITHIN = 2
"""The largest distance that `locality` counts as near."""
_TINY = np.float32(1e-37)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What the measures need to know about the texts: n is the length of the longest."""

    count: Array
    """int [B]: lengths."""
    ids: Array
    """int64 [B,n]."""
    real: Array
    """bool [B,n]: True where there is no padding."""
    special: Array
    """bool [B,n]; True for padding too."""
    punctuation: Array
    """bool [B,n]."""


def measure(batch: Batch, names: Collection[str]) -> dict[str, Array] | None:
    """Measures of every head by name, as `measure.describe_heads` and `measure.sinks` name them.

    Args:
        batch: With weights.
        names: Names of `NAMES` and `REST_NAMES`.

    Returns:
        float64 [B,S,H] each, NaN where a value does not exist; None if the texts or sites have to be measured one by
        one: long texts, keys that are not the text, a window, an unknown mask, rows without weight.
    """
    count = np.array([len(tokens) for tokens in batch.tokens])
    if not batch.attentions or count.max() > LONG or not all(all(tokens.mask) for tokens in batch.tokens):
        return None
    texts = _texts(batch.tokens, count)
    seen = {causal: _visible(texts, causal) for causal in {a.site.causal is True for a in batch.attentions}}
    if not all(_plain(a, texts, seen[a.site.causal is True]) for a in batch.attentions):
        return None
    wanted = dict.fromkeys(part for name in names for part in _RATIOS.get(name, (name,)))
    linear = [name for name in wanted if name in _CELLS]
    shares = np.stack([_CELLS[name](texts).reshape(len(count), -1) for name in linear], axis=1) if linear else None
    # One buffer for all intermediate matrices: allocating memory anew each time costs more than
    # the arithmetic in it.
    scratch = np.empty(max(a.need("weights").size for a in batch.attentions), np.float32)
    columns = []
    for attention in batch.attentions:
        weights = np.ascontiguousarray(attention.weights)
        found: dict[str, Array] = {}
        if shares is not None:
            flat = weights.reshape(*weights.shape[:2], -1)
            sums = np.matmul(flat, shares.transpose(0, 2, 1)).astype(np.float64)
            found = {name: sums[..., at] for at, name in enumerate(linear)}
        buffer = scratch[: weights.size].reshape(weights.shape)
        found |= _by_row(weights, texts, seen[attention.site.causal is True], wanted, buffer)
        for name in _RATIOS:
            if name in names:
                found[name] = found[_RATIOS[name][0]] / found[_RATIOS[name][1]]
        columns.append(found)
    heads = max(len(one[0]) for column in columns for one in column.values())
    out = {name: np.full((len(count), len(columns), heads), np.nan) for name in names}
    for site, column in enumerate(columns):
        for name in names:
            out[name][:, site, : column[name].shape[1]] = column[name]
    return out


def _texts(batch: Collection[Tokens], count: Array) -> _Batch:
    shape = (len(count), int(count.max()))
    ids = np.full(shape, -1, np.int64)
    special, punctuation = np.ones(shape, bool), np.zeros(shape, bool)
    for at, tokens in enumerate(batch):
        ids[at, : len(tokens)] = np.asarray(tokens.ids).reshape(-1)
        special[at, : len(tokens)] = tokens.special
        punctuation[at, : len(tokens)] = is_punctuation(tokens)
    return _Batch(count, ids, np.arange(shape[1]) < count[:, None], special, punctuation)


def _visible(texts: _Batch, causal: bool) -> Array:
    """Which cells are visible to each query of a text, bool [B,n,n]."""
    cells = texts.real[:, :, None] & texts.real[:, None, :]
    return cells & np.tri(cells.shape[1], dtype=bool) if causal else cells


def _plain(attention: Attention, texts: _Batch, seen: Array) -> bool:
    """Whether a site sees the whole text: each query all keys, or all up to itself, and every row has weight.

    A cell that should be visible and has no weight at all may be hidden by a mask of another shape.
    """
    site, weights = attention.site, attention.weights
    size = texts.ids.shape[1]
    if site.kind != "self" or site.causal is None or site.window is not None:
        return False
    if weights is None or weights.shape[0] != len(texts.count) or weights.shape[2:] != (size, size):
        return False
    return bool(not ((weights == 0) & seen[:, None]).any() and np.isfinite(weights).all())


def _by_row(weights: Array, texts: _Batch, seen: Array, names: Collection[str], buffer: Array) -> dict[str, Array]:
    """Measures that are not sums over fixed cells: entropies, largest weights, the key that receives most."""
    out: dict[str, Array] = {}
    rest = [name for name in names if name in REST_NAMES]

    def mean(values: Array, rows: Array) -> Array:
        """Mean over the rows that count, [B,H,n] and bool [B,n] to [B,H]; NaN if there is none."""
        number = rows.sum(axis=1)[:, None]
        sums = (values * rows[:, None]).sum(axis=-1, dtype=np.float64)
        return np.asarray(sums / np.where(number > 0, number, np.nan))

    if rest or not {"entropy", "entropy share"}.isdisjoint(names):
        total = np.matmul(weights, np.ones((weights.shape[-1], 1), np.float32))[..., 0]
        logs = np.log(np.maximum(weights, _TINY, out=buffer), out=buffer)
        safe = np.where(texts.real[:, None], total, 1.0).astype(np.float64)
        rows = np.maximum(np.log(safe) - np.einsum("bhqk,bhqk->bhq", weights, logs) / safe, 0.0)
        out["entropy"] = mean(rows, texts.real)
        visible = seen.sum(axis=-1)
        most = np.log(np.maximum(visible, 2))[:, None]
        out["entropy share"] = mean(rows / most, visible >= 2)
        if rest:
            out |= _rest(weights, logs, texts, seen)
    if "largest weight" in names:
        out["largest weight"] = mean(_largest(weights), texts.real)
    if "confidence" in names:
        kept = np.multiply(weights, (~texts.special[:, None, None]).astype(np.float32), out=buffer)
        out["confidence"] = mean(_largest(kept), ~texts.special)
    if not {"strongest key", "strongest key position"}.isdisjoint(names):
        keys = np.matmul(texts.real[:, None, None].astype(np.float32), weights)[:, :, 0].astype(np.float64)
        out["strongest key"] = keys.max(axis=-1) / keys.sum(axis=-1)
        out["strongest key position"] = keys.argmax(axis=-1).astype(np.float64)
    return out


def _rest(weights: Array, logs: Array, texts: _Batch, seen: Array) -> dict[str, Array]:
    """The measures without the first token's weight, and the logarithms of the weights, [B,H,n,n]."""
    shape, size = weights.shape[:3], weights.shape[-1]
    real = texts.real[:, None]
    cells = {}
    for name, delta in (("previous", -1), ("next", 1), ("self", 0)):
        found = np.full(shape, np.nan)
        start = max(1 - delta, 0)  # before it, the key is the first token, or none
        stop = size - max(delta, 0)
        if start < stop:
            found[..., start:stop] = weights[..., np.arange(start, stop), np.arange(start, stop) + delta]
        there = np.zeros(texts.real.shape, bool)
        there[:, start:stop] = texts.real[:, start + delta : stop + delta]
        cells[name] = np.where(there[:, None], found, np.nan)
    dots = texts.punctuation.copy()
    dots[:, 0] = False
    cells["punctuation"] = np.matmul(weights, dots[:, None, :, None].astype(np.float32))[..., 0]
    after = np.zeros_like(copies := _earlier(texts, 2))
    after[:, :, 1:] = copies[:, :, :-1]
    repeated = after.any(axis=2)
    repeated &= (repeated.sum(axis=1) >= REPEATS)[:, None]
    cells["induction"] = np.full(shape, np.nan)
    if repeated.any():
        on = np.einsum("bhqk,bqk->bhq", weights, after.astype(np.float32))
        cells["induction"] = np.where(repeated[:, None], on, np.nan)
    left = np.matmul(weights[..., 1:], np.ones((size - 1, 1), np.float32))[..., 0]
    sums = RowSums(
        np.where(real, weights[..., 0] + left, 0.0), left, np.einsum("bhqk,bhqk->bhq", weights[..., 1:], logs[..., 1:]),
        seen.sum(axis=-1)[:, None], seen[:, None, :, 0], cells,
    )  # fmt: skip
    return {f"{REST}{name}": values for name, values in shares(sums).items()}


def _largest(array: Array) -> Array:
    """The largest value of each row, found through argmax, which takes numpy half the time on short rows."""
    return np.take_along_axis(array, array.argmax(axis=-1)[..., None], axis=-1)[..., 0]


def _rows(cells: Array, rows: Array, at_least: int = 1) -> Array:
    """Shares [B,n,n] of each cell in the mean over some rows (bool [B,n]) of their weight on some cells."""
    number = rows.sum(axis=1)
    each = np.where(number >= at_least, 1.0 / np.maximum(number, 1), np.nan).astype(np.float32)
    return np.asarray((cells & rows[:, :, None]) * each[:, None, None])  # if no row counts, NaN throughout


def _keys(texts: _Batch, keys: Array) -> Array:
    return _rows(np.broadcast_to(keys[:, None, :], (*keys.shape, keys.shape[1])), texts.real)


def _offset(offset: int) -> Callable[[_Batch], Array]:
    def cells(texts: _Batch) -> Array:
        size = texts.ids.shape[1]
        there = np.broadcast_to(np.eye(size, k=offset, dtype=bool), (len(texts.count), size, size))
        there = there & texts.real[:, None, :]
        return _rows(there, texts.real & there.any(axis=2))

    return cells


def _away(texts: _Batch) -> Array:
    size = texts.ids.shape[1]
    away = np.abs(np.arange(size)[:, None] - np.arange(size)).astype(np.float32)
    return np.asarray(texts.real[:, :, None] * away)


def _all(texts: _Batch) -> Array:
    return np.repeat(texts.real[:, :, None].astype(np.float32), texts.ids.shape[1], axis=2)


def _locality(texts: _Batch) -> Array:
    size = texts.ids.shape[1]
    near = np.tri(size, k=WITHIN, dtype=bool) & np.tri(size, k=WITHIN, dtype=bool).T
    return _rows(np.broadcast_to(near, (len(texts.count), size, size)), texts.real)


def _first(texts: _Batch) -> Array:
    return _keys(texts, np.arange(texts.ids.shape[1]) == np.zeros((len(texts.count), 1)))


def _earlier(texts: _Batch, before: int) -> Array:
    """Cells of earlier copies of each token, bool [B,n,n]; `before` 1 includes the previous token, 2 excludes it."""
    plain = ~texts.special
    same = (texts.ids[:, :, None] == texts.ids[:, None, :]) & plain[:, :, None] & plain[:, None, :]
    return np.asarray(same & np.tri(same.shape[1], k=-before, dtype=bool))


def _duplicate(texts: _Batch) -> Array:
    cells = _earlier(texts, 1)
    return _rows(cells, np.asarray(cells.any(axis=2)))


def _induction(texts: _Batch) -> Array:
    after = np.zeros_like(copies := _earlier(texts, 2))
    after[:, :, 1:] = copies[:, :, :-1]
    return _rows(after, np.asarray(after.any(axis=2)), REPEATS)


_CELLS: Mapping[str, Callable[[_Batch], Array]] = {
    "locality": _locality,
    "previous": _offset(-1),
    "next": _offset(1),
    "self": _offset(0),
    "first": _first,
    "special": lambda texts: _keys(texts, texts.special & texts.real),
    "punctuation": lambda texts: _keys(texts, texts.punctuation),
    "sink": _first,
    "duplicate": _duplicate,
    "induction": _induction,
    "away": _away,
    "all": _all,
}
"""Name of a sum over cells -> the share of each cell, float32 [B,n,n]. Most of these sums are already measures."""
_RATIOS = {"mean distance": ("away", "all")}
"""Measures that are the quotient of two such sums."""
NAMES = (
    "entropy", "entropy share", "mean distance", "locality", "confidence", "largest weight", "previous", "next", "self",
    "first", "special", "punctuation", "sink", "duplicate", "induction", "strongest key", "strongest key position",
)  # fmt: skip
"""The measures that can be computed this way."""
REST_NAMES = tuple(f"{REST}{name}" for name in FORMULAS)
"""The same for the measures without the first token's weight."""
