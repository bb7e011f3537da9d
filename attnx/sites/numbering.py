"""From Findings to Sites: kind, component, layer and number, from how the sites feed one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnx.graph.axes import caches
from attnx.graph.axes.channels import is_of_features
from attnx.graph.axes.origins import carried_on, streams
from attnx.graph.axes.paths import above, depends
from attnx.graph.load.nodes import op_name
from attnx.graph.masks.mask_probe import hides
from attnx.graph.masks.mask_reading import Hides, Probed
from attnx.graph.shapes.index import Graph
from attnx.graph.shapes.symbols import PROBE
from attnx.layout import axis_of, parse
from attnx.records import EITHER, Component, Kind, Site
from attnx.sites.components import Part, components
from attnx.sites.finding import Finding, key_of
from attnx.sites.spelled.deformable import Sampling

_CHANNELS = "its queries and keys are channels, and what they are multiplied over are tokens: positions are numbered"


def number(
    graph: Graph, findings: list[Finding], samplings: Sequence[Sampling] = ()
) -> tuple[tuple[Site, ...], dict[int, tuple[str, ...]]]:
    """Give findings their kind, component, layer and index.

    Args:
        graph: The graph, with every fused node replaced.
        findings: The sites.
        samplings: Deformable attentions, which are not sites but also attend from one side to another.
    """
    by_place = sorted(findings, key=lambda f: _position(graph, f))
    probed = [
        Probed(f.product, f.beside, f.places.get("masked"), f.places["weights"])
        for f in by_place
        if _can_probe(f) and f.causal is not False
    ]
    visible = hides(graph, probed)
    causal = [_causal(graph, f, visible) for f in by_place]
    kinds: list[Kind] = [f.kind or _kind(graph, f, c) for f, c in zip(by_place, causal, strict=True)]
    sides = _components(graph, by_place, kinds, [hidden is True for hidden in causal], samplings)
    otherwise = _components(graph, by_place, kinds, [hidden is not False for hidden in causal], samplings)
    towers = _towers(graph, by_place)
    order = sorted(range(len(by_place)), key=lambda i: (sides[i] == "decoder", towers[i], i))
    sites: list[Site] = []
    fused_of: dict[int, tuple[str, ...]] = {}
    last: dict[tuple[Component, Kind], tuple[int, list[Finding]]] = {}
    for index, i in enumerate(order):
        f = by_place[i]
        group = (sides[i], kinds[i])
        layer, beside = last.get(group, (-1, []))
        if not beside or not _parallel(graph, beside, f):
            layer, beside = layer + 1, []
        last[group] = layer, [*beside, f]
        seen = visible.get(f.places["weights"].value) if "weights" in f.places else None
        heads = _heads(graph, f)
        channels = _over_channels(graph, f)
        sites.append(
            Site(
                index=index, layer=layer, component=sides[i], kind=kinds[i], op=op_name(f.node),
                node=f.node.name or key_of(f.node), heads=heads,
                kv_heads=None if heads is None else _fixed(graph, f.kv_heads), head_size=_fixed(graph, f.head_size),
                scale=f.scale, scale_place=f.scale_place, softcap=f.softcap, causal=causal[i],
                window=f.window if f.window is not None or seen is None else seen.window,
                bias=_bias(f, seen), sink=f.sink, places=f.places,
                heads_mixed=f.heads_mixed, gated=f.gated, absent=f.absent, keys_before=f.keys_before,
                notes=(*f.notes, *((_CHANNELS,) if channels else ()), *(() if sides[i] == otherwise[i] else (EITHER,))),
                over_channels=channels,
                component_known=sides[i] == otherwise[i],
            )
        )  # fmt: skip
        if f.replacement is not None or f.key:
            fused_of[index] = (f.key or key_of(f.node), *f.needs)
    return tuple(sites), fused_of


def _fixed(graph: Graph, size: int | None) -> int | None:
    """A size, if it does not stand for a free dimension."""
    free = [p for p in graph.sizes.values() if p > PROBE]
    return None if size is not None and size and any(size % p == 0 for p in free) else size


def _over_channels(graph: Graph, f: Finding) -> bool:
    place = f.places.get("query")
    at = None if place is None else axis_of(place.layout, "q")
    return place is not None and at is not None and is_of_features(graph, place.value, at)


def _heads(graph: Graph, f: Finding) -> int | None:
    """The number of heads, if it is the same for all input sizes: a number of blocks depends on the text."""
    for place in f.places.values():
        shape, axes = graph.shape(place.value) or (), len(parse(place.layout))
        at = axis_of(place.layout, "h") if axes == len(shape) > 4 else None  # inside a loop, the steps have no axis
        if at is not None and f.heads == shape[at] and graph.varies(place.value, at):
            return None
    return _fixed(graph, f.heads)


def _parallel(graph: Graph, beside: Sequence[Finding], f: Finding) -> bool:
    """Whether a site reads what those before it read and nothing that they made: they are then one layer."""
    first = beside[0]
    if f.key and f.key == first.key:
        return False  # in one step of a loop, one after the other
    if f.query_from != first.query_from and not streams(graph, f.query_from) & streams(graph, first.query_from):
        return False
    made = {value for other in beside if (value := _carries(other))}
    return not above(graph, [f.query_from, f.key_from, f.value_from]) & made


def _bias(f: Finding, seen: Hides | None) -> str | None:
    """What is added to the scores: seen in the mask, else read off the graph, since it may depend on the queries."""
    if f.heads_mixed:
        return None
    if seen is None or seen.bias == "" or (seen.bias is None and f.beside):
        added = f.bias
    else:
        added = seen.bias
    return added or ("varying factor" if f.rescaled else None)


def _can_probe(f: Finding) -> bool:
    return "weights" in f.places and bool(f.product)


def _carries(f: Finding) -> str:
    """What the rest of the graph reads of a site; "" where it has no place."""
    place = f.places.get("context") or f.places.get("weights")
    return f.carries or ("" if place is None else place.value)


def _position(graph: Graph, f: Finding) -> int:
    place = f.places.get("weights") or f.places.get("context")
    node = graph.producer(f.carries or place.value) if place is not None else None
    return graph.position(node) if node is not None else len(graph.nodes)


def _causal(graph: Graph, f: Finding, visible: Mapping[str, Hides]) -> bool | None:
    """Whether a site hides the future: from an attribute, its mask, or its inputs."""
    shape = graph.shape(f.places["weights"].value) if "weights" in f.places else None
    at = axis_of(f.places["weights"].layout, "q") if "weights" in f.places else None
    if shape is not None and (at is None or shape[at] == 1) and has_cache(graph, f):
        return True  # one query per call, after everything cached: there is no future to see
    if f.causal is not None:
        return f.causal
    if not _can_probe(f):
        return False
    seen = visible.get(f.places["weights"].value)
    return None if seen is None else seen.causal


def has_cache(graph: Graph, f: Finding) -> bool:
    """Whether the new keys of a site are joined with keys that enter as an input of the model."""
    place = f.places.get("key")
    return caches.has_cache(graph, place.value if place is not None else f.key_from)


def _kind(graph: Graph, f: Finding, causal: bool | None) -> Kind:
    """Self where query and key are made from one sequence, else cross.

    Where both are inputs of the model, nothing shows what they were made from: then a cache, or a triangular mask that
    is not known to be longer than wide, makes it self-attention.
    """
    if not depends(graph, f.query_from) and not depends(graph, f.key_from):
        return "self"  # both are learned, as in DETR's first decoder layer
    alike = f.query_from == f.key_from or streams(graph, f.query_from) & streams(graph, f.key_from)
    if alike or carried_on(graph, f.query_from, f.key_from):
        return "self"
    if has_cache(graph, f):
        return "self"
    given = [_input_of(graph, name) for name in (f.query_from, f.key_from)]
    if causal and None not in given:
        lengths = [_length(graph, f, quantity) for quantity in ("query", "key")]
        fixed = [n for n in lengths if n is not None and n < PROBE]
        return "cross" if len(fixed) == 2 and fixed[0] != fixed[1] else "self"
    return "cross"


def _input_of(graph: Graph, value: str) -> str | None:
    """The model input that a value is, split, moved or scaled at most; None for any computed value."""
    for _ in range(12):
        if value in graph.inputs:
            return value
        node = graph.producer(value)
        if node is None:
            return None
        if node.op_type in ("Mul", "Div"):
            live = [n for n in node.input if depends(graph, n)]
            if len(live) != 1:
                return None
            value = live[0]
        elif node.op_type in ("Transpose", "Reshape", "Cast", "Identity", "Unsqueeze", "Squeeze", "Expand", "Tile"):
            value = node.input[0]
        else:
            return None
    return None


def _length(graph: Graph, f: Finding, quantity: str) -> int | None:
    """Q or K, if it is one axis of known size."""
    place = f.places.get(quantity)
    at = None if place is None else axis_of(place.layout, quantity[0])
    shape = None if place is None else graph.shape(place.value)
    return None if shape is None or at is None else shape[at]


def _towers(graph: Graph, findings: list[Finding]) -> list[int]:
    """The independent stack that each site belongs to, so that two parallel encoders are not listed alternately.

    A site belongs to the stack of the sites that feed it; where stacks meet, to the one that begins last.
    """
    owner = {_carries(f): i for i, f in enumerate(findings)}
    carried: dict[str, int] = {}
    result = [0] * len(findings)
    for _, outline in graph.outlined:
        upstream = max((carried[n] for n in outline.inputs if n in carried), default=None) if carried else None
        for out in outline.outputs:
            if not out:
                continue
            tower = upstream
            if out in owner:
                i = owner[out]
                tower = i if upstream is None else upstream
                result[i] = tower
            if tower is not None:
                carried[out] = tower
    return result


def _components(
    graph: Graph,
    findings: Sequence[Finding],
    kinds: list[Kind],
    causal: Sequence[bool],
    samplings: Sequence[Sampling],
) -> list[Component]:
    parts = [
        Part(
            f.query_from,
            tuple(dict.fromkeys(n for n in (f.key_from, f.value_from) if n)),
            _carries(f),
            kind == "cross",
            hides_future,
        )
        for f, kind, hides_future in zip(findings, kinds, causal, strict=True)
    ]
    parts += [
        Part(s.asks, (s.value,), s.out, not streams(graph, s.asks) & streams(graph, s.value), False) for s in samplings
    ]
    return components(graph, parts, len(findings))
