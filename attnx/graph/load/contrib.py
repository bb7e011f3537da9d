"""What onnxruntime's own operators (com.microsoft) must have: required inputs, attributes and their types.

onnx has no schema for them. One line per operator: the positions of its required inputs, then its attributes as
NAME:TYPE, with "!" where the attribute is required. A test checks this table against the installed onnxruntime.
Source: onnxruntime 1.31 contrib operator schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

TYPES = {"f": 1, "i": 2, "s": 3, "t": 4, "g": 5, "fs": 6, "is": 7, "ss": 8}
"""How a type is written in this file -> AttributeProto.AttributeType."""

_CONTRIB: Mapping[str, str] = {
    "Attention": (
        "0,1 num_heads:i! do_rotary:i mask_filter_value:f past_present_share_buffer:i qkv_hidden_sizes:is "
        "rotary_embedding_dim:i scale:f unidirectional:i "
    ),
    "AttnLSTM": (
        "0,1,2 activation_alpha:fs activation_beta:fs activations:ss clip:f direction:s hidden_size:i input_forget:i "
    ),
    "BeamSearch": (
        "0,1,3,4 decoder:g! eos_token_id:i! pad_token_id:i! decoder_start_token_id:i early_stopping:i "
        "encoder:g init_decoder:g model_type:i no_repeat_ngram_size:i vocab_size:i "
    ),
    "BiasAdd": "0,1,2",
    "BiasDropout": "0,1 seed:i",
    "BiasGelu": "0,1",
    "BiasSoftmax": "0,1 is_inner_broadcast:i! axis:i",
    "BiasSplitGelu": "0,1",
    "DecoderAttention": "0,1,2,3,4,8,9,10,11 num_heads:i! mask_filter_value:f",
    "DecoderMaskedMultiHeadAttention": (
        "0 num_heads:i! mask_filter_value:f output_qk:i past_present_share_buffer:i scale:f "
    ),
    "DecoderMaskedSelfAttention": (
        "0,1,2,4,6 num_heads:i! do_rotary:i mask_filter_value:f past_present_share_buffer:i scale:f "
    ),
    "DequantizeLinear": "0,1 axis:i",
    "DynamicQuantizeMatMul": "0,1,2",
    "DynamicSparseAttention": (
        "0,7,8,9,10 kv_num_heads:i! num_heads:i! attention_mode:s auxiliary_kv_shared:i do_rotary:i "
        "is_causal:i local_window_size:i qk_norm_epsilon:f rotary_interleaved:i rotary_offset:i scale:f "
        "selected_kv_source:s smooth_softmax:i "
    ),
    "EPContext": (
        " embed_mode:i ep_cache_context:s ep_sdk_version:s hardware_architecture:s main_context:i max_size:i "
        "notes:s onnx_model_filename:s partition_name:s source:s "
    ),
    "EmbedLayerNormalization": "0,2,3,5,6 epsilon:f mask_index_type:i",
    "FastGelu": "0",
    "FusedGemm": (
        "0,1 activation:s activation_alpha:f activation_beta:f activation_gamma:f alpha:f beta:f transA:i transB:i "
    ),
    "FusedMatMul": "0,1 alpha:f transA:i transB:i transBatchA:i transBatchB:i",
    "FusedMatMulActivation": (
        "0,1 activation:s! activation_alpha:f activation_axis:i activation_beta:f activation_gamma:f alpha:f "
        "transA:i transB:i transBatchA:i transBatchB:i "
    ),
    "GatedDeltaNet": (
        "0 beta_activation:s chunk_size:i gate_activation:s qk_l2_norm:i scale:f state_update_capacity:i update_rule:s "
    ),
    "GatedRelativePositionBias": "0,1,2,3,4,5 num_heads:i!",
    "GatherND": "0,1",
    "Gelu": "0",
    "GemmFastGelu": "0,1",
    "GemmaRotaryEmbedding": "0,1,2,3,4",
    "GreedySearch": (
        "0,1 decoder:g! eos_token_id:i! pad_token_id:i! decoder_start_token_id:i encoder:g init_decoder:g "
        "model_type:i no_repeat_ngram_size:i vocab_size:i "
    ),
    "GroupNorm": "0,1,2 activation:i! groups:i! channels_last:i epsilon:f",
    "GroupQueryAttention": (
        "0,5,6 kv_num_heads:i! num_heads:i! causal:i do_rotary:i k_quant_type:s kv_cache_bit_width:i "
        "local_window_size:i qk_norm_epsilon:f qk_output:i rotary_interleaved:i scale:f "
        "sliding_window_cache:i smooth_softmax:i softcap:f v_quant_type:s "
    ),
    "LinearAttention": "0,1,2 kv_num_heads:i! q_num_heads:i! chunk_size:i scale:f state_window:i update_rule:s",
    "LongformerAttention": "0,1,2,3,4,5,6 num_heads:i! window:i!",
    "MatMulIntegerToFloat": "0,1,2,3",
    "MatMulNBits": "0,1,2 K:i! N:i! block_size:i! accuracy_level:i bits:i weight_prepacked:i",
    "MultiHeadAttention": "0 num_heads:i! mask_filter_value:f scale:f unidirectional:i",
    "NhwcConv": "0,1 auto_pad:s dilations:is group:i kernel_shape:is pads:is strides:is",
    "PackedAttention": "0,1,2,3,4 num_heads:i! qkv_hidden_sizes:is scale:f",
    "PackedMultiHeadAttention": "0,4,5 num_heads:i! mask_filter_value:f scale:f",
    "PackedSparseAttentionIndexer": (
        "0,2,3,4,5,6,7,12,13,15 compress_ratio:i! policy_mode:s! state_capacity:i! epsilon:f "
        "head_weight_scale:f index_topk:i scale:f state_update_capacity:i token_budget:i "
    ),
    "Pad": "0,1 mode:s",
    "PagedAttention": (
        "0,3,5,6,7 kv_num_heads:i! num_heads:i! do_rotary:i is_causal:i k_cache_dtype:s k_quant_type:s "
        "kv_cache_layout:s local_window_size:i qk_norm_epsilon:f rotary_interleaved:i rotary_offset:i scale:f "
        "softcap:f v_cache_dtype:s v_head_size:i v_quant_type:s "
    ),
    "QAttention": (
        "0,1,2,3,4 num_heads:i! do_rotary:i mask_filter_value:f past_present_share_buffer:i scale:f unidirectional:i "
    ),
    "QEmbedLayerNormalization": "0,2,3,5,6,8,9,11,12,13,14,16,17 epsilon:f",
    "QLinearAdd": "0,1,3,4,6",
    "QLinearMul": "0,1,3,4,6",
    "QLinearSigmoid": "0,1,3",
    "QLinearSoftmax": "0,1,3,4 opset:i! axis:i",
    "QOrderedAttention": (
        "0,1,2,3,4,5,6,7,8,9,10,11,12,13,16 num_heads:i! order_input:i! order_output:i! order_weight:i! "
        "qkv_hidden_sizes:is unidirectional:i "
    ),
    "QOrderedLongformerAttention": (
        "0,1,2,3,4,5,6,7,8,9,10,11,12,13 num_heads:i! order_global_weight:i! order_input:i! order_output:i! "
        "order_weight:i! window:i! "
    ),
    "QuantizeLinear": "0,1 axis:i",
    "QuickGelu": "0 alpha:f",
    "Range": "0,1",
    "RelativePositionBias": "0,1,2 max_distance:i! is_bidirectional:i",
    "RemovePadding": "0,1",
    "RestorePadding": "0,1",
    "RotaryEmbedding": "0,1,2,3 interleaved:i is_packed_batching:i num_heads:i rotary_embedding_dim:i scale:f",
    "Sampling": (
        "0,1 decoder:g! eos_token_id:i! pad_token_id:i! custom:i decoder_start_token_id:i encoder:g "
        "filter_value:f init_decoder:g min_tokens_to_keep:i model_type:i no_repeat_ngram_size:i "
        "presence_penalty:f temperature:f top_p:f vocab_size:i "
    ),
    "SkipGroupNorm": "0,1,2,3 activation:i! groups:i! channels_last:i epsilon:f",
    "SkipLayerNormalization": "0,1,2 epsilon:f",
    "SkipSimplifiedLayerNormalization": "0,1,2 epsilon:f",
    "SparseAttention": (
        "0,3,4,5,6,7,8 kv_num_heads:i! num_heads:i! sparse_block_size:i! do_rotary:i rotary_interleaved:i scale:f "
    ),
    "SparseAttentionIndexer": (
        "0,2,3,4,5,7 compress_ratio:i! policy_mode:s! epsilon:f head_weight_scale:f index_topk:i scale:f "
        "token_budget:i "
    ),
    "SparsePagedAttention": (
        "0,3,4,5,6,7,9,10 kv_num_heads:i! num_heads:i! attention_mode:s auxiliary_cache_layout:s "
        "auxiliary_kv_shared:i do_rotary:i is_causal:i k_quant_type:s local_window_size:i qk_norm_epsilon:f "
        "rotary_interleaved:i rotary_offset:i scale:f selected_kv_source:s softcap:f v_quant_type:s "
    ),
    "Trilu": "0 upper:i",
    "WhisperBeamSearch": (
        "0,1,3,4 decoder:g! eos_token_id:i! pad_token_id:i! beginning_timestamp_token_id:i "
        "decoder_output_cross_qk:i decoder_start_token_id:i early_stopping:i encoder:g init_decoder:g "
        "model_type:i no_repeat_ngram_size:i no_speech_token_id:i no_timestamps_token_id:i "
        "start_of_lm_token_id:i transcribe_token_id:i translate_token_id:i vocab_size:i "
    ),
}


@dataclass(frozen=True)
class Demand:
    """What a node of one operator must have."""

    inputs: tuple[int, ...]
    """Positions of the inputs that must be named."""
    attributes: Mapping[str, tuple[int, bool]]
    """Name -> AttributeProto.AttributeType, and whether the attribute is required."""

    @cached_property
    def needed(self) -> frozenset[str]:
        """The names of the attributes that are required."""
        return frozenset(name for name, (_, needed) in self.attributes.items() if needed)


@cache
def contrib_demand(op_type: str) -> Demand | None:
    """What a com.microsoft operator must have; None for one that attnx does not look into."""
    line = _CONTRIB.get(op_type)
    if line is None:
        return None
    positions, _, rest = line.partition(" ")
    attributes: dict[str, tuple[int, bool]] = {}
    for word in rest.split():
        name, _, kind = word.partition(":")
        attributes[name] = (TYPES[kind.rstrip("!")], kind.endswith("!"))
    return Demand(tuple(int(p) for p in positions.split(",") if p), attributes)


CONTRIB = tuple(_CONTRIB)
"""Names of the operators known here."""
