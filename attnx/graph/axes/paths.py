"""Walk from a softmax back to the product that made its scores, and on to the product that uses its weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.product import Product, find_product, is_float_cast
from attnx.graph.load.nodes import DEQUANTISES, QUANTISES, ROUNDS

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_BACK = frozenset(
    "Add Sub Mul Div Where Cast Reshape Transpose Slice Concat Clip Tanh Expand Pad Unsqueeze Squeeze Identity Min Max "
    "QLinearAdd QLinearMul Flatten Sum Split Neg Dropout CastLike Sigmoid Relu "
    "ScatterND ScatterElements".split()
) | (ROUNDS - {"DynamicQuantizeLinear"})
_ON = (
    frozenset(
        "Where Cast Mul Slice Reshape Transpose Add Sub Div Identity "
        "Dropout Expand Squeeze Unsqueeze Flatten Split Concat CastLike Clip Tile Max".split()
    )
    | ROUNDS
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


def above(graph: Graph, targets: Collection[str], stop: Collection[str] = ()) -> set[str]:
    """The values that the targets are made from, including the targets, up to those of `stop`; sizes read off a tensor
    do not depend on its numbers.
    """
    found: set[str] = set()
    stack = list(targets)
    while stack:
        value = stack.pop()
        if value in found or value in stop:
            continue
        found.add(value)
        node = graph.producer(value)
        if node is not None and node.op_type not in ("Shape", "Size"):
            stack += [name for name in graph.outline(node).inputs if name]
    return found


def upstream(graph: Graph, values: Collection[str]) -> set[str]:
    """These values and all that they are made from, including tensors of which only sizes are read."""
    found: set[str] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value in found:
            continue
        found.add(value)
        node = graph.producer(value)
        if node is not None:
            stack += graph.reads(node)
    return found


def makers(graph: Graph, values: Collection[str]) -> list[NodeProto]:
    """The nodes upstream of values, in order, without those that only hold numbers."""
    nodes = {id(n): n for v in upstream(graph, values) if (n := graph.producer(v)) is not None}
    return sorted((n for n in nodes.values() if not graph.outline(n).stored), key=graph.position)


def reaches(graph: Graph, value: str, targets: Collection[str], stop: Collection[str] = ()) -> bool:
    """Whether one of the targets is upstream of a value, or the value itself, without passing those of `stop`."""
    seen: set[str] = set()
    stack = [value]
    while stack:
        name = stack.pop()
        if name in targets:
            return True
        if name in seen or name in stop:
            continue
        seen.add(name)
        node = graph.producer(name)
        if node is not None and node.op_type not in ("Shape", "Size"):
            stack += [n for n in graph.outline(node).inputs if n]
    return False


def below(graph: Graph, values: Collection[str], stop: Collection[str]) -> set[str]:
    """The values, and those that are made of them without passing those of `stop`, which are found too."""
    found: set[str] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value in found:
            continue
        found.add(value)
        if value not in stop:
            stack += [
                out for n in graph.consumers(value) if n.op_type not in ("Shape", "Size") for out in n.output if out
            ]
    return found


def mixes_heads(graph: Graph, node: NodeProto, data: str) -> bool:
    """Whether a node multiplies scores or weights by a small square constant, which mixes heads."""
    if node.op_type not in ("MatMul", "Einsum", "Conv") or data not in node.input:
        return False
    others = [n for n in node.input[:2] if n != data]
    shape = graph.shape(others[0]) if len(others) == 1 else None
    if shape is None or depends(graph, others[0]) or len(shape) < 2:
        return False
    sizes = [d for d in shape if d != 1]
    return len(sizes) == 2 and sizes[0] is not None and sizes[0] == sizes[1] and sizes[0] <= 128


def ways_back(graph: Graph, logits: str, mixed: bool = False) -> list[Way]:
    """Every product of two tensors that reaches `logits` through steps that keep scores scores, nearest first.

    With `mixed`, also through products with a small square constant (talking heads). A product with a constant operand
    counts where the other side is data; the caller decides which of them is the score product.
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
            data = [s for s in (product.left, product.right) if depends(graph, s)]
            if mixed and len(data) == 1 and mixes_heads(graph, product.node, data[0]):
                stack.append((data[0], [Step(product.node, data[0], value), *after]))
            elif data:
                found.append(Way(product, after))
            continue
        node = graph.producer(value)
        if mixed and node is not None and node.op_type == "Conv" and mixes_heads(graph, node, node.input[0]):
            stack.append((node.input[0], [Step(node, node.input[0], value), *after]))
            continue
        if node is None or node.op_type not in _BACK:
            continue
        inputs = list(node.input)
        if node.op_type == "Where":
            inputs = inputs[1:3]
        elif node.op_type in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Concat"):
            pass
        elif node.op_type == "QLinearAdd":
            inputs = [inputs[0], inputs[3]]
        elif node.op_type in ("ScatterND", "ScatterElements"):  # scores with a part rewritten to include a bias
            inputs = [inputs[0], inputs[2]]
        else:
            inputs = inputs[:1]
        for name in inputs:
            if name and depends(graph, name):
                stack.append((name, [Step(node, name, value), *after]))
    return found


def altered_by(graph: Graph, logits: str) -> str | None:
    """The operator that alters a product of two data tensors, cell by cell, so that `ways_back` does not follow it.

    None where no such product reaches `logits`.
    """
    seen: set[str] = set()
    stack: list[tuple[str, str]] = [(logits, "")]
    while stack and len(seen) < 5 * _MAX_STEPS:
        value, by = stack.pop(0)
        if value in seen:
            continue
        seen.add(value)
        product, node = find_product(graph, value), graph.producer(value)
        if product is not None:
            if by and depends(graph, product.left) and depends(graph, product.right):
                return by
            continue
        if node is None or (node.op_type not in _BACK and graph.shape(node.input[0]) != graph.shape(value)):
            continue
        by = by if node.op_type in _BACK else node.op_type
        stack += [(name, by) for name in node.input if name and depends(graph, name)]
    return None


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
            product = product_at(graph, node, value)
            if product is not None:
                if depends(graph, product.other(value)):
                    found.append(Way(product, before))
                elif mixes_heads(graph, node, value):
                    stack.append((node.output[0], [*before, Step(node, value, node.output[0])]))
                continue
            if node.op_type == "Conv" and mixes_heads(graph, node, value):
                stack.append((node.output[0], [*before, Step(node, value, node.output[0])]))
                continue
            if node.op_type in _ON:
                if node.op_type in ("Slice", "Reshape", "Expand", "Unsqueeze", "Squeeze") and node.input[0] != value:
                    continue
                for out in node.output[:1] if node.op_type != "Split" else node.output:
                    if out:
                        stack.append((out, [*before, Step(node, value, out)]))
    return found


def product_at(graph: Graph, node: NodeProto, value: str) -> Product | None:
    """The product that `node` makes with `value` as an operand (also by Mul and ReduceSum, or in integers)."""
    if node.op_type == "MatMulInteger":
        for cast in graph.consumers(node.output[0]):
            for mul in graph.consumers(cast.output[0]):
                product = find_product(graph, mul.output[0])
                if product is not None and product.node is node:
                    return product
        return None
    if node.op_type == "Mul":
        readers = list(graph.consumers(node.output[0]))
        for reduce in readers:
            if is_float_cast(reduce):
                readers += graph.consumers(reduce.output[0])
            elif reduce.op_type == "ReduceSum":
                product = find_product(graph, reduce.output[0])
                if product is not None and value in (product.left, product.right) and _stretches(graph, product, value):
                    return product
        return None
    product = find_product(graph, node.output[0]) if node.output else None
    return product if product is not None and product.node is node and value in (product.left, product.right) else None


def _stretches(graph: Graph, product: Product, value: str) -> bool:
    """Whether weights are broadcast along features to be multiplied (and not just summed under a mask)."""
    mine, other = graph.shape(value), graph.shape(product.other(value))
    if mine is None or other is None:
        return False
    return any(a == 1 and b != 1 for a, b in zip(mine[::-1], other[::-1], strict=False)) or len(other) > len(mine)


def scalar(graph: Graph, value: str) -> float | None:
    """The value as one number that is the same for any input; None if it is not one."""
    known = graph.known(value)
    if known is None or known.size != 1 or known.dtype == bool:
        return None
    known = graph.stable(value)
    if known is None:
        return None
    return float(np.asarray(known, dtype=np.float64).ravel()[0])


def unrounded(graph: Graph, value: str) -> str:
    """A tensor before it was rounded to integers and brought back to floats (QuantizeLinear, DequantizeLinear)."""
    node = graph.producer(value)
    inner = graph.producer(node.input[0]) if node is not None and node.op_type in DEQUANTISES else None
    return str(inner.input[0]) if inner is not None and inner.op_type in QUANTISES else value


def float_of(graph: Graph, value: str) -> str:
    """The float tensor that an integer one stands for: the result of the DequantizeLinear that reads it, or itself."""
    if (fact := graph.facts.get(value)) is not None and fact.dtype in (2, 3, 4, 5):
        for node in graph.consumers(value):
            if node.op_type in DEQUANTISES and node.input[0] == value:
                return str(node.output[0])
    return value
