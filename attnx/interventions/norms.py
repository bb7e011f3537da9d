"""Norms over features, as one operator or decomposed: find the input of a norm, and split skip norms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.axes.paths import depends
from attnx.graph.load.nodes import attributes
from attnx.sites.emit import Emit, prefix_of
from attnx.sites.finding import Replacement
from attnx.sites.stages import input_of, output_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

NORMS = frozenset(("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"))
"""Norms as one operator; they norm their first input."""
SAME = frozenset(("Cast", "CastLike", "Identity", "Dropout"))
"""Operators that output the numbers of their first input unchanged."""
SKIPS: Mapping[str, str] = {
    "SkipLayerNormalization": "LayerNormalization",
    "SkipSimplifiedLayerNormalization": "SimplifiedLayerNormalization",
}
"""onnxruntime's operators that add to the stream and norm it in one step -> the norm in them."""
_ARITHMETIC = frozenset(
    "Add Sub Mul Div Pow Sqrt Reciprocal ReduceMean ReduceSum ReduceL2 Cast CastLike Identity Abs Max Clip Neg "
    "LpNormalization".split()
)
_UNIT = "LpNormalization"
"""Divides by the root of the sum of squares, or by the sum of absolute values."""
_SUMS = ("ReduceMean", "ReduceSum", "ReduceL2")
_MOST = 40


def normed(graph: Graph, value: str) -> str | None:
    """The tensor that `value` is the norm of, over its last axis; None if it is not a norm."""
    value = unchanged(graph, value)
    node = graph.producer(value)
    if node is None:
        return None
    if node.op_type in NORMS:
        return str(node.input[0])
    shape = graph.shape(value)
    if shape is None or node.op_type not in ("Add", "Sub", "Mul", "Div"):
        return None
    for source in _summed(graph, value):
        if graph.shape(source) == shape and _made_of(graph, value, source):
            return source
    return None


def unchanged(graph: Graph, value: str) -> str:
    """The tensor that a tensor is a copy of: before casts and the like."""
    while (node := graph.producer(value)) is not None and node.op_type in SAME:
        value = node.input[0]
    return value


def _summed(graph: Graph, value: str) -> Iterator[str]:
    """The tensors that reductions upstream reduce, before squaring and subtracting the mean; the nearest first."""
    queue, seen = [value], set[str]()
    while queue and len(seen) < _MOST:
        name = queue.pop(0)
        node = graph.producer(name)
        if name in seen or node is None or node.op_type not in _ARITHMETIC:
            continue
        seen.add(name)
        if node.op_type == _UNIT and _over_last(graph, node):
            yield unchanged(graph, node.input[0])
        elif node.op_type in _SUMS and _over_last(graph, node):
            yield _base(graph, node.input[0])
        elif node.op_type not in _SUMS:
            queue += [n for n in node.input if n and depends(graph, n)]


def _over_last(graph: Graph, node: NodeProto) -> bool:
    """Whether a reduction is over the last axis only."""
    shape = graph.shape(node.input[0])
    known = graph.known(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    stored = [attributes(node).get("axis", -1)] if node.op_type == _UNIT else attributes(node).get("axes", [])
    axes = [int(i) for i in known.ravel()] if known is not None else stored
    return shape is not None and len(axes) == 1 and axes[0] % len(shape) == len(shape) - 1


def _base(graph: Graph, value: str) -> str:
    """The tensor that was centred and squared: x in (x - mean)^2."""
    for _ in range(8):
        node = graph.producer(value)
        if node is None:
            break
        one = node.input[0]
        if (
            node.op_type in ("Pow", "Abs")
            or node.op_type in SAME
            or (node.op_type == "Mul" and len(set(node.input)) == 1)
            or (node.op_type == "Sub" and _narrow(graph, node.input[1]))
        ):
            value = one
        else:
            break
    return value


def _narrow(graph: Graph, value: str) -> bool:
    """Whether a tensor has a single number in place of a norm input's features."""
    shape = graph.shape(value)
    return shape is not None and len(shape) > 1 and shape[-1] == 1


def _scale(graph: Graph, value: str, left: int = 6) -> bool:
    """Whether a tensor has single numbers in place of features, or the product of such numbers and constants."""
    if _narrow(graph, value):
        return True
    node = graph.producer(value)
    if node is None or not left or node.op_type not in ("Add", "Sub", "Mul", "Div", "Neg", *SAME):
        return False
    live = [n for n in node.input if n and depends(graph, n)]
    return bool(live) and all(_scale(graph, name, left - 1) for name in live)


def _made_of(graph: Graph, value: str, source: str) -> bool:
    """Whether a tensor is `source`, shifted and scaled by single numbers that are computed from `source` alone.

    A root and a reduction must be among them. Two norms in a row, a norm whose features are squared, and a norm that is
    added to its own input are not norms of `source`.
    """
    source, scales = unchanged(graph, source), list[str]()
    for _ in range(_MOST):
        if unchanged(graph, value) == source:
            return _scales(graph, scales, source)
        node = graph.producer(value)
        if node is None:
            return False
        live = [n for n in node.input if n and depends(graph, n)]
        wide = [n for n in live if not _scale(graph, n)]
        if node.op_type in SAME or node.op_type == "Neg":
            value = node.input[0]
        elif node.op_type == _UNIT and _over_last(graph, node):
            return not scales and unchanged(graph, node.input[0]) == source
        elif node.op_type in ("Add", "Sub", "Mul", "Div") and len(wide) == 1:
            if node.op_type == "Div" and wide[0] != node.input[0]:
                return False
            scales += [n for n in live if n != wide[0]]
            value = wide[0]
        else:
            return False
    return False


def _scales(graph: Graph, scales: list[str], source: str) -> bool:
    """Whether tensors are computed from `source` alone, by arithmetic that reduces it, with a root."""
    stack, seen, rooted = scales, set[str](), False
    while stack:
        name = stack.pop()
        if name in seen or unchanged(graph, name) == source:
            continue
        node = graph.producer(name)
        if node is None or node.op_type not in _ARITHMETIC or len(seen) > _MOST:
            return False
        seen.add(name)
        if node.op_type in _SUMS and unchanged(graph, _base(graph, node.input[0])) != source:
            return False
        if node.op_type in ("Sqrt", "ReduceL2"):
            rooted = True
        elif node.op_type == "Pow":
            power = graph.known(node.input[1])
            rooted = rooted or (power is not None and bool((abs(power) == 0.5).all()))
        stack += [n for n in node.input if n and depends(graph, n)]
    return rooted


def norm_of(graph: Graph, value: str) -> str | None:
    """The norm of a tensor, with its weight and bias; None if there is none downstream."""
    start, shape = unchanged(graph, value), graph.shape(value)
    queue, seen = [value], set[str]()
    found: set[str] = set()
    while queue and len(seen) < 2 * _MOST:
        name = queue.pop(0)
        if name in seen:
            continue
        seen.add(name)
        for node in graph.consumers(name):
            out = node.output[0]
            if node.op_type not in _ARITHMETIC | NORMS:
                continue
            source = normed(graph, out) if graph.shape(out) == shape and node.op_type not in SAME else None
            if source is not None and unchanged(graph, source) == start:
                found.add(out)
            queue.append(out)
    # The norm includes its weight and bias, but no factor that stands before one of several readers.
    for out in sorted(found, key=lambda name: _position(graph, name)):
        if any(reader not in found for reader in _readers(graph, out)):
            return out
    return None


def _readers(graph: Graph, value: str) -> Iterator[str]:
    """What is made of a tensor or of its copies in one step; empty text where nothing is."""
    stack = [value]
    while stack:
        nodes = [n for n in graph.consumers(stack.pop()) if n.op_type not in ("Shape", "Size")]
        if not nodes:
            yield ""
        for node in nodes:
            if node.op_type in SAME:
                stack.append(node.output[0])
            else:
                yield node.output[0]


def _position(graph: Graph, value: str) -> int:
    node = graph.producer(value)
    return -1 if node is None else graph.position(node)


def taken_apart(graph: Graph, node: NodeProto, branch: int) -> Replacement:
    """Split a skip norm into a sum and a norm.

    Args:
        graph: The graph that contains it.
        node: A node whose operator is in `SKIPS`.
        branch: Which of its first two inputs is added to the other; its bias belongs to that one.
    """
    e = Emit(graph, prefix_of(graph, node), node.input[0])
    simple = node.op_type == "SkipSimplifiedLayerNormalization"
    bias = input_of(node, 3 if simple else 4)
    added = e.real(node.input[branch])
    if bias:
        added = e.op("Add", added, e.real(bias), out=e.name("added"))
    total = e.op("Add", e.real(node.input[1 - branch]), added, out=e.name("sum"))
    weights = [e.real(name) for name in (node.input[2], "" if simple else input_of(node, 3)) if name]
    epsilon = attributes(node).get("epsilon", 1e-12)
    outs = [e.fresh("norm"), *([] if simple else [e.name("mean"), e.name("deviation")])]
    if not any(output_of(node, i) for i in (1, 2)):
        outs = outs[:1]
    norm = e.op(SKIPS[node.op_type], total, *weights, out=outs, axis=-1, epsilon=epsilon)
    e.back(norm, node.input[0], out=node.output[0])
    if out := output_of(node, 3):
        e.back(total, node.input[0], out=out)
    for made, i in zip(outs[1:], (1, 2), strict=False):
        if out := output_of(node, i):
            e.op("Identity", made, out=out)
    return Replacement(e.nodes, e.initializers)
