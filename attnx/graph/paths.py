"""Walk from a softmax back to the product that made its scores, and on to the product that uses its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.product import Product, find_product

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.index import Graph

_BACK = frozenset(
    "Add Sub Mul Div Where Cast Reshape Transpose Slice Concat Clip Tanh Expand Pad Unsqueeze Squeeze Identity Min Max "
    "QuantizeLinear DequantizeLinear QLinearAdd QLinearMul Flatten Sum Split Neg Dropout CastLike Sigmoid Relu".split()
)
_ON = frozenset(
    "Where Cast Mul Slice Reshape Transpose QuantizeLinear DequantizeLinear DynamicQuantizeLinear Add Sub Div Identity "
    "Dropout Expand Squeeze Unsqueeze Flatten Split Concat CastLike Clip Tile Max".split()
)
_MAX_STEPS = 40


@dataclass(slots=True)
class Step:
    """One node on the way, and which of its inputs carries the scores (or weights)."""

    node: NodeProto
    source: str
    target: str


@dataclass(slots=True)
class Way:
    """A product and the steps between it and the softmax, in the order in which data flows."""

    product: Product
    steps: list[Step] = field(default_factory=list)


def depends(graph: Graph, value: str) -> bool:
    """Whether a value depends on the data of the model's inputs."""
    return value in graph.dynamic


def ways_back(graph: Graph, logits: str) -> list[Way]:
    """Every product of two tensors that reaches `logits` through steps that keep scores scores, nearest first.

    Products with a constant operand count only where the other side is data and the constant is not a plain
    projection; the caller decides which of them is the score product.
    """
    found: list[Way] = []
    seen: set[str] = set()
    stack: list[tuple[str, list[Step]]] = [(logits, [])]
    while stack:
        value, after = stack.pop(0)
        if value in seen or len(after) > _MAX_STEPS:
            continue
        seen.add(value)
        product = find_product(graph, value)
        if product is not None:
            if depends(graph, product.left) or depends(graph, product.right):
                found.append(Way(product, after))
            continue
        node = graph.producer(value)
        if node is None or node.op_type not in _BACK:
            continue
        inputs = list(node.input)
        if node.op_type == "Where":
            inputs = inputs[1:3]
        elif node.op_type in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Concat"):
            pass
        elif node.op_type == "QLinearAdd":
            inputs = [inputs[0], inputs[3]]
        else:
            inputs = inputs[:1]
        for name in inputs:
            if name and depends(graph, name):
                stack.append((name, [Step(node, name, value), *after]))
    return found


def ways_on(graph: Graph, weights: str) -> list[Way]:
    """Every product that reads `weights` through steps that keep weights weights, nearest first.

    A product counts where the other operand depends on data.
    """
    found: list[Way] = []
    seen: set[str] = set()
    stack: list[tuple[str, list[Step]]] = [(weights, [])]
    while stack:
        value, before = stack.pop(0)
        if value in seen or len(before) > 16:
            continue
        seen.add(value)
        for node in graph.consumers(value):
            product = _product_at(graph, node, value)
            if product is not None:
                if depends(graph, product.other(value)):
                    found.append(Way(product, before))
                continue
            if node.op_type in _ON:
                if node.op_type in ("Slice", "Reshape", "Expand", "Unsqueeze", "Squeeze") and node.input[0] != value:
                    continue
                for out in node.output[:1] if node.op_type != "Split" else node.output:
                    if out:
                        stack.append((out, [*before, Step(node, value, out)]))
    return found


def _product_at(graph: Graph, node: NodeProto, value: str) -> Product | None:
    """The product that `node` makes with `value` as an operand (through a Mul and ReduceSum, or in integers)."""
    if node.op_type == "MatMulInteger":
        for cast in graph.consumers(node.output[0]):
            for mul in graph.consumers(cast.output[0]):
                product = find_product(graph, mul.output[0])
                if product is not None and product.node is node:
                    return product
        return None
    if node.op_type == "Mul":
        for reduce in graph.consumers(node.output[0]):
            if reduce.op_type == "ReduceSum":
                product = find_product(graph, reduce.output[0])
                if product is not None and value in (product.left, product.right):
                    return product
        return None
    product = find_product(graph, node.output[0]) if node.output else None
    return product if product is not None and product.node is node and value in (product.left, product.right) else None


def scalar(graph: Graph, value: str) -> float | None:
    """The number of a value that is one number, whatever the input; None otherwise."""
    known = graph.known(value)
    if known is None or known.size != 1 or known.dtype == bool:
        return None
    return float(np.asarray(known, dtype=np.float64).ravel()[0])


def float_of(graph: Graph, value: str) -> str:
    """The float tensor that an integer one stands for: the DequantizeLinear that reads it, or the value itself."""
    if (fact := graph.facts.get(value)) is not None and fact.dtype in (2, 3, 4, 5):
        for node in graph.consumers(value):
            if node.op_type == "DequantizeLinear" and node.input[0] == value:
                return str(node.output[0])
    return value
