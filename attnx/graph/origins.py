"""Where a query, key or value comes from: the factors on it, and the hidden states that it was projected from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes import backward
from attnx.graph.index import op_name
from attnx.graph.paths import depends, product_at, scalar
from attnx.graph.product import find_product

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnx import NodeProto

    from attnx.graph.axes import Axes, Axis
    from attnx.graph.index import Graph
    from attnx.records import Array

    Heads = Callable[[Axis], bool]

_PASS = frozenset(
    "Transpose Reshape Cast CastLike Identity Unsqueeze Squeeze Expand Tile QuantizeLinear DequantizeLinear "
    "DynamicQuantizeLinear Flatten Dropout".split()
)
_ROTATE = frozenset(
    "Mul Neg Concat Slice Split Unsqueeze Squeeze Reshape Transpose Gather Add Sub Cast Identity Expand".split()
)
_ROTARY_OPS = ("RotaryEmbedding", "com.microsoft.RotaryEmbedding", "com.microsoft.MRotaryEmbedding")


def per_head(graph: Graph, value: str, heads: int | None) -> Array | None:
    """The numbers of a value that is one number a head (one axis of that size, before at least two others)."""
    known = graph.stable(value)
    if known is None or heads in (None, 1) or known.size != heads or known.ndim < 3:
        return None
    return np.asarray(known, dtype=np.float64).ravel() if heads in known.shape[:-2] else None


def along_heads(graph: Graph, value: str, axes: Axes, are_heads: Heads) -> Array | None:
    """The numbers of a value that differs along the axes of heads alone, where it meets a tensor with these axes."""
    known = graph.stable(value)
    if known is None or known.ndim > len(axes) or known.size < 2:
        return None
    lead = len(axes) - known.ndim
    if any(n != 1 and not are_heads(axes[lead + i]) for i, n in enumerate(known.shape)):
        return None
    if any(n == 1 and axes[lead + i] and are_heads(axes[lead + i]) for i, n in enumerate(known.shape)):
        return None  # the same for some of the heads
    return np.asarray(known, dtype=np.float64).ravel()


def multiplier(
    graph: Graph,
    node: NodeProto,
    source: str,
    heads: int | None = None,
    axes: Axes | None = None,
    are_heads: Heads | None = None,
) -> float | Array | None:
    """What a Mul or Div multiplies `source` by, where that is one number or one a head; None otherwise.

    Args:
        graph: The graph.
        node: The Mul or Div.
        source: The operand that is multiplied.
        heads: How many there are.
        axes: The axes of the result, where they are known.
        are_heads: Tells of one of them whether it holds heads and nothing else.
    """
    if node.op_type == "Neg":
        return -1.0
    if node.op_type == "QLinearMul":
        return _quantised_number(graph, node, source)
    if node.op_type not in ("Mul", "Div") or len(node.input) != 2 or node.input[0] == node.input[1]:
        return None
    other = node.input[1] if node.input[0] == source else node.input[0]
    if node.op_type == "Div" and other == node.input[0]:
        return None
    number: float | Array | None = scalar(graph, other)
    if number is None and axes is not None and are_heads is not None:
        number = along_heads(graph, other, axes, are_heads)
        if number is not None and number.size != heads:
            number = None
    elif number is None:
        number = per_head(graph, other, heads)
    if number is None or np.any(np.asarray(number) == 0):
        return None
    return 1.0 / number if node.op_type == "Div" else number


def _quantised_number(graph: Graph, node: NodeProto, source: str) -> float | None:
    """The number that a QLinearMul multiplies by: (integer - zero point) x its scale.

    Source: onnxruntime, contrib operators, QLinearMul (A, its scale and zero point, B, its scale and zero point, ...).
    """
    if len(node.input) < 6:
        return None
    at = 3 if node.input[0] == source else 0
    held = [graph.stable(name) if name else np.zeros(()) for name in node.input[at : at + 3]]
    if any(h is None or h.size != 1 for h in held):
        return None
    whole, scale, zero = (float(np.asarray(h, np.float64).ravel()[0]) for h in held)
    return (whole - zero) * scale or None


def rotary_source(graph: Graph, value: str) -> str | None:
    """x, where `value` is x turned by a rotary embedding written out (x*cos + rotated(x)*sin), or by an operator."""
    node = graph.producer(value)
    if node is None:
        return None
    if op_name(node) in _ROTARY_OPS:
        return str(node.input[0])
    if node.op_type == "Concat":  # partial rotary, or interleaved halves put together again
        sources = {s for s in (_turned(graph, _unstacked(graph, name)) for name in node.input) if s is not None}
        return sources.pop() if len(sources) == 1 else None
    return _turned(graph, value)


def _unstacked(graph: Graph, value: str) -> str:
    """A half of an interleaved rotation before it got the axis along which the halves are stacked."""
    node = graph.producer(value)
    return str(node.input[0]) if node is not None and node.op_type == "Unsqueeze" else value


def _turned(graph: Graph, value: str) -> str | None:
    """x, where value = x*a + f(x)*b with a and b that do not come from x."""
    node = graph.producer(value)
    if node is None or node.op_type not in ("Add", "Sub"):
        return None
    shape = graph.shape(value)
    sides = [graph.producer(name) for name in node.input]
    if any(side is None or side.op_type != "Mul" for side in sides):
        return None
    reach = [_rotated_from(graph, name, shape) for name in node.input]
    common = [v for v in reach[0] if v in reach[1]]
    return common[0] if common else None


def _rotated_from(graph: Graph, value: str, shape: tuple[int | None, ...] | None) -> list[str]:
    """Values upstream through the operators of a rotation, nearest first."""
    found: list[str] = []
    stack = [(value, 0)]
    while stack:
        name, depth = stack.pop(0)
        if name in found or depth > 9:
            continue
        if depth and _rank(graph, name) == (len(shape) if shape is not None else -1):
            found.append(name)
        node = graph.producer(name)
        if node is not None and node.op_type in _ROTATE and not node.domain:
            stack += [(n, depth + 1) for n in node.input if n and depends(graph, n)]
    return found


def _rank(graph: Graph, value: str) -> int | None:
    shape = graph.shape(value)
    return None if shape is None else len(shape)


def factors_of(
    graph: Graph, value: str, heads: int | None, axes: Axes | None = None, are_heads: Heads | None = None
) -> list[tuple[float | Array, str]]:
    """The constant factors that a query or key carries, nearest first, each with the name of what holds it.

    `axes` and `are_heads` are as for `multiplier`.

    Walks upstream through views, casts and rotary embeddings down to the projection, norm or bias that made the tensor.
    """
    found: list[tuple[float | Array, str]] = []
    turning = False
    for _ in range(40):
        node = graph.producer(value)
        if node is None:
            break
        if node.op_type in (*_PASS, "Split", "Slice") or repeats(graph, node) > 1:
            straight = axes is not None and node.op_type in _PASS
            axes = backward(graph, node, axes, node.input[0]) if axes is not None and straight else None
            value = node.input[0]
            continue
        # The side that is no number is what is multiplied, be it data or, as in DETR, learned queries.
        step = next(
            (
                (n, f)
                for n in node.input
                if n
                and scalar(graph, n) is None
                and (f := multiplier(graph, node, n, heads, axes, are_heads)) is not None
            ),
            None,
        )
        if step is not None:
            source, factor = step
            if not (turning and _only_turned(graph, value)) and not _only_scores(graph, value):
                break  # others read it scaled too: the scale is the stream's own, not this product's
            found.append((factor, next((n for n in node.input if n != source), "")))
            axes = backward(graph, node, axes, source) if axes is not None else None
            value, turning = source, False
            continue
        together = _put_together(graph, node)
        if together is not None:
            value = together
            continue
        turned = rotary_source(graph, value)
        if turned is None:
            break
        axes = axes if _rank(graph, turned) == _rank(graph, value) else None
        value, turning = turned, True
    return found


def repeats(graph: Graph, node: NodeProto) -> int:
    """How often a Concat or a Gather gives each place of an axis again, as key heads are for their group; 1 for none.

    The other ways to say it, Expand and Tile, give no number of their own: sizes before and after tell.
    """
    if node.op_type == "Concat":
        return len(node.input) if len(set(node.input)) == 1 else 1
    if node.op_type != "Gather" or node.domain not in ("", "ai.onnx"):
        return 1
    places, shape = graph.stable(node.input[1]), graph.shape(node.input[0])
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    if places is None or places.ndim != 1 or not shape or not shape[axis % len(shape)]:
        return 1
    size = int(shape[axis % len(shape)] or 0)
    if places.size % size:
        return 1
    counts = np.bincount(places.astype(np.int64) % size, minlength=size)
    return int(counts[0]) if (counts == counts[0]).all() else 1


def _put_together(graph: Graph, node: NodeProto) -> str | None:
    """The tensor whose parts a Concat puts together again (chunked, stacked), where all of them are of one tensor."""
    if node.op_type != "Concat" or len(node.input) < 2:
        return None
    origins = set()
    for name in node.input:
        cut = False
        for _ in range(12):
            maker = graph.producer(name)
            if maker is None or maker.op_type not in (*_PASS, "Split", "Slice"):
                break
            cut = cut or maker.op_type in ("Split", "Slice")
            name = maker.input[0]
        origins.add(name if cut else "")
    return origins.pop() if len(origins) == 1 and "" not in origins else None


def _only_turned(graph: Graph, value: str) -> bool:
    """Whether all that reads a tensor behind which a rotary embedding was found belongs to that rotation."""
    return all(n.op_type in _ROTATE for n in graph.consumers(value) if n.op_type not in ("Shape", "Size"))


def _only_scores(graph: Graph, value: str, depth: int = 0) -> bool:
    """Whether all that reads a scaled tensor is products that make scores (disentangled attention has three)."""
    readers = [n for n in graph.consumers(value) if n.op_type not in ("Shape", "Size")]
    if depth == 0 and len(readers) == 1 and readers[0].op_type not in ("Split", "Slice", "Gather"):
        return True
    for node in readers:
        if not any(graph.consumers(out) or out in graph.outputs for out in node.output):
            continue  # what nothing reads was left behind by the exporter
        product = product_at(graph, node, value)
        if product is not None:
            if _is_weights(graph, product.other(value)):
                return False
        elif (
            not (node.op_type in (*_PASS, "Split", "Slice", "Gather") or _put_together(graph, node) is not None)
            or depth > 5
            or not all(_only_scores(graph, out, depth + 1) for out in node.output if out)
        ):
            return False
    return bool(readers)


def _is_weights(graph: Graph, value: str) -> bool:
    """Whether a tensor is what a softmax gave, so that its product is the one with the value."""
    for _ in range(8):
        node = graph.producer(value)
        if node is None:
            return False
        if node.op_type in ("Softmax", "QLinearSoftmax"):
            return True
        if node.op_type not in (*_PASS, "Where", "Mul", "Div", "Slice"):
            return False
        value = node.input[2] if node.op_type == "Where" else node.input[0]
    return False


def streams(graph: Graph, value: str, limit: int = 160) -> set[str]:
    """The values that a query, key or value was made from, back to the hidden states that its block reads.

    Follows what carries content (projections by constant weights, norms, rotary, concatenations) and stops behind a
    residual sum, a score product or a graph input. Two sides whose streams meet read the same sequence.
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
        if node.op_type in ("Softmax", "LogSoftmax", "If", "Loop", "Scan", "LSTM", "GRU", "RNN"):
            continue
        if node.op_type in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"):
            continue
        live = [n for n in node.input if n and depends(graph, n)]
        if node.op_type == "Concat":
            stack += live
        elif node.op_type in ("Add", "Sub", "Mul", "Div", "Where", "Sum") and len(live) > 1:
            turned = rotary_source(graph, name)
            if turned is not None:
                stack.append(turned)
            else:
                stack += _content(graph, name, live)
        elif node.op_type in ("ScatterND", "ScatterElements"):
            stack += [node.input[0], node.input[2]]
        elif live:
            stack.append(live[0])
    return found


def _content(graph: Graph, out: str, live: list[str]) -> list[str]:
    """Of several data operands, those as wide as the result (no mask, angle or norm); none for a residual sum."""
    shape = graph.shape(out)
    wide = [n for n in live if graph.shape(n) == shape]
    if len(wide) != 1:
        node = graph.producer(out)
        residual = node is not None and node.op_type in ("Add", "Sum") and len(wide) > 1
        return [] if residual else wide[:1] or live[:1]
    return wide
