"""A flat graph with its links (which node makes a value, which nodes read it) and its constants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.fact import UNKNOWN, Fact, fact_of
from attnx.graph.load.load import Loaded, read_tensor
from attnx.graph.load.nodes import attribute_value
from attnx.graph.load.outline import Outline
from attnx.records import Array

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

SMALL = 8 << 20
"""A constant with at most this many bytes may be read during recognition (causal buffers, bucket tables)."""
HELD = 32 << 20
"""Bytes of constants that are kept; beyond that, large ones are read again when they are needed."""
_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
"""ONNX's data type -> bytes per element; a type not listed is rare, and counted as the largest."""


class FlatGraph:
    """A flat graph: nodes sorted by dataflow, links both ways, small constants available.

    Attributes:
        loaded: The file that it comes from.
        proto: The (skeleton) model.
        nodes: Its nodes, every value made before it is read.
        steps: Those of its nodes that compute: all but ONNX's `Constant`.
        inputs: Graph inputs that are not initializers, by name.
        outputs: Names of the graph's outputs, in order.
        initializers: By name.
        opset: Version of the default domain.
    """

    def __init__(
        self,
        loaded: Loaded,
        proto: ModelProto,
        nodes: list[NodeProto],
        outlines: Mapping[int, Outline] = MappingProxyType({}),
    ) -> None:
        """Make the links.

        Args:
            loaded: See above.
            proto: See above.
            nodes: See above.
            outlines: By the id of a node, what it holds, where that is known already.
        """
        self.loaded, self.proto, self.nodes = loaded, proto, nodes
        graph = proto.graph
        self.initializers: dict[str, TensorProto] = {t.name: t for t in graph.initializer}
        self.inputs: dict[str, ValueInfoProto] = {i.name: i for i in graph.input if i.name not in self.initializers}
        self.outputs = [o.name for o in graph.output]
        self.opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
        self._position = {id(node): i for i, node in enumerate(nodes)}
        self._outlines = {id(node): outlines.get(id(node)) or loaded.outlines.of(node) for node in nodes}
        self.outlined = [(n, o) for n, o in zip(nodes, self._outlines.values(), strict=True) if not o.stored]
        """Its `steps`, each with what it holds."""
        self.steps = [node for node, _ in self.outlined]
        self.holding = [node for node, outline in self.outlined if outline.kind is None]
        """Those that hold graphs."""
        self._producer: dict[str, NodeProto] = {}
        self._consumers: dict[str, list[NodeProto]] = {}
        self._link()
        self._constants: dict[str, Array | None] = {}
        self._held = 0

    def _link(self) -> None:
        """Note which node makes a value, and which nodes read it."""
        makers, readers = self._producer, self._consumers
        for node, outline in zip(self.nodes, self._outlines.values(), strict=True):
            for name in outline.outputs:
                if name:
                    makers[name] = node
        for node, outline in self.outlined:
            inputs = outline.inputs
            for name in inputs if len(inputs) < 2 else set(inputs):
                if name in readers:
                    readers[name].append(node)
                elif name:
                    readers[name] = [node]

    @cached_property
    def names(self) -> Counter[str]:
        """How many nodes have each name."""
        return Counter(node.name for node in self.nodes)

    def producer(self, value: str) -> NodeProto | None:
        """The node that makes a value; None for graph inputs and initializers."""
        return self._producer.get(value)

    def consumers(self, value: str) -> list[NodeProto]:
        """The nodes that read a value, in order."""
        return self._consumers.get(value, [])

    def position(self, node: NodeProto) -> int:
        """The position of a node in `nodes`."""
        return self._position[id(node)]

    @cached_property
    def stored(self) -> dict[str, Fact]:
        """What the nodes hold that are not in `steps`."""
        found: dict[str, Fact] = {}
        alike: dict[int | None, Fact] = {}
        for node, outline in zip(self.nodes, self._outlines.values(), strict=True):
            if not outline.stored or not outline.outputs[0]:
                continue
            name = outline.outputs[0]
            if outline.kind not in alike:
                alike[outline.kind] = self.loaded.inferred.one(self.stored_in(node, self.constant(name)))
            elif name not in self._constants and (value := alike[outline.kind].value) is not None:
                self._constants[name] = value
            found[name] = alike[outline.kind]
        return found

    def stored_in(self, node: NodeProto, value: Array | None) -> Fact:
        """What a Constant node holds: its numbers, or its shape alone if they are many."""
        if value is not None:
            return fact_of(value)
        tensor = next((a.t for a in node.attribute if a.name == "value"), None)
        return UNKNOWN if tensor is None else Fact(tuple(int(d) for d in tensor.dims), tensor.data_type)

    def outline(self, node: NodeProto) -> Outline:
        """What a node holds."""
        return self._outlines.get(id(node)) or self.loaded.outlines.of(node)

    def reads(self, node: NodeProto) -> Collection[str]:
        """The values that one of its nodes reads, including in its subgraphs."""
        return self.outline(node).reads

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
        """The numbers that a Constant node holds, if there are few."""
        for a in node.attribute:
            if a.name == "value":
                return self.read_small(a.t)
            if a.name in ("value_float", "value_int", "value_floats", "value_ints"):
                return np.asarray(attribute_value(a), dtype=np.float32 if "float" in a.name else np.int64)
        return None

    def read_small(self, tensor: TensorProto) -> Array | None:
        """A tensor's numbers, if there are few and they can be read."""
        if prod(tensor.dims) * _BYTES.get(tensor.data_type, 8) > SMALL:
            return None
        try:
            return read_tensor(self.loaded, tensor)
        except (ValueError, TypeError):
            return None
