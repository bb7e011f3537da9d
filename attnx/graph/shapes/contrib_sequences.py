"""Shapes of onnxruntime's own operators around attention: attention itself, recurrences, indexers, searches.

None stands for a size that is known only at run time: the number of non-padding tokens, the length of a search result.
Source: onnxruntime 1.31 contrib operator schemas; a test holds these rules to what onnxruntime itself infers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnx.graph.shapes.arithmetic import Of, Rule, last_of, like, number_of, of, resized

if TYPE_CHECKING:
    from attnx.graph.fact import Fact, Shape


def _position_bias(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    return [(1, last_of(x[0].shape), number_of(x, 1), number_of(x, 2))]


def _gated_bias(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, place = x[0].shape, x[2].shape
    offset = x[6].shape if len(x) > 6 else None
    batch = offset[0] if offset else s[0] if s is not None and len(s) == 3 else None
    return [None if place is None else (batch, *place[1:])]


def _packed_attention(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    sizes, wide = a.get("qkv_hidden_sizes"), last_of(x[1].shape)
    return [resized(x[0].shape, sizes[2] if sizes else None if wide is None else wide // 3)]


def _masked_self(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    wide, past = last_of(x[1].shape), x[4].shape
    room = None if past is None else past if a.get("past_present_share_buffer") else (*past[:3], None, past[-1])
    return [resized(x[0].shape, None if wide is None else wide // 3), room]


def _cache(shape: Shape | None) -> Shape | None:
    """A cache that may have grown along its tokens, [B,H,M,D]."""
    return None if shape is None or len(shape) != 4 else (*shape[:2], None, shape[3])


def _decoder_attention(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, heads = x[0].shape, a["num_heads"]
    wide = last_of(s)
    cache: Shape | None = None if s is None else (s[1], heads, None, None if wide is None else wide // heads)
    return [s, cache, cache]


def _packed_query(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    """[tokens, H*D] of a query, or of query, key and value packed into one."""
    heads, kv = a["num_heads"], a["kv_num_heads"]
    whole, wide = x[0].shape, last_of(x[0].shape)
    if wide is not None and (len(x) < 2 or x[1].shape is None) and not a.get("v_head_size"):
        wide = wide * heads // (heads + 2 * kv)
    if a.get("v_head_size"):
        wide = heads * a["v_head_size"]
    return [resized(whole, wide)]


def _paged(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    return [*_packed_query(a, x), x[3].shape, x[4].shape if len(x) > 4 else None]


def _dynamic_sparse(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    return [*_packed_query(a, x), _cache(x[3].shape), _cache(x[4].shape)]


def _linear_attention(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    heads, kv = a["q_num_heads"], a["kv_num_heads"]
    k, v = last_of(x[1].shape), last_of(x[2].shape)
    size = None if v is None else v // kv
    s, window = x[0].shape, a.get("state_window", 0)
    state: Shape = (None if s is None else s[0], kv, None if k is None else k // kv, size)
    return [resized(s, None if size is None else max(heads, kv) * size), (window, *state) if window else state]


def _delta_net(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    state = x[6].shape if len(x) > 6 else None
    q, v = x[0].shape, x[2].shape if len(x) > 2 else None
    if q is None or v is None:
        return [None, state]
    heads = None if q[-2] is None or v[-2] is None else max(q[-2], v[-2])
    return [resized(q, heads, v[-1]), state or (None, v[-2], v[-1], q[-1])]


def _causal_conv(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, w = x[0].shape, x[1].shape
    if len(x) > 3 and x[3].shape is not None:
        return [s, x[3].shape]
    if s is None or w is None or w[-1] is None or a.get("state_window"):
        return [s, None]
    kept = (w[-1] - 1) * a.get("dilation", 1)
    return [s, (s[0], kept, *s[2:]) if a.get("channels_last") else (*s[:-1], kept)]


def _pre_mix(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, count = x[0].shape, a.get("num_branches", 0)
    if s is None:
        return [None]
    return [resized(s, None if s[-1] is None else s[-1] // count) if count else (*s[:-2], s[-1])]


def _indexer(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    some = a.get("index_topk") or a.get("token_budget", 0) + a["compress_ratio"] - 1
    packed = len(x) > 12 and s is not None and len(s) == 2
    chosen = resized(s, some)
    if packed and s is not None:
        return [chosen, (s[0],), *(x[i].shape if i < len(x) else None for i in (12, 13, 14, 15))]
    past = x[7].shape
    return [chosen, None if past is None else (past[0], None, *past[2:]), None]


def _hashes(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, orders = x[0].shape, a["max_ngram_size"] - 1
    return [None if s is None else (*s, orders * a["n_head_per_ngram"]), None if s is None else (s[0], orders)]


def _removed(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    if s is None:
        return [(None, None), None, None, (1,)]
    return [(None, s[-1]), s[:2], (None if s[0] is None else s[0] + 1,), (1,)]


def _restored(a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    return [None if x[1].shape is None else (*x[1].shape, last_of(x[0].shape))]


def _written(beams: bool) -> Of:
    """The output of a search: [B,(sequences,)length], with the length up to the maximum it may write."""

    def rule(_: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
        s, most = x[0].shape, number_of(x, 1)
        batch = None if s is None else s[0]
        if not beams:
            return [(batch, most), (batch, None)]
        count = number_of(x, 4)
        return [(batch, count, most), (batch, count), (None,) * 4]

    return rule


SHAPES: dict[str, Rule] = {
    **dict.fromkeys(("GreedySearch", "Sampling"), of(_written(beams=False))),
    **dict.fromkeys(("BeamSearch", "WhisperBeamSearch"), of(_written(beams=True))),
    **dict.fromkeys(("PagedAttention", "SparsePagedAttention"), of(_paged)),
    **dict.fromkeys(("SparseAttentionIndexer", "PackedSparseAttentionIndexer"), of(_indexer)),
    **dict.fromkeys(("NGramHashMapping", "VarlenNGramHashMapping"), of(_hashes)),
    **dict.fromkeys(("BranchwiseRMSNorm", "GatedRMSNorm", "HyperConnectionPostMix", "MRotaryEmbedding"), like(0)),
    **dict.fromkeys(("MoE", "QMoE", "QOrderedLongformerAttention"), like(0)),
    "CausalConvWithState": of(_causal_conv), "VarlenCausalConvWithState": like(0, 4),
    "DecoderAttention": of(_decoder_attention), "DecoderMaskedSelfAttention": of(_masked_self),
    "DynamicSparseAttention": of(_dynamic_sparse), "EngramGate": like(0, 0), "GatedDeltaNet": of(_delta_net),
    "GatedRelativePositionBias": of(_gated_bias), "GemmaRotaryEmbedding": like(1, 3),
    "HyperConnectionPreMix": of(_pre_mix), "LinearAttention": of(_linear_attention),
    "LinearAttentionGate": like(0, 3), "NGramRepeatBlock": like(1), "PackedAttention": of(_packed_attention),
    "QOrderedAttention": of(lambda _a, x: [resized(x[0].shape, last_of(x[7].shape))]),
    "RelativePositionBias": of(_position_bias), "RemovePadding": of(_removed), "RestorePadding": of(_restored),
}  # fmt: skip
