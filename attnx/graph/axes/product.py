"""Recognise a contraction of two tensors, however it is written, and label the axes of both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Atom, Axes, Axis
from attnx.graph.load.nodes import QUANTISES, attributes

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.fact import Shape
    from attnx.graph.shapes.index import Graph


@dataclass(slots=True)
class Product:
    """out = sum over the contracted axes of left x right."""

    node: NodeProto
    """The node that multiplies."""
    out: str
    """The result as floats (after dequantisation, where the product is in integers)."""
    left: str
    right: str
    left_axes: Axes
    right_axes: Axes
    out_axes: Axes
    contracted: list[Atom]
    factor: float = 1.0
    """The factor that the product already includes (FusedMatMul's alpha)."""
    last: NodeProto | None = None
    """The node that makes `out`, if it is not `node`."""

    def other(self, value: str) -> str:
        """The other operand, by which `value` is multiplied."""
        return self.right if value == self.left else self.left


_MATMUL = {
    "MatMul": (0, 1),
    "FusedMatMul": (0, 1),
    "TransposeMatMul": (0, 1),
    "MatMulInteger": (0, 1),
    "MatMulIntegerToFloat": (0, 1),
    "DynamicQuantizeMatMul": (0, 1),
    "QLinearMatMul": (0, 3),
    "Gemm": (0, 1),
}


_FLOATS = (1, 10, 11, 16)
"""ONNX's types float32, float16, float64, bfloat16."""
MULTIPLIES = frozenset(_MATMUL) | {"Einsum", "ReduceSum", "Mul"}
"""The operators that make a product, alone or as the last of several."""


def find_product(graph: Graph, value: str) -> Product | None:
    """The product that makes `value`, or None: MatMul in all its forms, Einsum, Gemm, or Mul and ReduceSum."""
    node = graph.producer(value)
    if node is None:
        return None
    op = node.op_type
    if op in ("Mul", "Cast"):
        integer = dequantised(graph, node)
        if integer is not None:
            found = _matmul(graph, integer) if integer.op_type == "MatMulInteger" else None
            if found is not None:
                found.out, found.last = value, node
            return found
        return None
    if op == "MatMulInteger":
        return None  # int32: the product is the Mul that dequantises it
    if op in _MATMUL:
        return _matmul(graph, node)
    if op == "Einsum":
        return _einsum(graph, node)
    if op == "ReduceSum":
        return _multiplied_and_summed(graph, node)
    return None


def dequantised(graph: Graph, node: NodeProto) -> NodeProto | None:
    """Mul(Cast(MatMulInteger), scales) -> the MatMulInteger, or the ConvInteger; None for any other node."""
    if node.op_type != "Mul":
        return None
    for name in node.input:
        inner = graph.producer(name)
        if inner is not None and inner.op_type == "Cast":
            inner = graph.producer(inner.input[0])
            if inner is not None and inner.op_type in ("MatMulInteger", "ConvInteger"):
                return inner
    return None


def is_float_cast(node: NodeProto) -> bool:
    """Whether a node is a cast to some float type; torch writes one before each sum, though nothing changes type."""
    return node.op_type == "Cast" and attributes(node).get("to") in _FLOATS


def float_source(graph: Graph, value: str) -> str:
    """The float tensor behind a quantised one (DynamicQuantizeLinear, QuantizeLinear); else the value itself."""
    node = graph.producer(value)
    if node is not None and node.op_type in QUANTISES:
        return str(node.input[0])
    return value


def _shapes(graph: Graph, left: str, right: str, out: str) -> tuple[Shape, Shape, Shape | None] | None:
    p, q = graph.shape(left), graph.shape(right)
    return None if p is None or q is None else (p, q, graph.shape(out))


def _orientation(rank: int, swap: bool, batch_inside: bool) -> list[int]:
    """The order in which a stored operand's axes enter the product: [batch..., rows, columns].

    Source: onnxruntime's FusedMatMul. transBatch: stored as [rows, batch..., columns]; trans: the last two are swapped.
    """
    order = list(range(rank))
    if batch_inside and rank > 2:
        order = [*order[1:-1], order[0], order[-1]]
    if swap and rank > 1:
        order[-2:] = order[:-3:-1]
    return order


def _matmul(graph: Graph, node: NodeProto) -> Product | None:
    i, j = _MATMUL[node.op_type]
    if len(node.input) <= j:
        return None
    left, right, out = node.input[i], node.input[j], node.output[0]
    p, q = graph.shape(left), graph.shape(right)
    if not p or not q:
        return None
    a = attributes(node)
    factor = float(a.get("alpha", 1.0)) if node.op_type in ("FusedMatMul", "Gemm", "TransposeMatMul") else 1.0
    orders = (
        _orientation(len(p), bool(a.get("transA")), bool(a.get("transBatchA"))),
        _orientation(len(q), bool(a.get("transB")), bool(a.get("transBatchB"))),
    )
    p, q = tuple(p[k] for k in orders[0]), tuple(q[k] for k in orders[1])
    rank = max(len(p), len(q), 2) - 2
    batch: Axes = []
    for k in range(-rank, 0):
        sizes = [s[k - 2] for s in (p, q) if len(s) >= 2 - k]
        size = next((s for s in sizes if s not in (1, None)), None if None in sizes else 1)
        batch.append(_axis(size))
    inner = next((s for s in (p[-1], q[-2] if len(q) > 1 else q[0]) if s is not None), None)
    contracted = _axis(inner)
    rows: Axes = [_axis(p[-2])] if len(p) > 1 else []
    columns: Axes = [_axis(q[-1])] if len(q) > 1 else []

    def lead(shape: Shape) -> Axes:
        """The batch axes of one side; those of size 1 are broadcast and have no atoms."""
        count = max(0, len(shape) - 2)
        return [[] if shape[k] == 1 else axis for k, axis in enumerate(batch[rank - count :])]

    entering_left = [*lead(p), *rows, contracted]
    entering_right = [*lead(q), contracted, *columns]
    left_axes: Axes = [[] for _ in p]
    right_axes: Axes = [[] for _ in q]
    for k, axis in zip(orders[0], entering_left, strict=True):
        left_axes[k] = axis
    for k, axis in zip(orders[1], entering_right, strict=True):
        right_axes[k] = axis
    return Product(node, out, left, right, left_axes, right_axes, [*batch, *rows, *columns], contracted, factor)


def _axis(size: int | None) -> Axis:
    return [] if size == 1 else [Atom(size)]


def _einsum(graph: Graph, node: NodeProto) -> Product | None:
    if len(node.input) != 2:
        return None
    equation = str(attributes(node).get("equation", "")).replace(" ", "")
    if equation.count("->") != 1 or equation.count(",") != 1:
        return None
    left, right, out = node.input[0], node.input[1], node.output[0]
    shapes = _shapes(graph, left, right, out)
    if shapes is None:
        return None
    p, q, _ = shapes
    terms, result = equation.split("->")
    first, second = terms.split(",")
    if "..." in equation:
        spare = "ZYXWVU"
        widths = [len(s) - len(t.replace("...", "")) for s, t in ((p, first), (q, second)) if "..." in t]
        width = max(widths)
        first = first.replace("...", spare[width - (len(p) - len(first.replace("...", ""))) : width])
        second = second.replace("...", spare[width - (len(q) - len(second.replace("...", ""))) : width])
        result = result.replace("...", spare[:width])
    if len(first) != len(p) or len(second) != len(q):
        return None
    sizes: dict[str, int | None] = {}
    for letters, shape in ((first, p), (second, q)):
        for letter, size in zip(letters, shape, strict=True):
            if sizes.get(letter, 1) in (1, None):
                sizes[letter] = size
    atoms = {letter: [] if size == 1 else [Atom(size)] for letter, size in sizes.items()}
    contracted = [atom for letter in dict.fromkeys(first + second) if letter not in result for atom in atoms[letter]]
    if any((letter in first) != (letter in second) for letter in first + second if letter not in result):
        return None  # a letter summed on one side alone is not a plain contraction
    return Product(
        node,
        out,
        left,
        right,
        [atoms[x] for x in first],
        [atoms[x] for x in second],
        [atoms[x] for x in result],
        contracted,
    )


def _multiplied_and_summed(graph: Graph, node: NodeProto) -> Product | None:
    """ReduceSum(Mul(x, y), axis): a contraction written with broadcasting, perhaps cast between the two."""
    mul = graph.producer(node.input[0])
    while mul is not None and is_float_cast(mul):
        mul = graph.producer(mul.input[0])
    if mul is None or mul.op_type != "Mul":
        return None
    left, right = mul.input
    shapes = _shapes(graph, left, right, mul.output[0])
    if shapes is None or shapes[2] is None:
        return None
    a = attributes(node)
    axes = graph.known(node.input[1]) if len(node.input) > 1 else None
    summed = [int(i) for i in axes.ravel()] if axes is not None else a.get("axes", [])
    rank = len(shapes[2])
    if len(summed) != 1:
        return None
    at = summed[0] % rank
    whole: Axes = [[] if size == 1 else [Atom(size)] for size in shapes[2]]

    def side(shape: Shape) -> Axes:
        return [[] if size == 1 else whole[rank - len(shape) + i] for i, size in enumerate(shape)]

    kept: Axes = [[]] if a.get("keepdims", 1) else []
    return Product(
        node,
        node.output[0],
        left,
        right,
        side(shapes[0]),
        side(shapes[1]),
        whole[:at] + kept + whole[at + 1 :],
        whole[at],
    )
