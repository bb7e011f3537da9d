"""What a site hides, seen by evaluating its mask alone: the scores are set to zero, every mask input says "keep"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.infer import Fact, infer, input_shape
from attnx.records import Array

if TYPE_CHECKING:
    from attnx.graph.index import Graph

LIMIT = 1 << 22
"""Numbers are carried for masks of at most this many cells."""


@dataclass(frozen=True, slots=True)
class Hides:
    """What the mask of a site hides when nothing is padded."""

    causal: bool
    """Every later key is hidden, and not everything is."""
    window: int | None
    """How many keys a query sees at most, itself included, where earlier keys are hidden too."""


def small_sizes(graph: Graph, past: int = 2) -> dict[str, int]:
    """A small size for each named input dimension: 1 for batches, different ones for lengths, sums kept sums."""
    probe = graph.sizes
    lead: dict[str, bool] = {}
    for info in graph.inputs.values():
        dims = info.type.tensor_type.shape.dim
        for i, dim in enumerate(dims):
            if dim.dim_param:
                lead[dim.dim_param] = lead.get(dim.dim_param, True) and i == 0 and len(dims) > 1
    sizes: dict[str, int] = {}
    size = 6
    for name in probe:
        if lead.get(name) or "batch" in name.lower():
            sizes[name] = 1
        elif "past" in name.lower():
            sizes[name] = past
        else:
            sizes[name] = size
            size += 1
    for name, value in probe.items():  # what the probe found to be a sum, or the same length under another name
        others = [n for n in probe if n != name]
        same = next((n for n in others if probe[n] == value and list(probe).index(n) < list(probe).index(name)), None)
        if same is not None:
            sizes[name] = sizes[same]
            continue
        pair = next(((a, b) for a in others for b in others if a < b and probe[a] + probe[b] == value), None)
        if pair is not None:
            sizes[name] = sizes[pair[0]] + sizes[pair[1]]
            continue
        more = next(((a, value - probe[a]) for a in others if 0 < value - probe[a] < 64), None)
        if more is not None:
            sizes[name] = sizes[more[0]] + more[1]
    return sizes


def _inputs(graph: Graph, sizes: dict[str, int], floats: float) -> dict[str, Fact]:
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
            value = np.ones(whole, dtype=bool)
        elif kind in (1, 10) and len(whole) in (2, 3, 4) and "past" not in name.lower():
            value = np.full(whole, floats, dtype=np.float32 if kind == 1 else np.float16)
        else:
            continue
        facts[name] = Fact(whole, kind, value)
    return facts


def hides(graph: Graph, sites: list[tuple[str, str]]) -> dict[str, Hides]:
    """What each site hides.

    Args:
        graph: The flat graph, fused nodes replaced.
        sites: For each site its masked scores and its score product, by name.

    Returns:
        By the name of the masked scores; a site whose mask cannot be evaluated is absent.
    """
    if not sites:
        return {}
    graph.facts  # noqa: B018  the probe sizes are known once the facts are
    sizes = small_sizes(graph)
    found: dict[str, Hides] = {}
    for floats in (0.0, 1.0):
        left = [s for s in sites if s[0] not in found]
        if not left:
            break
        inputs = _inputs(graph, sizes, floats)
        shapes = infer(graph, sizes, inputs, LIMIT)
        products: dict[str, Fact] = {}
        for _, product in left:
            fact = shapes.get(product)
            if fact is not None and fact.shape is not None and None not in fact.shape:
                whole = tuple(int(d) for d in fact.shape if d is not None)
                if np.prod(whole, dtype=np.float64) <= LIMIT:
                    kind = np.float16 if fact.dtype == 10 else np.float32
                    products[product] = Fact(whole, fact.dtype, np.zeros(whole, dtype=kind))
        facts = infer(graph, sizes, {**inputs, **products}, LIMIT)
        for masked, _ in left:
            fact = facts.get(masked)
            if fact is not None and fact.value is not None and fact.value.ndim >= 2:
                seen = _read(np.asarray(fact.value, dtype=np.float64))
                if seen is not None:
                    found[masked] = seen
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
        if later.any() and hidden[:, later].all() and not hidden[:, np.arange(queries), np.arange(queries) + offset].any():
            return Hides(True, None)
    return Hides(False, None)
