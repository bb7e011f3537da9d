"""A model with its integer products exact on every processor: the int8 sides of uint8 x int8 moved to uint8.

A weight w with the zero point z is what w + 128 is with z + 128, and all of onnxruntime's kernels add products of uint8
and uint8 in 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.load.nodes import subgraphs
from attnx.graph.shapes.kernels import narrow
from attnx.session.protocol import OpenModel

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from attnx.sites.recognise import Found

_INT32, _UINT8 = 6, 2
"""ONNX's type numbers."""
_Sides = Mapping[tuple[str, str], tuple[tuple[int, int], ...]]
"""Operator and first output of a node -> its inputs that hold an int8 side and its zero point."""


def variant(model: OpenModel, *, exact: bool = False, fused: bool = False) -> OpenModel:
    """The same model, opened otherwise.

    Args:
        model: The model.
        exact: Its integer products are exact on every processor.
        fused: Products between DequantizeLinear nodes become integer products, as onnxruntime does by default.
    """
    other = model.again()
    for part in (other, other.encoder, other.with_past):
        if part is not None:
            part.sessions.processor = model.sessions.processor
            part.sessions.alter = in_uint8 if exact else None
            part.sessions.fused = fused
    return other


def in_uint8(model: bytes, found: Found) -> bytes:
    """A serialised model with the int8 sides of products that may saturate moved to uint8.

    Args:
        model: As it would be opened, tapped or not.
        found: What was found in its file, including which products may saturate.
    """
    from onnx import ModelProto

    proto = ModelProto.FromString(model)
    sides = {
        ("DequantizeLinear" if one.fused else one.node.op_type, one.reader): one.sides
        for graph in (found.graph, found.opened)
        for one in narrow(graph)
    }
    _move(proto.graph, sides, (f"attnx/uint8/{number}" for number in count()))
    return bytes(proto.SerializeToString())


def _move(graph: GraphProto, sides: _Sides, names: Iterator[str]) -> None:
    """Put 128 more for each int8 side and its zero point, in this graph and its subgraphs."""
    from onnx import helper, numpy_helper

    shift, zero = next(names), next(names)
    made: dict[str, str] = {}
    nodes: list[NodeProto] = []

    def moved(name: str) -> str:
        if not name:
            return zero  # a missing zero point is 0
        if name not in made:
            wide, more, made[name] = next(names), next(names), next(names)
            nodes.append(helper.make_node("Cast", [name], [wide], to=_INT32))
            nodes.append(helper.make_node("Add", [wide, shift], [more]))
            nodes.append(helper.make_node("Cast", [more], [made[name]], to=_UINT8))
        return made[name]

    for node in graph.node:
        for _, inner in subgraphs(node):
            _move(inner, sides, names)
        for side, point in sides.get((node.op_type, node.output[0]), ()) if node.output else ():
            node.input.extend([""] * (point + 1 - len(node.input)))
            node.input[side], node.input[point] = moved(node.input[side]), moved(node.input[point])
        nodes.append(node)
    if made:
        graph.initializer.append(numpy_helper.from_array(np.array(128, np.int32), shift))
        graph.initializer.append(numpy_helper.from_array(np.array(128, np.uint8), zero))
        copies = type(graph)(node=nodes)
        del graph.node[:]
        graph.node.extend(copies.node)
