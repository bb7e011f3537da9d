"""Findings -> Sites: kind, component, layer and number, told from how the sites feed one another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnx.graph.axes import caches
from attnx.graph.axes.origins import carried_on, streams
from attnx.graph.axes.paths import depends
from attnx.graph.load.nodes import op_name
from attnx.graph.probe.mask_probe import hides
from attnx.graph.probe.mask_reading import Hides, Probed
from attnx.graph.shapes.index import Graph
from attnx.graph.shapes.symbols import PROBE
from attnx.layout import axis_of
from attnx.records import Component, Kind, Site
from attnx.sites.finding import Finding

if TYPE_CHECKING:
    from onnx import NodeProto


def key_of(node: NodeProto) -> str:
    """What a fused node is filed under: its first output."""
    return str(next((o for o in node.output if o), node.name))


def number(graph: Graph, findings: list[Finding]) -> tuple[tuple[Site, ...], dict[int, str]]:
    """Give findings their kind, component, layer and index."""
    by_place = sorted(findings, key=lambda f: _position(graph, f))
    probed = [
        Probed(f.product, f.beside, f.places.get("masked"), f.places["weights"])
        for f in by_place
        if _can_probe(f) and f.causal is not False
    ]
    visible = hides(graph, probed)
    causal = [_causal(graph, f, visible) for f in by_place]
    kinds: list[Kind] = [f.kind or _kind(graph, f, c) for f, c in zip(by_place, causal, strict=True)]
    components = _components(graph, by_place, kinds, causal)
    towers = _towers(graph, by_place)
    order = sorted(range(len(by_place)), key=lambda i: (components[i] == "decoder", towers[i], i))
    sites: list[Site] = []
    fused_of: dict[int, str] = {}
    counts: dict[tuple[Component, Kind], int] = {}
    for index, i in enumerate(order):
        f = by_place[i]
        group = (components[i], kinds[i])
        layer = counts.get(group, 0)
        counts[group] = layer + 1
        seen = visible.get(f.places["weights"].value) if "weights" in f.places else None
        sites.append(
            Site(
                index=index, layer=layer, component=components[i], kind=kinds[i], op=op_name(f.node),
                node=f.node.name or key_of(f.node), heads=f.heads, kv_heads=f.kv_heads, head_size=f.head_size,
                scale=f.scale, scale_place=f.scale_place, softcap=f.softcap, causal=causal[i],
                window=f.window if f.window is not None or seen is None else seen.window,
                bias=_bias(f, seen), sink=f.sink, places=f.places,
                gated=f.gated, absent=f.absent, notes=tuple(f.notes),
            )
        )  # fmt: skip
        if f.replacement is not None:
            fused_of[index] = key_of(f.node)
    return tuple(sites), fused_of


def _bias(f: Finding, seen: Hides | None) -> str | None:
    """What is added to the scores: seen in the mask, else read off the graph, as where the queries make it too."""
    if seen is None or seen.bias == "" or (seen.bias is None and f.beside):
        return f.bias
    return seen.bias


def _can_probe(f: Finding) -> bool:
    return "weights" in f.places and bool(f.product)


def _carries(f: Finding) -> str:
    """What the rest of the graph reads of a site; "" where none of it has a place."""
    place = f.places.get("context") or f.places.get("weights")
    return f.carries or ("" if place is None else place.value)


def _position(graph: Graph, f: Finding) -> int:
    place = f.places.get("weights") or f.places.get("context")
    node = graph.producer(f.carries or place.value) if place is not None else None
    return graph.position(node) if node is not None else len(graph.nodes)


def _causal(graph: Graph, f: Finding, visible: Mapping[str, Hides]) -> bool | None:
    """Whether a site hides the future: said by an attribute, seen in its mask, or told by how it is fed."""
    shape = graph.shape(f.places["weights"].value) if "weights" in f.places else None
    at = axis_of(f.places["weights"].layout, "q") if "weights" in f.places else None
    if shape is not None and (at is None or shape[at] == 1) and has_cache(graph, f):
        return True  # one query a call, behind all that is cached: there is no future that it could see
    if f.causal is not None:
        return f.causal
    if not _can_probe(f):
        return False
    seen = visible.get(f.places["weights"].value)
    return None if seen is None else seen.causal


def has_cache(graph: Graph, f: Finding) -> bool:
    """Whether the new keys of a site are put beside keys that come in as an input of the model."""
    place = f.places.get("key")
    return caches.has_cache(graph, place.value if place is not None else f.key_from)


def _kind(graph: Graph, f: Finding, causal: bool | None) -> Kind:
    """Self where query and key are made from one sequence, cross where they are not.

    Where both are inputs of the model, nothing says what they were made from: then a cache, or a triangle that is not
    known to be longer than wide, makes it self-attention.
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
    """The model's input that a value is, split, moved or scaled at most; None for anything that is made."""
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
    """Q or K, where it is one axis of known size."""
    place = f.places.get(quantity)
    at = None if place is None else axis_of(place.layout, quantity[0])
    shape = None if place is None else graph.shape(place.value)
    return None if shape is None or at is None else shape[at]


def _towers(graph: Graph, findings: list[Finding]) -> list[int]:
    """Which independent stack each site stands in, so that two encoders side by side are not listed in turns.

    A site stands where the sites that feed it stand; where stacks meet, in the one that begins last.
    """
    owner = {_carries(f): i for i, f in enumerate(findings)}
    carried: dict[str, int] = {}
    result = [0] * len(findings)
    for node in graph.nodes:
        upstream = max((carried[n] for n in node.input if n in carried), default=None)
        for out in node.output:
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


def _components(graph: Graph, findings: list[Finding], kinds: list[Kind], causal: list[bool | None]) -> list[Component]:
    """Decoder: cross-attention, whatever hides the future, and what stands behind either; the rest is encoder."""
    marked: set[str] = set()
    for f, kind, hides_future in zip(findings, kinds, causal, strict=True):
        if (value := _carries(f)) and (kind == "cross" or hides_future):
            marked.add(value)
    behind = set(marked)
    for node in graph.nodes:
        if any(name in behind for name in node.input):
            behind.update(o for o in node.output if o)
    out: list[Component] = []
    for f in findings:
        out.append("decoder" if _carries(f) in behind else "encoder")
    if "cross" in kinds:
        _lead_to_cross(graph, findings, kinds, out)
    return out


def _lead_to_cross(graph: Graph, findings: list[Finding], kinds: list[Kind], out: list[Component]) -> None:
    """Self-attention that feeds the query of a cross-attention, and not its key, is the decoder's, causal or not."""
    reads: dict[str, set[str]] = {}

    def upstream(value: str) -> set[str]:
        if value in reads:
            return reads[value]
        seen: set[str] = set()
        stack = [value]
        while stack:
            name = stack.pop()
            node = graph.producer(name)
            if name in seen or node is None or node.op_type in ("Shape", "Size"):
                continue  # a size that is read off an array carries nothing of what it says
            seen.add(name)
            stack += [n for n in node.input if n]
        reads[value] = seen
        return seen

    contexts = [_carries(f) for f in findings]
    crosses = [f for f, kind in zip(findings, kinds, strict=True) if kind == "cross"]
    in_keys: set[str] = set().union(*(upstream(f.key_from) for f in crosses))
    in_queries: set[str] = set().union(*(upstream(f.query_from) for f in crosses))
    for i, context in enumerate(contexts):
        if out[i] == "encoder" and context in in_queries and context not in in_keys:
            out[i] = "decoder"
