"""Attention written out: product, scale, mask, softmax, product - in every order and notation that exporters use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes import MIXING, Atom, Axes, forward, leaves
from attnx.graph.index import attributes
from attnx.graph.letters import Letters, name_axes
from attnx.graph.origins import streams
from attnx.graph.paths import Way, depends, float_of, ways_back, ways_on
from attnx.graph.score_path import Factor, Reading, bias_kind, read_path
from attnx.layout import parse
from attnx.ops.finding import Finding
from attnx.records import Miss, Place

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.index import Graph

Window = tuple[int | None, int | None] | None
Factors = tuple[float | tuple[float, ...], ...]


def entry(graph: Graph, node: NodeProto) -> tuple[str, str, int] | None:
    """(softmax input, softmax output, axis) where `node` completes a softmax; None where it is none.

    Softmax itself, QLinearSoftmax, and Exp / ReduceSum / Div written out (the Div completes it).
    """
    a = attributes(node)
    op = node.op_type
    if op in ("Softmax", "QLinearSoftmax"):
        rank = len(graph.shape(node.input[0]) or ()) or None
        axis = a.get("axis", -1 if graph.opset >= 13 or op == "QLinearSoftmax" else 1)
        if rank is not None and graph.opset < 13 and op == "Softmax" and axis % rank != rank - 1:
            # Before opset 13 the operator flattens: over the last axis only where those after `axis` have size 1.
            tail = (graph.shape(node.input[0]) or ())[axis % rank + 1 :]
            if any(d != 1 for d in tail):
                return None
        return node.input[0], node.output[0], axis
    if op == "Div":
        return _written_out(graph, node)
    return None


def _written_out(graph: Graph, node: NodeProto) -> tuple[str, str, int] | None:
    top, bottom = (graph.producer(name) for name in node.input)
    for _ in range(4):  # a floor or an epsilon under the sum
        if bottom is not None and bottom.op_type in ("Add", "Max", "Clip", "Cast", "Expand", "Identity", "Unsqueeze"):
            bottom = next(
                (p for n in bottom.input if (p := graph.producer(n)) is not None and p.op_type != "Constant"), None
            )
    if top is None or bottom is None or top.op_type not in ("Exp", "Mul", "Where") or bottom.op_type != "ReduceSum":
        return None
    exp = top
    while exp is not None and exp.op_type in ("Mul", "Where"):  # masked after the exponential
        exp = next(
            (p for n in exp.input if (p := graph.producer(n)) is not None and p.op_type in ("Exp", "Mul", "Softmax")),
            None,
        )
    if exp is None or exp.op_type not in ("Exp", "Softmax") or bottom.input[0] not in (top.output[0], exp.output[0]):
        return None
    axes = graph.known(bottom.input[1]) if len(bottom.input) > 1 and bottom.input[1] else attributes(bottom).get("axes")
    if axes is None or len(list(axes)) != 1:
        return None
    if exp.op_type == "Softmax":
        return None  # softmax, mask, renormalise: found at the Softmax, whose weights are read after the Div
    return exp.input[0], node.output[0], int(next(iter(axes)))


def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention around one softmax, or why it is none."""
    found = entry(graph, node)
    if found is None:
        return None
    logits, out, axis = found
    logits = _before_shift(graph, logits)
    shape = graph.shape(logits)
    if shape is None:
        back = ways_back(graph, logits)
        if not any(depends(graph, w.product.left) and depends(graph, w.product.right) for w in back):
            return None
        return Miss(node.name, node.op_type, "the rank of its input cannot be told from the graph")
    if not depends(graph, logits):
        graph = graph.by_shape()
        if not depends(graph, logits):
            return None
    axis %= max(len(shape), 1)
    on = ways_on(graph, out)
    candidates = [c for way in ways_back(graph, logits) if (c := _follow(graph, way, axis)) is not None]
    data = [c for c in candidates if depends(graph, c.key)]
    both = [c for c in data if depends(graph, c.query)]
    if not both:
        talking = [c for way in ways_back(graph, logits, mixed=True) if (c := _follow(graph, way, axis)) is not None]
        both = [c for c in talking if depends(graph, c.query) and depends(graph, c.key)]
    if not candidates and not both:
        return _none_before(node, on)
    if not data and not both:
        return None  # the axis that is normalised belongs to a constant weight: a classifier, a router
    chosen = _content(graph, both or data, on)
    uses = [use for way in on if (use := _use(graph, way, chosen)) is not None]
    if not uses and (not both or len(shape) < 3):
        return (
            None
            if not both
            else Miss(
                node.name, node.op_type, "a softmax over a product of two tensors whose weights multiply no value"
            )
        )
    return _assemble(
        graph, node, chosen, uses[0] if uses else None, logits, out, axis, learned=not both, others=len(both) - 1
    )


def _before_shift(graph: Graph, logits: str) -> str:
    """The scores before their own maximum is subtracted (a numerical guard that changes no weight)."""
    node = graph.producer(logits)
    if node is not None and node.op_type == "Sub":
        top = graph.producer(node.input[1])
        while top is not None and top.op_type in ("Cast", "Expand", "Identity", "Unsqueeze", "StopGradient"):
            top = graph.producer(top.input[0])
        if top is not None and top.op_type == "ReduceMax" and top.input[0] == node.input[0]:
            return str(node.input[0])
    return logits


def _none_before(node: NodeProto, on: list[Way]) -> Miss | None:
    if not on:
        return None
    return Miss(node.name, node.op_type, "its output weighs a tensor, but no product of two tensors makes its input")


class Candidate:
    """A product that may have made the scores, with the axes of the softmax's input in its terms."""

    __slots__ = ("axes", "key", "key_axes", "keys", "query", "query_axes", "way")

    def __init__(self, way: Way, axes: Axes, keys: list[Atom], left_is_key: bool) -> None:
        p = way.product
        self.way, self.axes, self.keys = way, axes, keys
        self.key, self.query = (p.left, p.right) if left_is_key else (p.right, p.left)
        self.key_axes, self.query_axes = (p.left_axes, p.right_axes) if left_is_key else (p.right_axes, p.left_axes)


def _follow(graph: Graph, way: Way, axis: int) -> Candidate | None:
    """Follow the product's axes to the softmax; the operand that holds the normalised axis is the key."""
    axes: Axes | None = way.product.out_axes
    for step in way.steps:
        axes = forward(graph, step.node, axes, step.source) if axes is not None else None
    if axes is None or axis >= len(axes):
        return None
    keys = leaves(axes[axis])
    left = {id(leaf) for side in way.product.left_axes for leaf in leaves(side)}
    right = {id(leaf) for side in way.product.right_axes for leaf in leaves(side)}
    in_left = all(id(k) in left for k in keys)
    in_right = all(id(k) in right for k in keys)
    if not keys or in_left == in_right:
        return None
    return Candidate(way, axes, keys, in_left)


def _content(graph: Graph, candidates: list[Candidate], on: list[Way]) -> Candidate:
    """Of several products that are summed, the one whose key comes from where the value comes from."""
    if len(candidates) == 1 or not on:
        return candidates[0]
    way = on[0]
    carried = way.steps[-1].target if way.steps else None
    value = way.product.right if carried in (None, way.product.left) else way.product.left
    source = streams(graph, value)

    def rank(c: Candidate) -> tuple[bool, int, int]:
        moved = sum(s.node.op_type in ("GatherElements", "Gather", "Pad", "Slice") for s in c.way.steps)
        return (not (streams(graph, c.key) & source), moved, len(c.way.steps))

    return min(candidates, key=rank)


class Use:
    """The product of weights and value, with the axes of both in the scores' terms."""

    __slots__ = ("value", "value_axes", "way", "weights_axes")

    def __init__(self, way: Way, weights_axes: Axes, value: str, value_axes: Axes) -> None:
        self.way, self.weights_axes, self.value, self.value_axes = way, weights_axes, value, value_axes


def _use(graph: Graph, way: Way, chosen: Candidate) -> Use | None:
    """Follow the weights to a product; it is the one with the value where it contracts over the keys."""
    axes: Axes | None = chosen.axes
    source = way.steps[0].source if way.steps else ""
    carried = source
    for step in way.steps:
        axes = forward(graph, step.node, axes, step.source) if axes is not None else None
        carried = step.target
    p = way.product
    if axes is None:
        return None
    weights_left = carried == p.left if carried else not _reads(graph, p.right, way)
    mine = p.left_axes if weights_left else p.right_axes
    if len(mine) != len(axes):
        return None
    for own, traced in zip(mine, axes, strict=True):
        for atom in own:
            if not atom.parts and traced and len(own) == 1:
                atom.parts = tuple(leaves(traced))
    contracted = {id(leaf) for atom in p.contracted for leaf in atom.leaves()}
    if contracted != {id(k) for k in (leaf for key in chosen.keys for leaf in key.leaves())}:
        return None
    value, value_axes = (p.right, p.right_axes) if weights_left else (p.left, p.left_axes)
    return Use(way, axes, value, value_axes)


def _reads(graph: Graph, value: str, way: Way) -> bool:
    """Whether `value` is the softmax's own output (a way without steps starts there)."""
    producer = graph.producer(value)
    return producer is not None and entry(graph, producer) is not None and not way.steps


def _assemble(
    graph: Graph, node: NodeProto, chosen: Candidate, use: Use | None, logits: str, out: str, axis: int, *, learned: bool, others: int
) -> Finding | Miss:  # fmt: skip
    way = chosen.way
    letters = name_axes(
        graph, way.product.out_axes, chosen.query_axes, chosen.key_axes, chosen.keys, way.product.contracted,
        None if use is None else (use.way.product, use.value_axes),
    )  # fmt: skip
    reading = read_path(graph, way, chosen.query, chosen.key, letters.heads)
    finding = Finding(node=node, places={}, query_from=chosen.query, key_from=chosen.key, product=way.product.out)
    finding.heads, finding.head_size = letters.heads, letters.head_size
    finding.scale, finding.scale_place, finding.softcap = reading.scale(), reading.where(), reading.softcap
    if not reading.biases and (use is None or not any(s.node.op_type in ("Where", "Mul") for s in use.way.steps)):
        finding.causal = False  # nothing is added, selected or multiplied: nothing is hidden
    finding.bias, finding.sink = bias_kind(graph, reading, letters.heads), reading.sink is not None
    put = _Placing(graph, finding, letters)
    put.operand("query", chosen.query, chosen.query_axes, reading.query_factors)
    put.operand("key", chosen.key, chosen.key_axes, reading.key_factors)
    put.path(way, reading, logits)
    own = _heads_in(finding.places.get("key"), letters.heads)
    finding.kv_heads = own if own != letters.heads else _kv_heads(graph, chosen.key, letters.heads)
    put.weights(chosen, use, out)
    if use is not None:
        finding.value_from = use.value
        put.place("value", use.value, use.value_axes)
        if _mixed(graph, use.way):
            finding.absent = ("context",)
            finding.notes.append("weights of several softmaxes or heads are combined before they weigh the value")
        elif _rounded(use.way):
            finding.notes.append("the weights are rounded to integers before they weigh the value")
        else:
            put.place("context", use.way.product.out, use.way.product.out_axes)
    if "weights" not in finding.places:
        return Miss(
            node.name,
            node.op_type,
            "its axes cannot be told apart: batch, heads and queries are mixed in a way not known",
        )
    if learned:
        _without_query(graph, finding, chosen.key)
    elif others:
        finding.notes.append(
            f"{others + 1} products of two tensors are summed in the scores; query and key are the content's"
        )
    return finding


class _Placing:
    """Writes the places of a finding."""

    def __init__(self, graph: Graph, finding: Finding, letters: Letters) -> None:
        self.graph, self.finding, self.letters = graph, finding, letters

    def place(self, quantity: str, value: str, axes: Axes | None, factors: Factors = (), window: Window = None) -> None:
        layout = self.letters.layout(axes) if axes is not None else None
        if layout is not None:
            self.finding.places[quantity] = Place(float_of(self.graph, value), layout, factors, window)

    def operand(self, quantity: str, value: str, axes: Axes, factors: list[Factor]) -> None:
        self.place(quantity, value, axes, self.numbers(factors))

    def numbers(self, factors: list[Factor]) -> Factors:
        return tuple(float(n) if np.ndim(n) == 0 else tuple(float(x) for x in np.ravel(n)) for n, _ in factors)

    def path(self, way: Way, reading: Reading, logits: str) -> None:
        factors = (*self.numbers(reading.query_factors), *self.numbers(reading.key_factors))
        if reading.product_factor != 1.0:
            factors = (*factors, reading.product_factor)
        self.place("scores", way.product.out, way.product.out_axes, factors)
        axes: Axes | None = way.product.out_axes
        reached: list[tuple[str, Axes | None]] = [(way.product.out, axes)]
        for step in way.steps:
            axes = forward(self.graph, step.node, axes, step.source) if axes is not None else None
            reached.append((step.target, axes))
        if reading.scaled is not None:
            self.place("scaled", *reached[reading.scaled])
        if reading.capped is not None:
            self.place("capped", *reached[reading.capped])
        self.place("masked", logits, next((a for v, a in reached if v == logits), reached[-1][1]), (), reading.sink)

    def weights(self, chosen: Candidate, use: Use | None, out: str) -> None:
        """The weights as they are multiplied by the value: behind guards, cut sinks and masks, before quantisation."""
        value, axes = out, chosen.axes
        window: Window = None
        if use is not None:
            current: Axes | None = chosen.axes
            for step in use.way.steps:
                current = forward(self.graph, step.node, current, step.source) if current is not None else None
                if step.node.op_type in MIXING:
                    break
                if step.node.op_type in ("Where", "Mul", "Div", "Slice", "Clip", "Split") and current is not None:
                    if self.differs(step.node, step.source):
                        break
                    value, axes = step.target, current
        elif self.finding.sink:
            masked = self.finding.places.get("masked")
            window = masked.window if masked is not None else None
        self.place("weights", value, axes, (), window)

    def differs(self, node: NodeProto, source: str) -> bool:
        """Whether a Mul applies a learned or data-dependent gate, behind which rows are no weights of a softmax."""
        if node.op_type != "Mul":
            return False
        other = next((n for n in node.input if n != source), source)
        return self.graph.is_constant(other) and self.graph.constant(other) is None


def _mixed(graph: Graph, way: Way) -> bool:
    """Whether weights of several softmaxes are combined before the value is weighed (differential attention)."""
    return any(
        s.node.op_type in MIXING or s.node.op_type in ("Sub", "Add") and sum(depends(graph, n) for n in s.node.input if n) > 1 for s in way.steps
    )


def _rounded(way: Way) -> bool:
    """Whether weights are quantised on their way to the value: the product then holds the rounded ones."""
    ops = ("QuantizeLinear", "DynamicQuantizeLinear")
    return any(s.node.op_type in ops for s in way.steps) or way.product.node.op_type == "QLinearMatMul"


def _heads_in(place: Place | None, heads: int | None) -> int | None:
    """The number of heads that a tensor has of its own; broadcasting gives it the others."""
    if place is None:
        return heads
    sizes = [size for axis in parse(place.layout) for name, size in axis if name[0] == "h"]
    return None if any(size is None for size in sizes) else int(np.prod([s for s in sizes if s is not None]))


def _kv_heads(graph: Graph, key: str, heads: int | None) -> int | None:
    """Number of key heads: fewer than `heads` where the graph repeats each of them (Expand, Tile, a broadcast)."""
    if heads is None:
        return None
    value = key
    for _ in range(24):
        node = graph.producer(value)
        if node is None:
            break
        if node.op_type in ("Expand", "Tile"):
            before, after = graph.shape(node.input[0]), graph.shape(node.output[0])
            if before is not None and after is not None:
                grown = [
                    b // a for a, b in zip(before[::-1], after[::-1], strict=False) if a and b and a != b and b % a == 0
                ]
                times = int(np.prod(grown)) if grown else 1
                if 1 < times <= heads and heads % times == 0:
                    return heads // times
            value = node.input[0]
        elif node.op_type == "Concat":
            live = [n for n in node.input if depends(graph, n) and n not in graph.inputs]
            if not live:
                break
            value = live[-1]
        elif node.op_type in ("Reshape", "Transpose", "Cast", "Identity", "Unsqueeze", "Squeeze", "Mul", "Div"):
            value = next((n for n in node.input if depends(graph, n)), node.input[0])
        else:
            break
    return heads


def _without_query(graph: Graph, finding: Finding, key: str) -> None:
    """A learned vector in the place of the query: pooling, or additive attention."""
    additive = _is_additive(graph, key)
    finding.kind = "additive" if additive else "pooling"
    finding.causal, finding.scale, finding.scale_place = False, None, ""
    gone = ("query", "key", "scores", "scaled", "capped") if additive else ("scores", "scaled", "capped", "query")
    for quantity in gone:
        finding.places.pop(quantity, None)
    finding.absent = (*finding.absent, *gone)
    if additive:
        finding.kv_heads = finding.head_size = None
        finding.notes.append("additive: the scores come from a small network over query and key; there is no QK^T")
    else:
        finding.notes.append("pooling: the query is a learned vector, the same for every input")


def _is_additive(graph: Graph, key: str) -> bool:
    """Whether a learned vector weighs tanh (or another activation) of a sum of two data terms."""
    value = key
    for _ in range(8):
        node = graph.producer(value)
        if node is None:
            return False
        live = [n for n in node.input if n and depends(graph, n)]
        if node.op_type in ("Add", "Sum") and len(live) > 1:
            return True
        if not live or node.op_type in ("MatMul", "Gemm", "Softmax"):
            return False
        value = live[0]
    return False
