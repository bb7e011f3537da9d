"""One softmax over several score products, joined over keys (cached and new ones) or over keys and queries (LUKE).

Where the products are joined unchanged, the graph holds a tensor of scores, and the keys, joined the same way, are the
keys of all products. Where rows or columns have queries or keys of different kinds, that side is not a single tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Axes
from attnx.graph.axes.axes import forward
from attnx.graph.axes.axis_names import AxisNames
from attnx.graph.axes.caches import comes_in
from attnx.graph.axes.factors import factors_of, multiplier
from attnx.graph.axes.origins import streams
from attnx.graph.axes.pairing import Candidate, Use
from attnx.graph.axes.product import Product, find_product
from attnx.graph.axes.score_path import Reading
from attnx.graph.load.nodes import attributes
from attnx.layout import axis_of, parse
from attnx.records import Place
from attnx.sites.emit import Emit, prefix_of
from attnx.sites.finding import Finding, Replacement

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

Rows = list[list[Product]]
_CUTS = ("Slice", "Split", "Gather")
_MOVES = ("Transpose", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze", "Identity", "Cast")


@dataclass(frozen=True, slots=True)
class Join:
    """Score products that are concatenated, with nothing else among them."""

    rows: Rows
    """The products in a row share its queries, those in a column its keys."""
    scores: str
    axes: Axes
    end: int
    """How many steps of the way come before the scores."""


def lay_out(
    graph: Graph, node: NodeProto, finding: Finding, chosen: Candidate, reading: Reading, use: Use | None,
    letters: AxisNames, summed: Sequence[Candidate],
) -> None:  # fmt: skip
    """Record what one softmax over several products has: scores, keys and queries where they are one tensor.

    Args:
        graph: The flat graph, fused nodes replaced.
        node: The node that identifies the finding.
        finding: What was found so far, from one of the products; changed in place.
        chosen: That product.
        reading: What lies between it and the softmax.
        use: The product with the value.
        letters: The meaning of the axes.
        summed: All of the products.
    """
    joined = _join(graph, chosen, letters)
    _kind(graph, finding, summed)
    gone = ["query", "key", "scores", "scaled", "capped"]
    if joined is None or not _same_factors(graph, joined.rows, chosen, reading, letters.heads):
        finding.pieces = reading.pieces
        gone.remove("query")
        _without(finding, [*gone, "value", "context"])
        finding.notes.append(
            f"{reading.pieces} score products stand side by side in one softmax, over keys in {reading.pieces} pieces: "
            "the weights are of all of them, and key, value and context are no one tensor"
        )
        return
    for quantity in gone:
        finding.places.pop(quantity, None)
    factors = tuple(finding_factor for finding_factor in _numbers(reading))
    layout = letters.layout(joined.axes)
    if layout is not None:
        finding.places["scores"] = Place(joined.scores, layout, factors)
        finding.product, finding.beside = joined.scores, ()
        if not finding.causal and reading.biases:
            finding.causal = None  # the keys are in the order of the scores: their mask decides
        _scaled(graph, finding, chosen, joined, letters)
    e = Emit(graph, f"{prefix_of(graph, node)}/pieces")
    for quantity, lines in (
        ("query", joined.rows),
        ("key", [list(column) for column in zip(*joined.rows, strict=True)]),
    ):
        place = _side(graph, e, quantity, lines, chosen, letters, reading)
        if place is not None:
            finding.places[quantity] = place
    if use is None or any(s.node.op_type in _CUTS for s in use.way.steps):
        gone += ["value", "context"]
    _without(finding, [q for q in gone if q not in finding.places or q in ("value", "context")])
    own = finding.places.get("key")
    finding.kv_heads = finding.heads if own is not None else finding.kv_heads
    count = len(joined.rows) * len(joined.rows[0])
    finding.notes.append(f"{count} score products stand side by side in one softmax{_said(finding)}")
    if e.nodes:
        finding.replacement = Replacement([node, *e.nodes], e.initializers, at=node.output[0])


def _said(finding: Finding) -> str:
    apart = [name for name in ("query", "key") if name not in finding.places]
    return f"; {' and '.join(apart)} differ from piece to piece, and are no one tensor" if apart else ""


def _without(finding: Finding, gone: Sequence[str]) -> None:
    for quantity in gone:
        finding.places.pop(quantity, None)
    finding.absent = tuple(dict.fromkeys([*finding.absent, *gone]))


def _kind(graph: Graph, finding: Finding, summed: Sequence[Candidate]) -> None:
    """Self where some keys come from the same place as the query. One query joined with cached keys and its own sees no
    future; otherwise the order of the keys is unknown until their mask is examined.
    """
    asking = streams(graph, finding.query_from)
    own = [piece.key for piece in summed if streams(graph, piece.key) & asking]
    if own:
        finding.kind = "self"
    place = finding.places.get("masked") or finding.places.get("weights")
    shape = None if place is None else graph.shape(place.value)
    at = None if place is None else axis_of(place.layout, "q")
    one_query = shape is not None and (at is None or shape[at] == 1)
    cached = any(comes_in(graph, piece.key) for piece in summed)
    finding.causal = bool(one_query and own and cached)


def _join(graph: Graph, chosen: Candidate, letters: AxisNames) -> Join | None:
    """The products that make up the scores, by row and column; None where anything else is joined with them."""
    way = chosen.way
    layout = letters.layout(way.product.out_axes)
    words = None if layout is None else parse(layout)
    ends = [i for i, step in enumerate(way.steps) if step.node.op_type == "Concat"]
    if (
        words is None
        or not ends
        or any(s.node.op_type not in ("Concat", "Identity") for s in way.steps[: ends[-1] + 1])
    ):
        return None
    at = {name: axis_of(layout or "", name) for name in "qk"}
    if at["k"] is None:
        return None
    scores = way.steps[ends[-1]].target
    rows = _rows(graph, scores, len(words), at)
    axes: Axes | None = way.product.out_axes
    for step in way.steps[: ends[-1] + 1]:
        axes = forward(graph, step.node, axes, step.source) if axes is not None else None
    return None if rows is None or axes is None else Join(rows, scores, axes, ends[-1] + 1)


def _rows(graph: Graph, value: str, rank: int, at: dict[str, int | None]) -> Rows | None:
    product = find_product(graph, value)
    if product is not None:
        return [[product]] if len(product.out_axes) == rank else None
    node = graph.producer(value)
    if node is not None and node.op_type == "Identity":
        return _rows(graph, node.input[0], rank, at)
    if node is None or node.op_type != "Concat":
        return None
    parts = [_rows(graph, name, rank, at) for name in node.input]
    axis = attributes(node).get("axis", 0) % rank
    if any(part is None for part in parts) or axis not in (at["q"], at["k"]):
        return None
    grids = [part for part in parts if part is not None]
    if axis == at["q"]:
        return [row for grid in grids for row in grid] if len({len(g[0]) for g in grids}) == 1 else None
    if len({len(g) for g in grids}) > 1:
        return None
    return [[one for row in line for one in row] for line in zip(*grids, strict=True)]


def _same_factors(graph: Graph, rows: Rows, chosen: Candidate, reading: Reading, heads: int | None) -> bool:
    """Whether all products carry the same factors: on the query, on the key, and on the product itself."""
    left_is_key = chosen.key == chosen.way.product.left

    def carried(product: Product) -> list[object]:
        key, query = (product.left, product.right) if left_is_key else (product.right, product.left)
        return [product.factor, *([str(f) for f, _ in factors_of(graph, side, heads)] for side in (query, key))]

    first = carried(chosen.way.product)
    return all(carried(product) == first for row in rows for product in row)


def _numbers(reading: Reading) -> list[float]:
    """The factors that the scores carry before the steps to the softmax."""
    out = [float(n) for n, _ in [*reading.query_factors, *reading.key_factors]]
    return [*out, reading.product_factor] if reading.product_factor != 1.0 else out


def _scaled(graph: Graph, finding: Finding, chosen: Candidate, joined: Join, letters: AxisNames) -> None:
    """Record where the scaled scores are: after the factors that directly follow the scores."""
    axes: Axes | None = joined.axes
    value, count = joined.scores, 0
    for step in chosen.way.steps[joined.end :]:
        if multiplier(graph, step.node, step.source) is None:
            break
        axes = forward(graph, step.node, axes, step.source) if axes is not None else None
        value, count = step.target, count + 1
    later = [s for s in chosen.way.steps[joined.end + count :] if multiplier(graph, s.node, s.source) is not None]
    layout = letters.layout(axes) if axes is not None else None
    if not later and finding.softcap is None and layout is not None:
        finding.places["scaled"] = Place(value, layout)


def _side(
    graph: Graph,
    e: Emit,
    quantity: str,
    lines: list[list[Product]],
    chosen: Candidate,
    letters: AxisNames,
    reading: Reading,
) -> Place | None:
    """Queries of all rows, or keys of all columns, as one tensor; None where a row or column has several."""
    is_key = quantity == "key"
    left = (chosen.key == chosen.way.product.left) is is_key
    layout = letters.layout(chosen.key_axes if is_key else chosen.query_axes)
    factors = tuple(float(n) for n, _ in (reading.key_factors if is_key else reading.query_factors))
    names = [[product.left if left else product.right for product in line] for line in lines]
    if layout is None or any(len({_made(graph, name) for name in line}) > 1 for line in names):
        return None
    whole = [line[0] for line in names]
    at = axis_of(layout, quantity[0])
    if len(whole) == 1:
        return Place(whole[0], layout, factors)
    shapes = [graph.shape(name) for name in whole]
    if at is None or any(s is None or len(s) != len(parse(layout)) for s in shapes):
        return None
    others = {tuple(n for i, n in enumerate(s or ()) if i != at) for s in shapes}
    return Place(e.concat(whole, at, out=e.name(quantity)), layout, factors) if len(others) == 1 else None


def _made(graph: Graph, value: str) -> tuple[object, ...]:
    """How a tensor is cut and moved out of another: equal for tensors that are cut and moved the same way."""
    steps: list[object] = []
    for _ in range(12):
        node = graph.producer(value)
        if node is None or node.op_type not in _MOVES:
            break
        rest = [held for name in node.input[1:] if (held := graph.stable(name) if name else None) is not None]
        if len(rest) < len([name for name in node.input[1:] if name]):
            break
        settings = tuple(sorted(a.SerializeToString(deterministic=True) for a in node.attribute))
        steps += [node.op_type, settings, *(array.tobytes() for array in rest), list(node.output).index(value)]
        value = node.input[0]
    return (value, *steps)
