"""Shapes of ONNX's own operators, and of onnxruntime's that follow the same rules; node_facts.py chooses the rule.

Operators that only move elements: layout_rules.py; onnxruntime's own: contrib_rules.py; all others: schema_rules.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.graph.fact import Fact, Shape, ints
from attnx.graph.load.nodes import CURVES, ROUNDS
from attnx.graph.shapes.arithmetic import Rule, axes_of, broadcast, matmul
from attnx.graph.shapes.layout_rules import LAYOUT

if TYPE_CHECKING:
    from onnx import NodeProto


def reduce(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    """A sum, mean or extreme over some axes."""
    s = x[0].shape
    axes = axes_of(a, x)
    if s is None or (len(x) > 1 and x[1].shape is not None and axes is None):
        return [None]
    drop = {i % len(s) for i in axes} if axes else set() if a.get("noop_with_empty_axes") else set(range(len(s)))
    if a.get("keepdims", 1):
        return [tuple(1 if i in drop else d for i, d in enumerate(s))]
    return [tuple(d for i, d in enumerate(s) if i not in drop)]


def gemm(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    """A product of two matrices."""
    p, q = x[0].shape, x[1].shape
    if p is None or q is None or len(p) != 2 or len(q) != 2:
        return [None]
    return [(p[1] if a.get("transA") else p[0], q[0] if a.get("transB") else q[1])]


def _einsum(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    equation = str(a.get("equation", "")).replace(" ", "")
    if equation.count("->") != 1:
        return [None]
    left, right = equation.split("->")
    sizes: dict[str, int | None] = {}
    width = 0
    for letters, fact in zip(left.split(","), x, strict=False):
        if fact.shape is None:
            continue
        if "..." in letters:
            count = len(fact.shape) - len(letters) + 3
            width = max(width, count)
            letters = letters.replace("...", "ZYXWVU"[6 - count :])
        if len(letters) != len(fact.shape):
            continue
        for letter, size in zip(letters, fact.shape, strict=True):
            if sizes.get(letter) in (None, 1):
                sizes[letter] = size
    return [tuple(sizes.get(letter) for letter in right.replace("...", "ZYXWVU"[6 - width :]))]


def conv(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    """A convolution."""
    s, w = x[0].shape, x[1].shape
    if s is None or w is None or len(s) < 3:
        return [None]
    spatial = len(s) - 2
    kernel = a.get("kernel_shape") or w[2:]
    strides, dilations = a.get("strides") or [1] * spatial, a.get("dilations") or [1] * spatial
    pads, auto = a.get("pads") or [0] * 2 * spatial, a.get("auto_pad", "NOTSET")
    out: list[int | None] = [s[0], w[0]]
    for i in range(spatial):
        size, k = s[2 + i], kernel[i]
        if size is None or k is None:
            out.append(None)
        elif auto.startswith("SAME"):
            out.append(-(-size // strides[i]))
        else:
            extra = pads[i] + pads[spatial + i] if auto == "NOTSET" else 0
            out.append((size + extra - dilations[i] * (k - 1) - 1) // strides[i] + 1)
    return [tuple(out)]


def _range(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    v = [f.value for f in x]
    if any(p is None for p in v):
        return [(None,)]
    start, stop, step = (np.asarray(p).item() for p in v)
    return [(max(0, -int(-(stop - start) // step)),)]


def _constant_of_shape(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    target = ints(x[0])
    if target is None:
        return [(None,) * x[0].shape[0] if x[0].shape and x[0].shape[0] is not None else None]
    return [tuple(target)]


def lstm(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    """The outputs of a recurrent cell: all steps, the last state, the last cell."""
    s, hidden = x[0].shape, a.get("hidden_size")
    if s is None or len(s) != 3:
        return [None, None, None]
    ways = 2 if a.get("direction") == "bidirectional" else 1
    return [(s[0], ways, s[1], hidden), (ways, s[1], hidden), (ways, s[1], hidden)]


def _shape_op(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    return [None if x[0].shape is None else (len(x[0].shape),)]


def _like(at: int = 0) -> Rule:
    return lambda node, _a, x: [x[at].shape] + [None] * (len(node.output) - 1)


def _elementwise(node: NodeProto, _: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    shapes = [x[i].shape for i, name in enumerate(node.input) if name]
    return [broadcast(*shapes)]


_ELEMENTWISE = (
    "Add Sub Mul Div Pow Mod Min Max Sum Mean Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor "
    "Where PRelu BitwiseAnd BitwiseOr BiasGelu QLinearAdd QLinearMul"
).split()
_SAME = (
    "Cast CastLike Identity Dropout Relu LeakyRelu Sigmoid Tanh Erf Erfc Gelu FastGelu QuickGelu Softmax "
    "LogSoftmax Sqrt Exp Log Neg Abs Sign Not Floor Ceil Round Reciprocal Sin Cos IsNaN IsInf Clip "
    "LayerNormalization RMSNormalization SimplifiedLayerNormalization InstanceNormalization "
    "GroupNormalization BatchNormalization LpNormalization Elu Selu Softplus HardSigmoid HardSwish Mish "
    "Trilu CumSum ScatterND ScatterElements "
    "BiasSoftmax QLinearSoftmax QLinearSigmoid RotaryEmbedding Hardmax Swish BiasDropout"
).split()
SHAPES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys((*_SAME, *CURVES, *sorted(ROUNDS)), _like()),
    **dict.fromkeys(("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL2", "ReduceL1",
                     "ReduceSumSquare", "ReduceLogSumExp"), reduce),
    "MatMul": lambda _n, _a, x: [matmul(x[0].shape, x[1].shape)],
    "MatMulInteger": lambda _n, _a, x: [matmul(x[0].shape, x[1].shape)],
    "MatMulIntegerToFloat": lambda _n, _a, x: [matmul(x[0].shape, x[1].shape)],
    "DynamicQuantizeMatMul": lambda _n, _a, x: [matmul(x[0].shape, x[1].shape)],
    "QLinearMatMul": lambda _n, _a, x: [matmul(x[0].shape, x[3].shape)],
    "Gemm": gemm, "FusedGemm": gemm, "Einsum": _einsum,
    **LAYOUT,
    "GatherElements": _like(1), "Range": _range, "Shape": _shape_op,
    "ConstantOfShape": _constant_of_shape,
    "Conv": conv, "ConvInteger": conv, "LSTM": lstm, "ReorderInput": _like(),
    "LongformerAttention": _like(), "PackedMultiHeadAttention": _like(),
}  # fmt: skip
