"""Looks: where each token looks hardest, which token a head gathers on, and what the weight goes to."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np

from attnx.errors import UnsupportedError
from attnx.records import Array, Axis, Measurement, Trace
from attnx.rows import Rows, read

SINK = 0.3
"""A kind of token is called a sink where it takes more than this. Source: Gu et al. 2025 (epsilon, for one token)."""


@dataclass(frozen=True, slots=True)
class Look:
    """One weight that stands out."""

    site: int
    """Position in `trace.attentions`."""
    head: int
    query: int | None
    """None where it stands for all queries of the head."""
    key: int
    value: float
    """A weight; of `gathered`, the share of the head's whole weight."""


def looks(trace: Trace, site: int, top: int = 3) -> tuple[tuple[Look, ...], ...]:
    """Where each token looks: its largest weights over the heads of one site, one for each key.

    Special tokens and padding are left out on both sides, and so is the token itself; the weights are not scaled up.

    Args:
        trace: With weights [B,H,Q,K].
        site: Position in `trace.attentions`.
        top: Keys for each query.

    Returns:
        For each query that has any, in order, its looks, the largest first.

    Raises:
        UnsupportedError: The site has no weights.

    Source: attnx.
    """
    rows = read(trace, trace.attentions[site])
    weights = np.where(_pairs(rows), rows.weights, -1.0)
    out = []
    for query in range(weights.shape[1]):
        best = weights[:, query].max(axis=0, initial=-1.0)
        order = [key for key in np.argsort(-best, kind="stable")[:top] if best[key] > 0]
        found = [Look(site, int(weights[:, query, k].argmax()), query, int(k), float(best[k])) for k in order]
        if found:
            out.append(tuple(found))
    return tuple(out)


def strongest_pair(trace: Trace, site: int, head: int) -> Look | None:
    """A head's largest weight between two different tokens that are not special; None where it has none.

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
    """The largest weight among those that fit, special tokens and the token itself left out where they may be.

    Args:
        trace: With weights [B,H,Q,K].
        head: Only this one: position in `trace.attentions`, head.
        query: Only from this position.
        key: Only to this position.

    Returns:
        The weight. Without a head or query it is looked for in the last site alone, whose weights say most.

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
        raise UnsupportedError("No weight fits: the query is padding or sees nothing.", "Choose another token.")
    return best


def gathered(trace: Trace, *, special: bool) -> tuple[Look, ...]:
    """For each head the key that takes the largest share of its weight: sum_i a_ik / sum a.

    Args:
        trace: With weights [B,H,Q,K].
        special: Among special tokens and the first one, where weight is parked; else among all others.

    Returns:
        Largest share first; heads without such a key are absent.

    Raises:
        UnsupportedError: A site has no weights.

    Source: attnx.
    """
    out = []
    for site, attention in enumerate(trace.attentions):
        rows = read(trace, attention)
        weights = np.where(rows.real[..., None], rows.weights, 0.0).astype(np.float64)
        total = weights.sum(axis=(1, 2))
        share = weights.sum(axis=1) / np.where(total > 0, total, np.nan)[:, None]
        keep = _parked(rows) if special else ~_parked(rows) & rows.key_flags(rows.keys.mask)
        if not keep.any():
            continue
        share = np.where(keep & ~np.isnan(share), share, -1.0)
        for head, key in enumerate(share.argmax(axis=1)):
            if share[head, key] > 0:
                out.append(Look(site, head, None, int(key), float(share[head, key])))
    return tuple(sorted(out, key=lambda look: -look.value))


def mass(trace: Trace) -> Measurement:
    """What the weight goes to: mean over sites, heads and queries of the weight on each kind of key.

    Kinds: every special token by its text, the first token where that is not special, punctuation, the words. A
    special or first token that takes more than `SINK` is named a sink.

    Args:
        trace: With weights [B,H,Q,K].

    Returns:
        [kinds], share; they add up to 1 where rows do.

    Raises:
        UnsupportedError: A site has no weights.

    Source: attnx, after Clark et al. 2019, section 3.2.
    """
    sums: dict[str, float] = {}
    parked: set[str] = set()
    count = 0
    for attention in trace.attentions:
        rows = read(trace, attention)
        names, is_parked = _kinds(rows)
        parked |= {name for name, flag in zip(names, is_parked, strict=True) if flag}
        count += int(rows.real.sum())
        weights = np.where(rows.real[..., None], rows.weights, 0.0).sum(axis=(0, 1), dtype=np.float64)
        for name, weight in zip(names, weights, strict=True):
            sums[name] = sums.get(name, 0.0) + float(weight)
    values = {name: total / count if count else float("nan") for name, total in sums.items()}
    labels = [f"{n} (sink)" if n in parked and values[n] > SINK else n for n in values]
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
        plain[: keys - len(rows.keys)] = True  # keys of the past are tokens like others, if unnamed
    elif len(rows.keys) > keys:
        plain[:] = True
    special = np.asarray(rows.queries.special, bool) if len(rows.queries) == count else np.zeros(count, bool)
    out = rows.real[..., None] & plain & ~special[:, None]
    if rows.position is not None:
        out &= rows.position[:, None] != np.arange(keys)
    return np.asarray(np.broadcast_to(out, (heads, count, keys)))


def _parked(rows: Rows) -> Array:
    """Bool [K]: special tokens, and the first real token (a causal model parks weight there)."""
    flags = rows.key_flags(rows.keys.special) & rows.key_flags(rows.keys.mask)
    real = rows.key_flags(rows.keys.mask)
    if real.any() and rows.attention.site.kind == "self" and len(rows.keys) == rows.weights.shape[2]:
        flags[int(np.argmax(real))] = True
    return np.asarray(flags)


def _kinds(rows: Rows) -> tuple[list[str], Array]:
    """The kind of every key, and whether it is one where weight is parked."""
    parked, pieces = _parked(rows), rows.key_labels
    special = rows.key_flags(rows.keys.special)
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
            names.append("words")
    return names, parked
