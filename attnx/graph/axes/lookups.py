"""The tables in which a graph looks up its inputs' numbers: how many entries an embedding has.

onnxruntime's CPU kernels refuse a number beyond the table, with their own error message; its CUDA kernels silently read
whatever memory lies there. The size of the table is known before the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnx.graph.axes.stored import stored
from attnx.graph.load.nodes import attributes

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_KEEPS = frozenset("Cast Identity Reshape Unsqueeze Squeeze Flatten".split())
"""Operators that pass on their input's numbers unchanged."""
_SAME_SHAPE = frozenset("Cast Identity DequantizeLinear".split())
_EMBED = {0: 2, 1: 4, 8: 3}
"""Of EmbedLayerNormalization: input with numbers -> input with their table (words, segments, positions)."""


def rows(graph: Graph) -> dict[str, int]:
    """For each graph input whose numbers are looked up in constant tables: the entries of the smallest table."""
    found: dict[str, int] = {}
    for name in graph.inputs:
        sizes = [size for node, value in _readers(graph, name) if (size := _entries(graph, node, value)) is not None]
        if sizes:
            found[name] = min(sizes)
    return found


def _readers(graph: Graph, name: str) -> Iterator[tuple[NodeProto, str]]:
    """The nodes that read an input's numbers unchanged, each with the value that it reads."""
    waiting, seen = [name], {name}
    while waiting:
        value = waiting.pop()
        for node in graph.consumers(value):
            if node.op_type in _KEEPS and not node.domain and node.input[0] == value:
                if node.output[0] not in seen:
                    seen.add(node.output[0])
                    waiting.append(node.output[0])
            else:
                yield node, value


def _entries(graph: Graph, node: NodeProto, value: str) -> int | None:
    """The entries of the table in which a node looks up a value; None where it looks up nothing."""
    if node.op_type == "Gather" and not node.domain and list(node.input).index(value) == 1:
        return _size(graph, node.input[0], int(attributes(node).get("axis", 0)))
    if node.op_type == "GatherBlockQuantized" and list(node.input).index(value) == 1:
        return _size(graph, node.input[0], int(attributes(node).get("gather_axis", 0)))
    if node.op_type in ("EmbedLayerNormalization", "QEmbedLayerNormalization"):
        table = _EMBED.get(list(node.input).index(value))
        if table is not None and table < len(node.input) and node.input[table]:
            return _size(graph, node.input[table], 0)
    return None


def _size(graph: Graph, table: str, axis: int) -> int | None:
    for _ in range(4):
        if graph.is_constant(table):
            shape = stored(graph, table)
            return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        node = graph.producer(table)
        if node is None or node.op_type not in _SAME_SHAPE:
            return None
        table = node.input[0]
    return None
