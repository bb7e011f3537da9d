"""Attention written out: product, scale, mask, softmax, product, in every order and notation that exporters use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnx.graph.axes.axes import MIXING
from attnx.graph.axes.axis_names import name_axes
from attnx.graph.axes.linear_attention import competed, is_linear
from attnx.graph.axes.pairing import Candidate, Use, content, follow, unmixed, use_of
from attnx.graph.axes.paths import Way, altered_by, depends, ways_back, ways_on
from attnx.graph.axes.score_path import bias_kind, read_path
from attnx.graph.axes.softmax_forms import Softmax, find_softmax, natural
from attnx.layout import parse
from attnx.records import Miss
from attnx.sites.finding import Finding
from attnx.sites.placing import Placing, heads_in, kv_heads, mixed, rounded
from attnx.sites.spelled.deformable import Sampling, sampling
from attnx.sites.spelled.learned_queries import without_query
from attnx.sites.spelled.pieces import lay_out

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def recogniser(graph: Graph) -> Callable[[NodeProto, Finding | Miss | None], Finding | Miss | None]:
    """See `attnx.sites.registry.Look`: the first recogniser to examine a softmax."""
    return lambda node, found: recognise(graph, node) if found is None else found


def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention around one softmax, or why there is none."""
    found = find_softmax(graph, node)
    if found is None:
        return None
    shape = graph.shape(found.logits)
    if shape is None:
        two = any(_is_of_data(graph, way) for way in ways_back(graph, found.logits))
        return Miss(node.name, node.op_type, "the rank of its input is not known from the graph") if two else None
    data = _with_data(graph, found.logits)
    if data is None:
        return None
    before = _Before(data, found, len(shape))
    on = ways_on(data, found.out)
    if not before.candidates and not before.of_data:
        return before.miss(node) or _none_before(data, node, found.logits, on)
    if not before.keyed and not before.of_data:
        # Otherwise the axis that is normalised belongs to a constant weight: a classifier, a router.
        return _competition(data, node, before.candidates, on, found.out)
    chosen = content(data, before.of_data or before.keyed, on)
    uses = [use for way in on if (use := use_of(data, way, chosen, found.out)) is not None]
    if not before.of_data and uses and is_linear(data, uses[0]):
        return None  # a softmax over keys alone, whose context is contracted with data again: linear attention
    if not uses and (miss := _competition(data, node, before.of_data, on, found.out)) is not None:
        return miss
    if not uses and (not before.of_data or len(shape) < 3):
        return Miss(node.name, node.op_type, _NO_VALUE) if before.of_data else None
    made = _assemble(data, node, chosen, uses[0] if uses else None, found, before.of_data)
    if isinstance(made, Finding) and not (made.pieces == 1 and made.replacement):
        others = [way.product for way in before.ways if way.product.contracted]
        made.beside = tuple(product.out for product in others if product.out != made.product)
    return made


def _with_data(graph: Graph, logits: str) -> Graph | None:
    """The graph in which the logits depend on data, defined ever more broadly; None where they depend on none."""
    data = _with_learned(graph, logits)
    return data if depends(data, logits) else None


def sampling_of(graph: Graph, node: NodeProto) -> Sampling | None:
    """The deformable attention that a softmax belongs to, where the softmax makes no site."""
    found = find_softmax(graph, node)
    return None if found is None else sampling(_with_learned(graph, found.logits), node, found)


def _with_learned(graph: Graph, logits: str) -> Graph:
    """The graph, with learned queries counted as data where the scores are made from nothing else."""
    if depends(graph, logits):
        return graph
    return graph.by_shape() if depends(graph.by_shape(), logits) else graph.by_products()


def _is_of_data(graph: Graph, way: Way) -> bool:
    """Whether a way begins with a product of two tensors that both depend on data."""
    return depends(graph, way.product.left) and depends(graph, way.product.right)


class _Before:
    """The products before a softmax that may have made its scores.

    Attributes:
        ways: All ways back to products.
        candidates: Those whose axes could be followed.
        keyed: Of these, those whose keys depend on data.
        of_data: Those whose queries do too; if there are none, products after which heads are mixed (talking heads).
    """

    def __init__(self, graph: Graph, found: Softmax, rank: int) -> None:
        self.graph, self.ways = graph, ways_back(graph, found.logits)
        over = tuple(sorted(i % max(rank, 1) for i in (found.axis, *found.beside)))
        self.candidates = _followed(graph, self.ways, over)
        self.keyed = [c for c in self.candidates if depends(graph, c.key)]
        self.of_data = [c for c in self.keyed if depends(graph, c.query)]
        if not self.of_data:
            talking = _followed(graph, ways_back(graph, found.logits, mixed=True), over)
            self.of_data = [c for c in talking if depends(graph, c.query) and depends(graph, c.key)]

    def miss(self, node: NodeProto) -> Miss | None:
        """Scores that are rearranged between their product and the softmax: bands cut out of blocks (Longformer)."""
        moved = any(_is_of_data(self.graph, way) for way in self.ways)
        return Miss(node.name, node.op_type, _LOST) if moved else None


def _followed(graph: Graph, ways: list[Way], over: tuple[int, ...]) -> list[Candidate]:
    found: dict[str, Candidate] = {}
    for way in ways:
        if (candidate := follow(graph, way, over)) is not None:
            mixed_scores = unmixed(graph, candidate, over)  # these may be added to the same scores unmixed
            one = mixed_scores or candidate
            if mixed_scores is not None or one.way.product.out not in found:
                found[one.way.product.out] = one
    return list(found.values())


def _competition(graph: Graph, node: NodeProto, candidates: list[Candidate], on: list[Way], out: str) -> Miss | None:
    """A softmax over the queries of one of these products: the queries compete for each key."""
    over_queries = any(competed(graph, way, candidate, out) for candidate in candidates for way in on)
    return Miss(node.name, node.op_type, _OVER_QUERIES) if over_queries else None


_NO_VALUE = "a softmax over a product of two tensors whose weights multiply no value"
_OVER_QUERIES = (
    "a softmax over queries, which compete for each key: its weights sum to 1 over queries, and what is made of them "
    "behind it weighs the values (slot attention); it is not shown"
)


_RESCALED = (
    "the scores are also multiplied or divided by numbers that differ between cells or inputs; the scale holds the "
    "constant factors alone"
)
_ALTERED = (
    "a product of two tensors reaches it only through {}, which alters scores as no scale, bias or mask does; it is "
    "not shown"
)
_LOST = (
    "a product of two tensors reaches it, but what its axes stand for is lost on the way: scores are written into "
    "other places or cut out of blocks"
)


def may_be_moved(found: Finding | Miss | None) -> bool:
    """Whether a softmax may run over rearranged scores: cells must then be followed instead of axes."""
    if isinstance(found, Miss):
        return found.reason == _LOST
    return found is not None and (found.pieces > 1 or _by_offset(found) or _in_blocks(found))


def _in_blocks(found: Finding) -> bool:
    """Whether keys are not one tensor, and rows lie on more axes than those of texts, heads and queries."""
    place = found.places.get("weights")
    return "key" not in found.places and place is not None and len(parse(place.layout)) > 4


def _by_offset(found: Finding) -> bool:
    """Whether each query has its own keys: they may be a window that was cut out for it."""
    place = found.places.get("weights")
    names = [] if place is None else [name for axis in parse(place.layout) for name, _ in axis]
    return not any(name[0] == "q" for name in names) and sum(name[0] == "b" for name in names) > 1


def _none_before(graph: Graph, node: NodeProto, logits: str, on: list[Way]) -> Miss | None:
    if not on:
        return None
    if (by := altered_by(graph, logits)) is not None:
        return Miss(node.name, node.op_type, _ALTERED.format(by))
    return Miss(node.name, node.op_type, "its output weighs a tensor, but no product of two tensors makes its input")


def _assemble(
    graph: Graph, node: NodeProto, chosen: Candidate, use: Use | None, found: Softmax, summed: list[Candidate]
) -> Finding | Miss:
    """Make a finding from the paired products.

    Args:
        graph: The graph.
        node: The softmax.
        chosen: The score product.
        use: The product of weights and value.
        found: The softmax, taken apart.
        summed: All products of two data tensors that are added up in the scores; none where the query is learned.
    """
    way = chosen.way
    names = name_axes(graph, chosen, use)
    reading = read_path(graph, chosen, names)
    finding = Finding(node=node, places={}, query_from=chosen.query, key_from=chosen.key, product=way.product.out)
    finding.heads, finding.head_size = names.heads, names.head_size
    finding.scale, finding.scale_place, finding.softcap = reading.scale(), reading.where(), reading.softcap
    if not reading.biases and not found.masked and not _selects(use):
        finding.causal = False  # nothing is added, selected or multiplied: nothing is hidden
    finding.bias = bias_kind(graph, reading, names.heads, _head_axes(names.layout(chosen.axes)))
    finding.heads_mixed = any(step.node.op_type in MIXING for step in way.steps)
    if finding.heads_mixed:
        finding.notes.append("the scores of all heads are mixed before the softmax (talking heads)")
    finding.rescaled = reading.rescaled
    if reading.rescaled:
        finding.notes.append(_RESCALED)
    finding.sink = reading.sink is not None or found.sink
    put = Placing(graph, finding, names)
    put.operand("query", chosen.query, chosen.query_axes, reading.query_factors)
    put.operand("key", chosen.key, chosen.key_axes, reading.key_factors)
    put.path(way, reading, found.logits)
    own = heads_in(finding.places.get("key"), names.heads)
    finding.kv_heads = own if own != names.heads else kv_heads(graph, finding.places.get("key"), names.heads)
    put.weights(chosen, use if reading.pieces == 1 else None, found.out)
    if found.masked:
        finding.places.pop("masked", None)
        finding.absent = (*finding.absent, "masked")
        finding.notes.append("cells are hidden behind the exponential, so there is no masked stage")
    if found.base is not None:
        put.to_base_e(natural(found))
    if use is not None:
        _place_value(graph, finding, put, use)
    if "weights" not in finding.places:
        why = "its axes cannot be separated: batch, heads and queries are mixed in a way not known"
        return Miss(node.name, node.op_type, why)
    if not summed:
        without_query(graph, finding, chosen.key)
    elif reading.pieces > 1:
        lay_out(graph, node, finding, chosen, reading, use, names, summed)
    elif len(summed) > 1:
        finding.notes.append(
            f"{len(summed)} products of two tensors are summed in the scores; query and key are the content's"
        )
    return finding


def _selects(use: Use | None) -> bool:
    """Whether weights are selected or multiplied on the way to the value, so that cells may be hidden there."""
    return use is not None and any(step.node.op_type in ("Where", "Mul") for step in use.way.steps)


def _place_value(graph: Graph, finding: Finding, put: Placing, use: Use) -> None:
    """Record where value and context are, and what happens to the weights before they weigh the value."""
    finding.value_from = use.value
    # A number that the product multiplies by as well (FusedMatMul's alpha) is part of the value
    factor = use.way.product.factor
    put.place("value", use.value, use.value_axes, (1 / factor,) if factor not in (0.0, 1.0) else ())
    if finding.gated:
        finding.notes.append("the weights are multiplied by a gate before they weigh the value")
    if mixed(graph, use.way):
        finding.absent = (*finding.absent, "context")
        finding.notes.append("weights of several softmaxes or heads are combined before they weigh the value")
    elif rounded(use.way):
        finding.notes.append("the weights are quantised before they weigh the value")
    else:
        put.place("context", use.way.product.out, use.way.product.out_axes)


def _head_axes(layout: str | None) -> list[int]:
    """The axes that hold heads and nothing else, counted from the end."""
    words = [] if layout is None else parse(layout)
    return [i - len(words) for i, axis in enumerate(words) if axis and all(name[0] == "h" for name, _ in axis)]
