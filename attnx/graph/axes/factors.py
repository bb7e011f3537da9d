"""The factors that queries, keys and scores are multiplied by, anywhere in the graph: one for all, or one per head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.axes import backward
from attnx.graph.axes.origins import PASS, ROTATE, rank_of, rotary_source
from attnx.graph.axes.paths import product_at, scalar
from attnx.graph.axes.product import dequantised
from attnx.graph.load.nodes import ROUNDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnx import NodeProto

    from attnx.graph.axes.atoms import Axes, Axis
    from attnx.graph.shapes.index import Graph
    from attnx.records import Array

    Heads = Callable[[Axis], bool]


def per_head(graph: Graph, value: str, heads: int | None) -> Array | None:
    """The numbers of a value with one number per head (one axis of that size, before at least two others)."""
    known = graph.stable(value)
    if known is None or heads in (None, 1) or known.size != heads or known.ndim < 3:
        return None
    return np.asarray(known, dtype=np.float64).ravel() if heads in known.shape[:-2] else None


def along_heads(graph: Graph, value: str, axes: Axes, are_heads: Heads) -> Array | None:
    """The numbers of a value that differs only along the axes of heads, where it meets a tensor with these axes."""
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
    """What a Mul or Div multiplies `source` by, where that is one number or one per head; None otherwise.

    Args:
        graph: The graph.
        node: The Mul or Div.
        source: The operand that is multiplied.
        heads: The number of heads.
        axes: The axes of the result, where known.
        are_heads: Returns whether one of these axes holds heads and nothing else.
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


def factors_of(
    graph: Graph, value: str, heads: int | None, axes: Axes | None = None, are_heads: Heads | None = None
) -> list[tuple[float | Array, str]]:
    """The constant factors on a query or key, nearest first, each with the name of the tensor that holds it.

    `axes` and `are_heads` are as for `multiplier`.

    Walks upstream through views, casts and rotary embeddings down to the projection, norm or bias that made the tensor.
    """
    found: list[tuple[float | Array, str]] = []
    turning = False
    for _ in range(40):
        node = graph.producer(value)
        if node is None:
            break
        if dequantised(graph, node) is not None:
            break  # dequantising integers is no scale, even where both operands are stored
        if node.op_type == "FusedMatMul":
            alpha = _fused_scale(graph, node)
            if alpha is not None and _only_scores(graph, value):
                found.append((alpha, ""))
            break
        if node.op_type in (*PASS, "Split", "Slice") or repeats(graph, node) > 1:
            straight = axes is not None and node.op_type in PASS
            axes = backward(graph, node, axes, node.input[0]) if axes is not None and straight else None
            value = node.input[0]
            continue
        # The side that is not a number is the one multiplied, whether data or, as in DETR, learned queries.
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
                break  # other nodes read the scaled tensor too: the scale belongs to the stream, not to this product
            found.append((factor, next((n for n in node.input if n != source), "")))
            axes = backward(graph, node, axes, source) if axes is not None else None
            value, turning = source, False
            continue
        together = _put_together(graph, node) or unmoved(graph, node) or unbiased(graph, node)
        if together is not None:
            value = together
            continue
        turned = rotary_source(graph, value)
        if turned is None:
            break
        axes = axes if rank_of(graph, turned) == rank_of(graph, value) else None
        value, turning = turned, True
    return found


def _fused_scale(graph: Graph, node: NodeProto) -> float | None:
    """The alpha of a projection into which onnxruntime's optimiser has folded the scale that followed it."""
    alpha = float(next((a.f for a in node.attribute if a.name == "alpha"), 1.0))
    stored = any(graph.is_constant(name) for name in node.input[:2])
    return alpha if stored and alpha not in (0.0, 1.0) else None


def repeats(graph: Graph, node: NodeProto) -> int:
    """How often a Concat or a Gather repeats each place of an axis, as for the key heads of a group; 1 for no repeats.

    Expand and Tile, the other ways to repeat, need no number here: the sizes before and after show it.
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


def unmoved(graph: Graph, node: NodeProto) -> str | None:
    """The x of x + 0 or x - 0 (paddle2onnx writes every scale as x * factor + 0); None for any other node."""
    if node.op_type not in ("Add", "Sub") or len(node.input) != 2:
        return None
    sides = [1, 0] if node.op_type == "Add" else [1]
    return next((str(node.input[1 - i]) for i in sides if scalar(graph, node.input[i]) == 0), None)


def unbiased(graph: Graph, node: NodeProto) -> str | None:
    """The x of x + u, where u holds a number for each head and feature, as the biases of relative attention do.

    A factor on x is then one on x + u too, with u divided by it. A projection's own bias has one axis; what multiplies
    the projection before it may be part of the projection.
    """
    if node.op_type != "Add" or len(node.input) != 2:
        return None
    for x, u in (node.input, node.input[::-1]):
        shape = graph.shape(u)
        if shape is not None and sum(n != 1 for n in shape) == 2 and graph.stable(u) is not None:
            return None if graph.stable(x) is not None else str(x)
    return None


def _put_together(graph: Graph, node: NodeProto) -> str | None:
    """The tensor whose parts a Concat joins again (chunked, stacked), where all of them come from one tensor."""
    if node.op_type != "Concat" or len(node.input) < 2:
        return None
    origins = set()
    for name in node.input:
        cut = False
        for _ in range(12):
            maker = graph.producer(name)
            if maker is None or maker.op_type not in (*PASS, "Split", "Slice"):
                break
            cut = cut or maker.op_type in ("Split", "Slice")
            name = maker.input[0]
        origins.add(name if cut else "")
    return origins.pop() if len(origins) == 1 and "" not in origins else None


def _only_turned(graph: Graph, value: str) -> bool:
    """Whether every reader of a tensor upstream of a rotary embedding belongs to that rotation."""
    readers = [n for n in graph.consumers(value) if n.op_type not in ("Shape", "Size")]
    return all(_only_turned(graph, n.output[0]) if n.op_type in ROUNDS else n.op_type in ROTATE for n in readers)


def _only_scores(graph: Graph, value: str, depth: int = 0) -> bool:
    """Whether every reader of a scaled tensor is a product that makes scores (disentangled attention has three)."""
    readers = [n for n in graph.consumers(value) if n.op_type not in ("Shape", "Size")]
    if depth == 0 and len(readers) == 1 and readers[0].op_type not in ("Split", "Slice", "Gather"):
        return True
    for node in readers:
        if not any(graph.consumers(out) or out in graph.outputs for out in node.output):
            continue  # nothing reads it: a leftover of the exporter
        product = product_at(graph, node, value)
        if product is not None:
            if _is_weights(graph, product.other(value)):
                return False
        elif (
            not (
                node.op_type in (*PASS, "Split", "Slice", "Gather")
                or _put_together(graph, node) is not None
                or unbiased(graph, node) == value
            )
            or depth > 5
            or not all(_only_scores(graph, out, depth + 1) for out in node.output if out)
        ):
            return False
    return bool(readers)


def _is_weights(graph: Graph, value: str) -> bool:
    """Whether a tensor is the result of a softmax, so that its product is the one with the value."""
    for _ in range(8):
        node = graph.producer(value)
        if node is None:
            return False
        if node.op_type in ("Softmax", "QLinearSoftmax"):
            return True
        if node.op_type not in (*PASS, "Where", "Mul", "Div", "Slice"):
            return False
        value = node.input[2] if node.op_type == "Where" else node.input[0]
    return False
