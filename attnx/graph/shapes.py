"""The shape of a node's outputs from its inputs' facts, one rule an operator; onnxruntime's own: shapes_ort.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.graph.index import attributes

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.index import Graph
    from attnx.graph.infer import Fact, Shape

Rule = Callable[["NodeProto", dict[str, Any], Sequence["Fact"]], "list[Shape | None]"]


def broadcast(*shapes: Shape | None) -> Shape | None:
    """Numpy's broadcast of shapes in which None is an unknown size."""
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes) or not known:
        return None
    rank = max(len(s) for s in known)
    out: list[int | None] = []
    for i in range(-rank, 0):
        dims = {s[i] for s in known if len(s) >= -i} - {1}
        sizes = dims - {None}
        out.append(1 if not dims else sizes.pop() if len(sizes) == 1 else None)
    return tuple(out)


def matmul(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of a matrix product with numpy's rules for leading axes."""
    if a is None or b is None or not a or not b:
        return None
    if len(a) == 1 and len(b) == 1:
        return ()
    if len(a) == 1:
        return (*b[:-2], b[-1])
    if len(b) == 1:
        return a[:-1]
    lead = broadcast(a[:-2], b[:-2])
    return None if lead is None else (*lead, a[-2], b[-1])


def _ints(fact: Fact | None) -> list[int] | None:
    return None if fact is None or fact.value is None else [int(v) for v in np.asarray(fact.value).ravel()]


def _reshape(node: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    target = _ints(x[1]) if len(x) > 1 else [int(v) for v in a.get("shape", [])]
    source = x[0].shape
    if target is None:
        rank = x[1].shape[0] if x[1].shape else None
        return [None if rank is None else (None,) * rank]
    if any(n == 0 for n in target) and not a.get("allowzero"):
        if source is None:
            out0: Shape = tuple(None if n in (0, -1) else n for n in target)
            return [out0]
        target = [n if n else (source[i] if i < len(source) else None) for i, n in enumerate(target)]  # type: ignore[misc]
    out: list[int | None] = [None if n == -1 else n for n in target]
    if -1 in target and source is not None and None not in source and target.count(-1) == 1:
        rest = [n for n in target if n != -1]
        if None not in rest:
            known = int(np.prod(np.array(rest, dtype=object))) if rest else 1
            total = int(np.prod(np.array(source, dtype=object))) if source else 1
            out[target.index(-1)] = total // known if known and total % known == 0 else None
    return [tuple(out)]


def _transpose(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    if s is None:
        return [None]
    perm = a.get("perm") or range(len(s))[::-1]
    return [tuple(s[i] for i in perm)]


def _axes(a: dict[str, Any], x: Sequence[Fact], at: int = 1) -> list[int] | None:
    if len(x) > at:
        return _ints(x[at])
    return [int(i) for i in a["axes"]] if "axes" in a else None


def _unsqueeze(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, axes = x[0].shape, _axes(a, x)
    if s is None or axes is None:
        return [None]
    out: list[int | None] = list(s)
    rank = len(s) + len(axes)
    for i in sorted(i % rank for i in axes):
        out.insert(i, 1)
    return [tuple(out)]


def _squeeze(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, axes = x[0].shape, _axes(a, x)
    if s is None:
        return [None]
    drop = {i % len(s) for i in axes} if axes is not None else {i for i, d in enumerate(s) if d == 1}
    return [tuple(d for i, d in enumerate(s) if i not in drop)]


def _concat(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    shapes = [f.shape for f in x]
    ranks = {len(s) for s in shapes if s is not None}
    if len(ranks) != 1:
        return [None]
    rank = ranks.pop()
    axis = a.get("axis", 0) % rank
    out: list[int | None] = []
    for i in range(rank):
        sizes = [s[i] if s is not None else None for s in shapes]
        if i == axis:
            out.append(None if None in sizes else sum(n for n in sizes if n is not None))
        else:
            out.append(next((n for n in sizes if n is not None), None))
    return [tuple(out)]


def _bound(end: int) -> int | None:
    """A Slice's end; exporters write int64's extremes for "to the very end"."""
    return None if abs(end) >= 1 << 60 else end


def _slice(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    if s is None:
        return [None]
    if len(x) > 1:
        starts, ends = _ints(x[1]), _ints(x[2])
        count = x[1].shape[0] if x[1].shape else 1
        axes = _ints(x[3]) if len(x) > 3 and x[3].shape is not None else list(range(count or 1))
        steps = _ints(x[4]) if len(x) > 4 and x[4].shape is not None else None
    else:
        starts, ends = list(a["starts"]), list(a["ends"])
        axes, steps = list(a.get("axes", range(len(starts)))), None
    out: list[int | None] = list(s)
    if axes is None:
        return [(None,) * len(s)]
    for i, axis in enumerate(axes):
        size, step = s[axis], steps[i] if steps else 1
        if size is None or starts is None or ends is None:
            out[axis] = None
        else:
            out[axis] = len(range(*slice(starts[i], _bound(ends[i]), step).indices(size)))
    return [tuple(out)]


def _split(node: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, n = x[0].shape, len(node.output)
    if s is None:
        return [None] * n
    axis = a.get("axis", 0) % len(s)
    sizes: list[int | None]
    if len(x) > 1 and x[1].shape is not None:
        given = _ints(x[1])
        sizes = list(given) if given is not None else [None] * n
    elif "split" in a:
        sizes = list(a["split"])
    elif s[axis] is None:
        sizes = [None] * n
    else:
        size = int(s[axis] or 0)
        part = -(-size // n)
        sizes = [*[part] * (n - 1), size - part * (n - 1)]
    return [(*s[:axis], d, *s[axis + 1 :]) for d in sizes]


def _gather(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, i = x[0].shape, x[1].shape
    if s is None or i is None:
        return [None]
    axis = a.get("axis", 0) % max(len(s), 1)
    return [(*s[:axis], *i, *s[axis + 1 :])]


def _expand(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    target = _ints(x[1])
    if target is None:
        rank = x[1].shape[0] if x[1].shape else None
        return [None if rank is None or x[0].shape is None else (None,) * max(rank, len(x[0].shape))]
    return [broadcast(x[0].shape, tuple(target))]


def _tile(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, times = x[0].shape, _ints(x[1])
    if s is None:
        return [None]
    return [tuple(None if d is None or times is None else d * times[i] for i, d in enumerate(s))]


def _reduce(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    axes = _axes(a, x)
    if s is None or (len(x) > 1 and x[1].shape is not None and axes is None):
        return [None]
    drop = {i % len(s) for i in axes} if axes else set() if a.get("noop_with_empty_axes") else set(range(len(s)))
    if a.get("keepdims", 1):
        return [tuple(1 if i in drop else d for i, d in enumerate(s))]
    return [tuple(d for i, d in enumerate(s) if i not in drop)]


def _arg(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    if s is None:
        return [None]
    axis = a.get("axis", 0) % len(s)
    keep: tuple[int, ...] = (1,) if a.get("keepdims", 1) else ()
    return [(*s[:axis], *keep, *s[axis + 1 :])]


def _gemm(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    p, q = x[0].shape, x[1].shape
    if p is None or q is None or len(p) != 2 or len(q) != 2:
        return [None]
    return [(p[1] if a.get("transA") else p[0], q[0] if a.get("transB") else q[1])]


def _einsum(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    equation = a["equation"].replace(" ", "")
    if "->" not in equation:
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


def _conv(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
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


def _pad(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    pads = _ints(x[1]) if len(x) > 1 else a.get("pads")
    if s is None or pads is None or (len(x) > 3 and x[3].shape is not None) or len(pads) != 2 * len(s):
        return [None if s is None else (None,) * len(s)]
    return [tuple(None if d is None else d + pads[i] + pads[i + len(s)] for i, d in enumerate(s))]


def _range(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    v = [f.value for f in x]
    if any(p is None for p in v):
        return [(None,)]
    start, stop, step = (np.asarray(p).item() for p in v)
    return [(max(0, -int(-(stop - start) // step)),)]


def _flatten(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    if s is None or None in s:
        return [(None, None)]
    axis = a.get("axis", 1)
    axis = axis + len(s) if axis < 0 else axis
    sizes = [int(d) for d in s if d is not None]
    return [(int(np.prod(sizes[:axis])), int(np.prod(sizes[axis:])))]


def _constant_of_shape(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    target = _ints(x[0])
    if target is None:
        return [(None,) * x[0].shape[0] if x[0].shape and x[0].shape[0] is not None else None]
    return [tuple(target)]


def _one_hot(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, depth = x[0].shape, _ints(x[1])
    if s is None:
        return [None]
    axis = a.get("axis", -1)
    axis = axis + len(s) + 1 if axis < 0 else axis
    return [(*s[:axis], depth[0] if depth else None, *s[axis:])]


def _top_k(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, k = x[0].shape, _ints(x[1]) if len(x) > 1 else [a.get("k", 1)]
    if s is None:
        return [None, None]
    axis = a.get("axis", -1) % len(s)
    out = (*s[:axis], k[0] if k else None, *s[axis + 1 :])
    return [out, out]


def _gather_nd(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, i, batch = x[0].shape, x[1].shape, a.get("batch_dims", 0)
    if s is None or i is None or i[-1] is None:
        return [None]
    return [(*i[:-1], *s[batch + i[-1] :])]


def _lstm(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
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
    "Cast CastLike Identity Dropout Relu LeakyRelu Sigmoid Tanh Erf Gelu FastGelu QuickGelu Softmax "
    "LogSoftmax Sqrt Exp Log Neg Abs Sign Not Floor Ceil Round Reciprocal Sin Cos IsNaN IsInf Clip "
    "LayerNormalization RMSNormalization SimplifiedLayerNormalization InstanceNormalization "
    "GroupNormalization BatchNormalization LpNormalization Elu Selu Softplus HardSigmoid HardSwish Mish "
    "Trilu CumSum QuantizeLinear DequantizeLinear ScatterND ScatterElements DynamicQuantizeLinear "
    "BiasSoftmax QLinearSoftmax QLinearSigmoid RotaryEmbedding Hardmax Swish BiasDropout"
).split()
SHAPES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_SAME, _like()),
    **dict.fromkeys(("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL2", "ReduceL1",
                     "ReduceSumSquare", "ReduceLogSumExp"), _reduce),
    "MatMul": lambda _n, _a, x: [matmul(x[0].shape, x[1].shape)],
    "MatMulInteger": lambda _n, _a, x: [matmul(x[0].shape, x[1].shape)],
    "MatMulIntegerToFloat": lambda _n, _a, x: [matmul(x[0].shape, x[1].shape)],
    "DynamicQuantizeMatMul": lambda _n, _a, x: [matmul(x[0].shape, x[1].shape)],
    "QLinearMatMul": lambda _n, _a, x: [matmul(x[0].shape, x[3].shape)],
    "Gemm": _gemm, "FusedGemm": _gemm, "Einsum": _einsum,
    "Reshape": _reshape, "Transpose": _transpose, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Concat": _concat,
    "Slice": _slice, "Split": _split, "Gather": _gather, "GatherElements": _like(1), "GatherND": _gather_nd,
    "Expand": _expand, "Tile": _tile, "Pad": _pad, "Range": _range, "Flatten": _flatten, "Shape": _shape_op,
    "ConstantOfShape": _constant_of_shape, "OneHot": _one_hot, "TopK": _top_k, "ArgMax": _arg, "ArgMin": _arg,
    "Conv": _conv, "ConvInteger": _conv, "LSTM": _lstm, "ReorderInput": _like(),
    "LongformerAttention": _like(), "PackedMultiHeadAttention": _like(),
}  # fmt: skip

_BOOL = frozenset(("Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor Not IsNaN IsInf").split())
_INT64 = frozenset({"Shape", "Size", "ArgMax", "ArgMin", "NonZero"})


def infer_shape(graph: Graph, node: NodeProto, inputs: Sequence[Fact]) -> list[Fact]:
    """Facts (shape and type, no numbers) of a node's outputs; unknown ones where no rule fits."""
    from attnx.graph.infer import UNKNOWN, Fact
    from attnx.graph.shapes_ort import SHAPES as ORT_SHAPES

    rule = SHAPES.get(node.op_type) or ORT_SHAPES.get(node.op_type)
    if rule is None or not inputs:
        known = None
        if inputs and node.domain in ("", "ai.onnx"):
            from attnx.graph.schema_shapes import infer_by_schema

            known = infer_by_schema(graph, node, inputs)
        return known if known is not None else [UNKNOWN] * len(node.output)
    a = attributes(node)
    try:
        shapes = rule(node, a, inputs)
    except (IndexError, TypeError, ValueError, KeyError, ZeroDivisionError):
        shapes = [None] * len(node.output)  # a malformed or unforeseen form: unknown, onnxruntime will have the say
    dtype = _dtype(node, a, inputs)
    shapes = list(shapes) + [None] * (len(node.output) - len(shapes))
    facts = [Fact(shape, dtype) for shape in shapes]
    if node.op_type == "DynamicQuantizeLinear":
        facts = [Fact(shapes[0], 2), Fact((), 1), Fact((), 2)]
    return facts


def _dtype(node: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> int | None:
    op = node.op_type
    if op in _BOOL:
        return 9
    if op in _INT64:
        return 7
    if op == "Cast":
        return int(a["to"])
    if op in ("MatMulInteger", "ConvInteger"):
        return 6
    if op in ("CastLike", "Where", "DequantizeLinear", "MatMulIntegerToFloat") and len(x) > 1:
        return x[2].dtype if op == "MatMulIntegerToFloat" and len(x) > 2 else x[1].dtype
    if op == "QuantizeLinear":
        return x[2].dtype if len(x) > 2 and x[2].dtype else int(a.get("output_dtype") or 2)
    if op in ("ConstantOfShape", "OneHot"):
        return (a["value"].data_type if "value" in a else 1) if op == "ConstantOfShape" else x[2].dtype
    if op in ("EmbedLayerNormalization", "QEmbedLayerNormalization"):
        return next((f.dtype for f in x if f.dtype in (1, 10, 16)), None)
    if op in ("QAttention",):
        return x[3].dtype
    return x[0].dtype
