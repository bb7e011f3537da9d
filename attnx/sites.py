"""Graph -> Sites and Misses: every attention computation in a model, numbered in execution order. Nothing is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attnx.errors import ModelError
from attnx.graph.flatten import Choose, attribute, inline_functions, sort_nodes, splice_ifs, subgraphs
from attnx.graph.index import Graph, op_name
from attnx.graph.load import Loaded, load
from attnx.graph.mask_probe import PROBE, Hides, Probed, hides
from attnx.graph.origins import streams
from attnx.layout import axis_of
from attnx.ops import softmax
from attnx.ops.finding import Finding, Replacement
from attnx.ops.registry import FUSED, REWRITES
from attnx.records import Component, Kind, Miss, Site

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


@dataclass(slots=True)
class Found:
    """What was found in a model: the flat graph as it is, the sites, and what taps.py needs to open each of them."""

    loaded: Loaded
    graph: Graph
    """Flat and otherwise as it is in the file."""
    opened: Graph
    """The same with every fused node replaced by primitives; what `graph` itself is where there are none."""
    sites: tuple[Site, ...]
    misses: tuple[Miss, ...]
    replacements: dict[str, tuple[NodeProto, Replacement]] = field(default_factory=dict)
    """First output of a fused node -> the node and what stands in for it."""
    fused_of: dict[int, str] = field(default_factory=dict)
    """Site index -> key in `replacements`."""
    branches: tuple[str, ...] = ()
    """Names of the If nodes that were replaced by one of their branches."""


def find(path: Path, choose: Choose | None = None) -> Found:
    """Every attention computation in the model at `path`.

    Args:
        path: The .onnx file.
        choose: Says which branch of an If runs; without it the branch is taken that runs without a cache.

    Raises:
        ModelError: The file cannot be read as an ONNX model.
    """
    loaded = load(path)
    graph, branches = _flat(loaded, choose or without_cache)
    replacements, fused, misses = _replace_fused(graph)
    opened = _opened(graph, replacements) if replacements else graph
    hidden = {node.output[0] for node in opened.nodes if node.name.startswith("attnx/")}
    findings = list(fused)
    for node in opened.nodes:
        if node.output and node.output[0] in hidden:
            continue
        found = softmax.recognise(opened, node)
        if isinstance(found, Miss):
            misses.append(found)
        elif found is not None:
            findings.append(found)
    misses += _inside_subgraphs(graph)
    sites, fused_of = _number(opened, findings)
    return Found(loaded, graph, opened, sites, tuple(misses), replacements, fused_of, tuple(branches))


def _flat(loaded: Loaded, choose: Choose) -> tuple[Graph, list[str]]:
    from onnx import ModelProto

    proto = inline_functions(loaded.proto)
    branches: list[str] = []
    if any(node.op_type == "If" for node in proto.graph.node):
        copy = ModelProto()
        copy.CopyFrom(proto)
        proto = copy
        branches = splice_ifs(proto.graph, choose)
    return _indexed(loaded, proto), branches


def _indexed(loaded: Loaded, proto: ModelProto) -> Graph:
    graph = proto.graph
    known = {t.name for t in graph.initializer} | {i.name for i in graph.input}
    known |= {t.values.name for t in graph.sparse_initializer}
    if not graph.node:
        raise ModelError(f"{loaded.path} has no nodes: there is nothing to run", "Export the model again.")
    return Graph(loaded, proto, sort_nodes(graph.node, known))


def without_cache(node: NodeProto) -> bool | None:
    """The branch of an If that holds attention; of two, the one that reads no past (the first call)."""
    from attnx.graph.flatten import outer_names

    sides = dict(subgraphs(node))
    if set(sides) != {"then_branch", "else_branch"}:
        return None
    heavy = {name: _has_attention(graph.node) for name, graph in sides.items()}
    if not any(heavy.values()):
        return None
    if not all(heavy.values()):
        return heavy["then_branch"]
    reads = {name: sum("past" in outer for outer in outer_names(graph)) for name, graph in sides.items()}
    return reads["then_branch"] < reads["else_branch"]


def _has_attention(nodes: list[NodeProto]) -> bool:
    return any(
        n.op_type == "Softmax" or "Attention" in n.op_type or any(_has_attention(g.node) for _, g in subgraphs(n))
        for n in nodes
    )


def _replace_fused(graph: Graph) -> tuple[dict[str, tuple[NodeProto, Replacement]], list[Finding], list[Miss]]:
    replacements: dict[str, tuple[NodeProto, Replacement]] = {}
    findings: list[Finding] = []
    misses: list[Miss] = []
    for node in graph.nodes:
        name = op_name(node)
        recognise = FUSED.get(name)
        if recognise is not None:
            found = recognise(graph, node)
            if isinstance(found, Miss):
                misses.append(found)
            elif found is not None:
                for finding in (found, *found.also):
                    findings.append(finding)
                if found.replacement is not None:
                    replacements[_key(node)] = (node, found.replacement)
            continue
        write = REWRITES.get(name)
        if write is not None:
            replacement = write(graph, node)
            if isinstance(replacement, Miss):
                misses.append(replacement)
            elif replacement is not None:
                replacements[_key(node)] = (node, replacement)
    return replacements, findings, misses


def _key(node: NodeProto) -> str:
    return str(next((o for o in node.output if o), node.name))


def replaced(graph: Graph, replacements: dict[str, tuple[NodeProto, Replacement]], keys: set[str]) -> ModelProto:
    """A copy of the model in which the fused nodes of `keys` are replaced by their primitives."""
    from onnx import ModelProto, helper

    proto = ModelProto()
    proto.CopyFrom(graph.proto)
    del proto.graph.node[:]
    for node in graph.nodes:
        key = _key(node)
        if key in keys and replacements[key][0] is node:
            stand_in = replacements[key][1]
            proto.graph.node.extend(stand_in.nodes)
            proto.graph.initializer.extend(stand_in.initializers)
        else:
            proto.graph.node.append(node)
    if not any(o.domain in ("", "ai.onnx") for o in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid("", 17))
    return proto


def _opened(graph: Graph, replacements: dict[str, tuple[NodeProto, Replacement]]) -> Graph:
    return _indexed(graph.loaded, replaced(graph, replacements, set(replacements)))


def _inside_subgraphs(graph: Graph) -> list[Miss]:
    """Attention in subgraphs that were not spliced: loops, scans, generation operators."""
    misses: list[Miss] = []
    for node in graph.nodes:
        for name, inner in subgraphs(node):
            if _has_attention(inner.node):
                reason = f"holds attention in its {name}, which runs as often as the {node.op_type} says; attnx does not tap it"
                misses.append(Miss(node.name, op_name(node), reason))
    return misses


def _number(graph: Graph, findings: list[Finding]) -> tuple[tuple[Site, ...], dict[int, str]]:
    """Give findings their kind, component, layer and index."""
    by_place = sorted(findings, key=lambda f: _position(graph, f))
    probed = [
        Probed(f.product, f.places["masked"], f.places["weights"])
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
                node=f.node.name or _key(f.node), heads=f.heads, kv_heads=f.kv_heads, head_size=f.head_size, scale=f.scale,
                scale_place=f.scale_place, softcap=f.softcap, causal=causal[i],
                window=f.window if f.window is not None or seen is None else seen.window,
                bias=f.bias if seen is None or seen.bias == "" else seen.bias, sink=f.sink, places=f.places, absent=f.absent, notes=tuple(f.notes),
            )
        )  # fmt: skip
        if f.replacement is not None:
            fused_of[index] = _key(f.node)
    return tuple(sites), fused_of


def _can_probe(f: Finding) -> bool:
    return "masked" in f.places and "weights" in f.places and bool(f.product)


def _position(graph: Graph, f: Finding) -> int:
    place = f.places.get("weights") or f.places.get("context")
    node = graph.producer(place.value) if place is not None else None
    return graph.position(node) if node is not None else len(graph.nodes)


def _causal(graph: Graph, f: Finding, visible: Mapping[str, Hides]) -> bool | None:
    """Whether a site hides the future: said by an attribute, seen in its mask, or told by how it is fed."""
    if f.causal is not None:
        return f.causal
    shape = graph.shape(f.places["weights"].value) if "weights" in f.places else None
    at = axis_of(f.places["weights"].layout, "q") if "weights" in f.places else None
    if shape is not None and (at is None or shape[at] == 1) and has_cache(graph, f):
        return True  # one query a call, behind all that is cached: there is no future that it could see
    if not _can_probe(f):
        return False
    seen = visible.get(f.places["weights"].value)
    return None if seen is None else seen.causal


def has_cache(graph: Graph, f: Finding) -> bool:
    """Whether the new keys of a site are put behind keys that come in as an input of the model."""
    place = f.places.get("key")
    value = place.value if place is not None else f.key_from
    for _ in range(24):
        node = graph.producer(value)
        if node is None:
            return False
        if node.op_type in ("Concat", "ScatterND", "ScatterElements"):
            return any(_cached(graph, name) for name in node.input[:-1]) and len(node.input) > 1
        if node.op_type not in _VIEWS:
            return False
        value = node.input[0]
    return False


_VIEWS = (
    "Transpose",
    "Reshape",
    "Cast",
    "Identity",
    "Unsqueeze",
    "Squeeze",
    "Expand",
    "Slice",
    "Gather",
    "Mul",
    "Tile",
    "Where",
)


def _cached(graph: Graph, value: str) -> bool:
    for _ in range(8):
        if value in graph.inputs:
            return len(graph.inputs[value].type.tensor_type.shape.dim) >= 3
        node = graph.producer(value)
        if node is None or node.op_type not in (*_VIEWS, "Split"):
            return False
        value = node.input[0]
    return False


def _kind(graph: Graph, f: Finding, causal: bool | None) -> Kind:
    """Self where query and key are made from one sequence, cross where they are not.

    Where both are inputs of the model, nothing says what they were made from: then a cache, or a triangle that is not
    known to be longer than wide, makes it self-attention.
    """
    if f.query_from == f.key_from or streams(graph, f.query_from) & streams(graph, f.key_from):
        return "self"
    if has_cache(graph, f):
        return "self"
    shape = graph.shape(f.places["weights"].value) if "weights" in f.places else None
    if (
        causal
        and shape is not None
        and len(shape) >= 2
        and _is_input(graph, f.query_from)
        and _is_input(graph, f.key_from)
    ):
        lengths = [graph.shape(name) for name in (f.query_from, f.key_from)]
        sides = [s[-2] if s is not None and len(s) >= 2 else None for s in lengths]
        fixed = [s for s in sides if s is not None and s < PROBE]
        return "cross" if len(fixed) == 2 and fixed[0] != fixed[1] else "self"
    return "cross"


def _is_input(graph: Graph, value: str) -> bool:
    return value in graph.inputs


def _towers(graph: Graph, findings: list[Finding]) -> list[int]:
    """Which independent stack each site stands in, so that two encoders side by side are not listed in turns.

    A site stands where the sites that feed it stand; where stacks meet, in the one that begins last.
    """
    owner = {(f.places.get("context") or f.places["weights"]).value: i for i, f in enumerate(findings)}
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
        place = f.places.get("context") or f.places.get("weights")
        if place is not None and (kind == "cross" or hides_future):
            marked.add(place.value)
    behind = set(marked)
    for node in graph.nodes:
        if any(name in behind for name in node.input):
            behind.update(o for o in node.output if o)
    out: list[Component] = []
    for f in findings:
        place = f.places.get("context") or f.places.get("weights")
        out.append("decoder" if place is not None and place.value in behind else "encoder")
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
            if name in seen or node is None:
                continue
            seen.add(name)
            stack += [n for n in node.input if n]
        reads[value] = seen
        return seen

    contexts = [(f.places.get("context") or f.places["weights"]).value for f in findings]
    crosses = [f for f, kind in zip(findings, kinds, strict=True) if kind == "cross"]
    in_keys: set[str] = set().union(*(upstream(f.key_from) for f in crosses))
    in_queries: set[str] = set().union(*(upstream(f.query_from) for f in crosses))
    for i, context in enumerate(contexts):
        if out[i] == "encoder" and context in in_queries and context not in in_keys:
            out[i] = "decoder"


__all__ = ["Found", "attribute", "find", "replaced"]
