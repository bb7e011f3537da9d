"""Shapes, types and small numbers of every value, found by walking the graph once, without running anything.

Symbolic dimensions get probe sizes that occur nowhere else (primes above 1000), so that a size read off a tensor shows
which symbol it came from: 12 x 1009 is "heads x batch". Numbers are carried along while they are small. That follows
the Shape -> Gather -> Concat -> Reshape chains and the scales that exporters compute at run time. The same walk, with
small sizes and given masks, evaluates what a site hides (see `graph.masks`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.fact import UNKNOWN, Fact, Shape, fact_of, ints
from attnx.graph.load.flat import FlatGraph
from attnx.graph.load.nodes import attributes
from attnx.graph.load.outline import Outline
from attnx.graph.shapes.evaluate import BOUNDED, evaluate, most, steady
from attnx.graph.shapes.node_facts import infer_shape
from attnx.graph.shapes.symbols import PROBE, input_shape, note_clash, probe_sizes, reconcile, without_cuts
from attnx.records import Array

if TYPE_CHECKING:
    from onnx import NodeProto

SMALL_VALUE = 8192
"""Numbers are carried for tensors of at most this many elements (unless a caller wants more)."""
MOST_AXES = 64
"""The most axes that a numpy array can have; a value with more comes from a damaged file, and stays unknown."""

_AGREEING = frozenset("Add Sub Mul Div Where And Or Min Max Sum".split())
"""Operators that broadcast their operands to one another: sizes that meet on one axis are equal."""
_CLASHING = _AGREEING | {"QLinearAdd", "QLinearMul", "MatMul", "Slice"}
"""Those from which `_note_clashes` learns something."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a graph to walk, and what is already known of the values around it."""

    nodes: Sequence[NodeProto]
    """In graph order."""
    known: Mapping[str, Fact] = field(default_factory=dict)
    """What a walk over the rest of the graph has found; empty where there was none."""


@dataclass(frozen=True, slots=True)
class Before:
    """What `probe` found of the graph that others were made from."""

    sizes: Mapping[str, int]
    facts: Mapping[str, Fact]


def probe(
    graph: FlatGraph, before: Before | None = None, fresh: Collection[str] = ()
) -> tuple[dict[str, int], dict[str, Fact]]:
    """Infer with probe sizes for the symbolic dimensions; dimensions that must be equal get the same size.

    Args:
        graph: The graph.
        before: What was found of an earlier graph with the same inputs, from which this one was made.
        fresh: The values that are computed differently in this graph, or did not exist in the earlier one. Only
            these are walked, and whatever comes after those of them that have changed.

    Returns:
        The probe size of each named input dimension, and a fact for each value.
    """
    if before is not None and (again := _probed_again(graph, before, set(fresh))) is not None:
        return dict(before.sizes), again
    sizes = probe_sizes(graph.inputs.values())
    for _ in range(12):
        clashes: list[tuple[int, int]] = []
        facts = _walk(graph, sizes, {}, SMALL_VALUE, clashes, None)
        reconciled = reconcile(sizes, clashes)
        if reconciled == sizes:
            break
        sizes = reconciled
    return sizes, facts


def _probed_again(graph: FlatGraph, before: Before, fresh: set[str]) -> dict[str, Fact] | None:
    """See `probe`; None where sizes turn out to be equal that were not equal before."""
    facts = {name: fact for name, fact in before.facts.items() if name not in fresh or name in graph.inputs}
    _initialise(graph, facts, SMALL_VALUE, None)
    clashes: list[tuple[int, int]] = []
    moved: set[str] = set()
    short: set[str] = set()
    stored = graph.stored
    # What makes fresh values is walked, then what reads those that have moved; a node that holds graphs may read any.
    makers = [node for name in fresh if (node := graph.producer(name)) is not None]
    waiting = sorted({graph.position(node) for node in (*makers, *graph.holding)})
    for name in fresh & stored.keys():
        facts[name] = stored[name]
        if not _same(before.facts.get(name), stored[name]):
            moved.add(name)
            waiting += map(graph.position, graph.consumers(name))
    heapify(waiting)
    done = -1
    while waiting:
        at = heappop(waiting)
        node = graph.nodes[at]
        outline = graph.outline(node)
        idle = moved.isdisjoint(outline.reads) and fresh.isdisjoint(outline.outputs)
        if at == done or outline.stored or idle:
            continue
        done = at
        results = _inferred(graph, node, outline, facts, SMALL_VALUE)
        # It is not known here where the earlier graph cut a buffer; on any extra clash, the whole graph is walked.
        _note_clashes(outline, node, facts, clashes, short)
        for name, fact in zip(outline.outputs, map(_kept, results), strict=False):
            if name and not _same(before.facts.get(name), fact):
                moved.add(name)
                for reader in graph.consumers(name):
                    heappush(waiting, graph.position(reader))
            if name:
                facts[name] = fact
    return facts if reconcile(dict(before.sizes), clashes) == before.sizes else None


def _same(one: Fact | None, two: Fact) -> bool:
    if one is None or (one.shape, one.dtype) != (two.shape, two.dtype) or (one.value is None) != (two.value is None):
        return False
    if one.value is None or two.value is None:
        return True
    return one.value.dtype == two.value.dtype and one.value.tobytes() == two.value.tobytes()


def _initialise(graph: FlatGraph, facts: dict[str, Fact], limit: int, wanted: Collection[str] | None) -> None:
    """What is known of initializers, added to the facts."""
    for name, tensor in graph.initializers.items():
        if name in facts and (wanted is None or name not in wanted):
            continue
        shape = tuple(int(d) for d in tensor.dims)
        most = limit if wanted is None or name in wanted else SMALL_VALUE
        small = prod(shape) <= most
        fact = Fact(shape, tensor.data_type, graph.constant(name) if small else None)
        facts[name] = graph.loaded.inferred.one(fact) if prod(shape) <= SMALL_VALUE or not small else fact


def _note_clashes(
    outline: Outline, node: NodeProto, facts: Mapping[str, Fact], clashes: list[tuple[int, int]], short: set[str]
) -> None:
    """Note sizes that meet in a node and differ but must be equal; values cut at a buffer's end go to `short`."""
    op = outline.op_type
    agree = op in _AGREEING
    if (op == "Slice" and _cut_where_it_ends(node, facts)) or (
        short and not agree and not short.isdisjoint(outline.inputs)
    ):
        short.update(outline.outputs)
    if not agree and op not in ("QLinearAdd", "QLinearMul", "MatMul"):
        return
    shapes = [without_cuts(facts[n].shape) if n in short else facts[n].shape for n in outline.inputs if n in facts]
    if agree and not node.domain:
        note_clash(shapes, clashes)
    elif op in ("QLinearAdd", "QLinearMul"):  # without the scales and zero points, which are scalars
        note_clash([s for s in shapes if s], clashes)
    elif op == "MatMul" and len(shapes) == 2 and all(s is not None and len(s) > 2 for s in shapes):
        note_clash([s[:-2] for s in shapes if s is not None], clashes)


def _kept(fact: Fact) -> Fact:
    """The fact itself, or its type alone for a value with more axes than numpy allows."""
    many = fact.shape is not None and len(fact.shape) > MOST_AXES
    return Fact(None, fact.dtype) if many else fact


def infer(
    graph: FlatGraph,
    sizes: Mapping[str, int],
    given: Mapping[str, Fact] | None = None,
    limit: int = SMALL_VALUE,
    wanted: Collection[str] | None = None,
    seen: Callable[[str, dict[str, Fact]], None] | None = None,
    part: Part | None = None,
) -> dict[str, Fact]:
    """Walk the graph once.

    Args:
        graph: The flat graph.
        sizes: A size for each named input dimension.
        given: Facts that replace what the walk would find (inputs, or inner values such as a score product).
        limit: Largest number of elements of a value whose numbers are carried.
        wanted: The values that `limit` applies to, or all if None; others keep at most `SMALL_VALUE` elements.
        seen: Called as soon as a value is known, with its name and all facts so far. The numbers of `wanted` values
            are then dropped once no later node reads them, so that only one site's matrices are held at a time.
        part: Walk only these nodes.

    Returns:
        A fact for each value; values about which nothing is known may be absent.
    """
    return _walk(graph, sizes, given or {}, limit, None, wanted, seen, part)


def _walk(
    graph: FlatGraph,
    sizes: Mapping[str, int],
    given: Mapping[str, Fact],
    limit: int,
    clashes: list[tuple[int, int]] | None,
    wanted: Collection[str] | None,
    seen: Callable[[str, dict[str, Fact]], None] | None = None,
    part: Part | None = None,
) -> dict[str, Fact]:
    one = graph.loaded.inferred.one
    nodes = part.nodes if part is not None else graph.steps if seen is None else graph.nodes
    last = _last_reads(nodes, wanted) if seen is not None and wanted is not None else {}
    facts = {} if part is None else dict(part.known)
    if not facts:
        for name, info in graph.inputs.items():
            facts[name] = one(Fact(input_shape(info, sizes), info.type.tensor_type.elem_type or None))
    _initialise(graph, facts, limit, wanted)
    if part is None or not part.known:
        facts.update(graph.stored)
    facts.update(given if seen is not None else {name: one(fact) for name, fact in given.items()})
    short: set[str] = set()
    steps = graph.outlined if nodes is graph.steps else [(node, graph.outline(node)) for node in nodes]
    for at, (node, outline) in enumerate(steps):
        most = limit if wanted is None or (outline.outputs and outline.outputs[0] in wanted) else SMALL_VALUE
        if seen is None:
            results = _inferred(graph, node, outline, facts, most)
        else:  # what is to be let go must not be remembered
            results = _node(graph, node, facts, most)
        if clashes is not None and (outline.op_type in _CLASHING or (short and not short.isdisjoint(outline.inputs))):
            _note_clashes(outline, node, facts, clashes, short)
        for name, fact in zip(outline.outputs, results, strict=False):
            if name and name not in given:
                facts[name] = _kept(fact)
        if seen is not None:
            for name in outline.outputs:
                if name in facts:
                    seen(name, facts)
            for name in (*outline.inputs, *outline.outputs):
                if last.get(name) == at and name in facts:
                    facts[name] = Fact(facts[name].shape, facts[name].dtype)
    return facts


def _cut_where_it_ends(node: NodeProto, facts: Mapping[str, Fact]) -> bool:
    """Whether a Slice by probe sizes takes more than a buffer has; in a real run it is as long as the text."""
    if node.op_type != "Slice" or node.domain or len(node.input) < 3:
        return False
    held = [ints(facts.get(name)) if name else None for name in node.input[1:4]]
    shape, starts, ends = facts.get(node.input[0], UNKNOWN).shape, held[0], held[1]
    axes = held[2] if len(held) > 2 else list(range(len(ends or ())))
    if shape is None or starts is None or ends is None or axes is None:
        return False
    bounds = [(shape[axis], n) for axis, *both in zip(axes, starts, ends, strict=False) for n in both]
    return any(size is not None and size < PROBE < abs(n) < 1 << 31 for size, n in bounds)


def _last_reads(nodes: Sequence[NodeProto], wanted: Collection[str]) -> dict[str, int]:
    """The position of the last node that reads each large wanted value, or of the node that makes it if none does."""
    last: dict[str, int] = {}
    inside = 0
    for at, node in enumerate(nodes):
        if any(a.type == 5 for a in node.attribute):
            inside = at  # a body may read any value outside it
        for name in (*node.input, *node.output):
            if name in wanted:
                last[name] = at
    return {name: max(at, inside) for name, at in last.items()}


def _inferred(
    graph: FlatGraph, node: NodeProto, outline: Outline, facts: dict[str, Fact], limit: int
) -> Sequence[Fact]:
    """See `_node`: remembered, where nothing but the node's kind and what is known of its inputs plays a part."""
    inputs = [facts.get(name, UNKNOWN) for name in outline.inputs]
    # Sizes gathered from a shape that is not wholly known are looked up in the graph.
    looks = outline.op_type == "Gather" and (not inputs or inputs[0].value is None)
    if outline.kind is None or outline.stored or looks or limit != SMALL_VALUE:
        return _node(graph, node, facts, limit)
    outputs = outline.outputs
    there = 0 if "" not in outline.inputs and "" not in outputs else tuple(map(bool, (*outline.inputs, *outputs)))
    how = (outline.kind, graph.opset, len(outputs), there)
    return graph.loaded.inferred.made(how, inputs, lambda: _node(graph, node, facts, limit))


def _node(graph: FlatGraph, node: NodeProto, facts: dict[str, Fact], limit: int) -> list[Fact]:
    op, domain, names = node.op_type, node.domain, list(node.input)
    inputs = [facts.get(name, UNKNOWN) if name else UNKNOWN for name in names]
    if op == "If" and not domain:
        return _branch(graph, node, facts, limit)
    if op == "Constant" and not domain:
        own = graph.producer(node.output[0]) is node
        return [graph.stored_in(node, graph.constant(node.output[0]) if own else graph.constant_of(node))]
    if op in ("Shape", "Size") and inputs and inputs[0].shape is not None and None not in inputs[0].shape:
        return [_size(node, _whole(inputs[0].shape))]
    if op == "Gather" and (found := _sizes_of(graph, node, inputs[1], facts)) is not None:
        return [fact_of(found)]
    values = [fact.value for fact in inputs]
    if op == "CastLike" and len(inputs) == 2:
        values[1] = _example(inputs[1]).value  # its type says what to cast to; its numbers do not matter
    known = domain in ("", "ai.onnx") and any(names)
    if not known or any(v is None for v, name in zip(values, names, strict=True) if name):
        return infer_shape(graph, node, inputs)
    if op in BOUNDED and most(values) <= limit:
        return _evaluated(node, values, graph.opset, limit) or infer_shape(graph, node, inputs)
    shaped = infer_shape(graph, node, inputs)
    if not steady(node, values, _count(shaped), limit):
        return shaped
    return _evaluated(node, values, graph.opset, limit) or shaped


def _example(fact: Fact) -> Fact:
    """An arbitrary array of a tensor's type, where the type is known."""
    from onnx.helper import tensor_dtype_to_np_dtype

    if fact.value is not None or not fact.dtype:
        return fact
    try:
        return Fact((), fact.dtype, np.zeros((), tensor_dtype_to_np_dtype(fact.dtype)))
    except (KeyError, TypeError):
        return fact


def _sizes_of(graph: FlatGraph, node: NodeProto, index: Fact, facts: dict[str, Fact]) -> Array | None:
    """The sizes gathered from a partly unknown shape: the batch, say, where the number of patches is unknown."""
    source = graph.producer(node.input[0])
    if source is None or source.op_type != "Shape" or source.attribute or index.value is None:
        return None
    shape = facts.get(source.input[0], UNKNOWN).shape
    if shape is None or None not in shape or any(not -len(shape) <= i < len(shape) for i in index.value.ravel()):
        return None
    found = [shape[int(i)] for i in index.value.ravel()]
    return None if None in found else np.array(found, dtype=np.int64).reshape(index.value.shape)


def _branch(graph: FlatGraph, node: NodeProto, facts: dict[str, Fact], limit: int) -> list[Fact]:
    """The outputs of an If: of the branch taken if the condition is known, else of a branch whose shapes are known."""
    condition = facts.get(node.input[0], UNKNOWN).value
    sides = {a.name: a.g for a in node.attribute if a.type == 5}
    names = (
        ["then_branch", "else_branch"]
        if condition is None
        else ["then_branch" if condition.ravel()[0] else "else_branch"]
    )
    best: list[Fact] = [UNKNOWN] * len(node.output)
    for name in names:
        inner = dict(facts)
        side = sides[name]
        for tensor in side.initializer:
            shape = tuple(int(d) for d in tensor.dims)
            inner[tensor.name] = Fact(shape, tensor.data_type, graph.read_small(tensor))
        for child in side.node:
            for out, fact in zip(child.output, _node(graph, child, inner, limit), strict=False):
                inner[out] = fact
        best = [inner.get(o.name, UNKNOWN) for o in side.output]
        if condition is None:
            best = [Fact(f.shape, f.dtype) for f in best]
        if all(f.shape is not None for f in best):
            break
    return best


def _whole(shape: Shape) -> tuple[int, ...]:
    return tuple(d for d in shape if d is not None)


def _size(node: NodeProto, shape: tuple[int, ...]) -> Fact:
    """What a Shape or Size node returns for a tensor."""
    if node.op_type == "Size":
        return fact_of(np.array(count, dtype=np.int64)) if (count := prod(shape)) < 1 << 63 else Fact(())
    a = attributes(node)
    return fact_of(np.array(shape[a.get("start", 0) : a.get("end")], dtype=np.int64))


def _count(shaped: list[Fact] | None) -> int | None:
    """The number of elements of the first output, where its shape is known."""
    if not shaped or shaped[0].shape is None or None in shaped[0].shape:
        return None
    return prod(_whole(shaped[0].shape))


def _evaluated(node: NodeProto, values: list[Array | None], opset: int, limit: int) -> list[Fact] | None:
    """The outputs of a node; None where they cannot be computed, or have more elements than the limit."""
    try:
        made = evaluate(node, values, opset)
        return [fact_of(v) for v in made] if all(v.size <= limit for v in made) else None
    except Exception:
        # An operator, type or size that numpy or the reference refuses: the value is just unknown.
        return None
