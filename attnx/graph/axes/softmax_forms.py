"""Find where a softmax is completed, in whatever form: one operator, or exponentials divided by their sum."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from attnx.graph.axes.paths import scalar
from attnx.graph.load.nodes import attributes

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.fact import Shape
    from attnx.graph.shapes.index import Graph

_VIEWS = ("Cast", "Expand", "Identity", "Unsqueeze", "Squeeze", "Dropout", "Reshape")
_EPSILON = 1e-3
"""The largest constant in the sum that only guards against division by zero; anything larger is a sink."""


@dataclass(frozen=True, slots=True)
class Softmax:
    """A softmax: exp(scores) / sum over `axis`."""

    logits: str
    out: str
    axis: int
    sink: bool = False
    """The denominator has an extra term, so that rows sum to less than 1 (softmax1, "quiet attention")."""
    masked: bool = False
    """Cells are hidden between the exponential and the sum."""
    base: float | None = None
    """The base of the power, if it is not e."""
    beside: tuple[int, ...] = ()
    """Further axes, where the keys lie along several: the rows and columns of an image."""


COMPLETES = frozenset("Softmax QLinearSoftmax Exp LpNormalization Div Mul".split())
"""The operators that can be the last of a softmax."""


def find_softmax(graph: Graph, node: NodeProto) -> Softmax | None:
    """The softmax that `node` completes; None if it completes none."""
    op, domain = node.op_type, node.domain in ("", "ai.onnx")
    if op in ("Softmax", "QLinearSoftmax") and node.input:
        return _operator(graph, node)
    if op == "Exp" and domain:
        return _by_logarithm(graph, node)
    if op == "LpNormalization" and attributes(node).get("p", 2) == 1:
        power = _power(graph, node.input[0])
        axis = attributes(node).get("axis", -1)
        return None if power is None else Softmax(power[0], node.output[0], axis, base=power[1])
    if op in ("Div", "Mul") and domain and len(node.input) == 2:
        return _quotient(graph, node)
    return None


def _operator(graph: Graph, node: NodeProto) -> Softmax | None:
    axis = _axis(graph, node)
    return None if axis is None else Softmax(_unshifted(graph, node.input[0]), node.output[0], axis)


def _axis(graph: Graph, node: NodeProto) -> int | None:
    """The one axis that a Softmax or LogSoftmax runs over; None where it runs over several."""
    shape = graph.shape(node.input[0])
    own = graph.opset >= 13 or node.op_type == "QLinearSoftmax"
    axis = attributes(node).get("axis", -1 if own else 1)
    if not isinstance(axis, int):
        return None
    if shape and not own and any(d != 1 for d in shape[axis % len(shape) + 1 :]):
        return None  # before opset 13 the operator flattens: the axes after `axis` must have size 1
    return axis


def _unshifted(graph: Graph, logits: str) -> str:
    """The scores before their own maximum is subtracted, a numerical guard that changes no weight."""
    node = graph.producer(logits)
    if node is None or node.op_type != "Sub":
        return logits
    top = _through(graph, node.input[1], _VIEWS)
    if top is not None and top.op_type == "Add":  # tf2onnx: the maximum x finite + 0 x infinite
        top = next((m for n in top.input for m in (_masked_top(graph, n, node.input[0]),) if m is not None), None)
    elif top is not None and top.op_type in ("Max", "Where"):  # a lower bound on the maximum, as JAX writes it
        free = [n for n in top.input if scalar(graph, n) is None and graph.producer(n) is not None]
        top = _through(graph, free[-1], _VIEWS) if free else None
    return str(node.input[0]) if top is not None and _is_top(top, node.input[0]) else logits


def _masked_top(graph: Graph, value: str, scores: str) -> NodeProto | None:
    node = graph.producer(value)
    makers = [graph.producer(n) for n in node.input] if node is not None and node.op_type == "Mul" else []
    return next((m for m in makers if m is not None and _is_top(m, scores)), None)


def _is_top(top: NodeProto, scores: str) -> bool:
    return bool(top.op_type == "ReduceMax" and top.input[0] == scores)


def _through(graph: Graph, value: str, ops: tuple[str, ...]) -> NodeProto | None:
    """The node that makes a value, before operators that only pass it on."""
    node = graph.producer(value)
    for _ in range(8):
        if node is None or node.op_type not in ops:
            return node
        node = graph.producer(node.input[0])
    return None


def _power(graph: Graph, value: str, depth: int = 0) -> tuple[str, float | None] | None:
    """(exponent, base) of exp(x) or c^x, also where cells are masked after it; None for anything else."""
    node = graph.producer(value)
    if node is None or depth > 6:
        return None
    if node.op_type == "Exp":
        if _by_logarithm(graph, node) is not None:
            return None  # weights already: dividing them by a sum renormalises them after a mask
        return _unshifted(graph, node.input[0]), None
    if node.op_type == "Mul" and depth < 6 and _quotient(graph, node) is not None:
        return None
    if node.op_type == "Pow":
        base = scalar(graph, node.input[0])
        return None if base is None or base <= 1 else (_unshifted(graph, node.input[1]), base)
    if node.op_type in ("Mul", "Where", "Cast", "Reshape", "Transpose"):
        inside = [p for n in node.input if (p := _power(graph, n, depth + 1)) is not None]
        return inside[0] if len(inside) == 1 else None
    return None


def _quotient(graph: Graph, node: NodeProto) -> Softmax | None:
    """X / sum(x) or x * (1 / sum(x)), for x a power."""
    for i in (0, 1) if node.op_type == "Mul" else (0,):
        top, below = node.input[i], node.input[1 - i]
        if node.op_type == "Mul":
            inverse = _through(graph, below, _VIEWS)
            if inverse is not None and inverse.op_type == "Mul":  # torch writes 1.0 / s as reciprocal(s) x 1.0
                plain = next((n for n in inverse.input if scalar(graph, n) is None), inverse.input[0])
                one = next((n for n in inverse.input if n != plain), plain)
                inverse = _through(graph, plain, _VIEWS) if scalar(graph, one) == 1 else None
            if inverse is None:
                continue
            if inverse.op_type == "Reciprocal" or (inverse.op_type == "Pow" and scalar(graph, inverse.input[1]) == -1):
                below = inverse.input[0]
            elif inverse.op_type == "Div" and scalar(graph, inverse.input[0]) == 1:
                below = inverse.input[1]
            else:
                continue
        power = _power(graph, top)
        if power is None:
            continue
        total = _sum(graph, below, top)
        if total is not None:
            behind = _through(graph, top, ("Reshape", "Transpose", "Cast"))
            hidden = behind is not None and behind.op_type in ("Mul", "Where")
            if hidden and not _alike(graph.shape(top), graph.shape(power[0])):
                return None  # moved between the exponential and the sum: the axis is a different one there
            return Softmax(power[0], node.output[0], total[0][-1], total[1], hidden, power[1], total[0][:-1])
    return None


def _alike(one: Shape | None, other: Shape | None) -> bool:
    """Whether two shapes may be the same; an unknown size may be any size."""
    if one is None or other is None:
        return one == other
    return len(one) == len(other) and all(a == b or None in (a, b) for a, b in zip(one, other, strict=True))


def _sum(graph: Graph, value: str, top: str, sink: bool = False, depth: int = 0) -> tuple[tuple[int, ...], bool] | None:
    """(axes, whether there is a sink) where a value is the sum of `top` over them, with a floor or another term."""
    node = _through(graph, value, _VIEWS)
    if node is None or depth > 4:
        return None
    if node.op_type in ("ReduceSum", "ReduceL1"):
        own = _power(graph, node.input[0])
        if node.input[0] != top and (own is None or own != _power(graph, top)):
            return None
        axes = graph.known(node.input[1]) if len(node.input) > 1 and node.input[1] else attributes(node).get("axes")
        whole = [int(i) for i in axes] if axes is not None else []
        return (tuple(whole), sink) if whole else None
    if node.op_type in ("Add", "Max", "Clip"):
        for i, name in enumerate(node.input):
            rest = [n for j, n in enumerate(node.input) if j != i and n]
            extra = node.op_type == "Add" and any(
                abs(c) > _EPSILON if (c := scalar(graph, n)) is not None else True for n in rest
            )
            found = _sum(graph, name, top, sink or extra, depth + 1) if name else None
            if found is not None:
                return found
    return None


def _by_logarithm(graph: Graph, node: NodeProto) -> Softmax | None:
    """exp(log_softmax(x)), exp(x - logsumexp(x)), exp(x - log(sum(exp(x))))."""
    inner = graph.producer(node.input[0])
    if inner is None:
        return None
    if inner.op_type == "LogSoftmax":
        axis = _axis(graph, inner)
        return None if axis is None else Softmax(inner.input[0], node.output[0], axis)
    if inner.op_type != "Sub":
        return None
    x, below = inner.input
    total = _through(graph, below, _VIEWS)
    for _ in range(2):  # max + log(sum(exp(x - max)))
        if total is not None and total.op_type == "Add":
            total = next((p for n in total.input if (p := graph.producer(n)) is not None and p.op_type == "Log"), None)
    if total is None:
        return None
    if total.op_type == "ReduceLogSumExp" and total.input[0] == x:
        axes = graph.known(total.input[1]) if len(total.input) > 1 else attributes(total).get("axes")
        whole = tuple(int(i) for i in axes) if axes is not None else ()
        return Softmax(x, node.output[0], whole[-1], beside=whole[:-1]) if whole else None
    if total.op_type == "Log":
        summed = graph.producer(total.input[0])
        if summed is not None and summed.op_type == "ReduceSum":
            power = _power(graph, summed.input[0])
            found = _sum(graph, total.input[0], summed.input[0])
            if power is not None and power[0] == _unshifted(graph, x) and found is not None:
                return Softmax(power[0], node.output[0], found[0][-1], beside=found[0][:-1])
    return None


def natural(softmax: Softmax) -> float:
    """The factor that turns its logits into those of a softmax to the base e."""
    return 1.0 if softmax.base is None else log(softmax.base)
