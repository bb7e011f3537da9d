"""What a site hides, found by evaluating its mask alone: the scores are set to zero, every mask input to "keep"."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.paths import above, upstream
from attnx.graph.fact import Fact
from attnx.graph.masks.mask_reading import Hides, Probed, Reader
from attnx.graph.masks.window_probe import LENGTH, windows
from attnx.graph.shapes.infer import Part, infer
from attnx.graph.shapes.symbols import PROBE, free_dims, input_shape, is_named
from attnx.layout import parse
from attnx.records import Array

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph

LIMIT = 1 << 23
"""Numbers are carried for masks of at most this many cells."""
_TOKEN = 5
"""A token id that is taken to be a word's."""
_APART = 4
"""Up to this many masks, each may have its own meaning."""


def small_sizes(graph: Graph, length: int, lengths: Collection[int] = ()) -> dict[str, int]:
    """A size for each free dimension of the inputs: 1 for batches, 0 for the past, `length` for the rest.

    `lengths` are probe sizes of query and key axes: a dimension of that size is not a batch, wherever it occurs.

    With an empty past, all lengths of a text model are the same, whatever names an exporter gave them, so no equation
    between the names has to be solved.
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


def keeping(
    graph: Graph, sizes: dict[str, int], cone: Collection[str], senses: Mapping[str, bool] = {}, count: int = 1
) -> dict[str, Fact]:
    """Inputs that keep everything: ascending positions, tokens that are neither padding nor special, full masks.

    Args:
        graph: The flat graph.
        sizes: A size for each free dimension.
        cone: The values that are wanted; other inputs are left out.
        senses: Mask -> whether 1 keeps and 0 pads; see `senses_of` for masks that are not listed.
        count: The value of single whole numbers (offsets, lengths).
    """
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
                keeps = int(senses.get(name, True)) if len(whole) > 1 else count
                value = np.full(whole, _TOKEN if _looked_up(graph, name) else 0 if _is_type(name) else keeps, dtype)
        elif kind == 9:
            value = np.full(whole, senses.get(name, True))
        elif kind in (1, 10) and len(whole) in (2, 3, 4) and "past" not in name.lower():
            value = np.full(whole, float(senses.get(name, False)), dtype=np.float32 if kind == 1 else np.float16)
        else:
            continue
        facts[name] = Fact(whole, kind, value)
    return facts


def _looked_up(graph: Graph, name: str) -> bool:
    """Whether an input's numbers are looked up in a table."""
    return any(
        n.op_type == "EmbedLayerNormalization" or (n.op_type == "Gather" and n.input[1] == name)
        for n in graph.consumers(name)
    )


def _is_type(name: str) -> bool:
    """Whether an input tells texts apart, or a text from an image: a single text has type 0."""
    return any(word in name.lower() for word in ("token_type", "type_id", "segment"))


def senses_of(graph: Graph, cone: Collection[str]) -> list[dict[str, bool]]:
    """The possible meanings of all masks together: whether 1 keeps (True), or pads or is added (False).

    The likeliest comes first: a float mask is added, any other marks what to keep. Where there are many masks, all
    masks of one type share one meaning.
    """
    kinds: dict[str, int] = {}
    for name, info in graph.inputs.items():
        kind, rank = info.type.tensor_type.elem_type, len(info.type.tensor_type.shape.dim)
        lower = name.lower()
        whole = kind in (6, 7) and not (rank < 2 or "position" in lower or _is_type(name) or _looked_up(graph, name))
        if name in cone and (whole or kind == 9 or (kind in (1, 10) and 2 <= rank <= 4 and "past" not in lower)):
            kinds[name] = kind
    groups = [[n] for n in kinds] if len(kinds) <= _APART else [
        [n for n, kind in kinds.items() if (kind in (1, 10)) is floats] for floats in (True, False)
    ]  # fmt: skip
    found = []
    for turned in product((False, True), repeat=len(groups)):
        flips = {name for group, flip in zip(groups, turned, strict=True) if flip for name in group}
        found.append({name: (kind not in (1, 10)) is not (name in flips) for name, kind in kinds.items()})
    return sorted(found, key=lambda s: sum(s[name] is (kind in (1, 10)) for name, kind in kinds.items()))


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
    chosen: dict[str, tuple[int, dict[str, bool], int]] = {}
    # A padding mask hides more than a keeping one: of all possible meanings, the one that shows most pads nothing.
    for length in (6, *_fixed_lengths(graph, sites), 32):
        for count in (0, 1):
            left = [s for s in sites if s.weights.value not in found]
            for at, senses in enumerate(masks.senses):
                open_ = [s for s in left if (h := found.get(s.weights.value)) is None or h.share < 1]
                seen = masks.read(open_, small_sizes(graph, length, lengths), senses, count) if open_ else {}
                for name, one in seen.items():
                    if name not in found or one.share > found[name].share:
                        found[name], chosen[name] = one, (at, senses, count)
    for at, count in dict.fromkeys((at, count) for at, _, count in chosen.values()):
        mine = [s for s in sites if (c := chosen.get(s.weights.value)) and (c[0], c[2]) == (at, count)]
        found |= _with_windows(masks, mine, found, lengths, masks.senses[at], count)
    return found


def _with_windows(
    masks: _Masks,
    sites: list[Probed],
    found: Mapping[str, Hides],
    lengths: set[int],
    senses: dict[str, bool],
    count: int,
) -> dict[str, Hides]:
    """What sites hide, including their sliding windows, which show only in a text longer than the window."""

    def look(length: int, given: Mapping[str, Fact], names: Collection[str]) -> dict[str, int | None]:
        mine = [s for s in sites if s.weights.value in names]
        seen = masks.read(mine, small_sizes(masks.graph, length, lengths), senses, count, given) if mine else {}
        return {name: h.window for name, h in seen.items()}

    named = {s.weights.value: found[s.weights.value] for s in sites}
    out = {}
    # What looks like a window in a short text may be wider in a longer one.
    longer = look(LENGTH, {}, [name for name, h in named.items() if h.window is not None])
    for name, width in longer.items():
        if width != named[name].window:
            out[name] = replace(named[name], window=None)
    without = [name for name, h in named.items() if h.window is None]
    for name, width in windows(masks.graph, masks.cone, look, without).items() if without else ():
        out[name] = replace(named[name], window=width)
    return out


def _lengths(graph: Graph, sites: list[Probed]) -> set[int]:
    """The sizes of axes that hold only queries or only keys."""
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
    """Lengths that an exporter baked into the graph although its inputs declare them free."""
    shapes = [graph.shape(s.product) for s in sites]
    return sorted({d for shape in shapes if shape for d in shape[-2:] if d is not None and 1 < d < PROBE} - {6, 32})[:3]


class _Masks:
    """Evaluates masks: only the part of the graph that they and their shapes are made from."""

    def __init__(self, graph: Graph, sites: list[Probed]) -> None:
        self.graph = graph
        self.cone = _cone(graph, sites)
        self._nodes = [n for n in graph.nodes if not self.cone.isdisjoint(graph.outline(n).outputs)]
        above = upstream(graph, self.cone | _products(sites))
        self._above = [n for n in graph.nodes if not above.isdisjoint(graph.outline(n).outputs)]
        self._shapes: dict[tuple[tuple[str, int], ...], dict[str, Fact]] = {}
        self.senses = senses_of(graph, self.cone)

    def read(
        self,
        sites: list[Probed],
        sizes: dict[str, int],
        senses: Mapping[str, bool],
        count: int,
        given: Mapping[str, Fact] | None = None,
    ) -> dict[str, Hides]:
        """What sites hide, by the name of their weights; `given` replaces what the graph holds."""
        inputs = {**keeping(self.graph, sizes, self.cone, senses, count), **(given or {})}
        shapes = self._shapes_for(sizes, inputs)
        products: dict[str, Fact] = {}
        for name in _products(sites):
            fact = shapes.get(name)
            if fact is not None and fact.shape is not None and None not in fact.shape:
                whole = tuple(int(d) for d in fact.shape if d is not None)
                if _fits(whole):
                    zero = np.zeros((), np.float16 if fact.dtype == 10 else np.float32)
                    products[name] = Fact(whole, fact.dtype, np.broadcast_to(zero, whole))
        if not products:
            return {}
        reader = Reader(sites)
        part = Part(self._nodes, shapes)
        reader.finish(infer(self.graph, sizes, {**inputs, **products}, LIMIT, self.cone, reader.seen, part))
        return reader.found

    def _shapes_for(self, sizes: dict[str, int], inputs: dict[str, Fact]) -> dict[str, Fact]:
        """Every shape upstream of the masks; the contents of a mask input make no difference to them."""
        key = tuple(sorted(sizes.items()))
        if key not in self._shapes:
            self._shapes[key] = infer(self.graph, sizes, inputs, part=Part(self._above))
        return self._shapes[key]


def _fits(shape: Sequence[int]) -> bool:
    """Whether an array of that shape can be made; numpy refuses (0, 2**40, 2**40) although it is empty."""
    return min(shape, default=0) >= 0 and prod(max(1, size) for size in shape) <= LIMIT
