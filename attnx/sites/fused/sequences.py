"""Tensors that pass through a sequence (torch's exporters write split, chunk and stack so), rewritten without one.

The graph does not show the shape of a value that is put into a sequence and taken out again. Where the place that is
taken is known, a Slice or no node at all does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.load.nodes import attributes
from attnx.sites.emit import Emit, prefix_of
from attnx.sites.finding import Replacement

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def taken(graph: Graph, node: NodeProto) -> Replacement | None:
    """SequenceAt on a SplitToSequence or SequenceConstruct, at a known place."""
    maker, place = graph.producer(node.input[0]), graph.known(node.input[1])
    if maker is None or place is None or place.size != 1:
        return None
    at = int(place.ravel()[0])
    if maker.op_type == "SequenceConstruct":
        if not -len(maker.input) <= at < len(maker.input):
            return None
        e = Emit(graph, prefix_of(graph, node), maker.input[at])
        e.op("Identity", maker.input[at], out=node.output[0])
        return Replacement(e.nodes, e.initializers)
    if maker.op_type != "SplitToSequence":
        return None
    a, x = attributes(maker), maker.input[0]
    sizes = graph.known(maker.input[1]) if len(maker.input) > 1 and maker.input[1] else None
    if at < 0 or (sizes is None and len(maker.input) > 1):
        return None
    e, axis = Emit(graph, prefix_of(graph, node), x), a.get("axis", 0)
    if sizes is None or sizes.ndim == 0:
        each = 1 if sizes is None else int(sizes)
        start, stop = at * each, (at + 1) * each
    elif at >= sizes.size:
        return None
    else:
        start, stop = int(sizes[:at].sum()), int(sizes[: at + 1].sum())
    if sizes is None and not a.get("keepdims", 1):
        e.op("Gather", x, e.const(np.array(at)), axis=axis, out=node.output[0])
    else:
        e.op("Slice", x, e.ints(start), e.ints(stop), e.ints(axis), out=node.output[0])
    return Replacement(e.nodes, e.initializers)


def joined(graph: Graph, node: NodeProto) -> Replacement | None:
    """ConcatFromSequence on a SequenceConstruct: a Concat, of tensors with an extra axis where they are stacked."""
    maker = graph.producer(node.input[0])
    if maker is None or maker.op_type != "SequenceConstruct" or not maker.input:
        return None
    a = attributes(node)
    e = Emit(graph, prefix_of(graph, node), maker.input[0])
    parts = list(maker.input)
    if a.get("new_axis", 0):
        parts = [e.unsqueeze(part, a["axis"]) for part in parts]
    e.op("Concat", *parts, axis=a["axis"], out=node.output[0])
    return Replacement(e.nodes, e.initializers)
