"""Bring a tapped tensor into the order that attnx shows: [B,H,Q,K], [B,H,Q,D], [B,Hkv,K,D]."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from attnx.records import Array, Place

ORDER = {"query": "bhqd", "key": "bhkd", "value": "bhkd", "context": "bhqd"}
"""Axes of each quantity; all others are "bhqk"."""

_WORD = re.compile(r"\(([^)]*)\)|(\S+)")


@lru_cache(1024)  # a model has few layouts, and each run asks for them again at every site
def parse(layout: str) -> tuple[tuple[tuple[str, int | None], ...], ...]:
    """Read "(b h:4) q k": for each axis its letters, each with its size if the layout gives it; "1" has none."""
    axes: list[tuple[tuple[str, int | None], ...]] = []
    for match in _WORD.finditer(layout):
        tokens = [] if match.group(2) == "1" else (match.group(1) or match.group(2)).split()
        axes.append(tuple(_token(t) for t in tokens))
    return tuple(axes)


def _token(text: str) -> tuple[str, int | None]:
    name, _, size = text.partition(":")
    return name, int(size) if size else None


@lru_cache(4096)
def axis_of(layout: str, letter: str) -> int | None:
    """Which axis of a tensor holds this letter alone; None if the letter is merged, split or absent."""
    hits = [i for i, axis in enumerate(parse(layout)) if any(name[0] == letter for name, _ in axis)]
    return hits[0] if len(hits) == 1 and len(parse(layout)[hits[0]]) == 1 else None


def arrange(array: Array, layout: str, order: str, batch: int | None = None) -> Array:
    """Split, transpose and merge the axes of `array` into `order`.

    Args:
        array: The tensor as the graph has it.
        layout: Its axes, see `Place.layout`.
        order: The letters wanted, "bhqk"; letters that the tensor lacks become axes of size 1.
        batch: Size of b, where it is merged with an unknown number of heads.

    Raises:
        ValueError: The array does not fit the layout.
    """
    sizes, perm, shape = _moves(array.shape, layout, order, batch)
    return array.reshape(sizes).transpose(perm).reshape(shape)


@lru_cache(1024)
def _moves(
    shape: tuple[int, ...], layout: str, order: str, batch: int | None
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """What `arrange` does: the sizes to split into, the permutation, and the sizes to merge to."""
    divided = _divided(shape, layout, batch)
    names = [name for axis in divided for name, _ in axis]
    sizes = [size for axis in divided for _, size in axis]
    perm = _permutation(names, order)
    merged = tuple(prod(sizes[i] for i in perm if names[i][0] == letter) for letter in order)
    return tuple(sizes), perm, merged


@lru_cache(1024)
def _divided(shape: tuple[int, ...], layout: str, batch: int | None) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Each axis of a tensor as its tokens with their sizes."""
    axes = parse(layout)
    if len(axes) != len(shape):
        raise ValueError(f"an array of shape {shape} does not fit the layout {layout!r}")
    divided: list[tuple[tuple[str, int], ...]] = []
    for size, tokens in zip(shape, axes, strict=True):
        if len(tokens) > 1 and len({name[0] for name, _ in tokens}) == 1 and all(n is None for _, n in tokens):
            tokens = tokens[:1]  # several batch axes in one: they stay together
        beside = prod(n for name, n in tokens if name[0] == "b" and n is not None)
        other = None if batch is None or batch % max(beside, 1) else batch // max(beside, 1)
        known = [n if n is not None else other if len(tokens) > 1 and name[0] == "b" else None for name, n in tokens]
        if len(tokens) == 1:
            known = [size]
        missing = [i for i, n in enumerate(known) if n is None]
        rest = prod(n for n in known if n is not None)
        if len(missing) == 1:
            known[missing[0]] = size // rest if rest else 0
        if len(missing) > 1 or prod(n or 0 for n in known) != size:
            raise ValueError(f"an axis of {size} does not divide as {' '.join(n for n, _ in tokens) or '1'} says")
        divided.append(tuple((name, int(n or 0)) for (name, _), n in zip(tokens, known, strict=True)))
    return tuple(divided)


def _permutation(names: Sequence[str], order: str) -> tuple[int, ...]:
    """Tokens, by their places, in the order wanted."""
    rank = {letter: i for i, letter in enumerate(order)}
    return tuple(sorted(range(len(names)), key=lambda i: (rank[names[i][0]], names[i])))


def spread(array: Array, layout: str, order: str, shape: Sequence[int], batch: int | None = None) -> Array:
    """The inverse of `arrange`: put an array in `order` back into the layout of the tensor.

    Args:
        array: Its axes in `order`; an axis of size 1 stands for every position along it.
        layout: As in `arrange`.
        order: As in `arrange`.
        shape: Shape of the whole tensor.
        batch: As in `arrange`.

    Returns:
        As many axes as `shape`, each of the whole size or 1: it broadcasts to the tensor.

    Raises:
        ValueError: The array does not fit the layout.
    """
    divided = _divided(tuple(shape), layout, batch)
    tokens = [token for axis in divided for token in axis]
    perm = _permutation([name for name, _ in tokens], order)
    split: list[int] = []
    for at, letter in enumerate(order):
        sizes = [tokens[i][1] for i in perm if tokens[i][0][0] == letter]
        if array.shape[at] != 1 and array.shape[at] != prod(sizes):
            raise ValueError(f"{array.shape[at]} places along {letter} where the tensor has {prod(sizes)}")
        split += sizes if array.shape[at] != 1 else [1] * len(sizes)
    whole = array.reshape(split).transpose(np.argsort(perm))
    wanted: list[int] = []
    merged: list[int] = []
    at = 0
    for axis in divided:
        own = whole.shape[at : at + len(axis)]
        full = [size for _, size in axis] if any(n != 1 for n in own) else [1] * len(own)
        wanted += full
        merged.append(prod(full))
        at += len(axis)
    return np.broadcast_to(whole, wanted).reshape(merged)


def read_place(array: Array, place: Place, quantity: str, batch: int | None = None) -> Array:
    """The quantity that a tapped tensor holds: float32, in attnx's order, its factors divided out, its window cut.

    Raises:
        ValueError: The array does not fit the place.
    """
    out = arrange(array, place.layout, ORDER.get(quantity, "bhqk"), batch)
    if place.window is not None:
        out = out[..., slice(*place.window)]
    out = to_single(out)
    if place.tile > 1:
        out = np.tile(out, (1, place.tile, 1, 1))
    factor = whole_factor(place.factors)
    with np.errstate(all="ignore"):  # non-finite numbers and factors are kept: the checks fail on them and say so
        if isinstance(factor, np.ndarray):
            return np.asarray(out / factor.reshape(1, -1, 1, 1), dtype=np.float32)
        if factor == 1.0:
            return out
        # Divided in float64, but never held so.
        return np.divide(out, np.float64(factor), out=np.empty(out.shape, np.float32), casting="same_kind")


def to_single(array: Array) -> Array:
    """Numbers as float32. What is finite stays finite: a float64 model masks with -1.8e308, and that is not -inf."""
    with np.errstate(over="ignore"):
        out = np.asarray(array, dtype=np.float32)
    if array.dtype == np.float64 and not np.isfinite(out).all():
        limits = np.finfo(np.float32)
        out = np.where(np.isfinite(array), np.clip(out, limits.min, limits.max), out)
    return out


def whole_factor(factors: Sequence[float | tuple[float, ...]]) -> float | Array:
    """The product of factors: a number, or float64 [H]."""
    total: float | Array = 1.0
    for factor in factors:
        total = total * (factor if isinstance(factor, float) else np.asarray(factor))
    return total
