"""What surrounds rearranged scores: what their weights are multiplied by, their scale, and the site they make."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from attnx.graph.axes.factors import factors_of, multiplier
from attnx.graph.axes.moved import origins
from attnx.graph.axes.paths import Way, depends
from attnx.graph.axes.product import find_product
from attnx.records import Place
from attnx.sites.finding import Finding
from attnx.sites.strided.row_proof import Proof
from attnx.sites.strided.sources import Beside, Source, Weighed

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_MOVED = frozenset(
    "Reshape Transpose Slice Gather GatherND GatherElements Unsqueeze Squeeze Identity Cast CastLike Flatten Expand "
    "Pad Split Concat Where Mul ScatterND ScatterElements".split()
)
"""Operators that may lie between the weights and the product with the value."""
GATHERED = frozenset("Reshape Transpose Unsqueeze Squeeze Identity Cast Flatten Slice".split())
"""Operators that may lie between that product and the context."""
_GUARDS = ("Where", "Cast", "Identity", "Dropout")
_MOST = 400
_TRIED = 6


def guarded(graph: Graph, out: str) -> str:
    """The weights after a node that hides rows of padding in them."""
    for _ in range(4):
        readers = [n for n in graph.consumers(out) if n.op_type not in ("Shape", "Size")]
        if len(readers) != 1 or readers[0].op_type not in _GUARDS:
            break
        out = readers[0].output[0]
    return out


def weighed(graph: Graph, weights: str, joined: str = "") -> Weighed | None:
    """What the weights are multiplied by, through steps that move them, and what may be the context.

    Args:
        graph: The graph.
        weights: The weights.
        joined: Where they may be multiplied by several tensors, the name for these joined.
    """
    reached, stack = {weights}, [weights]
    values: dict[str, None] = {}
    sums: list[str] = []
    while stack and len(reached) < _MOST:
        value = stack.pop(0)
        for node in graph.consumers(value):
            product = find_product(graph, node.output[0]) if node.output else None
            if product is not None and product.node is node:
                other = product.other(value)
                if depends(graph, other) and other not in reached:
                    ends = origins(graph, other)
                    values.update(dict.fromkeys(ends if joined or len(ends) == 1 else [""]))
                    sums.append(node.output[0])
            elif node.op_type in _MOVED:
                new = [o for o in node.output if o and o not in reached]
                reached.update(new)
                stack += new
    beside = side_by_side(graph, tuple(values)) if joined and len(values) > 1 else None
    if (len(values) != 1 and beside is None) or "" in values:
        return None
    at = 0
    while at < len(sums) < _MOST:
        for node in graph.consumers(sums[at]):
            others = [n for n in node.input if n not in sums]
            together = node.op_type == "Add" and not others
            if (together or (node.op_type in GATHERED and node.input[0] == sums[at])) and node.output[0] not in sums:
                sums.append(node.output[0])
        at += 1
    value = joined if beside is not None else next(iter(values))
    return Weighed((weights,), value, tuple(sums[: -_TRIED - 1 : -1]), beside)


def side_by_side(graph: Graph, parts: tuple[str, ...]) -> Beside | None:
    """How tensors can be joined: equal in all sizes except that of one axis, else joined before the last axis."""
    shapes = [graph.shape(part) for part in parts]
    rank = len(shapes[0] or ())
    if rank < 3 or any(shape is None or len(shape) != rank for shape in shapes):
        return None
    apart = [axis for axis in range(rank) if len({shape[axis] for shape in shapes if shape}) > 1]
    return Beside(parts, apart[0] if apart else rank - 2) if len(apart) < 2 else None


@dataclass(frozen=True, slots=True)
class Scaling:
    """The factors on scores on the way to their softmax."""

    query: tuple[float, ...]
    key: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def scale(self) -> float:
        """All factors multiplied."""
        return prod((*self.query, *self.key, *self.after))

    @property
    def where(self) -> str:
        """Where the scale is applied, in words."""
        both = "on query and key" if self.query and self.key else ""
        sides = both or ("on the query" if self.query else "on the key" if self.key else "")
        return ", ".join(w for w in (sides, "after QK^T" if self.after else "") if w) or "none in the graph"


def scaling(graph: Graph, way: Way, source: Source) -> Scaling:
    """The factors on the scores of one product."""
    query, key = (tuple(float(f) for f, _ in factors_of(graph, name, None)) for name in (source.query, source.key))
    behind = [multiplier(graph, step.node, step.source) for step in way.steps]
    return Scaling(query, key, tuple(float(f) for f in (way.product.factor, *behind) if f is not None and f != 1.0))


def described(node: NodeProto, source: Source, use: Weighed | None, proof: Proof, scaled: Scaling) -> Finding:
    """The site, without its masked scores and weights."""
    places = {"key": Place(source.key, proof.key.layout("k", proof.heads), scaled.key)}
    if proof.value is not None and use is not None:
        places["value"] = Place(use.value, proof.value.layout("k", proof.heads))
    if proof.tokens is None:
        places["query"] = Place(source.query, proof.query.layout("q", proof.heads), scaled.query)
        if proof.context is not None and use is not None:
            places["context"] = Place(use.contexts[proof.at], proof.context.layout("q", proof.heads))
    finding = Finding(node=node, places=places, query_from=source.query, key_from=source.key)
    finding.heads = finding.kv_heads = proof.heads
    finding.head_size = source.size
    finding.scale, finding.scale_place = scaled.scale, scaled.where
    finding.causal, finding.window, finding.bias = proof.causal, proof.window, "bias" if proof.biased else None
    if proof.value is None:
        finding.absent = ("value", "context")
        finding.notes.append("how its weights are moved to weigh the value could not be followed")
    return finding
