"""What a site hides, seen by evaluating its mask alone: the scores are set to zero, every mask input says "keep"."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.paths import above
from attnx.graph.load.nodes import reads_of
from attnx.graph.probe.mask_reading import Hides, Probed, Reader
from attnx.graph.probe.window_probe import windows
from attnx.graph.shapes.fact import Fact
from attnx.graph.shapes.infer import Part, infer
from attnx.graph.shapes.symbols import PROBE, free_dims, input_shape, is_named
from attnx.layout import parse
from attnx.records import Array

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph

LIMIT = 1 << 23
"""Numbers are carried for masks of at most this many cells."""


def small_sizes(graph: Graph, length: int, lengths: Collection[int] = ()) -> dict[str, int]:
    """A size for each free dimension of the inputs: 1 for batches, 0 for the past, `length` for the rest.

    `lengths` are probe sizes of query and key axes: a dimension of that size is no batch, wherever it stands.

    With an empty past every length of a text model is the same one, whatever names an exporter gave it, so no
    equation between the names has to be solved.
    """
    lead: dict[str, bool] = {}
    cached: dict[str, bool] = {}
    for name, info in graph.inputs.items():
        dims = info.type.tensor_type.shape.dim
        cache = len(dims) >= 3 and any(n.op_type in ("Concat", "Gather", "Split") for n in graph.consumers(name))
        for i, dim in enumerate(free_dims(info)):
            if dim is not None:
                lead[dim] = lead.get(dim, True) and i == 0 and len(dims) > 1
                cached[dim] = cached.get(dim, True) and cache
    sizes: dict[str, int] = {}
    for name in lead:
        word = name.lower() if is_named(name) else ""
        if graph.sizes.get(name, PROBE) < PROBE:  # an equal size elsewhere in the graph is fixed
            sizes[name] = graph.sizes[name]
        elif graph.sizes.get(name) in lengths and not cached[name] and "past" not in word:
            sizes[name] = length
        elif lead[name] or ("batch" in word and "+" not in word):
            sizes[name] = 1
        elif ("past" in word and "+" not in word) or cached[name]:
            sizes[name] = 0
        else:
            sizes[name] = length
    return sizes


def keeping(graph: Graph, sizes: dict[str, int], floats: float, bools: bool, cone: set[str]) -> dict[str, Fact]:
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
        if not _fits(whole):
            continue
        value: Array
        if kind in (6, 7):
            dtype = np.int32 if kind == 6 else np.int64
            if "position" in name.lower() and whole:
                value = np.broadcast_to(np.arange(whole[-1], dtype=dtype), whole)
            else:
                looked_up = any(n.op_type in ("Gather", "EmbedLayerNormalization") for n in graph.consumers(name))
                value = np.full(whole, 5 if looked_up else int(bools), dtype=dtype)
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
    masks = _Masks(graph, sites)
    lengths = _lengths(graph, sites)
    # A float mask may be added or multiplied by, a bool or integer one may mean "keep" or "padding": the first that
    # hides not everything is the one that pads nothing.
    kinds: dict[str, tuple[float, bool]] = {}
    for length, floats, bools in [
        (n, *kind) for n in (6, *_fixed_lengths(graph, sites), 32) for kind in ((0.0, True), (1.0, True), (0.0, False))
    ]:
        left = [s for s in sites if s.weights.value not in found]
        if left:
            seen = masks.read(left, small_sizes(graph, length, lengths), floats, bools)
            kinds |= dict.fromkeys(seen, (floats, bools))
            found |= seen
    # A sliding window shows only in a text longer than itself.
    for kind in dict.fromkeys(kinds.values()):
        mine = [s for s in sites if kinds.get(s.weights.value) == kind and found[s.weights.value].window is None]

        def look(
            length: int, given: Mapping[str, Fact], mine: list[Probed] = mine, kind: tuple[float, bool] = kind
        ) -> dict[str, int]:
            seen = masks.read(mine, small_sizes(graph, length, lengths), kind[0], kind[1], given)
            return {name: h.window for name, h in seen.items() if h.window is not None}

        for name, width in windows(graph, masks.cone, look).items() if mine else ():
            found[name] = replace(found[name], window=width)
    return found


def _lengths(graph: Graph, sites: list[Probed]) -> set[int]:
    """The sizes of the axes that hold queries or keys and nothing else."""
    found: set[int] = set()
    for place in (site.weights for site in sites):
        shape, words = graph.shape(place.value), parse(place.layout)
        for size, axis in zip(shape or (), words, strict=False):
            if len(axis) == 1 and axis[0][0][0] in "qk" and size is not None:
                found.add(size)
    return found


def _products(sites: list[Probed]) -> set[str]:
    return {name for site in sites for name in (site.product, *site.beside)}


def _cone(graph: Graph, sites: list[Probed]) -> set[str]:
    """The values that the masks are made from."""
    made = [s.weights.value for s in sites] + [s.masked.value for s in sites if s.masked is not None]
    return above(graph, made, _products(sites))


def _fixed_lengths(graph: Graph, sites: list[Probed]) -> list[int]:
    """Lengths that an exporter baked into the graph although its inputs call them free."""
    shapes = [graph.shape(s.product) for s in sites]
    return sorted({d for shape in shapes if shape for d in shape[-2:] if d is not None and 1 < d < PROBE} - {6, 32})[:3]


class _Masks:
    """Evaluates masks: of the graph, only what they are made from, and what tells the shapes of that."""

    def __init__(self, graph: Graph, sites: list[Probed]) -> None:
        self.graph = graph
        self.cone = _cone(graph, sites)
        self._nodes = [n for n in graph.nodes if any(o in self.cone for o in n.output)]
        above = _above(graph, self.cone | _products(sites))
        self._above = [n for n in graph.nodes if any(o in above for o in n.output)]
        self._shapes: dict[tuple[tuple[str, int], ...], dict[str, Fact]] = {}

    def read(
        self,
        sites: list[Probed],
        sizes: dict[str, int],
        floats: float,
        bools: bool,
        given: Mapping[str, Fact] | None = None,
    ) -> dict[str, Hides]:
        """What sites hide, by the name of their weights; `given` replaces what the graph holds."""
        inputs = {**keeping(self.graph, sizes, floats, bools, self.cone), **(given or {})}
        shapes = self._shapes_for(sizes, inputs)
        products: dict[str, Fact] = {}
        for product in _products(sites):
            fact = shapes.get(product)
            if fact is not None and fact.shape is not None and None not in fact.shape:
                whole = tuple(int(d) for d in fact.shape if d is not None)
                if _fits(whole):
                    zero = np.zeros((), np.float16 if fact.dtype == 10 else np.float32)
                    products[product] = Fact(whole, fact.dtype, np.broadcast_to(zero, whole))
        if not products:
            return {}
        reader = Reader(sites)
        part = Part(self._nodes, shapes)
        reader.finish(infer(self.graph, sizes, {**inputs, **products}, LIMIT, self.cone, reader.seen, part))
        return reader.found

    def _shapes_for(self, sizes: dict[str, int], inputs: dict[str, Fact]) -> dict[str, Fact]:
        """Every shape above the masks; what a mask input holds makes no difference to them."""
        key = tuple(sorted(sizes.items()))
        if key not in self._shapes:
            self._shapes[key] = infer(self.graph, sizes, inputs, part=Part(self._above))
        return self._shapes[key]


def _fits(shape: Sequence[int]) -> bool:
    """Whether an array of that shape may be made; numpy refuses (0, 2**40, 2**40), though nothing is in it."""
    return min(shape, default=0) >= 0 and prod(max(1, size) for size in shape) <= LIMIT


def _above(graph: Graph, values: set[str]) -> set[str]:
    """These values and all that they are made from."""
    found: set[str] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value in found:
            continue
        found.add(value)
        node = graph.producer(value)
        if node is not None:
            stack += reads_of(node)
    return found
