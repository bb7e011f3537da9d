"""Looks: where each token looks most, which token a head's weight gathers on, and what the weight goes to."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnx.errors import UnsupportedError
from attnx.measure.rows import SINK, Rows, read
from attnx.records import Array, Axis, Measurement, Tokens, Trace


@dataclass(frozen=True, slots=True)
class Look:
    """One weight that stands out."""

    site: int
    """Position in `trace.attentions`."""
    head: int
    query: int | None
    """None if it stands for all queries of the head."""
    key: int
    value: float
    """A weight; for `gathered`, the share of the head's whole weight."""


def looks(trace: Trace, site: int, top: int = 3) -> tuple[tuple[Look, ...], ...]:
    """Where each token looks: its largest weights over the heads of one site, one per key.

    Special tokens and padding are left out on both sides, and so is the token itself; the weights are not rescaled.

    Args:
        trace: With weights [B,H,Q,K].
        site: Position in `trace.attentions`.
        top: Keys per query.

    Returns:
        For each query that has any, in order: its looks, the largest first.

    Raises:
        UnsupportedError: The site has no weights.

    Source: attnx.
    """
    rows = read(trace, trace.attentions[site])
    weights = np.where(_pairs(rows), rows.weights, -1.0)
    return looks_of(site, weights.max(axis=0, initial=-1.0), weights.argmax(axis=0), top)


def looks_of(site: int, best: Array, heads: Array, top: int = 3) -> tuple[tuple[Look, ...], ...]:
    """See `looks`: from the largest weight of each cell over heads, [Q,K] (at most 0 where it does not count), and
    the head that gives it.
    """
    out = []
    for query, row in enumerate(best):
        order = [key for key in np.argsort(-row, kind="stable")[:top] if row[key] > 0]
        found = [Look(site, int(heads[query, k]), query, int(k), float(row[k])) for k in order]
        if found:
            out.append(tuple(found))
    return tuple(out)


def pairs_of(tokens: Tokens) -> Array:
    """Bool [Q,K]: the cells of a self-attention that count: both tokens real, not special, and not the same."""
    plain = ~np.asarray(tokens.special, bool) & np.asarray(tokens.mask, bool)
    return np.asarray(plain[:, None] & plain[None, :] & ~np.eye(len(tokens), dtype=bool))


def strongest_pair(trace: Trace, site: int, head: int) -> Look | None:
    """A head's largest weight between two different non-special tokens; None if there is none.

    Args:
        trace: With weights [B,H,Q,K].
        site: Position in `trace.attentions`.
        head: From 0.

    Raises:
        UnsupportedError: The site has no weights.

    Source: attnx.
    """
    rows = read(trace, trace.attentions[site])
    weights = np.where(_pairs(rows)[head], rows.weights[head], -1.0)
    if not weights.size or weights.max() <= 0:
        return None
    query, key = np.unravel_index(int(weights.argmax()), weights.shape)
    return Look(site, head, int(query), int(key), float(weights[query, key]))


def strongest(
    trace: Trace, *, head: tuple[int, int] | None = None, query: int | None = None, key: int | None = None
) -> Look:
    """The largest weight among those that fit, leaving out special tokens and the token itself where possible.

    Args:
        trace: With weights [B,H,Q,K].
        head: Only this one: position in `trace.attentions`, head.
        query: Only from this position.
        key: Only to this position.

    Returns:
        The weight. Without a head or query, only the last site is searched.

    Raises:
        UnsupportedError: No weight fits: everything is hidden.

    Source: attnx.
    """
    sites = range(len(trace.attentions)) if query is not None else range(len(trace.attentions))[-1:]
    best: Look | None = None
    for site in [head[0]] if head is not None else sites:
        rows = read(trace, trace.attentions[site])
        plain = (
            _pairs(rows) if query is None or key is None else rows.real[..., None] & np.ones_like(rows.weights, bool)
        )
        for keep in (plain, rows.real[..., None] & np.ones_like(rows.weights, bool)):
            kept = keep.copy()
            for axis, at in ((0, None if head is None else head[1]), (1, query), (2, key)):
                if at is not None:
                    kept &= np.expand_dims(np.arange(kept.shape[axis]) == at, [n for n in range(3) if n != axis])
            weights = np.where(kept, rows.weights, -1.0)
            if weights.size and weights.max() >= 0:
                h, q, k = (int(n) for n in np.unravel_index(int(weights.argmax()), weights.shape))
                if best is None or weights[h, q, k] > best.value:
                    best = Look(site, h, q, k, float(weights[h, q, k]))
                break
    if best is None:
        raise UnsupportedError("no weight fits: the query is padding or sees nothing", "Choose another token.")
    return best


def gathered(trace: Trace, *, special: bool) -> tuple[Look, ...]:
    """For each head the key that takes the largest share of its weight: sum_i a_ik / sum a.

    Args:
        trace: With weights [B,H,Q,K].
        special: Search special tokens and the first one, where weight is parked; otherwise all others.

    Returns:
        Largest share first; heads without such a key are absent.

    Raises:
        UnsupportedError: A site has no weights.

    Source: attnx.
    """
    return gathered_of(columns_of(trace), special=special)


@dataclass(frozen=True, slots=True)
class Column:
    """What the keys of one site receive."""

    sums: Array
    """float64 [H,K]: the weight of all rows on each key."""
    rows: int
    """Number of rows that count, over all heads."""
    kinds: tuple[str, ...]
    """[K]: the kind of each key."""
    parked: Array
    """bool [K]: special tokens, and the first real token."""
    real: Array
    """bool [K]: True where there is no padding."""


def columns_of(trace: Trace) -> tuple[Column, ...]:
    """What the keys of each site receive.

    Args:
        trace: With weights [B,H,Q,K].
    """
    return tuple(_column(read(trace, attention)) for attention in trace.attentions)


def _column(rows: Rows) -> Column:
    pairs = zip(rows.weights, rows.real, strict=True)  # one head at a time, so that memory stays bounded
    sums = [np.where(real[:, None], line, 0.0).sum(axis=0, dtype=np.float64) for line, real in pairs]
    names, parked = _kinds(rows)
    real = rows.key_flags(rows.keys.mask)
    return Column(
        np.reshape(sums, (len(sums), rows.weights.shape[2])), int(rows.real.sum()), tuple(names), parked, real
    )


def gathered_of(columns: Sequence[Column], *, special: bool) -> tuple[Look, ...]:
    """See `gathered`: from what the keys of each site receive."""
    out = []
    for site, column in enumerate(columns):
        total = column.sums.sum(axis=1)
        share = column.sums / np.where(total > 0, total, np.nan)[:, None]
        keep = column.parked if special else ~column.parked & column.real
        if not keep.any():
            continue
        share = np.where(keep & ~np.isnan(share), share, -1.0)
        for head, key in enumerate(share.argmax(axis=1)):
            if share[head, key] > 0:
                out.append(Look(site, head, None, int(key), float(share[head, key])))
    return tuple(sorted(out, key=lambda look: -look.value))


def mass(trace: Trace) -> Measurement:
    """What the weight goes to: mean over sites, heads and queries of the weight on each kind of key.

    Kinds: every special token by its text, the first token if that is not special, punctuation, the words; if
    there is no text, the other tokens. A special or first token that takes more than `SINK` is marked: weight is parked
    on it.

    Args:
        trace: With weights [B,H,Q,K].

    Returns:
        [kinds], share; they add up to 1 if rows do.

    Raises:
        UnsupportedError: A site has no weights.

    Source: attnx, after Clark et al. 2019, section 3.2.
    """
    return mass_of(columns_of(trace))


def mass_of(columns: Sequence[Column]) -> Measurement:
    """See `mass`: from what the keys of each site receive."""
    sums: dict[str, float] = {}
    parked: set[str] = set()
    for column in columns:
        parked |= {name for name, flag in zip(column.kinds, column.parked, strict=True) if flag}
        for name, weight in zip(column.kinds, column.sums.sum(axis=0), strict=True):
            sums[name] = sums.get(name, 0.0) + float(weight)
    count = sum(column.rows for column in columns)
    values = {name: total / count if count else float("nan") for name, total in sums.items()}
    labels = [f"{n} (parked)" if n in parked and values[n] > SINK else n for n in values]
    return Measurement(
        name="where the weight goes",
        unit="share",
        axes=(Axis("kind", tuple(labels)),),
        values=np.array(list(values.values())),
        bounds=(0.0, 1.0),
        source="attnx, after Clark et al. 2019, section 3.2",
        formula="mean over sites, heads and queries of the weight on keys of a kind",
    )


def _pairs(rows: Rows) -> Array:
    """Bool [H,Q,K]: both tokens real and not special, and not the same one."""
    heads, count, keys = rows.weights.shape
    plain = ~rows.key_flags(rows.keys.special) & rows.key_flags(rows.keys.mask)
    if len(rows.keys) < keys:
        plain[: keys - len(rows.keys)] = True  # keys of the past are ordinary tokens, though unnamed
    elif len(rows.keys) > keys:
        plain[:] = True
    special = np.asarray(rows.queries.special, bool) if len(rows.queries) == count else np.zeros(count, bool)
    out = rows.real[..., None] & plain & ~special[:, None]
    if rows.position is not None:
        out &= rows.position[:, None] != np.arange(keys)
    return np.asarray(np.broadcast_to(out, (heads, count, keys)))


def _parked(rows: Rows) -> Array:
    """Bool [K]: special tokens, and the first real token (a causal model parks weight there)."""
    real = rows.key_flags(rows.keys.mask)
    first = rows.position is not None and len(rows.keys) == rows.weights.shape[2]
    return _parking(rows.key_flags(rows.keys.special), real, first)


def _parking(special: Array, real: Array, first: bool) -> Array:
    flags = special & real
    if first and real.any():
        flags[int(np.argmax(real))] = True
    return np.asarray(flags)


def _kinds(rows: Rows) -> tuple[list[str], Array]:
    """The kind of every key, and whether it is one where weight is parked."""
    parked = _parked(rows)
    return _named(rows.key_labels, rows.key_flags(rows.keys.special), parked, _others(rows.keys)), parked


def column_of(tokens: Tokens, sums: Array) -> Column:
    """What the keys of a self-attention over a text receive, from the sums over all rows, [H,K]; all rows count."""
    special, real = np.asarray(tokens.special, bool), np.asarray(tokens.mask, bool)
    parked = _parking(special, real, first=True)
    kinds = _named(tokens.pieces, special, parked, _others(tokens))
    return Column(np.asarray(sums, np.float64), len(sums) * len(tokens), tuple(kinds), parked, real)


def _others(tokens: Tokens) -> str:
    """The name of the remaining tokens: words of a text, patches of a picture, moments of a sound, or bare ids."""
    return "words" if any(end > start for start, end in tokens.offsets) else "other tokens"


def _named(pieces: Sequence[str], special: Array, parked: Array, others: str) -> list[str]:
    names = []
    for at, piece in enumerate(pieces):
        bare = piece.strip()
        if special[at]:
            names.append(bare or piece)
        elif parked[at]:
            names.append("first token")
        elif bare and all(unicodedata.category(c)[0] == "P" for c in bare):
            names.append("punctuation")
        else:
            names.append(others)
    return names
