"""Whether the positions of a site are the text's own: graphs may turn a text around, shift it, or sort it.

Numbers that stand for tokens are carried from the inputs to the query and key of each site (`carrying`), at small
sizes, without a run. Where they arrive in another order, that order is worked out for texts of any length from three
lengths; an order that no such rule gives, or that depends on the text, is noted as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.lookups import rows
from attnx.graph.fact import Fact
from attnx.graph.load.nodes import attributes
from attnx.graph.masks.mask_probe import keeping, small_sizes
from attnx.graph.shapes.infer import infer
from attnx.layout import arrange, spread
from attnx.records import Array, Order, Place, Site
from attnx.sites import mixing, movements
from attnx.sites.carrying import NOTHING, SOME, SPAN, Carrier, narrowed, widened

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_LENGTHS = (11, 18, 29)
"""Lengths of text that are tried: the first shows whether anything is moved, all three show how."""
_ELSE = ("mask", "type", "segment", "position", "past", "len", "pad")
"""Inputs of whole numbers that are no text."""
_NONE = slice(0, 0)
_NOWHERE = -(1 << 40)
_MOVED: Order = ()

_RULES = {**mixing.RULES, **movements.RULES}
_Seen = tuple[Array, int]
"""The token at each position, NOTHING where there is none, and the length of the text."""


def with_orders(graph: Graph, sites: Sequence[Site]) -> tuple[Site, ...]:
    """The sites, with the order of their queries and keys where that is not the text's.

    Args:
        graph: The graph, with every fused node replaced.
        sites: The sites.
    """
    first, by_mask = _arriving(graph, sites, _LENGTHS[0])
    moved = {at for at, seen in first.items() if not _in_place(*seen)}
    orders: dict[tuple[int, str], Order] = {}
    if by_mask:  # where padding moves tokens, a text without padding does not show it
        for hidden in (slice(0, 3), slice(-3, None)):
            for at, seen in _arriving(graph, sites, _LENGTHS[0], hidden)[0].items():
                if not _in_place(*seen) and not bool((seen[0] == SOME).any()):
                    orders[at] = _MOVED
    if moved - orders.keys():
        more = [first, *(_arriving(graph, sites, length)[0] for length in _LENGTHS[1:])]
        orders |= {at: _order([seen[at] for seen in more if at in seen], len(more)) for at in moved - orders.keys()}
    if not orders:
        return tuple(sites)
    return tuple(
        replace(site, query_order=orders.get((site.index, "query")), key_order=orders.get((site.index, "key")))
        for site in sites
    )


def _in_place(tokens: Array, length: int) -> bool:
    return bool(np.array_equal(tokens, np.arange(length)))


def texts(graph: Graph) -> list[str]:
    """The inputs that hold a text, or what stands for one: ids, embeddings, hidden states, series.

    Of two whose vectors are added, the one that is looked up in the larger table comes first: words, then languages.
    """
    found, tables = [], rows(graph)
    for name, info in graph.inputs.items():
        kind, rank = info.type.tensor_type.elem_type, len(info.type.tensor_type.shape.dim)
        if any(word in name.lower() for word in _ELSE):
            continue
        if (kind in (6, 7) and rank == 2) or (kind in (1, 10, 11, 16) and rank == 3):
            found.append(name)
    return sorted(found, key=lambda name: -tables.get(name, 0))


def _arriving(
    graph: Graph, sites: Sequence[Site], length: int, hidden: slice = _NONE
) -> tuple[dict[tuple[int, str], _Seen], bool]:
    """The token at each position of each site's query and key, where these are as many as its text has.

    Args:
        graph: The graph.
        sites: The sites.
        length: How many tokens each text has, where the graph does not say.
        hidden: The tokens that masks hide.

    Returns:
        By the index of the site and "query" or "key"; and whether places that masks or positions decide had a part.
    """
    sizes, named = small_sizes(graph, length), texts(graph)
    carrier = Carrier(graph, infer(graph, sizes, _masks(graph, sizes, named, hidden)), named)
    contexts: dict[str, list[Site]] = {}
    for site in sites:
        if "context" in site.places:
            contexts.setdefault(site.places["context"].value, []).append(site)
    found: dict[tuple[int, str], _Seen] = {}
    for node, outline in graph.outlined:
        if not carrier.held.keys().isdisjoint(outline.inputs):
            _carry(carrier, node)
        for name in outline.outputs:
            for site in contexts.get(name, ()):
                _attended(carrier, site)
    for site in sites:
        for side in ("query", "key"):
            place = site.places.get(side)
            tokens = None if place is None else _along(carrier, place, side)
            seen = None if tokens is None else _of_one_text(carrier, tokens)
            if seen is not None:
                found[site.index, side] = seen
    return found, carrier.by_mask


def _carry(carrier: Carrier, node: NodeProto) -> None:
    """Work out the tokens of a node's outputs, from those of its inputs."""
    rule = _RULES.get(node.op_type, mixing.in_place)
    try:
        made = rule(carrier, node, attributes(node))
    except (KeyError, IndexError, ValueError, TypeError):
        return  # a node that contradicts its inputs: a run refuses it, and nothing is known of what it makes
    for name, array in zip(node.output, made, strict=False):
        if name and array is not None and array.any():
            carrier.held[name] = array


def _masks(graph: Graph, sizes: Mapping[str, int], texts: Sequence[str], hidden: slice) -> dict[str, Fact]:
    """Masks and positions as they come with a text: those of whole numbers and bits, of two axes or more."""
    given = keeping(graph, dict(sizes), set(graph.inputs) - set(texts))
    found: dict[str, Fact] = {}
    for name, fact in given.items():
        value = fact.value
        if value is not None and value.ndim > 1 and value.dtype.kind in "ib":
            if "position" not in name.lower():
                value = np.array(value)
                value[..., hidden] = 0
            found[name] = replace(fact, value=value)
    return found


def _attended(carrier: Carrier, site: Site) -> None:
    """What a query attended to stands at the query's position."""
    place, query = site.places["context"], site.places.get("query")
    tokens = None if query is None else _along(carrier, query, "query")
    shape = carrier.shape(place.value)
    if tokens is None or shape is None or place.value in carrier.held:
        return
    try:
        carrier.held[place.value] = narrowed(spread(tokens.reshape(1, 1, -1, 1), place.layout, "bhqd", shape, 1))
    except ValueError:
        return


def _along(carrier: Carrier, place: Place, side: str) -> Array | None:
    """The token at each position of a query or key; None where it is not the same in all heads and features."""
    array, shape = carrier.held.get(place.value), carrier.shape(place.value)
    if array is None or shape is None:
        return None
    try:
        whole = arrange(widened(array, dict(enumerate(shape))), place.layout, "bhqd" if side == "query" else "bhkd", 1)
    except ValueError:
        return None
    first = whole[:1, :1, :, :1]
    return first.ravel() if bool((whole == first).all()) else None


def _of_one_text(carrier: Carrier, tokens: Array) -> _Seen | None:
    """The places of tokens in their text; None where they are of several texts, or not as many as it has."""
    if bool((tokens == SOME).any()):
        return (np.full(len(tokens), SOME), len(tokens)) if len(tokens) in carrier.lengths else None
    real = tokens[tokens > 0]
    if not real.size or len({int(n - 1) // SPAN for n in real}) > 1 or carrier.length(int(real[0])) != len(tokens):
        return None
    return np.where(tokens == NOTHING, _NOWHERE, (tokens - 1) % SPAN), len(tokens)


def _order(seen: Sequence[_Seen], tries: int) -> Order:
    """The order for texts of any length, from several lengths; `_MOVED` where no rule gives it."""
    if len(seen) < tries or any(bool((tokens == SOME).any()) for tokens, _ in seen):
        return _MOVED
    parts = [_runs(tokens.tolist()) for tokens, _ in seen]
    lengths = [length for _, length in seen]
    if len({tuple(step for _, step, _ in part) for part in parts}) > 1:
        return _MOVED
    found = []
    for runs in zip(*parts, strict=True):
        start, count = (_line(lengths, [run[i] for run in runs]) for i in (0, 2))
        if start is None or count is None:
            return _MOVED
        found.append((*(start if runs[0][0] != _NOWHERE else (0, -1)), runs[0][1], *count))
    return tuple(found)


def _line(at: Sequence[int], values: Sequence[int]) -> tuple[int, int] | None:
    """The whole numbers a and b for which each value is a times its length plus b; None where there are none."""
    slope = 0 if at[0] == at[1] else (values[1] - values[0]) // (at[1] - at[0])
    rest = values[0] - slope * at[0]
    return (slope, rest) if all(slope * n + rest == value for n, value in zip(at, values, strict=True)) else None


def _runs(numbers: Sequence[int]) -> list[tuple[int, int, int]]:
    """Numbers as runs that go up or down by one, or stay: the first number, the step, the count."""
    found: list[tuple[int, int, int]] = []
    steps = [b - a for a, b in pairwise(numbers)]
    at = 0
    while at < len(numbers):
        step = steps[at] if at < len(steps) and abs(steps[at]) <= 1 else 0
        count = 1
        while at + count < len(numbers) and steps[at + count - 1] == step:
            count += 1
        found.append((numbers[at], step if count > 1 else 0, count))
        at += count
    return found
