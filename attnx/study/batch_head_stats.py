"""The measures of heads for all texts of a batch at once: the numbers of attnx.measure, to float32's rounding.

Most of them are sums over fixed cells of a matrix: where a text has special tokens, punctuation or repeated tokens
decides which. Such sums are one product, the weights [B,H,n*n] with the cells' shares [B,n*n,C], so that the weights
are read once for all of them. What is not (entropies, largest weights) is taken row by row.
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
"""Tokens up to which a batch is measured so; of longer texts the cells' shares would take as much as the weights."""
WITHIN = 2
"""Distance that `locality` counts as near."""
_TINY = np.float32(1e-37)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What the measures need of the texts: n is the length of the longest."""

    count: Array
    """int [B]: lengths."""
    ids: Array
    """int64 [B,n]."""
    real: Array
    """bool [B,n]: no padding."""
    special: Array
    """bool [B,n]; padding is."""
    punctuation: Array
    """bool [B,n]."""


def measure(batch: Batch, names: Collection[str]) -> dict[str, Array] | None:
    """Measures of every head by name, as `measure.describe_heads` and `measure.sinks` name them.

    Args:
        batch: With weights.
        names: Names of `NAMES` and `REST_NAMES`.

    Returns:
        float64 [B,S,H] each, NaN where a value does not exist; None where the texts or sites need to be measured one by
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
    # One buffer for all that is made of a matrix on the way: memory that is asked for anew each time costs more than
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
    """Which cells a query of a text may look at, bool [B,n,n]."""
    cells = texts.real[:, :, None] & texts.real[:, None, :]
    return cells & np.tri(cells.shape[1], dtype=bool) if causal else cells


def _plain(attention: Attention, texts: _Batch, seen: Array) -> bool:
    """Whether a site's visible cells are the text's: each query looks at all, or all up to itself, and says something.

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
    """Measures that are no sums over fixed cells: entropies, largest weights, the key that gathers most."""
    out: dict[str, Array] = {}
    rest = [name for name in names if name in REST_NAMES]

    def mean(values: Array, rows: Array) -> Array:
        """Over the rows that count, [B,H,n] and bool [B,n] to [B,H]; NaN where there is none."""
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
    """What the first token leaves, measured; with the logarithms of the weights, [B,H,n,n]."""
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
    """The largest of each row: by way of where it is, which numpy finds in half the time over short rows."""
    return np.take_along_axis(array, array.argmax(axis=-1)[..., None], axis=-1)[..., 0]


def _rows(cells: Array, rows: Array, at_least: int = 1) -> Array:
    """Shares [B,n,n] of the sum that is the mean over some rows (bool [B,n]) of their weight on some cells."""
    number = rows.sum(axis=1)
    each = np.where(number >= at_least, 1.0 / np.maximum(number, 1), np.nan).astype(np.float32)
    return np.asarray((cells & rows[:, :, None]) * each[:, None, None])  # where no row counts, NaN throughout


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
    """Cells of the earlier copies of each token, bool [B,n,n]; `before` 1: the token before counts, 2: it does not."""
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
"""Sums over cells -> the share of each cell, float32 [B,n,n]. Most are a measure as they are."""
_RATIOS = {"mean distance": ("away", "all")}
"""Measures that are one such sum divided by another."""
NAMES = (
    "entropy", "entropy share", "mean distance", "locality", "confidence", "largest weight", "previous", "next", "self",
    "first", "special", "punctuation", "sink", "duplicate", "induction", "strongest key", "strongest key position",
)  # fmt: skip
"""What can be measured so."""
REST_NAMES = tuple(f"{REST}{name}" for name in FORMULAS)
"""And of what the first token leaves."""
