"""Which file of this folder handles which fused operator; a file is imported once a graph holds its operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from attnx.records import Miss
from attnx.sites.emit import OLDEST, opset_of
from attnx.sites.finding import Finding, Recogniser, Replacement

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

Rewriter = Callable[["Graph", "NodeProto"], Replacement | Miss | None]
"""For a node that is not a site but that the CPU cannot run: the primitive nodes that replace it."""


def _recogniser(module: str, function: str) -> Recogniser:
    def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
        if opset_of(graph) < OLDEST:
            op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            return Miss(
                node.name, op, f"the model's opset is {opset_of(graph)}, and replacing a fused operator needs {OLDEST}"
            )
        found: Finding | Miss | None = getattr(import_module(f"attnx.sites.fused.{module}"), function)(graph, node)
        return found

    return recognise


def _rewriter(module: str, function: str) -> Rewriter:
    def rewrite(graph: Graph, node: NodeProto) -> Replacement | Miss | None:
        found: Replacement | Miss | None = getattr(import_module(f"attnx.sites.fused.{module}"), function)(graph, node)
        return found

    return rewrite


FUSED: Mapping[str, Recogniser] = {
    "Attention": _recogniser("onnx_attention", "recognise"),
    "ai.onnx.preview.FlexAttention": _recogniser("flex_attention", "recognise"),
    "com.microsoft.Attention": _recogniser("ms_attention", "recognise"),
    "com.microsoft.DecoderAttention": _recogniser("decoder_attention", "recognise"),
    "com.microsoft.DecoderMaskedMultiHeadAttention": _recogniser("decoder_masked", "recognise"),
    "com.microsoft.DecoderMaskedSelfAttention": _recogniser("decoder_masked", "recognise_self"),
    "com.microsoft.DynamicSparseAttention": _recogniser("dynamic_sparse", "recognise"),
    "com.microsoft.GroupQueryAttention": _recogniser("group_query_attention", "recognise"),
    "com.microsoft.LongformerAttention": _recogniser("longformer", "recognise"),
    "com.microsoft.MultiHeadAttention": _recogniser("multi_head_attention", "recognise"),
    "com.microsoft.PackedAttention": _recogniser("packed", "recognise"),
    "com.microsoft.PackedMultiHeadAttention": _recogniser("packed", "recognise_multi_head"),
    "com.microsoft.PagedAttention": _recogniser("paged", "recognise"),
    "com.microsoft.QAttention": _recogniser("ms_attention", "recognise_quantised"),
    "com.microsoft.SparseAttention": _recogniser("sparse_attention", "recognise"),
    **dict.fromkeys(
        (
            "LinearAttention",
            "com.microsoft.LinearAttention",
            "com.microsoft.GatedDeltaNet",
            "com.microsoft.QOrderedAttention",
            "com.microsoft.QOrderedLongformerAttention",
            "com.microsoft.SparseAttentionIndexer",
            "com.microsoft.PackedSparseAttentionIndexer",
            "com.microsoft.SparsePagedAttention",
            "com.microsoft.EPContext",
            "com.microsoft.AttnLSTM",
            "com.microsoft.BeamSearch",
            "com.microsoft.GreedySearch",
            "com.microsoft.Sampling",
            "com.microsoft.WhisperBeamSearch",
            "com.microsoft.DisentangledAttention_TRT",
            "DisentangledAttention_TRT",
            "ai.onnxruntime._fusion.SDPA",
        ),
        _recogniser("refused", "recognise"),
    ),
}
"""Operator, as `attnx.graph.shapes.index.op_name` writes it -> the function that takes it apart."""

REWRITES: Mapping[str, Rewriter] = {
    "ConcatFromSequence": _rewriter("sequences", "joined"),
    "SequenceAt": _rewriter("sequences", "taken"),
    "Erfc": _rewriter("converters", "erfc"),
    "com.microsoft.BiasAdd": _rewriter("diffusion", "bias_add"),
    "com.microsoft.BiasSoftmax": _rewriter("cuda_only", "bias_softmax"),
    "com.microsoft.BiasSplitGelu": _rewriter("diffusion", "bias_split_gelu"),
    "com.microsoft.GatedRelativePositionBias": _rewriter("relative_position", "gated"),
    "com.microsoft.GemmFastGelu": _rewriter("diffusion", "gemm_fast_gelu"),
    "com.microsoft.GemmaRotaryEmbedding": _rewriter("cuda_only", "gemma_rotary"),
    "com.microsoft.GroupNorm": _rewriter("diffusion", "group_norm"),
    "com.microsoft.NhwcConv": _rewriter("diffusion", "nhwc_conv"),
    "com.microsoft.RelativePositionBias": _rewriter("relative_position", "relative"),
    "com.microsoft.RemovePadding": _rewriter("cuda_only", "remove_padding"),
    "com.microsoft.RestorePadding": _rewriter("cuda_only", "restore_padding"),
    "com.microsoft.SkipGroupNorm": _rewriter("diffusion", "group_norm"),
}
"""Operators that are not attention but feed one, and that the CPU cannot run or through which no axis can be followed
-> the function that replaces them."""
