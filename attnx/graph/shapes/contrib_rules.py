"""Shapes of the operators that onnxruntime adds to ONNX's, and of ONNX's own Attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnx.graph.fact import Fact, Shape
from attnx.graph.shapes.arithmetic import Rule, matmul

if TYPE_CHECKING:
    from onnx import NodeProto


def _fused_matmul(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    def turned(s: Shape | None, swap: bool, lead: bool) -> Shape | None:
        if s is None or len(s) < 2:
            return s
        if lead:  # transBatch: the first axis moves to just before the last
            s = (*s[1:-1], s[0], s[-1])
        return (*s[:-2], s[-1], s[-2]) if swap else s

    return [
        matmul(
            turned(x[0].shape, bool(a.get("transA")), bool(a.get("transBatchA"))),
            turned(x[1].shape, bool(a.get("transB")), bool(a.get("transBatchB"))),
        )
    ]


def _nbits(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    return [None if s is None else (*s[:-1], a.get("N"))]


def _embed(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    ids, table = x[0].shape, x[2].shape
    if ids is None or table is None:
        return [None]
    out = (*ids, table[-1])
    return [out, (ids[0],), out]


def _skip_norm(node: NodeProto, _: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    return [x[0].shape, None, None, x[0].shape][: max(1, len(node.output))]


def _fused_attention(node: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    """The fused attention operators: the first output is [B,Q,H*Dv] (4D: like the query with the value's size)."""
    q = x[0].shape
    if q is None:
        return [None] * len(node.output)
    out: Shape | None = q
    v = x[2].shape if len(x) > 2 else None
    if node.op_type in ("Attention", "QAttention") and node.domain == "com.microsoft":
        w = x[1].shape
        sizes = a.get("qkv_hidden_sizes")
        last = sizes[2] if sizes else (w[-1] // 3 if w is not None and w[-1] is not None else None)
        out = (q[0], q[1], last)
    elif node.op_type == "GroupQueryAttention" and len(q) == 3 and (len(x) < 2 or x[1].shape is None):
        heads, kv = a.get("num_heads", 1), a.get("kv_num_heads", 1)
        out = (q[0], q[1], None if q[2] is None else q[2] * heads // (heads + 2 * kv))
    elif len(q) == 5:
        out = (q[0], q[1], None if q[2] is None or q[4] is None else q[2] * q[4])
    elif len(q) == 4 and v is not None:
        out = (*q[:3], v[-1])
    elif len(q) == 3 and v is not None and node.op_type != "GroupQueryAttention":
        if len(v) == 4:
            out = (q[0], q[1], None if v[1] is None or v[3] is None else v[1] * v[3])
        elif node.domain in ("", "ai.onnx"):
            heads, kv = a.get("q_num_heads") or 1, a.get("kv_num_heads") or 1
            out = (q[0], q[1], None if v[2] is None else v[2] // kv * heads)
        else:
            out = (q[0], q[1], v[2])
    return [out] + [None] * (len(node.output) - 1)


def _reorder(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    """The blocked layout that onnxruntime's saved graphs move convolutions into and out of."""
    s = x[0].shape
    if s is None or len(s) != 4:
        return [None]
    if a.get("channels_last"):
        return [(s[0], s[2], s[3], a.get("channels", s[1]))]
    return [(s[0], a.get("channels", s[1]), *s[2:])]


SHAPES: dict[str, Rule] = {
    **dict.fromkeys(("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul"), _fused_matmul),
    **dict.fromkeys(("EmbedLayerNormalization", "QEmbedLayerNormalization"), _embed),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_norm),
    **dict.fromkeys(
        ("Attention", "QAttention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention",
         "SparseAttention"),
        _fused_attention,
    ),
    "MatMulNBits": _nbits,
    "ReorderOutput": _reorder,
}  # fmt: skip
