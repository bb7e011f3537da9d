"""What a site hides, seen by evaluating its mask alone: the scores are set to zero, every mask input says "keep"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.infer import Fact, infer, input_shape
from attnx.records import Array

if TYPE_CHECKING:
    from attnx.graph.index import Graph

PROBE = 1000
"""Probe sizes are larger than this."""
LIMIT = 1 << 22
"""Numbers are carried for masks of at most this many cells."""


@dataclass(frozen=True, slots=True)
class Probed:
    """A site to look at: names of its softmax's input and of its score product, and which keys of a row are keys."""

    masked: str
    product: str
    window: tuple[int | None, int | None] | None = None


@dataclass(frozen=True, slots=True)
class Hides:
    """What the mask of a site hides when nothing is padded."""

    causal: bool
    """Every later key is hidden, and not everything is."""
    window: int | None
    """How many keys a query sees at most, itself included, where earlier keys are hidden too."""


def small_sizes(graph: Graph, length: int) -> dict[str, int]:
    """A size for each named input dimension: 1 for batches, 0 for what is past, `length` for everything else.

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


def _inputs(graph: Graph, sizes: dict[str, int], floats: float, bools: bool) -> dict[str, Fact]:
    """Inputs that keep everything: ones for masks, counted positions, a token that is neither padding nor special."""
    facts: dict[str, Fact] = {}
    for name, info in graph.inputs.items():
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
        By the name of the masked scores; a site whose mask cannot be evaluated is absent.
    """
    if not sites:
        return {}
    found: dict[str, Hides] = {}
    graph.facts  # noqa: B018  binds graph.sizes
    # A float mask may be added or multiplied by, a bool one may mean "keep" or "padding": the first that hides not
    # everything is the one that pads nothing.
    for length, floats, bools in [
        (n, *kind) for n in (6, *_fixed_lengths(graph, sites), 32) for kind in ((0.0, True), (1.0, True), (0.0, False))
    ]:
        left = [s for s in sites if s.masked not in found]
        if left:
            found |= _hides(graph, left, small_sizes(graph, length), floats, bools)
    return found


def _fixed_lengths(graph: Graph, sites: list[Probed]) -> list[int]:
    """Lengths that an exporter baked into the graph although its inputs call them free."""
    shapes = [graph.shape(s.product) for s in sites]
    return sorted({d for shape in shapes if shape for d in shape[-2:] if d is not None and 1 < d < PROBE} - {6, 32})[:3]


def _hides(graph: Graph, sites: list[Probed], sizes: dict[str, int], floats: float, bools: bool) -> dict[str, Hides]:
    inputs = _inputs(graph, sizes, floats, bools)
    shapes = infer(graph, sizes, inputs, LIMIT)
    products: dict[str, Fact] = {}
    for site in sites:
        fact = shapes.get(site.product)
        if fact is not None and fact.shape is not None and None not in fact.shape:
            whole = tuple(int(d) for d in fact.shape if d is not None)
            if np.prod(whole, dtype=np.float64) <= LIMIT:
                kind = np.float16 if fact.dtype == 10 else np.float32
                products[site.product] = Fact(whole, fact.dtype, np.zeros(whole, dtype=kind))
    facts = infer(graph, sizes, {**inputs, **products}, LIMIT)
    found: dict[str, Hides] = {}
    for site in sites:
        fact = facts.get(site.masked)
        if fact is not None and fact.value is not None and fact.value.ndim >= 2 and fact.value.size:
            value = np.asarray(fact.value, dtype=np.float64)
            seen = _read(value[..., slice(*site.window)] if site.window is not None else value)
            if seen is not None:
                found[site.masked] = seen
    return found


def hidden_cells(masked: Array) -> Array:
    """Cells that a softmax over the last axis hides: -inf, or far below the row's best. bool, same shape."""
    best = np.max(np.where(np.isfinite(masked), masked, -np.inf), axis=-1, keepdims=True)
    return ~(masked > best - 5e3)


def _read(masked: Array) -> Hides | None:
    hidden = hidden_cells(masked)
    hidden = hidden.reshape(-1, *hidden.shape[-2:])
    queries, keys = hidden.shape[-2:]
    if hidden.all():
        return None
    if queries < 2 or not hidden.any():
        return Hides(False, None)
    for offset in dict.fromkeys((max(keys - queries, 0), 0)):
        later = np.arange(keys)[None, :] > np.arange(queries)[:, None] + offset
        own = np.arange(keys)[None, :] == np.arange(queries)[:, None] + offset
        if later.any() and hidden[:, later].all() and not hidden[:, own].any():
            return Hides(True, None)
    return Hides(False, None)
