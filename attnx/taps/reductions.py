"""Reductions inside the graph: each matrix is reduced to numbers per row at its site, and never leaves the session.

A row of weights has K numbers, and H x Q such rows make a matrix that nobody may want to see whole. These nodes, added
to the graph after a site, compute what a measure needs of it: sums, entropies, largest weights, sums over marked keys,
weights of chosen cells, whole rows of chosen queries. `attnx.study.head_stats` turns them into measurements.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from attnx.layout import arrange, axis_of, whole_factor
from attnx.records import Array, Place, Site
from attnx.taps.some_heads import apart, heads_input
from attnx.taps.writer import Nodes

ROWS, KEEP, MARKS, CELLS, AWAY, FIRST, START, ENDS, PAIRS, UP_TO = (
    f"attnx/{n}" for n in ("rows", "keep", "marks", "cells", "away", "first", "start", "ends", "pairs", "up_to")
)
"""Inputs that reductions add to a graph: query positions int64 [R]; which keys count for `kept`, float32 [K]; marks of
keys, float32 [K,M], the last of them all ones; cells of a matrix, i x K + j, int64 [P]; |i - j|, float32 [Q,K]; one
key, int64 [1]; the start of a rollout, float32 [R,Q]; its ends, float32 [K,M]; which cells count for pairs, float32
[Q,K]; which keys are not after their query, bool [Q,K]."""
STATS = (
    "total", "entropy", "entropy_single", "largest", "kept", "marks", "cells", "away", "apart", "visible", "seen",
    "received", "seers", "most_added", "least_added", "mean", "most", "most_masked", "rollout", "arrived",
    "pair", "pair_at", "pairs", "pairs_head", "norms", "norms_left", "row_marks", "sizes", "not_causal", "not_full",
)  # fmt: skip
"""What a matrix can be reduced to. For each row: sum a; sum a ln a, and the same for one head at a time; max a; max a
over the keys kept; sum a m_j for each mark; a of each cell; sum a |i - j|, and the same over all rows together; how
many keys are visible; whether the key `FIRST` is visible. For each column: sum a; to how many queries it is visible.
Over heads, [Q,K]: the largest and the smallest number that bias and mask add to a score; the mean and the largest
weight; the largest masked score. For all sites together, stored with the first: the rows of the rollout that begin with
`START`, for which all layers' means are held until the last; or its columns times `ENDS` in the rows `ROWS`, [R,M], for
which one layer's is. For the cells in `PAIRS`: each head's largest weight, and its cell i x K + j; the largest over
heads, [Q,K], and its head. For the value: see `norms`. For the rows in `ROWS` only: sum a m_j for each mark. For the
matrix: Q and K, int64 [2]; in how many cells what is visible differs from the keys up to the query, or from all keys,
one number: 0 where it never does; heads and layers that share a mask count once."""
ENTROPIES = ("entropy", "entropy_single")
"""Statistics with one result: the second, for long texts, takes less memory."""
ROLLOUTS = ("rollout", "arrived")
UNLIKE = ("not_causal", "not_full")
OVER_HEADS = (
    "most_added", "least_added", "mean", "most", "most_masked", *ROLLOUTS, "pairs", "pairs_head", *UNLIKE,
)  # fmt: skip
"""Statistics over all heads."""
HIDDEN = -9e3
"""A masked score at or below this counts as hidden. The same number as `formula.HIDDEN`."""
GATHERED = "attnx/Gather/"
"""Prefix of the names of tensors that hold chosen rows."""
_NEEDS = {
    "kept": KEEP, "marks": MARKS, "cells": CELLS, "away": AWAY, "apart": AWAY, "seen": FIRST, "rollout": START,
    "arrived": ENDS, "pair": PAIRS, "pair_at": PAIRS, "pairs": PAIRS, "pairs_head": PAIRS, "row_marks": MARKS,
    "not_causal": UP_TO,
}  # fmt: skip
ADDED = ("most_added", "least_added")
NORMS = ("norms", "norms_left")
"""Statistics of the value and W_O; where a graph does not allow them, the value is tapped instead."""
_MASKED = ("visible", "seen", "seers", "most_masked", *ADDED, *UNLIKE)
_TINY = 1e-37
_LOWEST = float(np.finfo(np.float32).min)
_WORD = re.compile(r"\([^)]*\)|\S+")


@dataclass(frozen=True, slots=True)
class Reduction:
    """What is wanted from sites instead of their matrices."""

    stats: tuple[str, ...] = ()
    """Names of `STATS`."""
    rows: bool = False
    """Whether to give only the rows of the queries in the input `ROWS`, for every tapped stage."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs that the reduction adds."""
        return tuple(dict.fromkeys([*([ROWS] if self.rows else []), *(_NEEDS[s] for s in self.stats if s in _NEEDS)]))


def fits(site: Site, stat: str) -> bool:
    """Whether a site's matrix can be reduced in the graph: its axes are separate, no factor is folded in, and its
    positions are those of the text.
    """
    place = site.places.get(source(stat))
    return (
        place is not None
        and not site.moved
        and not place.factors
        and axis_of(place.layout, "k") is not None
        and axis_of(place.layout, "q") is not None
    )


def before_mask(site: Site) -> Place | None:
    """The place of the scores to which bias and mask are added, in a form that can be reduced; None without one."""
    place = site.places.get("capped") or (site.places.get("scaled") if site.softcap is None else None)
    if place is None or not isinstance(whole_factor(place.factors), float):
        return None
    whole = axis_of(place.layout, "k") is not None and axis_of(place.layout, "q") is not None
    masked = site.places.get("masked")
    alike = masked is not None and len(outer_words(place.layout)) == len(outer_words(masked.layout))
    return place if whole and alike else None


class Writer(Nodes):
    """Adds reducing nodes to a graph that is being tapped."""

    def declare(self, reduction: Reduction) -> None:
        """Add the inputs that a reduction needs."""
        from onnx import TensorProto, helper

        kinds = {
            ROWS: (TensorProto.INT64, ["attnx_rows"]),
            KEEP: (TensorProto.FLOAT, ["attnx_keys"]),
            MARKS: (TensorProto.FLOAT, ["attnx_keys", "attnx_marks"]),
            CELLS: (TensorProto.INT64, ["attnx_cells"]),
            AWAY: (TensorProto.FLOAT, ["attnx_queries", "attnx_keys"]),
            FIRST: (TensorProto.INT64, [1]),
            START: (TensorProto.FLOAT, ["attnx_rows", "attnx_queries"]),
            ENDS: (TensorProto.FLOAT, ["attnx_keys", "attnx_ends"]),
            PAIRS: (TensorProto.FLOAT, ["attnx_queries", "attnx_keys"]),
            UP_TO: (TensorProto.BOOL, ["attnx_queries", "attnx_keys"]),
        }
        read = {name for node in self._proto.graph.node for name in node.input}
        for name in reduction.inputs:
            if name not in read:
                continue
            self._proto.graph.input.append(helper.make_tensor_value_info(name, *kinds[name]))

    def declare_heads(self, sites: Sequence[int]) -> None:
        """Add the inputs that say which heads of sites are wanted, where something reads them."""
        from onnx import TensorProto, helper

        read = {name for node in self._proto.graph.node for name in node.input}
        for site in sites:
            if (name := heads_input(site)) in read:
                info = helper.make_tensor_value_info(name, TensorProto.INT64, [f"attnx_heads_{site}"])
                self._proto.graph.input.append(info)

    def rows(self, value: str, place: Place) -> str | None:
        """The chosen queries' rows of a tensor; None where its layout does not allow it."""
        axis = axis_of(place.layout, "q")
        return None if axis is None else self.node("Gather", [value, ROWS], axis=axis)

    def heads(self, value: str, place: Place, chosen: str) -> str | None:
        """Some heads of a tensor; None where its layout, or a factor for each head, does not allow it."""
        axis = axis_of(place.layout, "h")
        return self.node("Gather", [value, chosen], axis=axis) if axis is not None and apart(place) else None

    def stat(self, value: str, place: Place, stat: str, heads: int | None = None, marked: bool = False) -> str:
        """One reduction of a matrix with the given number of heads; the result has the matrix's other axes, then q,
        then marks or cells. `marked`: the marks are wanted too, the last of which gives the sum of each row.
        """
        if stat == "sizes":
            ends = self.ints([axis_of(place.layout, "q") or 0, axis_of(place.layout, "k") or 0])
            return self.node("Gather", [self.node("Shape", [value]), ends])
        last = self.last(value, place)
        if stat == "total" and marked:
            return self.node("Gather", [self.node("MatMul", [last, MARKS]), self.index(-1)], axis=-1)
        if stat == "total":
            return self.summed(last)
        if stat in ENTROPIES:
            # 0 ln 0 = 0: the logarithm is never given a 0.
            log = self.node("Log", [self.node("Clip", [last, self.number(_TINY)])])
            return self.summed(self.node("Mul", [last, log]))
        if stat == "largest":
            return self.extreme("ReduceMax", last)
        if stat == "kept":
            kept = self.node("Mul", [last, KEEP])
            return self.extreme("ReduceMax", kept)
        if stat == "marks":
            return self.node("MatMul", [last, MARKS])
        if stat == "row_marks":
            return self.node("MatMul", [self.node("Gather", [last, ROWS], axis=-2), MARKS])
        if stat == "cells":
            outer = len(outer_words(place.layout))
            flat = self.node("Reshape", [last, self.ints([0] * outer + [-1])])
            return self.node("Gather", [flat, CELLS], axis=-1)
        if stat == "apart":
            # One product over each head's cells, which takes a third of the time of a product and a sum per row.
            flat = self.reshaped(last, [0] * len(outer_words(place.layout)) + [-1])
            return self.node("MatMul", [flat, self.reshaped(AWAY, (-1, 1))])
        if stat == "away":
            return self.summed(self.node("Mul", [last, AWAY]))
        if stat == "received":
            return self.summed(last, -2)
        if stat in ("pair", "pair_at", "pairs", "pairs_head"):
            return self._pairs(self.node("Mul", [last, PAIRS]), place, stat)
        if stat in ("mean", "most", "most_masked"):
            return self._mean(last, place, heads) if stat == "mean" else self._over_heads("ReduceMax", last, place)
        if stat == "seen":
            last = self.node("Gather", [last, FIRST], axis=-1)
        shown = self.node("Greater", [last, self.number(HIDDEN)])
        return self.summed(self.node("Cast", [shown], to=1), -2 if stat == "seers" else -1)

    def added(self, masked: str, masked_place: Place, before: str, place: Place, stat: str) -> str:
        """The largest or smallest number over heads that was added to the scores, [Q,K]; minus infinity where hidden.

        Where the graph adds one tensor, that tensor is used: [1,K] or [Q,K], once for all sites that add the same.
        """
        kind = "ReduceMax" if stat == "most_added" else "ReduceMin"
        if (mask := self._mask(masked_place, place)) is not None:
            name, rank = mask
            return self._reduced(kind, self.as_float32(name), rank - 2)
        scores = self.last(before, place)
        factor = whole_factor(place.factors)
        if factor != 1.0:
            scores = self.node("Div", [scores, self.number(float(factor))])
        gap = self.node("Sub", [self.last(masked, masked_place), scores])
        return self._over_heads(kind, gap, masked_place)

    def _mask(self, masked: Place, before: Place) -> tuple[str, int] | None:
        """The tensor added in one node to the unchanged scores to make the masked ones; and its rank."""
        node = self._graph.producer(masked.value)
        rank = len(outer_words(masked.layout)) + 2
        ends = (axis_of(masked.layout, "q"), axis_of(masked.layout, "k")) == (rank - 2, rank - 1)
        plain = not masked.factors and not before.factors and masked.window is None and before.window is None
        if node is None or node.op_type != "Add" or before.value not in node.input or not (ends and plain):
            return None
        mask = next((name for name in node.input if name != before.value), before.value)
        fact = self._graph.facts.get(mask)
        shape = None if fact is None else fact.shape
        return (mask, len(shape)) if shape is not None and 2 <= len(shape) <= rank else None

    def head_mean(self, value: str, place: Place, sink: bool, heads: int | None) -> str:
        """Mean of the weights over heads (and a batch of one), [Q,K]; where a sink takes a share, of the remainder."""
        last = self.last(value, place)
        if sink:
            last = self.node("Div", [last, self.summed(last, keep=1)])
        return self._mean(last, place, heads)

    def mean_of(self, means: Sequence[str], counts: Sequence[int]) -> str:
        """The mean over the heads of several sites, from the mean of each."""
        if len(means) == 1:
            return means[0]
        parts = [self.node("Mul", [m, self.number(n / sum(counts))]) for m, n in zip(means, counts, strict=True)]
        return self.node("Sum", parts)

    def _mean(self, last: str, place: Place, heads: int | None) -> str:
        """The mean over heads and a batch of one: as a product, which takes a third of ReduceMean's time."""
        outer = len(outer_words(place.layout))
        if heads is None or not outer:
            return self._over_heads("ReduceMean", last, place)
        ends = self.node("Gather", [self.node("Shape", [last]), self.ints([outer, outer + 1])])
        flat = self.node("MatMul", [self.filled((1, heads), 1 / heads), self.reshaped(last, (heads, -1))])
        return self.node("Reshape", [flat, ends])

    def rollout(self, means: Sequence[str]) -> str:
        """The rows of R_l = (A_l + I) / 2 x R_(l-1) that begin with `START`, from the last layer down: [R,K]."""
        state, half = START, self.number(0.5)
        for mean in reversed(means):
            state = self.node("Mul", [self.node("Add", [self.node("MatMul", [state, mean]), state]), half])
        return state

    def arrived(self, means: Sequence[str]) -> str:
        """R_l x `ENDS` from the first layer up, then the rows `ROWS`: [R,M]. Each mean is read beside its layer."""
        state, half = ENDS, self.number(0.5)
        for mean in means:
            state = self.node("Mul", [self.node("Add", [self.node("MatMul", [mean, state]), state]), half])
        return self.node("Gather", [state, ROWS], axis=0)

    def _pairs(self, last: str, place: Place, stat: str) -> str:
        """The largest of some cells, by head or by cell, and its position."""
        outer = outer_words(place.layout)
        if stat == "pairs":
            return self._over_heads("ReduceMax", last, place)
        if stat == "pairs_head":
            return self.node("ArgMax", [last], axis=next(i for i, w in enumerate(outer) if "h" in w), keepdims=0)
        flat = self.node("Reshape", [last, self.ints([0] * len(outer) + [-1])])
        if stat == "pair_at":
            return self.node("ArgMax", [flat], axis=-1, keepdims=0)
        return self.extreme("ReduceMax", flat)

    def _over_heads(self, kind: str, last: str, place: Place) -> str:
        """A matrix reduced over all axes except q and k."""
        return self._reduced(kind, last, len(outer_words(place.layout)))

    def _reduced(self, kind: str, value: str, count: int) -> str:
        """A tensor reduced over its first axes."""
        axes = list(range(count))
        if not axes:
            return value
        if self._graph.opset >= 18:
            return self.node(kind, [value, self.ints(axes)], keepdims=0)
        return self.node(kind, [value], axes=axes, keepdims=0)

    def entropy(
        self,
        value: str,
        place: Place,
        masked: str,
        masked_place: Place,
        *,
        marked: bool = False,
        single: bool = False,
    ) -> str:
        """Sum a ln a without a logarithm for each cell, which would take longer than everything else.

        With s the masked scores, ln a = s - m + ln max a, where m = max s: sum a (s - m) + ln max a x sum a. A row in
        which all cells are hidden gives 0. `single`: one head's s - m is held at a time, with the same numbers. Of all
        heads together, s - m is a third tensor of their size beside the scores and the weights.
        """
        if not self._is_float32(masked) or not self._is_float32(value):
            return self.stat(value, place, "entropy")
        both = self.last(value, place), self.last(masked, masked_place)
        outer = len(outer_words(place.layout))
        below = self.one_by_one(self._below, both, outer) if single and outer else self._below(*both)
        log = self.node("Log", [self.node("Max", [self.stat(value, place, "largest"), self.number(_TINY)])])
        whole = self.node("Mul", [log, self.stat(value, place, "total", marked=marked)])
        return self.node("Add", [below, whole])

    def _below(self, weights: str, scores: str) -> str:
        """Sum a (s - m) of each row."""
        most = self.node("Max", [self.extreme("ReduceMax", scores, keep=1), self.number(_LOWEST)])
        shown = self.at_least(self.node("Sub", [scores, most]), HIDDEN)  # hidden cells, whose weight is 0, may be -inf
        return self.summed(self.node("Mul", [weights, shown]))

    def last(self, value: str, place: Place) -> str:
        """The matrix in float32 with q and k as its last axes, cut to its window."""
        value = self.as_float32(value)
        q, k = axis_of(place.layout, "q"), axis_of(place.layout, "k")
        assert q is not None and k is not None  # noqa: PT018
        rank = len(outer_words(place.layout)) + 2
        order = [i for i in range(rank) if i not in (q, k)] + [q, k]
        value = self.transposed(value, order)
        if place.window is not None:
            start, stop = place.window
            ends = [self.ints([start or 0]), self.ints([2**62 if stop is None else stop])]
            value = self.node("Slice", [value, *ends, self.ints([rank - 1])])
        return value


@lru_cache(1024)
def outer_words(layout: str) -> tuple[str, ...]:
    """The axes of a matrix other than q and k, as its layout writes them."""
    return tuple(word for word in _WORD.findall(layout) if word.strip("()").split()[0][0] not in "qk")


def read_stat(array: Array, place: Place, stat: str, batch: int | None = None) -> Array:
    """A reduction's result in attnx's order: float32 [B,H,Q], or [B,H,Q,M] for marks, [B,H,P] for cells, [B,H,K] for
    columns; results over heads, norms, and rows of a rollout are unchanged.

    Raises:
        ValueError: The array does not fit the place.
    """
    if stat in ("pair", "pair_at"):
        return np.asarray(arrange(array, " ".join(outer_words(place.layout)), "bh", batch))
    if stat in OVER_HEADS or stat in NORMS:
        return np.asarray(array, np.float32)
    outer = " ".join(outer_words(place.layout))
    if stat == "cells":
        return np.asarray(arrange(array, f"{outer} q", "bhq", batch), np.float32)
    if stat in ("marks", "row_marks"):
        return np.asarray(arrange(array, f"{outer} q d", "bhqd", batch), np.float32)
    return np.asarray(arrange(array, f"{outer} q", "bhq", batch), np.float32)


def source(name: str) -> str:
    """The quantity that a statistic is made from; for a quantity, itself."""
    if name in NORMS:
        return "value"
    return "masked" if name in _MASKED else "weights" if name in STATS else name
