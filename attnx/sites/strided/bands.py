"""Attention whose scores are moved about before their softmax (Longformer, LED): bands cut out of blocks.

A row of such a softmax runs over the offsets of a window, and over the keys that all queries see, not over the keys in
their order. Every cell is brought to its own query and key by nodes that are put beside the softmax when the site is
looked at: the model's own steps carry the places of query and key to the cells, whatever the text's length, its padding
and the tokens with global attention are in that run.

Source: Beltagy et al. 2020, Longformer, section 3.1 and appendix A (the band in chunks).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.factors import factors_of, multiplier
from attnx.graph.axes.operands import Operand
from attnx.graph.axes.paths import Way, depends, ways_back
from attnx.graph.axes.product import find_product
from attnx.graph.axes.softmax_forms import find_softmax
from attnx.records import HIDES, Array, Miss, Place
from attnx.sites.emit import FLOAT, INT64, OLDEST, Emit, emitted, opset_of, prefix_of
from attnx.sites.finding import Finding, Replacement
from attnx.sites.spelled.softmax import may_be_moved
from attnx.sites.strided.cell_map import Places, Source, Weighed
from attnx.sites.strided.cell_tracing import carriers, chosen, copied, origin
from attnx.sites.strided.row_proof import Proof

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_MOVED = frozenset(
    "Reshape Transpose Slice Gather GatherND GatherElements Unsqueeze Squeeze Identity Cast CastLike Flatten Expand "
    "Pad Split Concat Where Mul ScatterND ScatterElements".split()
)
"""What may lie between weights and the product with the value."""
_GATHERED = frozenset("Reshape Transpose Unsqueeze Squeeze Identity Cast Flatten".split())
"""What may lie between that product and the context."""
_GUARDS = ("Where", "Cast", "Identity", "Dropout")
_MOST = 400
_TRIED = 6
_OFFSETS = "the softmax runs over offsets of a window, not over keys: each cell is brought to its query and key"
_ROWS = (
    "rows of the tokens with global attention alone, which see every key through projections of their own; the rows of "
    "all others are hidden here"
)
_MIXED = (
    "its rows mix scores of different heads or texts: they are cut out of memory by steps (as_strided) that were "
    "written for another layout, so that the file can hardly compute what its checkpoint does"
)
_REPLACED = "rows of tokens with global attention are made here too, and then written over: see the site behind"
_EXACT = float(1 << 24)
"""Whole numbers below this are exact in float32."""


def recogniser(graph: Graph) -> Callable[[NodeProto, Finding | Miss | None], Finding | Miss | None]:
    """See `attnx.sites.registry.Look`: looks again where the axes of moved scores could not be followed."""
    places = Places(graph)

    def look(node: NodeProto, found: Finding | Miss | None) -> Finding | Miss | None:
        moved = recognise(graph, node, places) if may_be_moved(found) else None
        if moved is None:
            return found
        if isinstance(moved, Miss):
            # One query whose cached and new keys stand side by side is no band, whatever its rows look like.
            return moved if not isinstance(found, Finding) or (found.pieces > 1 and not found.causal) else found
        own = graph.producer(moved.replacement.at) if moved.replacement is not None else None
        return found if own is None or emitted(own) else moved  # what stands in for a fused node is not replaced again

    return look


def recognise(graph: Graph, node: NodeProto, places: Places) -> Finding | Miss | None:
    """The attention around a softmax over moved scores, or why it is none; None where nothing can be proved.

    Args:
        graph: The flat graph, fused nodes replaced.
        node: The softmax.
        places: Proves where the graph's cells belong.
    """
    found = find_softmax(graph, node)
    shape = None if found is None else graph.shape(found.logits)
    if found is None or not shape or not isinstance(found.axis, int) or opset_of(graph) < OLDEST:
        return None
    if found.axis % len(shape) != len(shape) - 1 or found.sink or found.masked or found.base is not None:
        return None
    weights = _guarded(graph, found.out)
    use = _use(graph, weights)
    mixed = False
    tried: set[tuple[str, str]] = set()
    ways = ways_back(graph, found.logits)
    back = [w for w in ways if depends(graph, w.product.left) and depends(graph, w.product.right)]
    for way in back:
        product = way.product
        one, two = origin(graph, product.left), origin(graph, product.right)
        sizes = [leaf.size for atom in product.contracted for leaf in atom.leaves()]
        if one is None or two is None or one == two or None in sizes:
            continue
        for query, key in ((one, two), (two, one)):
            if (query, key) in tried:
                continue
            tried.add((query, key))
            products = tuple(w.product.out for w in back)
            source = Source(query, key, prod(s or 1 for s in sizes), products, chosen(graph, query, key))
            proof = places.prove(found.logits, source, use)
            if isinstance(proof, Proof):
                return _finding(graph, node, found.logits, weights, way, source, use, proof)
            mixed = mixed or proof is not None
    return Miss(node.name, node.op_type, _MIXED) if mixed else None


def _guarded(graph: Graph, out: str) -> str:
    """The weights behind what hides rows of padding in them."""
    for _ in range(4):
        readers = [n for n in graph.consumers(out) if n.op_type not in ("Shape", "Size")]
        if len(readers) != 1 or readers[0].op_type not in _GUARDS:
            break
        out = readers[0].output[0]
    return out


def _use(graph: Graph, weights: str) -> Weighed | None:
    """What the weights are multiplied by, through steps that move them, and what may be the context."""
    reached, stack = {weights}, [weights]
    values: set[str] = set()
    sums: list[str] = []
    while stack and len(reached) < _MOST:
        value = stack.pop(0)
        for node in graph.consumers(value):
            product = find_product(graph, node.output[0]) if node.output else None
            if product is not None and product.node is node:
                other = product.other(value)
                if depends(graph, other) and other not in reached:
                    values.add(origin(graph, other) or "")
                    sums.append(node.output[0])
            elif node.op_type in _MOVED:
                new = [o for o in node.output if o and o not in reached]
                reached.update(new)
                stack += new
    if len(values) != 1 or "" in values:
        return None
    at = 0
    while at < len(sums) < _MOST:
        for node in graph.consumers(sums[at]):
            others = [n for n in node.input if n not in sums]
            together = node.op_type == "Add" and not others
            if (together or (node.op_type in _GATHERED and node.input[0] == sums[at])) and node.output[0] not in sums:
                sums.append(node.output[0])
        at += 1
    return Weighed(weights, values.pop(), tuple(sums[: -_TRIED - 1 : -1]))


def _finding(
    graph: Graph,
    node: NodeProto,
    logits: str,
    weights: str,
    way: Way,
    source: Source,
    use: Weighed | None,
    proof: Proof,
) -> Finding | None:
    sides = {name: [float(f) for f, _ in factors_of(graph, name, None)] for name in (source.query, source.key)}
    behind = [multiplier(graph, step.node, step.source) for step in way.steps]
    after = [float(f) for f in (way.product.factor, *behind) if f is not None and f != 1.0]
    made = _Emitted(graph, node, source, proof).arrays(logits, weights)
    if made is None:
        return None
    masked, shown, replacement = made
    places = {"masked": Place(masked, "b h q k"), "weights": Place(shown, "b h q k")}
    places["key"] = Place(source.key, proof.key.layout("k", proof.heads), tuple(sides[source.key]))
    if proof.value is not None and use is not None:
        places["value"] = Place(use.value, proof.value.layout("k", proof.heads))
    if proof.tokens is None:
        places["query"] = Place(source.query, proof.query.layout("q", proof.heads), tuple(sides[source.query]))
        if proof.context is not None and use is not None:
            places["context"] = Place(use.contexts[proof.at], proof.context.layout("q", proof.heads))
    finding = Finding(node=node, places=places, query_from=source.query, key_from=source.key)
    finding.heads = finding.kv_heads = proof.heads
    finding.head_size = source.size
    finding.scale = prod([*sides[source.query], *sides[source.key], *after])
    finding.scale_place = _where(sides[source.query], sides[source.key], after)
    finding.causal, finding.window, finding.bias = proof.causal, proof.window, "bias" if proof.biased else None
    finding.replacement, finding.carries = replacement, weights
    finding.notes.append(_ROWS if proof.tokens is not None else _OFFSETS)
    if proof.context is not None and use is not None and _replaced(graph, use.contexts[proof.at]):
        finding.notes.append(_REPLACED)
    if proof.tokens is not None:
        finding.absent = ("query", "scores", "scaled", "capped")
    if proof.value is None:
        finding.absent = (*finding.absent, "value", "context")
        finding.notes.append("how its weights are moved to weigh the value could not be followed")
    return finding


def _replaced(graph: Graph, context: str) -> bool:
    """Whether rows of a context are written over."""
    writes = ("ScatterND", "ScatterElements")
    return any(n.op_type in writes and n.input[0] == context for n in graph.consumers(context))


def _where(query: list[float], key: list[float], after: list[float]) -> str:
    """Where the scale sits, in words."""
    sides = "on query and key" if query and key else "on the query" if query else "on the key" if key else ""
    return ", ".join(words for words in (sides, "after QK^T" if after else "") if words) or "none in the graph"


class _Emitted:
    """Nodes that bring each cell to its place in [B,H,Q,K]."""

    def __init__(self, graph: Graph, node: NodeProto, source: Source, proof: Proof) -> None:
        self.graph, self.node, self.source, self.proof = graph, node, source, proof
        self.emit = e = Emit(graph, prefix_of(graph, node))
        self.batch = e.dim(source.query, proof.query.batch)
        self.keys = e.dim(source.key, proof.key.length)
        self.asking = e.dim(source.query, proof.query.length)
        self.queries = self.asking if proof.tokens is None else self.keys
        self.heads = e.ints(proof.heads)

    def arrays(self, logits: str, weights: str) -> tuple[str, str, Replacement] | None:
        """Masked scores and weights by name, and what makes them."""
        e = self.emit
        at = self.places(logits)
        if at is None:
            return None
        masked = self.moved(e.real(logits), at, float("-inf"), "masked")
        shown = self.moved(e.real(weights), at, 0.0, "weights")
        last = self.graph.producer(weights) or self.node
        return masked, shown, Replacement([last, *e.nodes], e.initializers, at=last.output[0])

    def places(self, logits: str) -> str | None:
        """Where in [B,H,Q,K] each cell belongs, int64 [cells]; one behind the last where it belongs nowhere."""
        e, graph, source = self.emit, self.graph, self.source
        nodes = carriers(graph, logits, {source.query, source.key})
        found = []
        for side, name, operand in (("query", source.query, self.proof.query), ("key", source.key, self.proof.key)):
            other = source.key if side == "query" else source.query
            ones = e.op("Expand", e.number(1.0), e.op("Shape", other))
            counted = self.counted(name, operand, self.asking if side == "query" else self.keys, side == "query")
            if not counted:
                return None
            made = copied(graph, nodes, logits, {name: counted, other: ones}, e.name(f"{side}_of"))
            if made is None:
                return None
            e.nodes += made[0]
            found.append(made[1])
        inside = [e.op("Less", number, e.number(_EXACT)) for number in found]
        inside += [e.op("Greater", number, e.number(0.5)) for number in found]
        zero = e.number(0.0)
        sane = e.all_of(*inside)
        one, two = (e.op("Sub", e.cast(e.op("Where", sane, n, zero), INT64), e.ints(1)) for n in found)
        alike = e.op("Equal", e.op("Div", one, self.queries), e.op("Div", two, self.keys))
        seen = e.op("Greater", e.real(logits), e.number(HIDES))
        at = e.op("Add", e.op("Mul", one, self.keys), e.op("Mod", two, self.keys))
        kept = e.op("Where", e.all_of(sane, alike, seen), at, self.cells())
        return e.reshape(kept, -1)

    def cells(self) -> str:
        """How many cells [B,H,Q,K] has, int64 [1]."""
        e = self.emit
        return e.op("Mul", e.op("Mul", self.batch, self.heads), e.op("Mul", self.queries, self.keys))

    def counted(self, name: str, operand: Operand, length: str, asks: bool) -> str:
        """1, 2, 3 ... in the order of [B,H,length], in the first feature of each place of a query or key.

        Where some tokens alone ask, theirs are the numbers that they have among all; "" where these cannot be told.
        """
        e = self.emit
        if asks and self.proof.tokens is not None:
            tokens = self.tokens()
            if not tokens:
                return ""
            row = e.op("Mul", e.arange(e.op("Mul", self.batch, self.heads)), self.keys)
            among = e.op("Add", e.reshape(row, self.batch, self.heads, 1), e.unsqueeze(tokens, 1))
            none = e.op("Expand", e.ints(0), e.op("Shape", among))
            numbers = e.op("Where", e.op("Greater", e.unsqueeze(tokens, 1), e.ints(0)), among, none)
        else:
            numbers = e.op("Add", e.arange(e.op("Mul", e.op("Mul", self.batch, self.heads), length)), e.ints(1))
        order = [operand.batch, operand.heads, operand.length]
        sizes = [self.batch, self.heads, length]
        kept = [i for i, axis in enumerate(order) if axis is not None]
        ordered = e.reshape(e.cast(numbers, FLOAT), *(sizes[i] for i in kept))
        axes = [order[i] for i in kept]
        turned = e.transpose(ordered, *(axes.index(i) for i in range(len(axes))))
        spread = e.op("Mul", e.unsqueeze(turned, len(axes)), e.number(_first(self.source.size)))
        return e.op("Reshape", spread, e.op("Shape", name))

    def tokens(self) -> str:
        """Which token asks in each row, counted from 1, 0 where a row is empty: int64 [B,rows]; "" if not knowable."""
        e, graph = self.emit, self.graph
        rows, hidden = self.source.chosen or ("", "")
        shape, at = graph.shape(hidden), self.proof.tokens
        if shape is None or shape[-1] is None or at is None:
            return ""
        numbers = e.cast(e.op("Add", e.arange(self.keys), e.ints(1)), FLOAT)
        spread = e.op("Mul", e.unsqueeze(numbers, *((1, 2) if at == 0 else (0, 2))), e.number(_first(shape[-1])))
        counted = e.op("Expand", spread, e.op("Shape", hidden))
        made = copied(graph, carriers(graph, rows, {hidden}), rows, {hidden: counted}, e.name("chosen"))
        if made is None:
            return ""
        e.nodes += made[0]
        found = e.cast(e.squeeze(e.slice(made[1], 0, 1, 2), 2), INT64)
        return found if self.proof.query.batch == 0 else e.transpose(found, 1, 0)

    def moved(self, source: str, at: str, outside: float, label: str) -> str:
        """Cells brought to their places, [B,H,Q,K]; what no cell belongs to is `outside`."""
        e = self.emit
        count = self.cells()
        empty = e.op("Expand", e.number(outside), e.op("Add", count, e.ints(1)))
        whole = e.op("ScatterElements", empty, at, e.reshape(source, -1), axis=0)
        return e.reshape(
            e.slice(whole, 0, count, 0), self.batch, self.heads, self.queries, self.keys, out=e.name(label)
        )


def _first(size: int) -> Array:
    """1 in the first of so many features, 0 in the others."""
    out = np.zeros(size, np.float32)
    out[0] = 1.0
    return out
