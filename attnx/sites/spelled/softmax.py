"""Attention written out: product, scale, mask, softmax, product - in every order and notation that exporters use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnx.graph.axes.axis_names import name_axes
from attnx.graph.axes.caches import comes_in
from attnx.graph.axes.linear_attention import asked_by_data, competed
from attnx.graph.axes.origins import streams
from attnx.graph.axes.pairing import Candidate, Use, content, follow, use_of
from attnx.graph.axes.paths import Way, depends, ways_back, ways_on
from attnx.graph.axes.score_path import bias_kind, read_path
from attnx.graph.axes.softmax_forms import Softmax, find_softmax, natural
from attnx.layout import axis_of, parse
from attnx.records import Miss
from attnx.sites.finding import Finding
from attnx.sites.placing import Placing, heads_in, kv_heads, mixed, rounded

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def recogniser(graph: Graph) -> Callable[[NodeProto, Finding | Miss | None], Finding | Miss | None]:
    """See `attnx.sites.registry.Look`: the first to look at a softmax."""
    return lambda node, found: recognise(graph, node) if found is None else found


def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention around one softmax, or why it is none."""
    found = find_softmax(graph, node)
    if found is None:
        return None
    logits, out, axis = found.logits, found.out, found.axis
    shape = graph.shape(logits)
    if shape is None:
        back = ways_back(graph, logits)
        if not any(depends(graph, w.product.left) and depends(graph, w.product.right) for w in back):
            return None
        return Miss(node.name, node.op_type, "the rank of its input cannot be told from the graph")
    if not depends(graph, logits):
        graph = graph.by_shape() if depends(graph.by_shape(), logits) else graph.by_products()
        if not depends(graph, logits):
            return None
    rank = max(len(shape), 1)
    over = tuple(sorted(i % rank for i in (axis, *found.beside)))
    on = ways_on(graph, out)
    back = ways_back(graph, logits)
    candidates = [c for way in back if (c := follow(graph, way, over)) is not None]
    data = [c for c in candidates if depends(graph, c.key)]
    both = [c for c in data if depends(graph, c.query)]
    if not both:
        talking = [c for way in ways_back(graph, logits, mixed=True) if (c := follow(graph, way, over)) is not None]
        both = [c for c in talking if depends(graph, c.query) and depends(graph, c.key)]
    if not candidates and not both:
        return _not_followed(graph, node, back) or _none_before(node, on)
    if not data and not both:
        if any(competed(graph, way, c, out) for c in candidates for way in on):
            return Miss(node.name, node.op_type, _OVER_QUERIES)
        return None  # the axis that is normalised belongs to a constant weight: a classifier, a router
    chosen = content(graph, both or data, on)
    uses = [use for way in on if (use := use_of(graph, way, chosen, out)) is not None]
    if not both and uses and asked_by_data(graph, uses[0]):
        return None  # a softmax over keys alone, whose context data contracts again: linear attention
    if not uses and any(competed(graph, way, c, out) for c in both for way in on):
        return Miss(node.name, node.op_type, _OVER_QUERIES)
    if not uses and (not both or len(shape) < 3):
        return (
            None
            if not both
            else Miss(
                node.name, node.op_type, "a softmax over a product of two tensors whose weights multiply no value"
            )
        )
    made = _assemble(graph, node, chosen, uses[0] if uses else None, found, learned=not both, summed=both)
    if isinstance(made, Finding):
        made.beside = tuple(w.product.out for w in back if w.product.out != made.product and w.product.contracted)
    return made


_OVER_QUERIES = (
    "a softmax over queries, which compete for each key: its weights sum to 1 over queries, and what is made of them "
    "behind it weighs the values (slot attention); it is not shown"
)


_LOST = (
    "a product of two tensors reaches it, but what its axes stand for is lost on the way: scores are written into "
    "other places or cut out of blocks"
)


def may_be_moved(found: Finding | Miss | None) -> bool:
    """Whether a softmax may run over scores that were moved about: cells must then be followed, and not axes."""
    if isinstance(found, Miss):
        return found.reason == _LOST
    return found is not None and (found.pieces > 1 or _by_offset(found))


def _by_offset(found: Finding) -> bool:
    """Whether each query has keys of its own: they may be a window that was cut out for it."""
    place = found.places.get("weights")
    names = [] if place is None else [name for axis in parse(place.layout) for name, _ in axis]
    return not any(name[0] == "q" for name in names) and sum(name[0] == "b" for name in names) > 1


def _not_followed(graph: Graph, node: NodeProto, back: list[Way]) -> Miss | None:
    """Scores that are moved about between their product and the softmax: bands cut out of blocks (Longformer)."""
    if not any(depends(graph, way.product.left) and depends(graph, way.product.right) for way in back):
        return None
    return Miss(node.name, node.op_type, _LOST)


def _none_before(node: NodeProto, on: list[Way]) -> Miss | None:
    if not on:
        return None
    return Miss(node.name, node.op_type, "its output weighs a tensor, but no product of two tensors makes its input")


def _assemble(
    graph: Graph,
    node: NodeProto,
    chosen: Candidate,
    use: Use | None,
    found: Softmax,
    *,
    learned: bool,
    summed: list[Candidate],
) -> Finding | Miss:
    """A finding from what was paired."""
    way = chosen.way
    letters = name_axes(
        graph, way.product.out_axes, chosen.query, chosen.query_axes, chosen.key_axes, chosen.keys,
        way.product.contracted,
        None if use is None else (use.way.product, use.value_axes),
    )  # fmt: skip
    reading = read_path(graph, way, (chosen.query, chosen.query_axes), (chosen.key, chosen.key_axes), letters)
    finding = Finding(node=node, places={}, query_from=chosen.query, key_from=chosen.key, product=way.product.out)
    finding.heads, finding.head_size = letters.heads, letters.head_size
    finding.scale, finding.scale_place, finding.softcap = reading.scale(), reading.where(), reading.softcap
    if (
        not reading.biases
        and not found.masked
        and (use is None or not any(s.node.op_type in ("Where", "Mul") for s in use.way.steps))
    ):
        finding.causal = False  # nothing is added, selected or multiplied: nothing is hidden
    finding.bias = bias_kind(graph, reading, letters.heads, _head_axes(letters.layout(chosen.axes)))
    finding.sink = reading.sink is not None or found.sink
    put = Placing(graph, finding, letters)
    put.operand("query", chosen.query, chosen.query_axes, reading.query_factors)
    put.operand("key", chosen.key, chosen.key_axes, reading.key_factors)
    put.path(way, reading, found.logits)
    own = heads_in(finding.places.get("key"), letters.heads)
    finding.kv_heads = own if own != letters.heads else kv_heads(graph, finding.places.get("key"), letters.heads)
    put.weights(chosen, use if reading.pieces == 1 else None, found.out)
    if found.masked:
        finding.places.pop("masked", None)
        finding.absent = (*finding.absent, "masked")
        finding.notes.append("cells are hidden behind the exponential, so there is no masked stage")
    if found.base is not None:
        put.to_base_e(natural(found))
    if use is not None:
        finding.value_from = use.value
        put.place("value", use.value, use.value_axes)
        if finding.gated:
            finding.notes.append("the weights are multiplied by a gate before they weigh the value")
        if mixed(graph, use.way):
            finding.absent = (*finding.absent, "context")
            finding.notes.append("weights of several softmaxes or heads are combined before they weigh the value")
        elif rounded(use.way):
            finding.notes.append("the weights are rounded to integers before they weigh the value")
        else:
            put.place("context", use.way.product.out, use.way.product.out_axes)
    if "weights" not in finding.places:
        return Miss(
            node.name,
            node.op_type,
            "its axes cannot be told apart: batch, heads and queries are mixed in a way not known",
        )
    if learned:
        _without_query(graph, finding, chosen.key)
    elif reading.pieces > 1:
        _in_pieces(graph, finding, summed, reading.pieces)
    elif len(summed) > 1:
        finding.notes.append(
            f"{len(summed)} products of two tensors are summed in the scores; query and key are the content's"
        )
    return finding


def _head_axes(layout: str | None) -> list[int]:
    """Which axes hold heads and nothing else, counted from the end."""
    words = [] if layout is None else parse(layout)
    return [i - len(words) for i, axis in enumerate(words) if axis and all(name[0] == "h" for name, _ in axis)]


def _in_pieces(graph: Graph, finding: Finding, pieces: list[Candidate], count: int) -> None:
    """One softmax over several score products side by side: its keys and values are no tensor of the graph."""
    finding.pieces = count
    gone = ("key", "value", "scores", "scaled", "capped", "context")
    for quantity in gone:
        finding.places.pop(quantity, None)
    finding.absent = (*finding.absent, *gone)
    finding.notes.append(
        f"{count} score products stand side by side in one softmax, over keys in {count} pieces: the weights are of "
        "all of them, and key, value and context are no one tensor"
    )
    asking = streams(graph, finding.query_from)
    own = [piece.key for piece in pieces if streams(graph, piece.key) & asking]
    if own:
        finding.kind = "self"
    place = finding.places.get("masked") or finding.places.get("weights")
    shape = None if place is None else graph.shape(place.value)
    at = None if place is None else axis_of(place.layout, "q")
    one_query = shape is not None and (at is None or shape[at] == 1)
    cached = any(comes_in(graph, piece.key) for piece in pieces)
    # One query whose own key stands beside cached ones sees no future; else the order of the keys is not known.
    finding.causal = bool(one_query and own and cached)


def _without_query(graph: Graph, finding: Finding, key: str) -> None:
    """A learned vector in the place of the query: pooling, additive attention, or latents that ask (Perceiver)."""
    finding.causal = False
    query = finding.places.get("query")
    if _is_additive(graph, key):
        gone = ("query", "key", "scores", "scaled", "capped")
        for quantity in gone:
            finding.places.pop(quantity, None)
        finding.kind, finding.absent = "additive", (*finding.absent, *gone)
        finding.kv_heads = finding.head_size = finding.scale = None
        finding.scale_place = ""
        finding.notes.append("additive: the scores come from a small network over query and key; there is no QK^T")
    elif query is not None and axis_of(query.layout, "q") is not None and _projected(graph, finding, query.value):
        finding.kind = "cross"
        finding.notes.append("the queries are learned vectors, the same for every input")
    else:
        finding.kind = "pooling"
        finding.notes.append("pooling: the query is a learned vector, the same for every input")


def _projected(graph: Graph, finding: Finding, query: str) -> bool:
    """Whether learned queries are latents that are projected, or split over heads, and not bare scoring vectors."""
    return finding.heads not in (None, 1) or not graph.is_constant(query)


_ACTIVATIONS = ("Tanh", "Relu", "Sigmoid", "Gelu", "Elu", "LeakyRelu", "Erf", "Selu", "Softplus")


def _is_additive(graph: Graph, key: str) -> bool:
    """Whether a learned vector weighs an activation of what was made from two data terms (added, or concatenated)."""
    value, active = key, False
    for _ in range(10):
        node = graph.producer(value)
        if node is None:
            return False
        live = [n for n in node.input if n and depends(graph, n)]
        active = active or node.op_type in _ACTIVATIONS
        if node.op_type in ("Add", "Sum", "Concat") and len(live) > 1:
            return active
        if not live or node.op_type in ("Softmax", "LayerNormalization", "LSTM", "GRU"):
            return False
        value = live[0]
    return False
