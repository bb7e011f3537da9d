"""Sites whose query is no token: a learned vector that pools, latent queries, or the vector of additive attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnx.graph.axes.origins import PASS, streams
from attnx.graph.axes.paths import depends
from attnx.layout import axis_of

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph
    from attnx.sites.finding import Finding

_FOLDED = (
    "the queries are stored in the graph as they are multiplied: an exporter that folds constants puts their "
    "projection and factors of the scale into them, and the scale holds those that are left"
)


def without_query(graph: Graph, finding: Finding, key: str) -> None:
    """A learned vector in place of the query: pooling, additive attention, or latent queries (Perceiver)."""
    finding.causal = False
    query = finding.places.get("query")
    if terms := _added(graph, key):
        gone = ("query", "key", "scores", "scaled", "capped")
        for quantity in gone:
            finding.places.pop(quantity, None)
        finding.kind = "self" if _of_one_text(graph, finding, terms) else "additive"
        finding.absent = (*finding.absent, *gone)
        finding.kv_heads = finding.head_size = finding.scale = None
        finding.scale_place = ""
        finding.notes.append("additive: the scores come from a small network over query and key; there is no QK^T")
    elif query is not None and axis_of(query.layout, "q") is not None and _projected(graph, finding, query.value):
        finding.kind = "cross"
        finding.notes.append("the queries are learned vectors, the same for every input")
        if _stored(graph, query.value):
            finding.notes.append(_FOLDED)
    else:
        finding.kind = "pooling"
        finding.notes.append("pooling: the query is a learned vector, the same for every input")


def _stored(graph: Graph, query: str) -> bool:
    """Whether queries are stored as they enter the product, except for views and factors: no projection is left."""
    for _ in range(12):
        if graph.is_constant(query):
            return True
        node = graph.producer(query)
        if node is None or node.op_type not in (*PASS, "Mul", "Div"):
            return False
        query = node.input[0]
    return False


def _projected(graph: Graph, finding: Finding, query: str) -> bool:
    """Whether learned queries are latents that are projected or split over heads, and not plain scoring vectors."""
    return finding.heads not in (None, 1) or not graph.is_constant(query)


_ACTIVATIONS = ("Tanh", "Relu", "Sigmoid", "Gelu", "Elu", "LeakyRelu", "Erf", "Selu", "Softplus")


def _of_one_text(graph: Graph, finding: Finding, terms: Sequence[str]) -> bool:
    """Whether additive attention is over one text: its terms are made from one tensor, and each position asks."""
    weights = finding.places.get("weights")
    asks = weights is not None and axis_of(weights.layout, "q") is not None
    return asks and bool(set.intersection(*(streams(graph, term) for term in terms)))


def _added(graph: Graph, key: str) -> list[str]:
    """The data terms of additive attention, in which a learned vector weighs an activation of something made from two
    (added or concatenated); none where it is not that.
    """
    value, active = key, False
    for _ in range(10):
        node = graph.producer(value)
        if node is None:
            return []
        live = [n for n in node.input if n and depends(graph, n)]
        active = active or node.op_type in _ACTIVATIONS
        if node.op_type in ("Add", "Sum", "Concat") and len(live) > 1:
            return live if active else []
        if not live or node.op_type in ("Softmax", "LayerNormalization", "LSTM", "GRU", "DynamicQuantizeLSTM"):
            return []
        value = live[0]
    return []
