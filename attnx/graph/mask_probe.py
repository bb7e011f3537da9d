"""What a site hides, seen by evaluating its mask alone: the scores are set to zero, every mask input says "keep"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.infer import Fact, infer, input_shape
from attnx.graph.window_probe import band_width, windows
from attnx.layout import arrange, parse
from attnx.records import Array, Place

if TYPE_CHECKING:
    from attnx.graph.index import Graph

PROBE = 1000
"""Probe sizes are larger than this."""
PADDED = -1e4
"""A cell at or below this is hidden, where what is added to it is all that it holds."""
LIMIT = 1 << 23
"""Numbers are carried for masks of at most this many cells."""


@dataclass(frozen=True, slots=True)
class Probed:
    """A site to look at, by the names of its values."""

    product: str
    """The score product: set to zero."""
    masked: Place | None
    weights: Place


@dataclass(frozen=True, slots=True)
class Hides:
    """What the mask of a site hides when nothing is padded, and what is added where nothing is hidden."""

    causal: bool
    """Every later key is hidden, and not everything is."""
    window: int | None = None
    """How many keys a query sees at most, itself included, where what it sees is a band; None without one."""
    bias: str | None = None
    """What is added to visible cells, in words; "" where that cannot be told; None where nothing is."""


def small_sizes(graph: Graph, length: int) -> dict[str, int]:
    """A size for each named dimension of the inputs: 1 for batches, 0 for the past, `length` for the rest.

    With an empty past every length of a text model is the same one, whatever names an exporter gave it, so no
    equation between the names has to be solved.
    """
    lead: dict[str, bool] = {}
    cached: dict[str, bool] = {}
    for name, info in graph.inputs.items():
        dims = info.type.tensor_type.shape.dim
        cache = len(dims) >= 3 and any(n.op_type in ("Concat", "Gather", "Split") for n in graph.consumers(name))
        for i, dim in enumerate(dims):
            if dim.dim_param:
                lead[dim.dim_param] = lead.get(dim.dim_param, True) and i == 0 and len(dims) > 1
                cached[dim.dim_param] = cached.get(dim.dim_param, True) and cache
    sizes: dict[str, int] = {}
    for name in lead:
        word = name.lower()
        if graph.sizes.get(name, PROBE) < PROBE:  # an equal size elsewhere in the graph is fixed
            sizes[name] = graph.sizes[name]
        elif lead[name] or ("batch" in word and "+" not in word):
            sizes[name] = 1
        elif ("past" in word and "+" not in word) or cached[name]:
            sizes[name] = 0
        else:
            sizes[name] = length
    return sizes


def _inputs(graph: Graph, sizes: dict[str, int], floats: float, bools: bool, cone: set[str]) -> dict[str, Fact]:
    """Inputs that keep everything: ones for masks, counted positions, a token that is neither padding nor special."""
    facts: dict[str, Fact] = {}
    for name, info in graph.inputs.items():
        if name not in cone:
            continue
        kind = info.type.tensor_type.elem_type
        shape = input_shape(info, sizes)
        if shape is None or None in shape or (not shape and kind not in (6, 7)):
            continue
        whole = tuple(int(d) for d in shape if d is not None)
        if np.prod(whole, dtype=np.float64) > LIMIT:
            continue
        value: Array
        if kind in (6, 7):
            dtype = np.int32 if kind == 6 else np.int64
            if "position" in name.lower() and whole:
                value = np.broadcast_to(np.arange(whole[-1], dtype=dtype), whole)
            else:
                looked_up = any(n.op_type in ("Gather", "EmbedLayerNormalization") for n in graph.consumers(name))
                value = np.full(whole, 5 if looked_up else 1, dtype=dtype)
        elif kind == 9:
            value = np.full(whole, bools)
        elif kind in (1, 10) and len(whole) in (2, 3, 4) and "past" not in name.lower():
            value = np.full(whole, floats, dtype=np.float32 if kind == 1 else np.float16)
        else:
            continue
        facts[name] = Fact(whole, kind, value)
    return facts


def hides(graph: Graph, sites: list[Probed]) -> dict[str, Hides]:
    """What each site hides.

    Args:
        graph: The flat graph, fused nodes replaced.
        sites: The sites.

    Returns:
        By the name of the weights; a site whose mask cannot be evaluated is absent.
    """
    if not sites:
        return {}
    found: dict[str, Hides] = {}
    graph.facts  # noqa: B018  binds graph.sizes
    cone = _cone(graph, sites)
    # A float mask may be added or multiplied by, a bool one may mean "keep" or "padding": the first that hides not
    # everything is the one that pads nothing.
    kinds: dict[str, tuple[float, bool]] = {}
    for length, floats, bools in [
        (n, *kind) for n in (6, *_fixed_lengths(graph, sites), 32) for kind in ((0.0, True), (1.0, True), (0.0, False))
    ]:
        left = [s for s in sites if s.weights.value not in found]
        if left:
            seen = _hides(graph, left, cone, small_sizes(graph, length), floats, bools)
            kinds |= dict.fromkeys(seen, (floats, bools))
            found |= seen
    # A sliding window shows only in a text longer than itself.
    for kind in dict.fromkeys(kinds.values()):
        mine = [s for s in sites if kinds.get(s.weights.value) == kind and found[s.weights.value].window is None]

        def look(
            length: int, given: Mapping[str, Fact], mine: list[Probed] = mine, kind: tuple[float, bool] = kind
        ) -> dict[str, int]:
            seen = _hides(graph, mine, cone, small_sizes(graph, length), kind[0], kind[1], given)
            return {name: h.window for name, h in seen.items() if h.window is not None}

        for name, width in windows(graph, cone, look).items() if mine else ():
            found[name] = replace(found[name], window=width)
    return found


def _cone(graph: Graph, sites: list[Probed]) -> set[str]:
    """The values that the masks are made from."""
    stop = {s.product for s in sites}
    cone: set[str] = set()
    stack = [s.weights.value for s in sites] + [s.masked.value for s in sites if s.masked is not None]
    while stack:
        value = stack.pop()
        if value in cone or value in stop:
            continue
        cone.add(value)
        node = graph.producer(value)
        if node is not None and node.op_type not in ("Shape", "Size"):
            stack += [n for n in node.input if n]
    return cone


def _fixed_lengths(graph: Graph, sites: list[Probed]) -> list[int]:
    """Lengths that an exporter baked into the graph although its inputs call them free."""
    shapes = [graph.shape(s.product) for s in sites]
    return sorted({d for shape in shapes if shape for d in shape[-2:] if d is not None and 1 < d < PROBE} - {6, 32})[:3]


def _hides(
    graph: Graph,
    sites: list[Probed],
    cone: set[str],
    sizes: dict[str, int],
    floats: float,
    bools: bool,
    given: Mapping[str, Fact] | None = None,
) -> dict[str, Hides]:
    inputs = {**_inputs(graph, sizes, floats, bools, cone), **(given or {})}
    shapes = infer(graph, sizes, inputs, LIMIT, cone)
    products: dict[str, Fact] = {}
    for site in sites:
        fact = shapes.get(site.product)
        if fact is not None and fact.shape is not None and None not in fact.shape:
            whole = tuple(int(d) for d in fact.shape if d is not None)
            if np.prod(whole, dtype=np.float64) <= LIMIT:
                zero = np.zeros((), np.float16 if fact.dtype == 10 else np.float32)
                products[site.product] = Fact(whole, fact.dtype, np.broadcast_to(zero, whole))
    if not products:
        return {}
    reader = _Reader(sites)
    reader.finish(infer(graph, sizes, {**inputs, **products}, LIMIT, cone, reader.seen))
    return reader.found


class _Reader:
    """Reads each site's mask as soon as its numbers are there, so that they need not be kept."""

    def __init__(self, sites: list[Probed]) -> None:
        self.found: dict[str, Hides] = {}
        self._masked: dict[str, Array] = {}
        self._by_masked = _by_value(sites, lambda s: s.masked)
        self._by_weights = _by_value(sites, lambda s: s.weights)

    def seen(self, name: str, facts: dict[str, Fact]) -> None:
        for site in self._by_masked.get(name, ()):
            if site.masked is not None and (value := _value(facts, site.masked)) is not None:
                self._masked[site.weights.value] = value
        for site in self._by_weights.get(name, ()):
            weights = _value(facts, site.weights)
            if weights is not None:
                hidden = weights <= weights.max(axis=-1, keepdims=True) * 1e-9
                self._keep(site, hidden)

    def finish(self, facts: dict[str, Fact]) -> None:
        """Read the sites whose weights were not known, off what their softmax gets."""
        for site in [s for sites in self._by_weights.values() for s in sites]:
            for place in (site.masked, site.weights):  # a mask that is an input of the graph is no node's output
                if place is not None and place.value in facts and site.weights.value not in self.found:
                    self.seen(place.value, facts)
            if site.weights.value not in self.found and (masked := self._masked.get(site.weights.value)) is not None:
                self._keep(site, hidden_cells(masked))

    def _keep(self, site: Probed, hidden: Array) -> None:
        read = _read(hidden, self._masked.pop(site.weights.value, None))
        if read is not None:
            self.found[site.weights.value] = read


def _by_value(sites: list[Probed], of: Callable[[Probed], Place | None]) -> dict[str, list[Probed]]:
    out: dict[str, list[Probed]] = {}
    for site in sites:
        place = of(site)
        if place is not None:
            out.setdefault(place.value, []).append(site)
    return out


def _value(facts: dict[str, Fact], place: Place) -> Array | None:
    """A stage of a site as [B,H,Q,K] float64; None where its numbers are not known."""
    fact = facts.get(place.value)
    if fact is None or fact.value is None or not fact.value.size:
        return None
    value = np.asarray(fact.value)
    rank = len(parse(place.layout))
    if value.ndim < rank:
        value = value.reshape((1,) * (rank - value.ndim) + value.shape)
    try:
        out = arrange(value, _without_sizes(place.layout, value.shape), "bhqk")
    except ValueError:
        return None
    if place.window is not None:
        out = out[..., slice(*place.window)]
    return np.asarray(out, dtype=np.float64)


def _without_sizes(layout: str, shape: tuple[int, ...]) -> str:
    """The layout, for a tensor whose head axis may be 1 where a mask is shared by all heads."""
    words = layout.split(" ")
    if len(words) == len(shape):
        words = [w.partition(":")[0] if not w.startswith("(") else w for w in words]
    return " ".join(words)


def hidden_cells(masked: Array) -> Array:
    """Cells that a softmax over the last axis hides: -inf, or far below the row's best. bool, same shape."""
    best = np.max(np.where(np.isfinite(masked), masked, -np.inf), axis=-1, keepdims=True)
    return np.asarray(~(masked > best - 5e3))


def _read(hidden: Array, masked: Array | None) -> Hides | None:
    """Read a mask off [B,H,Q,K]."""
    bias = _bias(hidden, masked)
    hidden = hidden.reshape(-1, *hidden.shape[-2:])
    queries, keys = hidden.shape[-2:]
    if hidden.all() or (masked is not None and masked.size and np.max(masked) <= PADDED):
        return None  # with every cell as far down, the softmax is that of no mask: this probe pads everything
    if queries < 2 or not hidden.any():
        return Hides(False, None, bias)
    causal = False
    for offset in dict.fromkeys((max(keys - queries, 0), 0)):
        later = np.arange(keys)[None, :] > np.arange(queries)[:, None] + offset
        present = hidden[:, np.arange(queries), np.minimum(np.arange(queries) + offset, keys - 1)]
        # Behind a past each query sees its own key; a band that ends before it is a block's neighbourhood.
        reaches = offset == 0 or not present.all(axis=0).any()
        causal = causal or bool(later.any() and reaches and hidden[:, later].all() and not hidden[:, ~later].all())
    return Hides(causal, band_width(~hidden[0]), bias)


def _bias(hidden: Array, masked: Array | None) -> str | None:
    """What is added to visible cells, in words; "" where the numbers are not known; None for nothing."""
    if masked is None or masked.shape[-2:] != hidden.shape[-2:]:
        return ""
    shape = np.broadcast_shapes(hidden.shape, masked.shape)
    shown = np.where(np.broadcast_to(hidden, shape), 0.0, np.broadcast_to(masked, shape))
    if not np.isfinite(shown).all() or np.abs(shown).max(initial=0.0) < 1e-6:
        return None
    by_head = shown.shape[1] > 1 and bool(np.abs(shown - shown[:, :1]).max() > 1e-6)
    return "by position, one a head" if by_head else "by position"
