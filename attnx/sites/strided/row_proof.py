"""What places that were carried to the cells of a softmax say of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from attnx.graph.axes.operands import Operand
from attnx.graph.fact import Fact
from attnx.graph.masks.window_probe import band_width
from attnx.records import HIDES, Array

_MARKS = 1 << 28
"""Numbers that are marked at most, a byte each; more are sorted."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was seen."""

    query: Operand
    key: Operand
    heads: int
    causal: bool
    """No query sees a later key."""
    window: int | None
    """The width of the band that is seen, beside tokens that attend to all."""
    biased: bool
    """Something is added to visible cells."""
    value: Operand | None = None
    context: Operand | None = None
    at: int = 0
    """Which of the contexts it is."""
    tokens: int | None = None
    """Where some tokens alone ask: which axis counts all tokens in what their rows were taken from."""
    twice: bool = False
    """A query has a key in several cells, hidden ones counted: their weights add up."""
    whole: bool = True
    """Every query has a row."""
    unseen: frozenset[int] = frozenset()
    """Keys that no query sees."""
    lengths: tuple[int, ...] = ()
    """How many keys each of the key's tensors has there."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """What was seen where a row holds scores of a query and keys of other heads or texts."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one evaluation on short inputs gave."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    """Sizes of both without their features."""
    split: tuple[bool, bool]
    """Whether heads were split from features for that."""
    asked: Array
    found: Array
    """Which query, and which key, each cell belongs to, counted from 1; anything else where it belongs to none."""
    masked: Array
    """The softmax's input where all scores are 0."""
    batch: int | None
    facts: Mapping[str, Fact]
    parts: tuple[tuple[int, ...], ...] = ()
    """The shape of each softmax, where the rows of several stand in one array."""


def read(seen: Seen, twice: bool = False) -> Proof | Mixed | None:
    """What the places say: see `Proof`.

    Args:
        seen: The places.
        twice: Whether a query may see a key in several cells.
    """
    one, two, cells = cells_of(seen)
    if cells is None or len(one) == 0 or len(seen.query) != len(seen.key):
        return None
    asking, asked = np.unravel_index(one, seen.query), np.unravel_index(two, seen.key)
    apart = [axis for axis in range(len(seen.query)) if (asking[axis] != asked[axis]).any()]
    rest = [axis for axis in range(len(seen.query)) if axis not in apart]
    every = seen.masked.reshape(cells.shape)
    shown = every[cells]
    if (every[~cells & cells.any(-1, keepdims=True)] > HIDES).any():
        return None  # the softmax sees scores of other keys besides; rows without any are of padding, and left out
    if len(apart) > 1:
        visible = shown > HIDES
        return Mixed() if sum((asking[i] != asked[i])[visible].any() for i in apart) > 1 else None
    # Each row is one query's, and each query has one row.
    counts = cells.sum(-1)
    first = one[(counts.cumsum() - counts)[counts > 0]]
    queries = np.bincount(one, minlength=prod(seen.query)) > 0
    if (np.repeat(first, counts[counts > 0]) != one).any() or queries.sum() != len(first):
        return None
    if len(apart) != 1 or len(rest) not in (1, 2) or any(seen.query[i] != seen.key[i] for i in rest):
        return None
    # Query and key lie apart on one axis alone: that of the key tells the pair.
    pairs = one * seen.key[apart[0]] + asked[apart[0]]
    most = prod(seen.query) * seen.key[apart[0]]
    if not twice and _repeats(pairs[shown > HIDES], most):
        return None  # a key that a query sees twice (BigBird's random blocks) has no one cell
    batch, heads = rest[0], rest[1] if len(rest) == 2 else None
    if seen.batch is not None and seen.query[batch] != seen.batch:
        return None
    query, key = (Operand(apart[0], batch, heads, split) for split in seen.split)
    visible = visible_of(seen, apart[0])
    square = visible.shape[0] == visible.shape[1]
    later = np.triu(np.ones(visible.shape, bool), 1)
    return Proof(
        query, key, 1 if heads is None else seen.query[heads], causal=square and not visible[later].any(),
        window=_width(visible), biased=bool((shown[shown > HIDES] != 0).any()), twice=_repeats(pairs, most),
        whole=bool(queries.all()), unseen=frozenset(np.flatnonzero(~visible.any(0)).tolist()),
    )  # fmt: skip


def _repeats(numbers: Array, most: int) -> bool:
    """Whether one of the numbers, which are all below `most`, is there twice."""
    if most > _MARKS:
        ordered = np.sort(numbers)
        return bool((ordered[1:] == ordered[:-1]).any())
    marks = np.zeros(most, bool)
    marks[numbers] = True
    return int(np.count_nonzero(marks)) != len(numbers)


def _width(visible: Array) -> int | None:
    """The width of a band of visible cells, beside a first token that all see."""
    width = band_width(visible)
    return band_width(visible[:, 1:]) if width is None and visible[:, 0].all() and visible.shape[1] > 1 else width


def visible_of(seen: Seen, length: int) -> Array:
    """Which keys a query sees, in any text or head: bool [Q,K]."""
    one, two, cells = cells_of(seen)
    out = np.zeros((seen.query[length], seen.key[length]), bool)
    if cells is not None:
        shown = seen.masked.reshape(cells.shape)[cells] > HIDES
        asking, asked = np.unravel_index(one, seen.query)[length], np.unravel_index(two, seen.key)[length]
        out[asking[shown], asked[shown]] = True
    return out


def cells_of(seen: Seen) -> tuple[Array, Array, Array | None]:
    """Query and key of each cell that has both, counted from 0, and which cells these are, bool [rows, columns]."""
    with np.errstate(all="ignore"):
        cells = (seen.asked > 0.5) & (seen.found > 0.5) & np.isfinite(seen.asked) & np.isfinite(seen.found)
    one, two = seen.asked[cells], seen.found[cells]
    whole = (one == np.rint(one)).all() and (two == np.rint(two)).all()
    if not whole or one.max(initial=0) > prod(seen.query) or two.max(initial=0) > prod(seen.key):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), None
    return one.astype(np.int64) - 1, two.astype(np.int64) - 1, cells.reshape(-1, cells.shape[-1])
