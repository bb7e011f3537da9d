"""Operators that converters write although ONNX has no such operator, as the primitive nodes that they stand for.

tf2onnx passes on operators that it has no rule for, under TensorFlow's name: every exact GELU of Keras 3 becomes an
Erfc, and then no runtime loads the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.sites.emit import Emit, prefix_of
from attnx.sites.finding import Replacement

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def erfc(graph: Graph, node: NodeProto) -> Replacement:
    """Erfc: 1 - erf(x). Source: TensorFlow, tf.math.erfc."""
    x = node.input[0]
    e = Emit(graph, prefix_of(graph, node), x)
    e.back(e.op("Sub", e.number(1.0), e.op("Erf", e.real(x))), x, out=node.output[0])
    return Replacement(e.nodes, e.initializers, required=True)
