"""A flat graph with its links: who makes and who reads each value, constants, shapes and attributes."""

from __future__ import annotations

from collections import defaultdict
from copy import copy
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.graph.load.load import Loaded, read_tensor
from attnx.records import Array

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

    from attnx.graph.shapes.infer import Fact

SMALL = 8 << 20
"""A constant with at most this many bytes may be read while recognising (causal buffers, bucket tables)."""
HELD = 32 << 20
"""Bytes of constants that are kept; beyond, large ones are read again when they are needed."""
_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
"""ONNX's data type -> bytes an element; what is not here is rare, and counted as the largest."""


class Graph:
    """A flat graph: nodes sorted by dataflow, links both ways, small constants at hand.

    Attributes:
        proto: The (skeleton) model.
        nodes: Its nodes, every value made before it is read.
        inputs: Graph inputs that are no initializers, by name.
        outputs: Names of the graph's outputs, in order.
        initializers: By name.
        opset: Version of the default domain.
        sizes: The probe size of each named input dimension (once `facts` has been asked for).
    """

    def __init__(self, loaded: Loaded, proto: ModelProto, nodes: list[NodeProto]) -> None:
        self.loaded, self.proto, self.nodes = loaded, proto, nodes
        graph = proto.graph
        self.initializers: dict[str, TensorProto] = {t.name: t for t in graph.initializer}
        self.inputs: dict[str, ValueInfoProto] = {i.name: i for i in graph.input if i.name not in self.initializers}
        self.outputs = [o.name for o in graph.output]
        self.opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
        self._producer = {name: node for node in nodes for name in node.output if name}
        self._position = {id(node): i for i, node in enumerate(nodes)}
        self._consumers: dict[str, list[NodeProto]] = defaultdict(list)
        for node in nodes:
            for name in dict.fromkeys(node.input):
                if name:
                    self._consumers[name].append(node)
        self._constants: dict[str, Array | None] = {}
        self._held = 0
        self.sizes: dict[str, int] = {}

    def producer(self, value: str) -> NodeProto | None:
        """The node that makes a value; None for graph inputs and initializers."""
        return self._producer.get(value)

    def consumers(self, value: str) -> list[NodeProto]:
        """The nodes that read a value, in order."""
        return self._consumers.get(value, [])

    def position(self, node: NodeProto) -> int:
        """Where a node stands in `nodes`."""
        return self._position[id(node)]

    def constant(self, value: str) -> Array | None:
        """The numbers of an initializer or Constant node of at most `SMALL` bytes, else None."""
        if value in self._constants:
            return self._constants[value]
        array = self._read_constant(value)
        size = 0 if array is None else array.nbytes
        if self._held + size <= HELD or size <= 1 << 16:
            self._constants[value] = array
            self._held += size
        return array

    def is_constant(self, value: str) -> bool:
        """Whether a value is an initializer or comes from a Constant node (of any size)."""
        node = self._producer.get(value)
        return value in self.initializers or (node is not None and node.op_type == "Constant")

    def _read_constant(self, value: str) -> Array | None:
        tensor = self.initializers.get(value)
        if tensor is not None:
            return self.read_small(tensor)
        node = self._producer.get(value)
        return self.constant_of(node) if node is not None and node.op_type == "Constant" else None

    def constant_of(self, node: NodeProto) -> Array | None:
        """The numbers that a Constant node holds, where they are few."""
        for a in node.attribute:
            if a.name == "value":
                return self.read_small(a.t)
            if a.name in ("value_float", "value_int", "value_floats", "value_ints"):
                return np.asarray(attribute_value(a), dtype=np.float32 if "float" in a.name else np.int64)
        return None

    def read_small(self, tensor: TensorProto) -> Array | None:
        """A tensor's numbers, where they are few and can be read."""
        if prod(tensor.dims) * _BYTES.get(tensor.data_type, 8) > SMALL:
            return None
        try:
            return read_tensor(self.loaded, tensor)
        except (ValueError, TypeError):
            return None

    @cached_property
    def facts(self) -> dict[str, Fact]:
        """Shape, type and (where small) numbers of every value, for probe sizes of the symbolic dimensions."""
        from attnx.graph.shapes.infer import infer

        return infer(self)

    def shape(self, value: str) -> tuple[int | None, ...] | None:
        """The shape of a value with probe sizes for symbolic dimensions; None where even the rank is unknown."""
        fact = self.facts.get(value)
        return fact.shape if fact is not None else None

    def known(self, value: str) -> Array | None:
        """The numbers of a value that do not depend on input data: constants, and what follows from shapes."""
        fact = self.facts.get(value)
        return fact.value if fact is not None else None

    @cached_property
    def _other_facts(self) -> dict[str, Fact]:
        from attnx.graph.shapes.infer import infer

        self.facts  # noqa: B018  binds sizes
        moved = {name: size if size < 1000 else size + 4 * size for name, size in self.sizes.items()}
        return infer(self, moved)

    def stable(self, value: str) -> Array | None:
        """The numbers of a value that are the same whatever the inputs' sizes; None where they are not, or unknown.

        A factor such as log n is known once n is, and would otherwise pass for a constant.
        """
        if self.is_constant(value):
            return self.constant(value)
        known = self.known(value)
        if known is None:
            return None
        other = self._other_facts.get(value)
        same = other is not None and other.value is not None and np.array_equal(other.value, known)
        return known if same else None

    @cached_property
    def dynamic(self) -> set[str]:
        """Values that depend on the data of graph inputs (not only on their shapes)."""
        return self._reached(through_shapes=False)

    def by_shape(self) -> Graph:
        """The same graph, with what depends on the inputs' shapes alone taken for data too.

        The first decoder layer of DETR attends among learned queries: nothing there depends on the image but the batch.
        """
        other = copy(self)
        other.__dict__["dynamic"] = self._reached(through_shapes=True)
        return other

    def by_products(self) -> Graph:
        """The same graph, with whatever a projection makes taken for data, be it of constants alone."""
        other = copy(self)
        seeds = {o for n in self.nodes if n.op_type in ("MatMul", "Gemm", "Conv") for o in n.output}
        other.__dict__["dynamic"] = self._reached(through_shapes=True, seeds=seeds)
        return other

    def _reached(self, through_shapes: bool, seeds: set[str] = frozenset()) -> set[str]:  # type: ignore[assignment]
        found = set(self.inputs) | seeds
        for node in self.nodes:
            if node.op_type in ("Shape", "Size") and not node.domain and not through_shapes:
                continue
            reads = set(node.input)
            for a in node.attribute:
                if a.type == 5:
                    from attnx.graph.load.flatten import outer_names

                    reads |= outer_names(a.g)
            if reads & found:
                found.update(o for o in node.output if o)
        return found


def attribute_value(a: Any) -> Any:
    """An AttributeProto's value as a Python object."""
    from onnx import helper

    value = helper.get_attribute_value(a)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def attributes(node: NodeProto) -> dict[str, Any]:
    """A node's attributes as Python objects, by name."""
    return {a.name: attribute_value(a) for a in node.attribute}


def op_name(node: NodeProto) -> str:
    """The operator with its domain, where that is not ONNX's own: "Softmax", "com.microsoft.Attention"."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
