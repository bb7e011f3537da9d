"""What in a graph's numbers depends on the processor: products of uint8 and int8, weights in blocks of channels.

On a processor without an instruction for sums of 8-bit products (VNNI), onnxruntime's x86-64 kernels add two
neighbouring products of uint8 and int8 in 16 bits and cut off what does not fit. Pairs of weights that add up to 128 at
most always fit. Facts: measured on onnxruntime 1.31, with its kernels for SSE4, AVX2, AVX512 and VNNI.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.load.load import read_rows
from attnx.graph.load.nodes import attribute, attributes, op_name, subgraphs
from attnx.records import Kernels

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

    from attnx.graph.shapes.index import Graph
    from attnx.records import Array

UINT8, INT8 = 2, 3
"""Numbered as ONNX's TensorProto numbers its types."""
MOST = 128
"""The largest sum of two neighbouring weights of one sign: 128 x 255 fits in 16 bits, 129 x 255 does not."""
BLOCKED = "com.microsoft.nchwc"
BLOCKS = (8, 16)
"""Channels per block in onnxruntime's own layout, by kind of processor."""
_AT_ONCE = 1 << 22
"""Weights that are examined at a time."""
_FAR = 64
"""Operators through which a type is followed."""


@dataclass(frozen=True, slots=True)
class Product:
    """The inputs of an operator that are the two sides of an integer product."""

    left: int | None
    """The input that may be uint8; None where the operator itself rounds floats to uint8."""
    right: int
    """The input that may be int8."""
    zero: int
    """The zero point of the right side."""


PRODUCTS: Mapping[str, tuple[Product, ...]] = {
    "MatMulInteger": (Product(0, 1, 3),),
    "QLinearMatMul": (Product(0, 3, 5),),
    "QLinearConv": (Product(0, 3, 5),),
    "ConvInteger": (Product(1, 0, 2),),  # the filter is the left side of its kernel's product
    "com.microsoft.QGemm": (Product(0, 3, 5),),
    "com.microsoft.MatMulIntegerToFloat": (Product(0, 1, 5),),
    "com.microsoft.DynamicQuantizeMatMul": (Product(None, 1, 3),),
    "com.microsoft.QAttention": (Product(0, 1, 7),),
    "com.microsoft.DynamicQuantizeLSTM": (Product(None, 1, 9), Product(None, 2, 11)),
}
"""Source: ONNX and onnxruntime's contrib operators."""
FLOAT = ("MatMul", "Gemm", "Conv")
"""Operators that onnxruntime turns into one of those when their sides come from DequantizeLinear."""
_MAY_BE_NARROW = frozenset(name.rpartition(".")[2] for name in PRODUCTS) | {"DequantizeLinear"}
"""A graph without any of these operators has no product of integers."""
_SAME = frozenset(
    "Reshape Transpose Identity Squeeze Unsqueeze Flatten Slice Gather Concat Split Expand Tile Pad MaxPool QGemm "
    "QLinearMatMul QLinearConv QLinearAdd QLinearMul QLinearSoftmax QLinearSigmoid QLinearAveragePool".split()
)
"""Operators whose output has the type of their first input."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """A node with a pair of products of uint8 and int8 that may not fit in 16 bits."""

    node: NodeProto
    reader: str
    """First output of the node that reads the int8 side: of the product, or of the DequantizeLinear before it."""
    sides: tuple[tuple[int, int], ...]
    """Which inputs of that node hold the int8 side and its zero point."""

    @property
    def fused(self) -> bool:
        """Whether it is a product of floats until onnxruntime fuses it with the nodes around it."""
        return bool(self.reader != self.node.output[0])


def kernels(graph: Graph) -> Kernels:
    """Read the kernels off a graph, looking at no more of the weights than needed."""
    found = list(narrow(graph))
    blocked = [node for node in graph.nodes if node.domain == BLOCKED]
    return Kernels(
        dict(Counter(one.node.op_type for one in found if not one.fused).most_common()),
        dict(Counter(one.node.op_type for one in found if one.fused).most_common()),
        len(blocked),
        tuple(_blocks(graph, blocked)) if blocked else (),
    )


def narrow(graph: Graph) -> Iterator[Narrow]:
    """The nodes, also in subgraphs, with a pair of products of uint8 and int8 that may not fit in 16 bits."""
    outlines = [graph.outline(node) for node in graph.nodes]
    ops = {outline.op_type for outline in outlines}
    nested = any(outline.kind is None for outline in outlines)
    if nested or not ops.isdisjoint(_MAY_BE_NARROW):
        yield from _Scope(graph, graph.nodes, graph.initializers.values()).narrow()


class _Scope:
    """The names that the nodes of one graph can see: its own, and those of the graphs around it."""

    def __init__(
        self, graph: Graph, nodes: Iterable[NodeProto], tensors: Iterable[TensorProto], around: _Scope | None = None
    ) -> None:
        self.graph, self.nodes = graph, list(nodes)
        self.tensors: dict[str, TensorProto] = dict(around.tensors) if around else {}
        self.makers: dict[str, NodeProto] = dict(around.makers) if around else {}
        self.looked: dict[tuple[str, str, int], bool] = around.looked if around else {}
        self.tensors.update((tensor.name, tensor) for tensor in tensors)
        for node in self.nodes:
            self.makers.update((name, node) for name in node.output if name)
            if node.op_type == "Constant" and (value := attribute(node, "value")) is not None:
                self.tensors[node.output[0]] = value.t

    def narrow(self) -> Iterator[Narrow]:
        for node in self.nodes:
            mixed = [p for p in PRODUCTS.get(op_name(node), ()) if self._mixed(node, p)]
            if any(self._overflows(node, node.input[p.right]) for p in mixed):
                yield Narrow(node, node.output[0], tuple((p.right, p.zero) for p in mixed))
            elif op_name(node) in FLOAT and self._dequantised_may_overflow(node):
                yield Narrow(node, node.input[1], ((0, 2),))
            for _, inner in subgraphs(node):
                yield from _Scope(self.graph, inner.node, inner.initializer, self).narrow()

    def _mixed(self, node: NodeProto, product: Product) -> bool:
        """Whether a product is between uint8 and int8."""
        left = None if product.left is None else self._type(node.input[product.left])
        if left not in (None, UINT8):
            return False
        right = node.input[product.right]
        zero = node.input[product.zero] if len(node.input) > product.zero else ""
        return INT8 in (self._type(right), zero and self._type(zero))

    def _dequantised_may_overflow(self, node: NodeProto) -> bool:
        """Whether it multiplies 8-bit activations (int8 is moved to uint8) with int8 weights."""
        sides = [self.makers.get(name) for name in node.input[:2]]
        if any(side is None or side.op_type != "DequantizeLinear" for side in sides):
            return False
        left, right = (str(side.input[0]) for side in sides if side is not None)
        if self._type(left) not in (UINT8, INT8) or self._type(right) != INT8 or left in self.tensors:
            return False
        return (right in self.tensors or self._rounded(right)) and self._overflows(node, right)

    def _rounded(self, name: str) -> bool:
        """Whether a value is a constant that the graph itself rounds to 8 bits."""
        node = self.makers.get(name)
        return node is not None and node.op_type == "QuantizeLinear" and node.input[0] in self.tensors

    def _type(self, name: str) -> int | None:
        """ONNX's number for a value's type; None where unknown."""
        for _ in range(_FAR):
            if name in self.tensors:
                return int(self.tensors[name].data_type)
            node = self.makers.get(name)
            if node is None:
                info = self.graph.inputs.get(name)
                return (info.type.tensor_type.elem_type or None) if info is not None else None
            if node.op_type == "DynamicQuantizeLinear":
                return UINT8
            if node.op_type == "QuantizeLinear":
                if len(node.input) < 3 or not node.input[2]:
                    return int(attributes(node).get("output_dtype", 0)) or UINT8
                name = node.input[2]
            elif node.op_type == "QLinearConcat":
                name = node.input[1]
            elif node.op_type in _SAME:
                name = node.input[0]
            else:
                fact = self.graph.facts.get(name)
                return fact.dtype if fact is not None else None
        return None

    def _overflows(self, node: NodeProto, name: str) -> bool:
        """Whether int8 weights hold such a pair; unknown weights are assumed to."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return True
        key = (name, node.op_type, attributes(node).get("transB", 0))
        if key not in self.looked:
            self.looked[key] = any(map(_overflow, self._columns(node, tensor)))
        return self.looked[key]

    def _columns(self, node: NodeProto, tensor: TensorProto) -> Iterator[Array]:
        """The weights [K,N] in pieces with an even number of rows, in the order in which the kernel holds them."""
        shape = tuple(tensor.dims)
        if node.op_type in ("Conv", "QLinearConv"):
            if len(shape) > 1 and shape[1] == 1 and shape[0] == attributes(node).get("group", 1):
                return  # channel by channel: a separate kernel, which adds in 32 bits
            for filters in read_rows(self.graph.loaded, tensor, _AT_ONCE):
                yield np.moveaxis(filters, 1, -1).reshape(len(filters), -1).T
        elif node.op_type in ("Gemm", "QGemm") and attributes(node).get("transB"):
            for columns in read_rows(self.graph.loaded, tensor, _AT_ONCE):
                yield columns.T
        elif len(shape) < 3:
            yield from read_rows(self.graph.loaded, tensor, _AT_ONCE)
        else:
            for matrices in read_rows(self.graph.loaded, tensor, _AT_ONCE):
                yield from matrices.reshape(-1, *shape[-2:])


def _overflow(weights: Array) -> bool:
    """Whether two neighbouring rows 2i, 2i+1 of weights [K,N] hold a pair of one sign beyond `MOST`."""
    whole = len(weights) // 2 * 2
    one, two = (weights[at:whole:2].astype(np.int16) for at in (0, 1))
    return bool(
        (np.maximum(one, 0) + np.maximum(two, 0) > MOST).any()
        or (np.minimum(one, 0) + np.minimum(two, 0) < -MOST).any()
    )


def _blocks(graph: Graph, nodes: Iterable[NodeProto]) -> Iterator[int]:
    """The block sizes that fit all filters: whole blocks, and no more of them than the channels need."""
    filters: dict[str, int] = {}
    for node in nodes:
        tensor = graph.initializers.get(node.input[1]) if node.op_type == "Conv" else None
        if tensor is not None and tensor.dims:
            filters[node.output[0]] = int(tensor.dims[0])
    needed = []
    for node in nodes:
        if node.op_type == "ReorderOutput" and (laid := _filters(graph, node.input[0], filters)) is not None:
            needed.append((laid, int(attributes(node).get("channels", laid))))
    for size in BLOCKS:
        if all(laid % size == 0 for laid in filters.values()) and all(
            -(-c // size) * size == laid for laid, c in needed
        ):
            yield size


def _filters(graph: Graph, name: str, filters: Mapping[str, int]) -> int | None:
    """The number of filters behind a value, with any pooling in between ignored."""
    for _ in range(_FAR):
        if name in filters:
            return filters[name]
        node = graph.producer(name)
        if node is None or node.domain != BLOCKED or not node.op_type.endswith("Pool"):
            return None
        name = node.input[0]
    return None
