"""Run one ONNX node on numpy arrays: enough operators to follow shapes, masks and scales without running the model.

An operator missing from numpy_rules.py is tried with onnx's own reference implementation, which is slower but complete.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.load.nodes import attributes
from attnx.graph.shapes.numpy_rules import FLATTENING, RULES, Inputs, over_the_rest
from attnx.records import Array

if TYPE_CHECKING:
    from onnx import NodeProto

_MOST = 1 << 24
"""The most elements that a result may have when its size is not known beforehand."""
SIZED_BY_VALUE = frozenset(
    "Range ConstantOfShape Expand Tile Pad Resize Upsample OneHot EyeLike ConvTranspose MaxUnpool Col2Im CenterCropPad "
    "AffineGrid GridSample RoiAlign DFT STFT HannWindow HammingWindow BlackmanWindow MelWeightMatrix ImageDecoder "
    "TfIdfVectorizer StringSplit".split()
)
"""Operators whose result can have any size, however small their inputs are."""
BOUNDED = frozenset(
    "Add Sub Mul Div Mod Min Max Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor Not Neg Abs Sign "
    "Identity Cast Where Unsqueeze Squeeze Reshape Transpose Concat Gather Slice".split()
)
"""Operators whose inputs bound the size of the result: see `most`."""
NEVER = frozenset(
    "Loop Scan If SequenceMap RandomNormal RandomUniform RandomNormalLike RandomUniformLike Bernoulli "
    "Multinomial".split()
)
"""Operators that can run for any length of time, or whose result is random."""


def steady(node: NodeProto, values: Inputs, size: int | None, limit: int) -> bool:
    """Whether a node may be evaluated: its result is small and its inputs bound the time it takes.

    Args:
        node: The node.
        values: Its inputs.
        size: The number of elements of its first output, where known.
        limit: The most elements that the output may have.
    """
    if node.op_type in NEVER:
        return False
    if size is not None:
        return size <= limit
    if node.op_type in SIZED_BY_VALUE:
        return False
    return prod(max(1, np.size(v)) for v in values if v is not None) <= _MOST


def most(values: Inputs) -> int:
    """The most elements that an operator of `BOUNDED` makes: the sum of its inputs' or their product."""
    sizes = [v.size for v in values if v is not None]
    return max(sum(sizes), prod(size for size in sizes if size))


def evaluate(node: NodeProto, inputs: Inputs, opset: int) -> list[Array]:
    """The outputs of one node of the default domain.

    Raises:
        Exception: Any kind, when the node cannot be evaluated on these inputs; callers treat the value as unknown.
    """
    rule = RULES.get(node.op_type)
    if rule is None:
        return _reference(node, inputs, opset)
    if opset < 13 and node.op_type in FLATTENING:
        rule = over_the_rest(rule)
    if opset < 7 and any(a.name == "broadcast" for a in node.attribute):
        raise NotImplementedError("operands that are stretched along an axis of their own")
    outputs = len(node.output)
    with np.errstate(all="ignore"):
        result = rule(attributes(node), inputs, outputs)
    return [np.asarray(r) for r in result] if isinstance(result, list) else [np.asarray(result)]


def _reference(node: NodeProto, inputs: Inputs, opset: int) -> list[Array]:
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    names = [name for name in node.input if name]
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype), None)
        for n, x in zip(node.input, inputs, strict=True)
        if n and x is not None
    ]
    outs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    model = helper.make_model(
        helper.make_graph([node], "one", types, outs), opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    )
    feed = {n: np.asarray(x) for n, x in zip(node.input, inputs, strict=True) if n and n in names}
    results = ReferenceEvaluator(model).run(None, feed)
    if any(isinstance(r, list) for r in results):
        raise TypeError(f"{node.op_type} gives a sequence, which is no array")
    return [np.asarray(r) for r in results]
