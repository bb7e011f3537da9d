"""Where a query, key or value comes from: traced through rotations to the hidden states it was projected from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.axes.paths import depends, unrounded
from attnx.graph.axes.product import find_product
from attnx.graph.load.nodes import ROUNDS, joined, op_name

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph

PASS = (
    frozenset("Transpose Reshape Cast CastLike Identity Unsqueeze Squeeze Expand Tile Flatten Dropout".split()) | ROUNDS
)
"""Operators that return the numbers of their first input, moved at most."""
ROTATE = frozenset(
    "Mul Neg Concat Slice Split Unsqueeze Squeeze Reshape Transpose Gather Add Sub Cast Identity Expand".split()
)
"""Operators that a rotary embedding consists of."""
_SELECTS = PASS | frozenset("Gather GatherND Slice Split Where Pad".split())
"""Operators that return the numbers of one tensor, or some of them, wherever they stand."""
_ROTARY_OPS = ("RotaryEmbedding", "com.microsoft.RotaryEmbedding", "com.microsoft.MRotaryEmbedding")


def rotary_source(graph: Graph, value: str) -> str | None:
    """x, where `value` is x rotated by a written-out rotary embedding (x*cos + rotated(x)*sin), or by an operator."""
    value = unrounded(graph, value)
    node = graph.producer(value)
    if node is None:
        return None
    if op_name(node) in _ROTARY_OPS:
        return str(node.input[0])
    if node.op_type == "Concat":  # partial rotary, or interleaved halves joined again
        sources = {s for s in (_turned(graph, _unstacked(graph, name)) for name in node.input) if s is not None}
        return sources.pop() if len(sources) == 1 else None
    return _turned(graph, value)


def _unstacked(graph: Graph, value: str) -> str:
    """A half of an interleaved rotation before it got the axis along which the halves are stacked."""
    node = graph.producer(unrounded(graph, value))
    return unrounded(graph, node.input[0]) if node is not None and node.op_type == "Unsqueeze" else value


def _turned(graph: Graph, value: str) -> str | None:
    """x, where value = x*a + f(x)*b with a and b that do not come from x."""
    node = graph.producer(value)
    if node is None or node.op_type not in ("Add", "Sub"):
        return None
    shape = graph.shape(value)
    sides = [graph.producer(unrounded(graph, name)) for name in node.input]
    if any(side is None or side.op_type != "Mul" for side in sides):
        return None
    reach = [_rotated_from(graph, name, shape) for name in node.input]
    common = [v for v in reach[0] if v in reach[1]]
    return common[0] if common else None


def _rotated_from(graph: Graph, value: str, shape: tuple[int | None, ...] | None) -> list[str]:
    """Values upstream, through the operators of a rotation, nearest first."""
    found: list[str] = []
    stack = [(unrounded(graph, value), 0)]
    while stack:
        name, depth = stack.pop(0)
        if name in found or depth > 9:
            continue
        if depth and rank_of(graph, name) == (len(shape) if shape is not None else -1):
            found.append(name)
        node = graph.producer(name)
        if node is not None and node.op_type in ROTATE and not node.domain:
            stack += [(unrounded(graph, n), depth + 1) for n in node.input if n and depends(graph, n)]
    return found


def rank_of(graph: Graph, value: str) -> int | None:
    """The number of axes of a value, where known."""
    shape = graph.shape(value)
    return None if shape is None else len(shape)


def streams(graph: Graph, value: str, limit: int = 160, sums: int = 2) -> set[str]:
    """The values that a query, key or value was made from, up to the hidden states that its block reads.

    Follows operators that carry content (projections by constant weights, norms, rotary, concatenations) and stops at a
    residual sum, a score product or a graph input. Two sides whose streams meet read the same sequence. Sums of parts
    of one stream are followed, at most `sums` of them nested.
    """
    found: set[str] = set()
    stack = [value]
    while stack and len(found) < limit:
        name = stack.pop()
        if not name or name in found or not depends(graph, name):
            continue
        found.add(name)
        node = graph.producer(name)
        if node is None:
            continue
        product = find_product(graph, name)
        if product is not None:
            sides = [s for s in (product.left, product.right) if depends(graph, s)]
            if len(sides) == 1:
                stack.append(sides[0])
            continue
        if node.op_type in (
            "Softmax",
            "LogSoftmax",
            "If",
            "Loop",
            "Scan",
            "LSTM",
            "GRU",
            "RNN",
            "DynamicQuantizeLSTM",
            "AttnLSTM",
        ):
            continue
        if node.op_type in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"):
            continue
        live = [n for n in node.input if n and depends(graph, n)]
        if parts := joined(node):
            stack += [n for n in parts if n and depends(graph, n)]
        elif node.op_type in ("Add", "Sub", "Mul", "Div", "Where", "Sum") and len(live) > 1:
            turned = rotary_source(graph, name)
            if turned is not None:
                stack.append(turned)
            else:
                stack += _content(graph, name, live, sums)
        elif node.op_type in ("ScatterND", "ScatterElements"):
            stack += [node.input[0], node.input[2]]
        elif live:
            stack.append(live[0])
    return found


def carried_on(graph: Graph, query: str, key: str) -> bool:
    """Whether the query's hidden states are the key's plus what later layers added to them, position by position.

    This is so where a layer reads the keys and values of an earlier one (Gemma 3n, YOCO): the same sequence. The result
    of a product of two data terms is not followed: a sum with the output of cross-attention is still the query's own.
    """
    wanted = {name for name in streams(graph, key) if _residual(graph, name)}
    stack = [name for name in streams(graph, query) if _residual(graph, name)]
    found: set[str] = set()
    while stack and wanted and len(found) < 400:
        name = stack.pop()
        if name in found:
            continue
        found.add(name)
        if name in wanted:
            return True
        node, shape = graph.producer(name), graph.shape(name)
        if node is not None and node.op_type in ("Add", "Sum", "SkipLayerNormalization"):
            alike = [n for n in node.input[:2] if depends(graph, n) and graph.shape(n) == shape]
            stack += [inner for n in alike for inner in streams(graph, n)]
    return False


def _residual(graph: Graph, name: str) -> bool:
    """Whether a value of [batch, positions, width] is a sum of two that depend on data, or a model input."""
    node = graph.producer(name)
    if node is None:
        return name in graph.inputs and len(graph.shape(name) or ()) > 2
    shape = graph.shape(name)
    if node.op_type not in ("Add", "Sum", "SkipLayerNormalization"):
        return False
    return sum(depends(graph, n) and graph.shape(n) == shape for n in node.input[:2]) > 1


def _content(graph: Graph, out: str, live: list[str], sums: int) -> list[str]:
    """Of several data operands, those as wide as the result (no mask, angle or norm); none for a residual sum."""
    shape = graph.shape(out)
    wide = [n for n in live if graph.shape(n) == shape]
    if len(wide) != 1:
        node = graph.producer(out)
        if node is not None and node.op_type in ("Add", "Sum") and len(wide) > 1:
            return _common_whole(graph, wide) or _branches(graph, wide, sums)
        return wide[:1] or live[:1]
    return wide


def _branches(graph: Graph, parts: list[str], sums: int) -> list[str]:
    """All parts of a sum, where they are made side by side from one stream (not one from another); else none."""
    if not sums:
        return []
    made_of = [streams(graph, part, 40, sums - 1) for part in parts]
    residual = any(part in of for i, part in enumerate(parts) for j, of in enumerate(made_of) if i != j)
    return [] if residual or not set.intersection(*made_of) else parts


def _common_whole(graph: Graph, parts: list[str]) -> list[str]:
    """The one tensor of which all parts are selections: their sum pools or shifts it and adds no other stream."""
    wholes: set[str] = set()
    stack, seen = list(parts), set(parts)
    while stack and len(seen) < 100:
        name = stack.pop()
        node = graph.producer(name)
        live = [] if node is None else [n for n in node.input if n and depends(graph, n)]
        if node is not None and node.op_type in ("Add", "Sum") and len(live) > 1:
            fresh = [n for n in live if n not in seen]
            seen.update(fresh)
            stack += fresh
            continue
        selected = False
        while node is not None and node.op_type in _SELECTS and len(live) == 1:
            selected = selected or node.op_type not in PASS
            name, node = live[0], graph.producer(live[0])
            live = [] if node is None else [n for n in node.input if n and depends(graph, n)]
        wholes.add(name if selected or name not in parts else "")
    return [] if len(wholes) != 1 or "" in wholes else list(wholes)
