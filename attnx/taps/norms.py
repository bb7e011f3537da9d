"""How large each key's contribution is after W_O, in the graph: ||v_j W_O|| per head, [H,K], for `measure.norms`.

With G = W_O W_O^T, which does not depend on the text, |v W_O|^2 = v G v^T: a fraction of the cost of the product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.layout import parse, whole_factor
from attnx.records import Place, Site

if TYPE_CHECKING:
    from attnx.graph.axes.projections import Operand
    from attnx.graph.shapes.index import Graph
    from attnx.taps.reductions import Writer

LEFT = 1e-3
"""Where less than this share of |v|^2 |W_O|^2 is left, too much cancels for squares in float32 to be accurate."""
_FLOATS = (1, 10)


def norms_behind(writer: Writer, graph: Graph, site: Site, value: str, place: Place) -> tuple[str, str] | None:
    """Add the nodes.

    Args:
        writer: The writer of the graph that is being tapped.
        graph: The graph that the site's places are in.
        site: A site with a value.
        value: Name of the output that holds the value, for a batch of one.
        place: The place of the value.

    Returns:
        The names of ||v_j W_O|| [B,H,K], and of the margin by which its square exceeds the share `LEFT`, the smallest
        for each head, [B,H]: where that is below 0, do not use the former. None where the graph does not allow it.
    """
    from attnx.graph.axes.projections import output_operand

    axes = _order(place)
    factor = whole_factor(place.factors)
    operand = output_operand(graph, site)
    if axes is None or operand is None or not isinstance(factor, float) or not writer.holds(operand.name):
        return None
    own = graph.facts.get(place.value)
    held = _floats(writer, graph, operand)
    if held is None or own is None or own.dtype not in _FLOATS:
        return None
    order, kv_heads, batched = axes
    heads, size, width = operand.shape
    kv_heads = kv_heads or site.kv_heads or heads
    if heads % kv_heads:
        return None
    matrix = writer.transposed(held, operand.order)
    matrix = writer.reshaped(matrix, (kv_heads, heads // kv_heads, size, width))
    square = writer.node("MatMul", [matrix, writer.transposed(matrix, (0, 1, 3, 2))])
    # [B,Hkv,1,K,D] x [Hkv,H/Hkv,D,D]: a value head serves all query heads that read it.
    plain = writer.transposed(writer.as_float32(value), order)
    vector = writer.reshaped(plain, (0 if batched else 1, kv_heads, 1, -1, size))
    inside = writer.summed(writer.node("Mul", [writer.node("MatMul", [vector, square]), vector]))
    whole = writer.node("Mul", [writer.summed(writer.node("Mul", [vector, vector])), _trace(writer, matrix)])
    left = writer.node("Sub", [inside, writer.node("Mul", [whole, writer.number(LEFT)])])
    norm = writer.node("Sqrt", [writer.node("Max", [inside, writer.number(0.0)])])
    by = abs(operand.factor / factor) if factor else float("nan")
    if by != 1.0:
        norm = writer.node("Mul", [norm, writer.number(by)])
    flat = (0, heads, -1)
    return writer.reshaped(norm, flat), writer.extreme("ReduceMin", writer.reshaped(left, flat))


def _floats(writer: Writer, graph: Graph, operand: Operand) -> str | None:
    """W_O in float32; None where it consists of integers whose scale is unknown."""
    fact = graph.facts.get(operand.name)
    if fact is not None and fact.dtype in _FLOATS:
        return writer.as_float32(operand.name)
    scale = graph.facts.get(operand.scale)
    if fact is None or scale is None or scale.dtype != 1 or not all(map(writer.holds, (operand.scale, operand.zero))):
        return None
    by_column = scale.shape is not None and len(scale.shape) > 0 and scale.shape != (1,)
    if by_column and graph.opset < 13:
        return None
    inputs = [operand.name, operand.scale, *([operand.zero] if operand.zero else [])]
    return writer.node("DequantizeLinear", inputs, **({"axis": len(operand.order) - 1} if by_column else {}))


def _trace(writer: Writer, matrix: str) -> str:
    """The sum of squares of each head's matrix, [Hkv,H/Hkv,1]."""
    return writer.summed(writer.summed(writer.node("Mul", [matrix, matrix])), keep=1)


def _order(place: Place) -> tuple[tuple[int, ...], int | None, bool] | None:
    """The axes of a value as b, h, k, d or with one of b and h; the number of heads in the layout; whether there is
    a b.

    "(b h)" counts as h, for a batch of one. None where more is merged.
    """
    axes = parse(place.layout)
    letters = ["".join(name[0] for name, _ in axis) for axis in axes]
    ranks = {"b": 0, "": 1 if "b" in letters else 0, "h": 1, "bh": 1, "k": 2, "d": 3}
    if place.tile != 1 or place.window is not None or len(axes) not in (3, 4) or not ranks.keys() >= set(letters):
        return None
    order = sorted(range(len(axes)), key=lambda at: ranks[letters[at]])
    sorts = [ranks[letters[at]] for at in order]
    if len(set(sorts)) != len(sorts) or sorts[-2:] != [2, 3]:
        return None
    heads = next((axes[at] for at in order if "h" in letters[at]), (("h", 1),))
    return tuple(order), dict(heads).get("h"), sorts[0] == 0
