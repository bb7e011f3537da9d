"""Attention packed for a page: integers times a step, deflated, in base64; checked against the trace before use.

What is packed is the least that a page can rebuild every stage from: query and key where the text is long, scores
where it is short, the masked scores or the weights alone where the earlier stages do not lead to the weights that the
model has. What is rebuilt is compared with the trace here, so that a page can state by how much it is off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnx.formula import capped, repeat_heads, visible
from attnx.records import Array, Attention
from attnx.view.codes import FINE, Blobs, numbers, plane, square_roots, squares, whole_numbers

LIMIT = 0.002
"""A way of packing whose weights differ by more than this is not used."""
MANY = 1 << 21
"""If a site has more weights than this, and they must be kept, they are kept in one byte each."""
NOISE = 1e-3
"""In logits: how far rounding may separate masked from capped scores where there is no mask and no bias."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One site, packed."""

    base: str
    """What everything is rebuilt from: "qk", "scores", "masked", "weights", or "roots" (weights in a byte each)."""
    fields: dict[str, Any]
    """As the page reads them."""
    error: float
    """Largest difference of a rebuilt weight from the trace's."""
    off: float | None
    """Largest difference of a rebuilt visible masked score from the trace's; None where they are not kept."""
    levels: int = FINE
    """Steps on either side of 0."""


def pack(attention: Attention, blobs: Blobs, levels: int = FINE) -> Packed:
    """Pack one site: the first way that rebuilds its weights within `LIMIT`.

    Args:
        attention: With weights; query and key or scores, and masked, where the site has them.
        blobs: Where arrays are kept.
        levels: Steps on either side of 0 for everything but weights; `FINE` where these are too few.

    Raises:
        UnsupportedError: The site has no weights.
    """
    weights = attention.need("weights")[0]
    ways = []
    if attention.site.scale is not None and attention.site.kind in ("self", "cross"):
        ways += _earlier(attention)
    if attention.masked is not None:
        ways.append("masked")
    for way, steps in ((way, steps) for way in ways for steps in dict.fromkeys((levels, FINE))):
        known = len(blobs.texts)
        found = _derived(attention, way, blobs, steps)
        if found is not None:
            return found
        blobs.forget(known)
    fields: dict[str, Any] = {"weights": []}
    error = 0.0
    for line in weights:
        if weights.size > MANY:
            roots, top = square_roots(line)
            error = max(error, _gap(squares(roots, top), line))
            fields["weights"].append([blobs.put(roots.tobytes()), top])
        else:
            codes, step = whole_numbers(line)
            error = max(error, _gap(numbers(codes, step), line))
            fields["weights"].append(plane(blobs, codes, step))
    base = "roots" if weights.size > MANY else "weights"
    return Packed(base, fields | _hidden_only(attention, blobs), error, None)


def packed_heads(parts: Sequence[Packed], group: int) -> Packed | None:
    """Some heads each of one site as one; None if they were packed in different ways.

    Args:
        parts: From the first head to the last; of each, every query head has its own key.
        group: How many query heads share a key.
    """
    first = parts[0]
    if any((one.base, one.levels) != (first.base, first.levels) for one in parts):
        return None
    fields = {name: [line for one in parts for line in one.fields[name]] for name in first.fields}
    if "key" in fields:
        fields["key"] = fields["key"][::group]
    offs = [one.off for one in parts if one.off is not None]
    return Packed(first.base, fields, max(one.error for one in parts), max(offs, default=None), first.levels)


def _earlier(attention: Attention) -> list[str]:
    """Ways to start before the mask, the smaller one first.

    Where masked scores were not traced, these are tried as if there were no mask: the weights tell.
    """
    query, key, weights = attention.query, attention.key, attention.need("weights")
    ways = ["scores"] if attention.scores is not None else []
    if query is not None and key is not None and query.shape[-1] == key.shape[-1]:
        smaller = query[0].size + key[0].size < weights[0].size
        return ["qk"] if smaller else ["scores", "qk"]
    return ways


def _derived(attention: Attention, way: str, blobs: Blobs, levels: int) -> Packed | None:
    """Pack by one way; None as soon as a head's weights cannot be rebuilt within `LIMIT`."""
    weights, masked = attention.need("weights")[0], None if attention.masked is None else attention.masked[0]
    heads = len(weights)
    fields: dict[str, Any] = {"hidden": [], "bias": [], "sink": []}
    exact = _exact(attention, way)
    rebuilt = _starts(attention, way, blobs, levels, fields)
    error = off = 0.0
    for head in range(heads):
        start = exact(head)
        seen, bias = _mask(attention, head, start, way)
        shown = _capped(attention, rebuilt(head), head) if way != "masked" else rebuilt(head)
        if bias is not None:
            codes, step = whole_numbers(bias, levels)
            shown = shown + numbers(codes, step)
            fields["bias"].append(plane(blobs, codes, step))
        else:
            fields["bias"].append(None)
        fields["hidden"].append(None if seen is None else blobs.put(np.packbits(~seen).tobytes()))
        sink = _sink(masked[head], weights[head]) if attention.site.sink and masked is not None else None
        fields["sink"].append(sink)
        error = max(error, _gap(_softmax(shown, seen, sink), weights[head]))
        if not error <= LIMIT:
            return None
        off = max(off, _gap(shown, start if masked is None else masked[head], seen))
    return Packed(way, fields, error, off, levels)


def _exact(attention: Attention, way: str) -> Any:
    """Head -> what comes before mask and bias, [Q,K], as exactly as the trace has it."""
    if way == "masked":
        return lambda head: None
    if attention.capped is not None:
        whole = attention.capped[0]
        return lambda head: whole[head]
    scores = _scores(attention)
    return lambda head: _capped(attention, scores(head), head)


def _scores(attention: Attention) -> Any:
    """Head -> unscaled scores, [Q,K]: as traced, or from query and key."""
    if attention.scores is not None:
        whole = attention.scores[0]
        return lambda head: whole[head]
    query = attention.need("query")[:1]
    key = repeat_heads(attention.need("key")[:1], query.shape[1])
    return lambda head: query[0, head] @ key[0, head].T


def _starts(attention: Attention, way: str, blobs: Blobs, levels: int, fields: dict[str, Any]) -> Any:
    """Keep the arrays that a way starts from; gives head -> what a page reads back, [Q,K]."""
    if way == "qk":
        both = []
        for name in ("query", "key"):
            packed = [whole_numbers(line, levels) for line in attention.need(name)[0]]
            fields[name] = [plane(blobs, *one) for one in packed]
            both.append(np.stack([numbers(*one) for one in packed])[None])
        query, key = both
        key = repeat_heads(key, query.shape[1])
        return lambda head: query[0, head] @ key[0, head].T
    weights = attention.need("weights")[0]
    if way == "scores":
        scores = _scores(attention)
        packed = [whole_numbers(scores(head), levels) for head in range(len(weights))]
    else:
        # Hidden cells would use up all the steps: a mask may add -1e9.
        packed = [
            whole_numbers(np.where(visible(line, None, own), line, np.nan).astype(np.float32), levels)
            for line, own in zip(attention.need("masked")[0], weights, strict=True)
        ]
    fields[way] = [plane(blobs, *one) for one in packed]
    return lambda head: numbers(*packed[head])


def _capped(attention: Attention, scores: Array, head: int) -> Array:
    scale = attention.site.scale
    assert scale is not None
    return capped(scores * np.float32(scale[head] if isinstance(scale, tuple) else scale), attention.site.softcap)


def _mask(attention: Attention, head: int, start: Array | None, way: str) -> tuple[Array | None, Array | None]:
    """Which keys a query sees (None: all), and what is added to those scores (None: nothing); [Q,K] each."""
    if attention.masked is None:
        return None, None
    masked, weights = attention.masked[0, head], attention.need("weights")[0, head]
    if start is not None:
        with np.errstate(invalid="ignore"):
            gap = masked - start
        if np.abs(gap).max(initial=0.0) <= NOISE:
            return None, None
    seen: Array | None = visible(masked, start, weights)
    assert seen is not None
    bias = None
    if start is not None:
        put = np.where(seen, gap, 0.0).astype(np.float32)
        bias = put if np.abs(put).max(initial=0.0) > NOISE else None
    return (None if seen.all() else seen), bias


def _hidden_only(attention: Attention, blobs: Blobs) -> dict[str, Any]:
    if attention.masked is None:
        return {}
    capped_ = attention.capped
    hidden = []
    for head, line in enumerate(attention.masked[0]):
        seen = visible(line, None if capped_ is None else capped_[0, head], attention.need("weights")[0, head])
        hidden.append(None if seen.all() else blobs.put(np.packbits(~seen).tobytes()))
    return {"hidden": hidden}


def _softmax(masked: Array, seen: Array | None, sink: float | None) -> Array:
    """Softmax as the page computes it: hidden cells 0, a sink in the denominator, a fully hidden row all 0."""
    if seen is not None:
        masked = np.where(seen, masked, -np.inf)
    top = masked.max(axis=-1, keepdims=True)
    if sink is not None:
        top = np.maximum(top, np.float32(sink))
    top = np.where(np.isneginf(top), np.float32(0), top)
    parts = np.exp(masked - top)
    total = parts.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(np.float32(sink) - top)
    return np.asarray(parts / np.where(total == 0, np.float32(1), total))


def _sink(masked: Array, weights: Array) -> float | None:
    """A head's sink logit: from a row's sum s, ln(sum exp masked) + ln((1 - s) / s), the median over rows."""
    sums = weights.sum(axis=-1, dtype=np.float64)
    wide = masked.astype(np.float64)
    with np.errstate(all="ignore"):
        top = wide.max(axis=-1)
        logit = top + np.log(np.exp(wide - top[:, None]).sum(axis=-1)) + np.log(1.0 - sums) - np.log(sums)
    kept = logit[np.isfinite(logit)]
    return float(np.median(kept)) if kept.size else None


def _gap(got: Array, want: Array, seen: Array | None = None) -> float:
    """Largest absolute difference over visible cells; NaN must meet NaN."""
    if seen is not None:
        got, want = got[seen], want[seen]
    if not got.size:
        return 0.0
    largest = float(np.abs(got - want).max())
    if not np.isnan(largest):
        return largest
    if (np.isnan(got) != np.isnan(want)).any():
        return float("inf")
    return float(np.nan_to_num(np.abs(got - want), nan=0.0).max())
