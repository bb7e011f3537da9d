"""Which cells of a tensor an edit changes, and to what: in attnx's order, then in the tensor's own layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from attnx.errors import InputError, UnsupportedError, UsageError
from attnx.interventions.plan import Edit
from attnx.interventions.points import Point
from attnx.layout import arrange, parse, spread, whole_factor
from attnx.records import Array, Place, Site


@dataclass(frozen=True, slots=True)
class Tensor:
    """A point's tensor in one run of the feed."""

    point: Point
    shape: tuple[int, ...]
    batch: int
    """Rows of the feed."""
    tiled: bool = False
    """Whether key/value heads are repeated as a whole block: query head h reads head h mod Hkv."""

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each axis of the quantity, by letter; heads and keys as in the tensor."""
        empty = np.broadcast_to(np.int8(0), self.shape)
        try:
            whole = arrange(empty, self.point.place.layout, self.point.order, self.batch)
        except ValueError as error:
            raise UnsupportedError(f"{self.point.title} is laid out in a way that is not known: {error}") from None
        sizes = dict(zip(self.point.order, whole.shape, strict=True))
        window = self.point.place.window
        if window is not None:
            sizes["k"] = len(range(sizes["k"])[slice(*window)])
        return sizes

    def ordered(self, raw: Array) -> Array:
        """The numbers in attnx's order, without dividing out factors."""
        return arrange(raw, self.point.place.layout, self.point.order, self.batch)

    def laid(self, array: Array, times: int) -> Array:
        """Convert an array of `times` runs from attnx's order to the tensor's layout, to which it broadcasts.

        Args:
            array: [times,...] or [times x B,...], or [1,...] if the same for all; other axes whole or 1.
            times: Runs in the batch.

        Raises:
            UnsupportedError: The tensor is constant along an axis along which it would have to vary.
        """
        place, order = self.point.place, self.point.order
        own = self.sizes_whole()["b"]
        if array.shape[0] == times and times > 1 and own > 1:
            array = np.repeat(array, own, axis=0)
        window = place.window
        if window is not None and array.shape[-1] != 1:
            whole = np.zeros((*array.shape[:-1], self.sizes_whole()["k"]), array.dtype)
            whole[..., slice(*window)] = array
            array = whole
        elif window is not None:
            whole = np.zeros((*array.shape[:-1], self.sizes_whole()["k"]), array.dtype)
            whole[..., slice(*window)] = np.broadcast_to(array, (*array.shape[:-1], self.sizes["k"]))
            array = whole
        try:
            return np.ascontiguousarray(spread(array, place.layout, order, self._stacked(times), self.batch * times))
        except ValueError as error:
            raise UnsupportedError(
                f"{self.point.title} cannot be changed so: its tensor has no such axis ({error})"
            ) from None

    def sizes_whole(self) -> dict[str, int]:
        """Like `sizes`, including what is beyond the window."""
        empty = np.broadcast_to(np.int8(0), self.shape)
        return dict(zip(self.point.order, self.ordered(empty).shape, strict=True))

    def _stacked(self, times: int) -> tuple[int, ...]:
        """The shape in a batch of several runs: only the outermost batch axis grows."""
        axes = parse(self.point.place.layout)
        names = sorted({name for axis in axes for name, _ in axis if name[0] == "b"})
        first = names[0] if names else None
        alone = [i for i, axis in enumerate(axes) if any(name == first for name, _ in axis)]
        # A tensor shared by all rows of the batch stays unchanged until a row is changed.
        return tuple(n * times if alone[:1] == [i] else n for i, n in enumerate(self.shape))


@dataclass(slots=True)
class Row:
    """What one run changes at one hook."""

    mask: Array
    """bool, [1,...] in attnx's order; axes whole or 1."""
    values: Array | None = None
    """float32, [B or 1,...]; None for zeros."""
    over: Array | None = None
    """float32 [B,Q]: the weight of each query in a mean."""


def mask_of(edit: Edit, tensor: Tensor, site: Site | None) -> Array:
    """Which cells of a tensor an edit names, bool in attnx's order with a leading axis of 1.

    Raises:
        UsageError: A head or position that does not exist, or that the quantity does not have.
    """
    sizes, title = tensor.sizes, tensor.point.title
    picked: Mapping[str, Sequence[int] | None] = {"h": edit.heads, "q": edit.queries, "k": edit.keys}
    mask = np.ones((1,) * len(tensor.point.order), bool)
    for letter, said in (("h", "head"), ("q", "query"), ("k", "key")):
        chosen = picked[letter]
        if chosen is None:
            continue
        if letter not in tensor.point.order:
            raise UsageError(
                f"{title}: {_PLURAL[said]} are given, and {tensor.point.quantity} has none",
                f"Leave {_PLURAL[said]} out.",
            )
        count = sizes[letter]
        groups = 1
        if letter == "h" and site is not None and tensor.point.quantity in ("key", "value"):
            own = site.kv_heads or count
            groups, count = (count // own, own) if count % own == 0 else (1, count)
        bad = [i for i in chosen if not 0 <= i < count]
        if bad:
            raise UsageError(
                f"{title}: there is no {'key/value ' if groups > 1 else ''}{said} {bad[0]}",
                f"There are {count}, from 0.",
            )
        line = np.zeros(count, bool)
        line[list(chosen)] = True
        line = np.tile(line, groups) if tensor.tiled else np.repeat(line, groups)
        shape = [1] * len(tensor.point.order)
        shape[tensor.point.order.index(letter)] = len(line)
        mask = mask & line.reshape(shape)
    return mask


_PLURAL = {"head": "heads", "query": "queries", "key": "keys"}


def repeated(tensor: Tensor, heads: int | None, raw: Array) -> Tensor:
    """A key's or value's tensor, with the order in which its heads are repeated (if they are) determined.

    Args:
        tensor: Of the key or value.
        heads: Hkv.
        raw: The tensor's numbers in a run.

    Raises:
        UnsupportedError: They are not repeated in either order.
    """
    own = tensor.sizes["h"]
    if heads is None or heads == own or own % heads:
        return tensor
    array, groups = tensor.ordered(raw), own // heads
    if np.array_equal(array, np.repeat(array[:, ::groups], groups, axis=1), equal_nan=True):
        return tensor
    if np.array_equal(array, np.tile(array[:, :heads], (1, groups, 1, 1)), equal_nan=True):
        return replace(tensor, tiled=True)
    raise UnsupportedError(
        f"{tensor.point.title}: its {own} heads are not {heads} key/value heads repeated, so none can be named"
    )


def own_cells(tensor: Tensor) -> Array:
    """Each query's own key, bool [1,1,Q,K]: the last keys are the queries'.

    Raises:
        UsageError: There are more queries than keys.
    """
    sizes = tensor.sizes
    queries, keys = sizes["q"], sizes["k"]
    if queries > keys:
        raise UsageError(f"{tensor.point.title}: a query has no key of its own: {queries} queries, {keys} keys")
    return np.eye(queries, keys, keys - queries, dtype=bool)[None, None]


def factored(place: Place, values: Array, order: str) -> Array:
    """A quantity as stored in its tensor: times the factors that are folded in."""
    return np.asarray(values * _factor(place, order), np.float32)


def unfactored(place: Place, values: Array, order: str) -> Array:
    """A tensor's numbers as the quantity itself, with the folded-in factors divided out."""
    return np.asarray(values / _factor(place, order), np.float32)


def _factor(place: Place, order: str) -> float | Array:
    factor = whole_factor(place.factors)
    if not isinstance(factor, np.ndarray):
        return factor
    shape = [1] * len(order)
    shape[order.index("h")] = -1
    return factor.reshape(shape)


def given_values(edit: Edit, tensor: Tensor, site: Site | None) -> Array:
    """The values given with an edit, as stored in the tensor, in attnx's order.

    Raises:
        InputError: They do not fit.
    """
    assert edit.values is not None
    order, sizes = tensor.point.order, tensor.sizes
    values = np.asarray(edit.values, np.float32)
    wanted = [sizes[letter] for letter in order]
    if values.ndim == len(order) and "h" in order and tensor.point.quantity in ("key", "value") and site is not None:
        own = site.kv_heads or sizes["h"]
        if values.shape[1] == own != sizes["h"] and sizes["h"] % own == 0:
            groups = sizes["h"] // own
            values = np.tile(values, (1, groups, 1, 1)) if tensor.tiled else np.repeat(values, groups, axis=1)
    fits = values.ndim == len(order) and all(have in (1, want) for have, want in zip(values.shape, wanted, strict=True))
    if not fits:
        raise InputError(
            f"{tensor.point.title}: values have shape {list(values.shape)}, and the quantity has {wanted}",
            "Axes of size 1 stand for all places.",
        )
    return factored(tensor.point.place, values, order)


def merged(rows: Sequence[Row | None], tensor: Tensor) -> tuple[Array, Array | None]:
    """Masks and values of several runs as one array each, in the tensor's layout."""
    times, rank = len(rows), len(tensor.point.order)
    masks = [row.mask if row is not None else np.zeros((1,) * rank, bool) for row in rows]
    whole = np.broadcast_shapes(*(mask.shape for mask in masks))
    mask = np.concatenate([np.broadcast_to(mask, (1, *whole[1:])) for mask in masks])
    values = [row.values for row in rows if row is not None and row.values is not None]
    if not values:
        return tensor.laid(mask, times), None
    size = np.broadcast_shapes(*(v.shape for v in values))
    own = tensor.sizes_whole()["b"]
    filled = np.zeros((times * own, *size[1:]), np.float32)
    for i, row in enumerate(rows):
        if row is not None and row.values is not None:
            filled[i * own : (i + 1) * own] = row.values
    return tensor.laid(mask, times), tensor.laid(filled, times)


def cells_in(tensor: Tensor) -> int:
    """Numbers in a tensor."""
    return prod(tensor.shape)
