"""Whether a graph computes in float32 throughout, so that parts of it that are run apart give what the whole gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.axes.paths import depends

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_MOVES = frozenset("Gather Reshape Transpose Slice Unsqueeze Squeeze Identity Expand Concat Split Flatten".split())
"""Operators that do not round: numbers looked up in half precision and then widened are exact."""
_MARKS = ("Quant", "QLinear", "Integer", "NBits")


def exact(graph: Graph) -> bool:
    """Whether a model computes in float32 with operators on floats."""
    return not any(
        any(mark in node.op_type for mark in _MARKS) or (node.op_type not in _MOVES and _halves(graph, node))
        for node in graph.nodes
    )


def _halves(graph: Graph, node: NodeProto) -> bool:
    """Whether a node computes in half precision from data; constants are computed only once, so they do not vary."""
    facts = (graph.facts.get(name) for name in node.output if depends(graph, name))
    return any(fact is not None and fact.dtype in (10, 16) for fact in facts)
