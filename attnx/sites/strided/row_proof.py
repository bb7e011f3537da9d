"""What the places carried to the cells of a softmax show about its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from attnx.graph.axes.operands import Operand
from attnx.graph.fact import Fact
from attnx.graph.masks.window_probe import band_width
from attnx.records import HIDES, Array

_MARKS = 1 << 28
"""The most numbers that are marked, at a byte each; more are sorted instead."""
_FEW = 1 << 14
"""Cells that are examined first: if these decide, the others are not needed or only compared."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the cells showed."""

    query: Operand
    key: Operand
    heads: int
    causal: bool
    """No query sees a later key."""
    window: int | None
    """The width of the visible band, apart from tokens that attend to all."""
    biased: bool
    """Something is added to visible cells."""
    value: Operand | None = None
    context: Operand | None = None
    at: int = 0
    """The index of the context found."""
    tokens: int | None = None
    """Where only some tokens have queries: the axis that counts all tokens in the tensor their rows were taken from."""
    twice: bool = False
    """A query has a key in several cells, including hidden ones: their weights add up."""
    whole: bool = True
    """Every query has a row."""
    unseen: frozenset[int] = frozenset()
    """Keys that no query sees."""
    lengths: tuple[int, ...] = ()
    """The number of keys in each of the key's tensors, at the sizes tried."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """The result where a row holds scores of a query with keys of other heads or texts."""


@dataclass(frozen=True)
class Seen:
    """The result of one evaluation on short inputs."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    """Sizes of both without their features."""
    split: tuple[bool, bool]
    """Whether heads were split from features to get these sizes."""
    asked: Array
    found: Array
    """The query and the key that each cell belongs to, from 1; any other number where it belongs to none."""
    masked: Array
    """The softmax's input where all scores are 0."""
    batch: int | None
    facts: Mapping[str, Fact]
    parts: tuple[tuple[int, ...], ...] = ()
    """The shape of each softmax, where one array holds the rows of several."""

    @cached_property
    def cells(self) -> Cells | None:
        """The cells that have a query and a key; None where the carried numbers are not whole."""
        with np.errstate(all="ignore"):
            there = (self.asked > 0.5) & (self.found > 0.5) & (self.asked < np.inf) & (self.found < np.inf)
        one, two = self.asked[there], self.found[there]
        whole = (one == np.rint(one)).all() and (two == np.rint(two)).all()
        if not whole or one.max(initial=0) > prod(self.query) or two.max(initial=0) > prod(self.key):
            return None
        counted = [side.astype(np.int32) for side in (one, two)]  # such tensors have fewer than 2^31 cells
        return Cells(counted[0] - 1, counted[1] - 1, there.reshape(-1, there.shape[-1]))


@dataclass(frozen=True)
class Cells:
    """Query and key of each cell that has both, counted from 0 over all axes."""

    query: Array
    key: Array
    there: Array
    """Which of all cells these are: bool [rows, columns]."""

    @cached_property
    def counts(self) -> Array:
        """The number of cells in each row that has any."""
        counts: Array = np.count_nonzero(self.there, axis=-1)
        return np.asarray(counts[counts > 0])

    @cached_property
    def asks(self) -> Array:
        """The query of the first cell of each such row."""
        return np.asarray(self.query[self.counts.cumsum() - self.counts])

    @cached_property
    def alone(self) -> bool:
        """Whether each row belongs to one query."""
        return bool((np.repeat(self.asks, self.counts) == self.query).all())

    def at(self, seen: Seen, axis: int) -> Array | None:
        """The place of each key on an axis, if all its other axes match the query of its row; None if one does not."""
        rest = [i for i in range(len(seen.query)) if i != axis]
        if not self.alone or any(seen.query[i] != seen.key[i] for i in rest):
            return None
        step, size = prod(seen.key[axis + 1 :]), seen.key[axis]
        places = list(np.unravel_index(self.asks, seen.query))
        places[axis] = np.zeros_like(places[axis])
        begins = np.ravel_multi_index(places, seen.key).astype(np.int32)
        on = self.key - np.repeat(begins, self.counts)
        if on.min(initial=0) < 0 or on.max(initial=0) >= step * size:
            return None
        if step == 1:
            return on
        where = on // step
        return where if (where * step == on).all() else None

    def apart(self, seen: Seen, which: Array | slice) -> list[int]:
        """The axes on which query and key differ in some of these cells."""
        sides = (
            np.unravel_index(side[which], shape) for side, shape in ((self.query, seen.query), (self.key, seen.key))
        )
        return [i for i, (one, two) in enumerate(zip(*sides, strict=True)) if (one != two).any()]


def read(seen: Seen, twice: bool = False) -> Proof | Mixed | None:
    """What the places show: see `Proof`.

    Args:
        seen: The places.
        twice: Whether a query may see a key in several cells.
    """
    cells = seen.cells
    if cells is None or len(cells.query) == 0 or len(seen.query) != len(seen.key):
        return None
    visible = seen.masked.reshape(cells.there.shape) > HIDES
    if (visible & ~cells.there & cells.there.any(-1, keepdims=True)).any():
        return None  # the softmax also sees scores of other keys; rows without any are padding, and left out
    shown = visible[cells.there]
    if len(cells.apart(seen, np.flatnonzero(shown)[:_FEW])) > 1:
        return Mixed()
    apart = cells.apart(seen, slice(None, None, 1 + len(cells.query) // _FEW))
    asked = cells.at(seen, apart[0]) if len(apart) == 1 else None
    if asked is None:
        apart = cells.apart(seen, slice(None))
        if len(apart) > 1:
            return Mixed() if len(cells.apart(seen, shown)) > 1 else None
    # Each row belongs to one query, and each query has one row.
    queries = np.zeros(prod(seen.query), bool)
    queries[cells.asks] = True
    if not cells.alone or np.count_nonzero(queries) != len(cells.asks):
        return None
    rest = [axis for axis in range(len(seen.query)) if axis not in apart]
    if len(apart) != 1 or len(rest) not in (1, 2) or any(seen.query[i] != seen.key[i] for i in rest):
        return None
    if asked is None:
        asked = np.unravel_index(cells.key, seen.key)[apart[0]]
    # Query and key differ on one axis only: the key's place on it identifies the pair.
    keys = seen.key[apart[0]]
    pairs = np.repeat(cells.asks.astype(np.int64) * keys, cells.counts) + asked
    repeats = _repeats(pairs, prod(seen.query) * keys)
    if not twice and repeats and _repeats(pairs[shown], prod(seen.query) * keys):
        return None  # a key that a query sees twice (BigBird's random blocks) has no single cell
    batch, heads = rest[0], rest[1] if len(rest) == 2 else None
    if seen.batch is not None and seen.query[batch] != seen.batch:
        return None
    query, key = (Operand(apart[0], batch, heads, split) for split in seen.split)
    seeing = np.zeros((seen.query[apart[0]], keys), bool)
    asking = np.unravel_index(cells.asks, seen.query)[apart[0]]
    seeing.reshape(-1)[(np.repeat(asking * keys, cells.counts) + asked)[shown]] = True  # in any text or head
    square = seeing.shape[0] == seeing.shape[1]
    later = np.triu(np.ones(seeing.shape, bool), 1)
    biased = (visible & cells.there & (seen.masked.reshape(visible.shape) != 0)).any()
    return Proof(
        query, key, 1 if heads is None else seen.query[heads], causal=square and not seeing[later].any(),
        window=_width(seeing), biased=bool(biased), twice=repeats, whole=bool(queries.all()),
        unseen=frozenset(np.flatnonzero(~seeing.any(0)).tolist()),
    )  # fmt: skip


def _repeats(numbers: Array, most: int) -> bool:
    """Whether a number occurs twice among these, which are all below `most`."""
    if most > _MARKS:
        ordered = np.sort(numbers)
        return bool((ordered[1:] == ordered[:-1]).any())
    marks = np.zeros(most, bool)
    marks[numbers] = True
    return int(np.count_nonzero(marks)) != len(numbers)


def _width(visible: Array) -> int | None:
    """The width of a band of visible cells, apart from a first token that all see."""
    width = band_width(visible)
    return band_width(visible[:, 1:]) if width is None and visible[:, 0].all() and visible.shape[1] > 1 else width
