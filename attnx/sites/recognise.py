"""Graph -> Sites and Misses: every attention computation in a model, numbered in execution order. Nothing is run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.errors import AttnxError, ModelError, lacks_memory
from attnx.graph.axes.softmax_forms import COMPLETES
from attnx.graph.load.flatten import Choose, inline_functions, sort_nodes, splice_ifs
from attnx.graph.load.load import Loaded, Outside, load
from attnx.graph.load.nodes import op_name, outer_names, subgraphs
from attnx.graph.load.soundness import check_nodes, contradiction
from attnx.graph.shapes.index import Graph
from attnx.graph.shapes.unroll import unroll
from attnx.records import Miss, Site
from attnx.sites.emit import emitted
from attnx.sites.finding import Finding, Replacement, key_of
from attnx.sites.fused.prescaled import take_out
from attnx.sites.fused.refused import by_name
from attnx.sites.fused.registry import FUSED, REWRITES
from attnx.sites.loops import Looked, open_loops
from attnx.sites.numbering import number
from attnx.sites.orders import with_orders
from attnx.sites.registry import JOINS, recognise
from attnx.sites.spelled import softmax, unnormalised
from attnx.sites.spelled.deformable import Sampling

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_NESTED = 3
"""How deeply nested loops are unrolled."""


@dataclass(slots=True)
class Found:
    """What was found in a model: the flat graph unchanged, the sites, and what `taps` needs to open each of them."""

    loaded: Loaded
    graph: Graph
    """The graph as in the file, but flat."""
    opened: Graph
    """The same with every fused node replaced by primitives; `graph` itself where there are none."""
    sites: tuple[Site, ...]
    misses: tuple[Miss, ...]
    replacements: dict[str, tuple[NodeProto, Replacement]] = field(default_factory=dict)
    """First output of a fused node -> the node and its replacement."""
    fused_of: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Site index -> keys in `replacements`."""
    branches: tuple[str, ...] = ()
    """Names of the If nodes that were replaced by one of their branches."""


Numbered = tuple[tuple[Site, ...], dict[int, tuple[str, ...]]]
"""Sites in order, and `Found.fused_of`."""


def find(
    path: Path, choose: Choose | None = None, outside: Outside | None = None, numbered: Numbered | None = None
) -> Found:
    """Every attention computation in the model at `path`.

    Args:
        path: The .onnx file.
        choose: Says which branch of an If runs; by default, the branch that runs without a cache.
        outside: Consulted for the shapes of operators that no rule covers.
        numbered: The same sites as numbered by an earlier reading of the file. Then no mask is probed, which would take
            most of the time.

    Raises:
        ModelError: The file cannot be read as an ONNX model.
    """
    loaded = load(path)
    loaded.outside = outside
    try:
        return _find(loaded, choose or without_cache, numbered)
    except AttnxError:
        raise
    except Exception as error:
        # An error in walking the graph comes from damage, which is reported as such, or is a bug, which surfaces.
        if not lacks_memory(error) and (fault := contradiction(loaded.proto)) is not None:
            raise ModelError(f"{path} contradicts itself: {fault}", "Export the model again.") from error
        raise


def _find(loaded: Loaded, choose: Choose, numbered: Numbered | None) -> Found:
    graph, branches = _flat(loaded, choose)
    samplings: list[Sampling] = []
    looked = _look(graph, samplings)
    opened, findings, misses, replacements = looked.opened, looked.findings, looked.misses, looked.replacements
    stepped = open_loops(graph, lambda body: _look(body, []), lambda body: _may_attend(list(body.node)))
    for one in stepped:
        misses += one.misses
        if one.replacement is not None:
            replacements[one.key] = one.node, one.replacement
            findings += one.findings
    if any(one.replacement is not None for one in stepped):
        opened = _opened(graph, replacements)
    misses += _inside_subgraphs(graph, {id(one.node) for one in stepped if one.findings or one.misses})
    sites, fused_of = numbered or number(opened, findings, samplings)
    if numbered is None:
        sites = with_orders(opened, sites)
    return Found(loaded, graph, opened, sites, tuple(misses), replacements, fused_of, tuple(branches))


def _look(graph: Graph, samplings: list[Sampling]) -> Looked:
    """The attention in a graph, not in bodies of loops; deformable attentions are added to `samplings`."""
    replacements, fused, misses = _replace_fused(graph)
    opened = _opened(graph, replacements) if replacements else graph
    for finding in fused:
        take_out(graph, finding)
    findings = list(fused)
    recognise_at = recognise(opened)
    for node in opened.nodes:
        if node.op_type not in COMPLETES or emitted(node):
            continue
        found = recognise_at(node)
        if not isinstance(found, Finding) and (sampled := softmax.sampling_of(opened, node)) is not None:
            samplings.append(sampled)
            found = Miss(node.name, node.op_type, sampled.reason)
        if isinstance(found, Miss):
            misses.append(found)
        elif found is not None:
            findings.append(found)
            if found.replacement is not None and (own := graph.producer(found.replacement.at)) is not None:
                replacements[key_of(node)] = (own, found.replacement)
    single = list(findings)
    for join in JOINS:
        for whole, parts in join(opened, findings):
            made = None if whole.replacement is None else graph.producer(whole.replacement.at)
            if made is not None and whole.replacement is not None:
                replacements[whole.key] = made, whole.replacement
                findings = [f for f in findings if f not in parts] + [whole]
    if any(f.replacement is not None for f in findings[len(fused) :]) or any(f.key for f in findings):
        opened = _opened(graph, replacements)
    misses += unnormalised.misses(opened, _products([*single, *findings]))
    return Looked(opened, replacements, findings, misses)


def _products(findings: list[Finding]) -> list[str]:
    """The products of sites, which are not examined further."""
    contexts = [f.places["context"].value for f in findings if "context" in f.places]
    return [*contexts, *(f.product for f in findings), *(name for f in findings for name in f.beside)]


def _flat(loaded: Loaded, choose: Choose) -> tuple[Graph, list[str]]:
    from onnx import ModelProto

    proto = inline_functions(loaded.proto)
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
    check_nodes(proto.graph.node, opset, loaded.outlines)
    branches: list[str] = []
    if any(node.op_type == "If" for node in proto.graph.node):
        copy = ModelProto()
        copy.CopyFrom(proto)
        proto = copy
        branches = splice_ifs(proto.graph, choose)
    graph = _indexed(loaded, proto)
    for _ in range(_NESTED):
        unrolled = unroll(graph, lambda body: _may_attend(list(body.node)))
        if unrolled is None:
            break
        branches += splice_ifs(unrolled.graph, choose)
        graph = _indexed(loaded, unrolled)
    return graph, branches


def _indexed(loaded: Loaded, proto: ModelProto) -> Graph:
    graph = proto.graph
    known = {t.name for t in graph.initializer} | {i.name for i in graph.input}
    known |= {t.values.name for t in graph.sparse_initializer}
    if not graph.node:
        raise ModelError(f"{loaded.path} has no nodes: there is nothing to run", "Export the model again.")
    nodes = list(graph.node)
    outlines = {id(node): loaded.outlines.of(node) for node in nodes}
    return Graph(loaded, proto, sort_nodes(nodes, known, lambda node: outlines[id(node)]), outlines)


def without_cache(node: NodeProto) -> bool | None:
    """The branch of an If that holds attention; if both do, the one that reads no past (the first call)."""
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


def _may_attend(nodes: list[NodeProto]) -> bool:
    """Whether a body holds attention, or a softmax written out between two products."""
    ops = [n.op_type for n in nodes]
    written = "Exp" in ops and "ReduceSum" in ops and sum(op in ("MatMul", "Einsum", "Gemm") for op in ops) > 1
    return _has_attention(nodes) or written or any(_may_attend(list(g.node)) for n in nodes for _, g in subgraphs(n))


def _replace_fused(graph: Graph) -> tuple[dict[str, tuple[NodeProto, Replacement]], list[Finding], list[Miss]]:
    replacements: dict[str, tuple[NodeProto, Replacement]] = {}
    findings: list[Finding] = []
    misses: list[Miss] = []
    plain: set[tuple[str, str]] = set()  # operators of which neither the table nor the name says attention
    for node, outline in graph.outlined:
        op = outline.op_type, node.domain
        if op in plain:
            continue
        look = FUSED.get(op_name(node)) or REWRITES.get(op_name(node))
        found = by_name(node) if look is None else look(graph, node)
        if look is None and found is None:
            plain.add(op)
        if isinstance(found, Miss):
            misses.append(found)
            continue
        if isinstance(found, Finding):
            findings += (found, *found.also)
            found = found.replacement
        if found is not None:
            replacements[key_of(node)] = (node, found)
    return replacements, findings, misses


def replaced(graph: Graph, replacements: dict[str, tuple[NodeProto, Replacement]], keys: set[str]) -> ModelProto:
    """A copy of the model in which the fused nodes of `keys` are replaced by their primitives."""
    from onnx import ModelProto

    proto = ModelProto()
    proto.CopyFrom(graph.proto)
    del proto.graph.node[:]
    stand_ins = {id(replacements[key][0]): replacements[key][1] for key in keys}
    for node in graph.nodes:
        stand_in = stand_ins.get(id(node))
        if stand_in is not None:
            proto.graph.node.extend(stand_in.nodes)
            proto.graph.initializer.extend(stand_in.initializers)
        else:
            proto.graph.node.append(node)
    _import_own(proto)
    return proto


def _import_own(proto: ModelProto) -> None:
    """Import ONNX's own operators, which replacements are made of."""
    from onnx import helper

    if not any(o.domain in ("", "ai.onnx") for o in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid("", 17))


def _lists(proto: ModelProto) -> tuple[Any, ...]:
    """All that a graph holds besides its nodes."""
    graph = proto.graph
    return graph.initializer, graph.sparse_initializer, graph.input, graph.output, graph.value_info


def _opened(graph: Graph, replacements: dict[str, tuple[NodeProto, Replacement]]) -> Graph:
    """The graph with fused nodes replaced; its other nodes are the graph's own, the model around them is a copy."""
    from onnx import ModelProto

    proto, before = ModelProto(), graph.proto.graph
    proto.ir_version = graph.proto.ir_version
    proto.opset_import.extend(graph.proto.opset_import)
    for field_of, kept in zip(_lists(proto), _lists(graph.proto), strict=True):
        field_of.extend(kept)
    _import_own(proto)
    stand_ins = {id(own): stand_in for own, stand_in in replacements.values()}
    nodes: list[NodeProto] = []
    for node in graph.nodes:
        stand_in = stand_ins.get(id(node))
        if stand_in is None:
            nodes.append(node)
        else:
            nodes += stand_in.nodes
            proto.graph.initializer.extend(stand_in.initializers)
    outlines = {id(node): graph.outline(node) for node in nodes}
    known = {t.name for t in proto.graph.initializer} | {i.name for i in before.input}
    known |= {t.values.name for t in before.sparse_initializer}
    nodes = sort_nodes(nodes, known, lambda node: outlines[id(node)])
    opened = Graph(graph.loaded, proto, nodes, outlines)
    made = [node for own, stand_in in replacements.values() for node in (own, *stand_in.nodes)]
    fresh = {name for node in made for name in node.output}
    fresh |= {tensor.name for _, stand_in in replacements.values() for tensor in stand_in.initializers}
    opened.follows(graph, frozenset(fresh))
    return opened


def _inside_subgraphs(graph: Graph, opened: Collection[int]) -> list[Miss]:
    """Attention in subgraphs that were neither spliced nor opened: generation operators, old loops."""
    misses: list[Miss] = []
    for node in graph.holding:
        if id(node) in opened:
            continue
        for name, inner in subgraphs(node):
            if _may_attend(list(inner.node)):
                reason = f"holds attention in its {name}, which runs as often as {node.op_type} says; it is not tapped"
                misses.append(Miss(node.name, op_name(node), reason))
    return misses
