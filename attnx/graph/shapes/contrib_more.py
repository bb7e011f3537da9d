"""Shapes of onnxruntime's remaining operators, so that none of them hides the attention that comes after it.

None stands for a size that is known only at run time: the number of non-padding tokens, the length of a search result.
Source: onnxruntime 1.31 contrib operator schemas; a test holds these rules to what onnxruntime itself infers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnx.graph.fact import Fact, ints
from attnx.graph.shapes.arithmetic import Rule, broadcast, last_of, like, matmul, number_of, of, resized
from attnx.graph.shapes.rules import conv, gemm, lstm, reduce

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.fact import Shape


def _stretched(*at: int) -> Rule:
    return lambda _n, _a, x: [broadcast(*(x[i].shape for i in at))]


def _to_rows(_: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    """A product with a weight that is stored output by output, [N, ...]."""
    weight = x[1].shape
    return [resized(x[0].shape, weight[0] if weight else None)]


def _matmul(_: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    return [matmul(x[0].shape, x[1].shape)]


def _packed_by_shape(_: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    held = ints(x[2])
    return [matmul(x[0].shape, None if held is None else tuple(held))]


def _bnb4(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    return [resized(x[0].shape, a["N"] if a.get("transB", 1) else a["K"])]


def _nbits_qkv(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    return [*(resized(x[0].shape, a[n]) for n in ("Nq", "Nkv", "Nkv")), x[0].shape]


def _nbits_mlp(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    return [resized(x[0].shape, a["N"]), x[0].shape]


def _quantised_gemm(n: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    return gemm(n, a, [x[0], x[3]])


def _nhwc(rule: Rule, *at: int) -> Rule:
    """Turn a rule for channels on the second axis into one for channels on the last axis."""

    def turned(n: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:

        s = x[0].shape
        if s is None:
            return [None]
        (out,) = rule(n, a, [Fact((s[0], s[-1], *s[1:-1])), *(x[i] for i in at)])
        return [None if out is None else (out[0], *out[2:], out[1])]

    return turned


def _by_layout(rule: Rule, *at: int) -> Rule:
    """Channels are last where the attribute says so."""
    last = _nhwc(rule, *at)
    return lambda n, a, x: last(n, a, x) if a.get("channels_last") else rule(n, a, [x[0], *(x[i] for i in at)])


def _pool(n: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    """A pool over a kernel: a convolution that keeps its channels."""
    s, kernel = x[0].shape, a["kernel_shape"]
    if s is None:
        return [None]
    if a.get("ceil_mode"):
        return [(*s[:2], *(None for _ in kernel))]
    return conv(n, a, [x[0], Fact((s[1], 1, *kernel))])


def _global_pool(_: NodeProto, _a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    return [None if s is None else (*s[:2], *(1 for _ in s[2:]))]


def _unpooled(_: NodeProto, _a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    """Only the rank, because the sizes depend on numbers."""
    s, w = x[0].shape, x[1].shape
    return [None if s is None or w is None else (s[0], None, *(None for _ in s[2:]))]


def _rfft(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    return [None if s is None else (*resized(s, None if s[-1] is None else s[-1] // 2 + 1), 2)]  # type: ignore[misc]


def _irfft(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    return [None if s is None else (*s[:-2], None if s[-2] is None else 2 * (s[-2] - 1))]


def _unfold(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    if s is None:
        return [None]
    at, size, step = a.get("dim", -1) % len(s), a["size"], a.get("step", 1)
    length = s[at]
    return [(*s[:at], None if length is None else (length - size) // step + 1, *s[at + 1 :], size)]


def _expand_dims(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, at = x[0].shape, number_of(x, 1)
    if s is None or at is None:
        return [None if s is None else (None,) * (len(s) + 1)]
    at = at if at >= 0 else at + len(s) + 1
    return [(*s[:at], 1, *s[at:])]


def _grid_sample(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, grid = x[0].shape, x[1].shape
    return [None if s is None or grid is None else (*s[:2], *grid[1:-1])]


def _crops(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, boxes, size = x[0].shape, x[1].shape, ints(x[3])
    return [None if s is None or boxes is None else (boxes[0], s[1], *(size or (None, None)))]


def _gathered(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    """Rows of an integer table; one byte may hold several values along the last axis."""
    s, index = x[0].shape, x[1].shape
    if s is None or index is None:
        return [None]
    if x[0].dtype == 2 and s[-1] is not None:
        s = (*s[:-1], s[-1] * (8 // a.get("bits", 4)))
    at = a.get("gather_axis", 0) % len(s)
    return [(*s[:at], *index, *s[at + 1 :])]


def _quantised_concat(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    shapes = [f.shape for f in x[2::3]]
    first = shapes[0]
    if first is None:
        return [None]
    at = a["axis"] % len(first)
    sizes = [None if s is None else s[at] for s in shapes]
    return [(*first[:at], None if None in sizes else sum(n for n in sizes if n is not None), *first[at + 1 :])]


def _quantised_reduce(n: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    return reduce(n, a, x[:1])


def _halved(_: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    wide = last_of(x[0].shape)
    return [resized(x[0].shape, None if wide is None else wide // 2)]


def _distances(_: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    a, b = x[0].shape, x[1].shape
    return [None if a is None or b is None else (a[0], b[0])]


def _looked_up(_: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    return [None if x[1].shape is None else (*x[1].shape, last_of(x[0].shape))]


def _words(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    """One vector per word, from a convolution over its letters: as wide as the convolution has filters."""
    return [resized(x[0].shape, None if x[1].shape is None else x[1].shape[0])]


def _upsampled(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, scales = x[0].shape, a.get("scales") or []
    if s is None or len(scales) != len(s):
        return [None if s is None else (*s[:2], *(None for _ in s[2:]))]
    return [tuple(None if d is None else d * int(k) for d, k in zip(s, scales, strict=True))]


def _raw(_: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    rank: Shape | None = None if x[0].shape is None else (len(x[0].shape),)
    return [(None,), rank, rank]


def _held(_: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    held = ints(x[1])
    return [None if held is None else tuple(held)]


_SAME = (
    "BiasAdd BitmaskBiasDropout BitmaskDropout DequantizeWithOrder GatedAdd GroupNorm Inverse MurmurHash3 "
    "QLinearLeakyRelu QOrderedGelu QOrderedLayerNormalization QuantizeWithOrder SampleOp ScaledSiLU"
).split()
SHAPES: dict[str, Rule] = {
    **dict.fromkeys(_SAME, like(0)),
    **dict.fromkeys(("AttnLSTM", "DynamicQuantizeLSTM"), lstm),
    **dict.fromkeys(("ComplexMul", "ComplexMulConj"), _stretched(0, 1)),
    **dict.fromkeys(("MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight"), of(_to_rows)),
    **dict.fromkeys(("MatMulInteger16", "GemmFastGelu", "SparseToDenseMatMul"), of(_matmul)),
    **dict.fromkeys(("NhwcConv", "NhwcFusedConv"), _nhwc(conv, 1)),
    "BiasSplitGelu": of(_halved), "BifurcationDetector": of(lambda _a, _x: [(None,), ()]), "CDist": of(_distances),
    "ConvTransposeWithDynamicPads": _unpooled, "CropAndResize": of(_crops), "DequantizeBFP": of(_held),
    "DynamicTimeWarping": of(lambda _a, _x: [(2, None)]), "ExpandDims": of(_expand_dims), "FusedConv": conv,
    "GatherBlockQuantized": of(_gathered), "GemmFloat8": gemm, "GridSample": of(_grid_sample), "Irfft": of(_irfft),
    "IsAllFinite": of(lambda _a, _x: [()]), "MatMulBnb4": of(_bnb4), "MatMulFpQ4": of(_packed_by_shape),
    "MatMulNBitsMlp": of(_nbits_mlp), "MatMulNBitsQkv": of(_nbits_qkv), "MaxpoolWithMask": _pool,
    "MulInteger": _stretched(0, 2), "NhwcMaxPool": _nhwc(_pool), "QGemm": _quantised_gemm,
    "QLinearAveragePool": _by_layout(_pool), "QLinearConcat": of(_quantised_concat),
    "QLinearConv": _by_layout(conv, 3), "QLinearGlobalAveragePool": _by_layout(_global_pool),
    "QLinearReduceMean": _quantised_reduce, "QLinearWhere": _stretched(0, 1, 4),
    "QOrderedMatMul": of(lambda _a, x: [matmul(x[0].shape, x[2].shape)]), "QuantizeBFP": of(_raw),
    "ReduceSumInteger": reduce, "Rfft": of(_rfft), "SkipGroupNorm": like(0, 0),
    "Tokenizer": of(lambda _a, x: [None if x[0].shape is None else (*x[0].shape, None)]),
    "TorchEmbedding": of(_looked_up), "UnfoldTensor": of(_unfold),
    "Unique": of(lambda _a, x: [(None,), x[0].shape, (None,)]), "WordConvEmbedding": of(_words),
}  # fmt: skip
"""EPContext and Snpe stand for what another program computes: that program decides the shapes of their outputs."""
BLOCKED: dict[str, Rule] = {
    "AveragePool": _pool, "GlobalAveragePool": _global_pool, "GlobalMaxPool": _global_pool, "MaxPool": _pool,
    "Upsample": of(_upsampled),
}  # fmt: skip
"""Operators of the blocked layout (com.microsoft.nchwc), whose tensors are described in ONNX's axis order."""
TYPED: dict[str, int | str] = {
    "DequantizeBFP": 1, "DequantizeWithOrder": 1, "DynamicTimeWarping": 6, "IsAllFinite": 9, "MatMulInteger16": 6,
    "MulInteger": 6, "MurmurHash3": 12, "QuantizeBFP": 2, "QuantizeWithOrder": 3,
    "GatherBlockQuantized": "2", "GemmaRotaryEmbedding": "1", "NGramRepeatBlock": "1", "QLinearConcat": "1",
    "QLinearConv": "7", "QLinearWhere": "1", "SparseToDenseMatMul": "1", "PackedSparseAttentionIndexer": 6,
    "SparseAttentionIndexer": 6, "WordConvEmbedding": "1",
}  # fmt: skip
"""The type of the first output: ONNX's number, or (quoted) the position of the input it shares; else the first's."""


def type_of(node: NodeProto, x: Sequence[Fact]) -> int | None:
    """ONNX's data type of the first output of one of onnxruntime's own operators."""
    if node.op_type == "QGemm":  # floats, unless it is told how to round them again
        return x[8].dtype if len(x) > 8 else 1
    known = TYPED.get(node.op_type, "0")
    return known if isinstance(known, int) else x[int(known)].dtype
