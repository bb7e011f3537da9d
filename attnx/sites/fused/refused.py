"""Operators that are or contain attention but are not taken apart: each is refused by name, with its reason."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attnx.graph.load.nodes import op_name
from attnx.records import Miss

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_RECURRENT = "linear attention is a recurrence over a state: it has no softmax, and no weights to show"
_SELECTOR = "it selects the keys that a sparse attention reads, and is not an attention itself"
_SEARCH = "its decoder is a graph inside the node; save that graph as a model of its own and open it"
_INTEGER = "its weights are int8 in an order of cuBLAS and every stage is rounded between; it runs on CUDA only"
REASONS = {
    "LinearAttention": _RECURRENT,
    "com.microsoft.LinearAttention": _RECURRENT,
    "com.microsoft.GatedDeltaNet": _RECURRENT,
    "com.microsoft.QOrderedAttention": _INTEGER,
    "com.microsoft.QOrderedLongformerAttention": _INTEGER,
    "com.microsoft.SparseAttentionIndexer": _SELECTOR,
    "com.microsoft.PackedSparseAttentionIndexer": _SELECTOR,
    "com.microsoft.SparsePagedAttention": "it reads chosen slots of a paged cache, which only its CUDA kernel lays out",
    "com.microsoft.EPContext": "it is a graph that was compiled for one device, and cannot be looked into",
    "com.microsoft.AttnLSTM": "its attention is inside the steps of a recurrent network",
    "com.microsoft.BeamSearch": _SEARCH,
    "com.microsoft.GreedySearch": _SEARCH,
    "com.microsoft.Sampling": _SEARCH,
    "com.microsoft.WhisperBeamSearch": _SEARCH,
    "com.microsoft.DisentangledAttention_TRT": "it is a plug-in of TensorRT: open the model as it was before",
    "DisentangledAttention_TRT": "it is a plug-in of TensorRT: open the model as it was before",
    "ai.onnxruntime._fusion.SDPA": "it stands between two steps of an optimizer: open the model before or after it",
}


_NAMES = re.compile("attention|attn|mha|qkvtocontext", re.IGNORECASE)


def by_name(node: NodeProto) -> Miss | None:
    """Why an operator known only by its name is not taken apart, if its name mentions attention."""
    if not _NAMES.search(node.op_type):
        return None
    whose = f"of the domain {node.domain}" if node.domain else "that is none of ONNX's own"
    reason = f"its name says attention, but it is an operator {whose}, and what it computes inside is not known"
    return Miss(node.name, op_name(node), reason)


def recognise(graph: Graph, node: NodeProto) -> Miss:
    """Why a node that is or contains attention is not taken apart."""
    op = op_name(node)
    return Miss(node.name, op, REASONS[op])
