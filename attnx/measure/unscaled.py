"""A site's softmax with and without its scale: what `measure/scaling.py` compares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from attnx.errors import UnsupportedError, UsageError
from attnx.formula import HIDDEN, added, blocks, capped, log_softmax, repeat_heads, scaled, scores, softmax
from attnx.measure.rows import read
from attnx.records import Array, Attention, Trace
from attnx.wording import Wording

AsIf = Literal["site", "sqrt"]
Similarity = Literal["dot", "cosine"]
BLOCK = 1 << 16
"""Cells processed at once: half a megabyte for each array of `Ways`, so that they stay in a processor's cache."""


@dataclass(frozen=True, slots=True)
class Ways:
    """One site's rows both ways, first sequence, float64."""

    product: Array
    """[H,Q,K]: query x key (or their cosine), unscaled."""
    divided: Array
    """[H,Q,K]: the product times the scale, before softcap, bias and mask."""
    seen: Array
    """bool [H,Q,K]: visible keys."""
    real: Array
    """bool [H,Q]: rows that count: not padding, not fully hidden, no NaN."""
    size: int | None
    """d_k."""
    bias: Array
    """[H,Q,K]: what mask and bias add; -inf where hidden."""
    sink: Array | None
    """[H,1,1]: the sink's logit; None without a sink."""
    softcap: float | None
    """The site's softcap."""
    own: Array | None
    """[H,Q,K]: the site's own softmax's input; None where it is another scale's, or another similarity's."""

    @property
    def unscaled(self) -> Array:
        """[H,Q,K]: log of the softmax of the unscaled scores."""
        return log_softmax(self.logits(self.product), self.sink)

    @property
    def scaled(self) -> Array:
        """[H,Q,K]: log of the softmax of the scaled scores."""
        return log_softmax(self.scaled_logits(), self.sink)

    def logits(self, scores: Array) -> Array:
        """The softmax's input for other scores [H,Q,K] with this site's softcap, mask and bias; a new array."""
        with np.errstate(invalid="ignore"):
            return np.asarray(capped(scores, self.softcap) + self.bias)

    def scaled_logits(self) -> Array:
        """The softmax's input for the scaled scores; a new array."""
        return self.logits(self.divided) if self.own is None else np.where(self.seen, self.own, -np.inf)


def both_ways(
    trace: Trace, site: int, as_if: AsIf = "site", similarity: Similarity = "dot", heads: slice = slice(None)
) -> Ways:
    """The softmax of one site with and without the scale; mask, bias, softcap and sink apply in both.

    Mask and bias are masked - capped. A sink's logit is computed from how far the rows' sums are below 1.

    Args:
        trace: With scores (or query and key), scaled, masked, weights, and capped if the site has a softcap.
        site: Position in `trace.attentions`.
        as_if: "site" for the site's own scale, "sqrt" for 1/sqrt(d_k) whatever the site has.
        similarity: "dot", or "cosine": query x key / (|query| |key|), with the same scale.
        heads: Which heads; H is their number in the result.

    Returns:
        See `Ways`; logarithms, so that KL exists even for weights too small for a float.

    Raises:
        UnsupportedError: A required array is missing, or d_k is not known.
        UsageError: There is no such site.

    Source: Vaswani et al. 2017, equation 1.
    """
    return Sides(trace, site, as_if, similarity, heads).ways()


class Sides:
    """Some heads of one site, whose rows are computed both ways, some at a time; arguments as for `both_ways`.

    Raises:
        UnsupportedError: See `both_ways`.
        UsageError: There is no such site.
    """

    def __init__(
        self, trace: Trace, site: int, as_if: AsIf, similarity: Similarity, heads: slice = slice(None)
    ) -> None:
        if not 0 <= site < len(trace.attentions):
            raise UsageError(f"there is no site {site}", f"Sites run from 0 to {len(trace.attentions) - 1}.")
        self._label, self._as_if, self._similarity = trace.labels[site], as_if, similarity
        if trace.attentions[site].site.heads_mixed:
            raise UnsupportedError(
                f"{self._label} mixes the scores of all heads before its softmax: "
                "what that would be without the scale is not known",
                "Its scores, scaled, masked and weights can be shown.",
            )
        self._a = a = _some(trace.attentions[site], heads)
        if a.query is None or a.key is None:
            a.need("scores")
        self._size = a.site.head_size or (None if a.query is None else a.query.shape[-1])
        masked = a.need("masked")
        self.shape: tuple[int, int, int] = masked.shape[1:]
        """Heads, queries, keys."""
        weighed = a if a.weights is not None else replace(a, weights=softmax(masked))
        self._weighed = read(trace, weighed).real
        self._sink: Array | None = None
        if a.site.sink:
            self._sink = _sink(a, np.concatenate([self.ways(rows).real for rows in self.rows()], axis=1))

    def rows(self) -> Iterator[slice]:
        """All rows, at most `BLOCK` cells at a time and at least one row of each head."""
        heads, queries, keys = self.shape
        step = max(1, BLOCK // max(1, heads * keys))
        for start in range(0, queries, step):
            yield slice(start, start + step)

    def ways(self, rows: slice = slice(None), *, cut: bool = False) -> Ways:
        """Some rows both ways; `cut` leaves keys out, in front and behind, that none of them sees."""
        a = _rows(self._a, rows)
        whole, factor = _product(a), a.site.scale
        product = _cosine(a) if self._similarity == "cosine" else None
        broken = None if product is None else np.isnan(product).any(axis=-1)
        if cut:
            keys = _seen_of(a, whole)
            a, whole = _keys(a, keys), whole[..., keys]
            product = None if product is None else product[..., keys]
        plain = whole.astype(np.float64)
        own = a.need("scaled")[0].astype(np.float64) if factor is None else scaled(plain, factor)
        soft = own if a.capped is None and not a.site.softcap else a.need("capped")[0]
        bias = added(a.need("masked")[0], soft)
        divided = own
        if product is None:
            product, broken = plain, np.isnan(plain.max(axis=-1, initial=-np.inf))
        else:
            if factor is None and self._as_if == "site":
                raise UnsupportedError(f"the scale of {self._label} is not known", Wording("Use <as_if='sqrt'>."))
            divided = product if factor is None else scaled(product, factor)
        if self._as_if == "sqrt":
            if self._size is None:
                raise UnsupportedError(
                    f"the head size of {self._label} is not known, so neither is sqrt(d_k)",
                    Wording("<as_if='site'> takes the model's own scale."),
                )
            divided = product / np.sqrt(self._size)
        seen = bias != -np.inf
        # A model with a finite mask may give a fully hidden row uniform weights; such a row says nothing about scaling.
        real = self._weighed[:, rows] & seen.any(axis=-1) & ~np.asarray(broken)
        untouched = self._as_if == "site" and self._similarity == "dot"
        return Ways(
            product=product,
            divided=divided,
            seen=seen,
            real=real,
            size=self._size,
            bias=bias,
            sink=self._sink,
            softcap=a.site.softcap,
            own=a.need("masked")[0].astype(np.float64) if untouched else None,
        )


def in_blocks(
    trace: Trace, site: int, as_if: AsIf = "site", similarity: Similarity = "dot", head: int | None = None
) -> Iterator[tuple[int, int, Ways]]:
    """`both_ways` for a few heads, or some rows of one head, at a time: limits the memory for a long text.

    With `head`, that head alone; nothing if there is none.

    Yields:
        The first head, the first row, and these rows of these heads, without keys at either end that none of them sees;
        all rows of a head before the next.
    """
    a = trace.attentions[site]
    shape = next((x.shape for x in (a.weights, a.masked, a.scores) if x is not None), (1, 1, 1, 1))
    step = max(1, BLOCK // max(1, shape[2] * shape[3])) if head is None else 1
    for start in range(0, max(shape[1], 1), step) if head is None else range(head, min(head + 1, shape[1])):
        sides = Sides(trace, site, as_if, similarity, slice(start, start + step))
        for rows in sides.rows():
            yield start, rows.start, sides.ways(rows, cut=True)


def _some(a: Attention, heads: slice) -> Attention:
    """Some heads of the first sequence of an attention."""
    whole = next((x for x in (a.weights, a.masked, a.scores) if x is not None), None)
    count = a.site.heads if whole is None else whole.shape[1]
    if heads == slice(None) or count is None:
        return a

    def cut(array: Array | None) -> Array | None:
        return None if array is None else repeat_heads(array[:1], count)[:, heads]

    scale = a.site.scale[heads] if isinstance(a.site.scale, tuple) else a.site.scale
    return replace(
        a, site=replace(a.site, scale=scale), query=cut(a.query), key=cut(a.key), value=None, context=None,
        scores=cut(a.scores), scaled=cut(a.scaled), capped=cut(a.capped), masked=cut(a.masked), weights=cut(a.weights),
    )  # fmt: skip


def _rows(a: Attention, rows: slice) -> Attention:
    """Some rows of the first sequence of an attention."""

    def cut(array: Array | None) -> Array | None:
        return None if array is None else array[:1, :, rows]

    return replace(
        a, query=cut(a.query), scores=cut(a.scores), scaled=cut(a.scaled), capped=cut(a.capped), masked=cut(a.masked),
        weights=cut(a.weights), context=None,
    )  # fmt: skip


def _keys(a: Attention, keys: slice) -> Attention:
    """Some keys of the stages of an attention."""

    def cut(array: Array | None) -> Array | None:
        return None if array is None else array[..., keys]

    return replace(
        a, scores=cut(a.scores), scaled=cut(a.scaled), capped=cut(a.capped), masked=cut(a.masked),
        weights=cut(a.weights),
    )  # fmt: skip


def _seen_of(a: Attention, product: Array) -> slice:
    """From the first to the last key that may be visible from some row; all where a score is NaN.

    A key is left out where its largest masked score is below the smallest score before the mask by what hides a key.
    """
    masked = a.need("masked")[0]
    if not masked.size or np.isnan(product.max()):
        return slice(None)
    if a.capped is not None or a.site.softcap:
        least = float(a.need("capped")[0].min())
    elif a.site.scale is None:
        least = float(a.need("scaled")[0].min())
    else:
        ends = np.array([product.min(), product.max()], np.float64)
        least = float(np.multiply.outer(ends, np.asarray(a.site.scale, np.float64)).min())
    seen = np.flatnonzero(~(masked.max(axis=(0, 1)) <= HIDDEN + least - 1.0))
    return slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(None)


def scale_notes(trace: Trace, site: int, size: int | None) -> list[str]:
    """Notes on a site's scale: no scale, an unusual one, or not known; empty if it is 1/sqrt(d_k)."""
    scale, label = trace.attentions[site].site.scale, trace.labels[site]
    if scale is None:
        return [f"{label}: the scale is not known"]
    values = np.atleast_1d(np.asarray(scale, np.float64))
    if np.allclose(values, 1.0, rtol=1e-4):
        same = "{label}: no scale, so both ways are the same; <as_if='sqrt'> shows what 1/sqrt(d_k) would do"
        return [Wording(same, label=label)]
    if size is not None and np.allclose(values, size**-0.5, rtol=1e-3):
        return []
    own = ", ".join(f"{value:.4g}" for value in dict.fromkeys(values.tolist()))
    usual = "" if size is None else Wording(" (1/sqrt(d_k) would be {it:.4g}: <as_if='sqrt'>)", it=size**-0.5)
    return [Wording("{label}: a scale of its own, {own}{usual}", label=label, own=own, usual=usual)]


def scale_in_words(attention: Attention, size: int | None, as_if: AsIf) -> str:
    """The scale in words, for a formula line: "1/sqrt(64)", "0.0625", "its scale"."""
    scale = attention.site.scale
    if size is not None and (as_if == "sqrt" or (isinstance(scale, float) and np.isclose(scale, size**-0.5, 1e-3))):
        return f"1/sqrt({size})"
    return f"{scale:.4g}" if isinstance(scale, float) else "its scale"


def _product(a: Attention) -> Array:
    """Unscaled scores [H,Q,K] of the first sequence: as traced, or from query and key."""
    if a.scores is None and a.query is not None and a.key is not None:
        return np.asarray(scores(a.query[:1], a.key[:1])[0])
    return np.asarray(a.need("scores")[0])


def _cosine(a: Attention) -> Array:
    """Cosine of query and key, [H,Q,K]; 0 if one of them is a zero vector."""
    query = a.need("query")[:1].astype(np.float64)
    key = repeat_heads(a.need("key")[:1], query.shape[1]).astype(np.float64)
    sizes = np.linalg.norm(query, axis=-1)[0][..., None] * np.linalg.norm(key, axis=-1)[0][:, None, :]
    product = np.matmul(query, np.swapaxes(key, -1, -2))[0]
    return np.asarray(
        np.where(sizes > 0, product / np.where(sizes > 0, sizes, 1.0), np.where(np.isnan(sizes), np.nan, 0.0))
    )


def _sink(a: Attention, real: Array) -> Array | None:
    """The sink's logit per head, [H,1,1]: from a row's sum s, logit = ln(sum exp masked) + ln((1 - s) / s)."""
    if not a.site.sink:
        return None
    sums = a.need("weights")[0].sum(axis=-1, dtype=np.float64)
    masked = a.need("masked")[0]
    with np.errstate(all="ignore"):
        all_keys = np.empty(sums.shape)
        for at in blocks(masked.shape):
            some = masked[at].astype(np.float64)
            top = some.max(axis=-1, initial=-np.inf)
            all_keys[at] = top + np.log(np.exp(some - top[..., None]).sum(axis=-1))
        # A share within float32's rounding of a sum of 1 is not a sink.
        lacks = np.where(1.0 - sums > 1e-6, 1.0 - sums, 0.0)
        logit = all_keys + np.log(lacks) - np.log(sums)
    heads = [np.median(line[keep]) if keep.any() else -np.inf for line, keep in zip(logit, real, strict=True)]
    return np.asarray(heads, np.float64).reshape(-1, 1, 1)
