"""Attention without a softmax: named after what replaces the softmax, and refused, as it has no weights to show.

Its sign is two products in a row: of queries and keys, then of the result with values. Or, in linear attention, of keys
and values, then of the result with queries.

Sources: Ramapuram et al. 2024 (sigmoid), So et al. 2021 and Hua et al. 2022 (squared ReLU), Sun et al. 2023
(retention), Katharopoulos et al. 2020 (linear attention), Martins and Astudillo 2016 (sparsemax), Zeng et al. 2021
(YOSO: a power of the angle between query and key).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Axes, atoms_of, leaves, split_alike
from attnx.graph.axes.axes import forward
from attnx.graph.axes.head_origin import upstream
from attnx.graph.axes.paths import Step, depends, product_at, scalar
from attnx.graph.axes.product import MULTIPLIES, Product, find_product
from attnx.graph.load.nodes import CURVES, op_name
from attnx.records import Miss

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_NAMED = (*CURVES, "Pow")
"""What may stand in the softmax's place; of several in a row, the first here gives the name."""
_STEPS = frozenset(
    "Add Sub Mul Div Where Cast CastLike Reshape Transpose Squeeze Unsqueeze Identity Dropout Expand Slice Clip Max "
    "Min Relu Sigmoid Exp Neg Sign Round Floor Ceil".split()
).union(_NAMED)
_MOST = 14


def misses(graph: Graph, known: Iterable[str]) -> list[Miss]:
    """Every pair of products that is attention except for a softmax.

    Args:
        graph: The flat graph, fused nodes replaced.
        known: Products of sites: their scores and contexts.
    """
    taken, found = set(known), []
    for node in graph.steps:
        first = find_product(graph, node.output[0]) if node.op_type in MULTIPLIES and node.output else None
        if first is None or first.node is not node or first.out in taken:
            continue
        if depends(graph, first.left) and depends(graph, first.right) and set(leaves(first.contracted)):
            reason = _weighs(graph, first)
            if reason is not None:
                found.append(Miss(node.name, op_name(node), reason))
    return found


def _weighs(graph: Graph, first: Product) -> str | None:
    """The kind of attention that a product of two tensors begins; None where it begins none."""
    by_features = _features(graph, first.left, first.left_axes, first)
    if by_features is None or by_features != _features(graph, first.right, first.right_axes, first):
        return None
    stack: list[tuple[str, Axes, list[Step]]] = [(first.out, first.out_axes, [])]
    seen: set[str] = set()
    while stack:
        value, axes, steps = stack.pop(0)
        if value in seen or len(steps) > _MOST:
            continue
        seen.add(value)
        for node in graph.consumers(value):
            second = product_at(graph, node, value)
            if second is not None:
                if _contracts(graph, first, second, value, axes):
                    return _by_scores(graph, steps) if by_features else _LINEAR
                continue
            if node.op_type not in _STEPS or node.domain not in ("", "ai.onnx"):
                continue
            following = forward(graph, node, axes, value)
            if following is not None:
                stack.append((node.output[0], following, [*steps, Step(node, value, node.output[0])]))
    return None


def _contracts(graph: Graph, first: Product, second: Product, value: str, axes: Axes) -> bool:
    """Whether a second product sums over an axis that came from one operand of the first."""
    if not depends(graph, second.other(value)) or second.other(value) == value:
        return False
    mine = second.left_axes if value == second.left else second.right_axes
    if len(mine) != len(axes):
        return False
    split_alike(mine, axes)
    left, right = atoms_of(first.left_axes), atoms_of(first.right_axes)
    summed = set(leaves(second.contracted))
    return bool(summed) and (summed <= left - right or summed <= right - left)


def _features(graph: Graph, value: str, axes: Axes, first: Product) -> bool | None:
    """Whether a product sums over features that a projection made for an operand; None where no projection made it."""
    marked = list(first.contracted)
    for _ in range(24):
        marks = set(leaves(marked))
        product = find_product(graph, value)
        if product is not None:
            if depends(graph, product.left) == depends(graph, product.right) or len(product.out_axes) != len(axes):
                return None
            stored = product.right_axes if depends(graph, product.left) else product.left_axes
            own = {a for axis in stored for a in axis}
            at = [i for i, axis in enumerate(product.out_axes) if not own.isdisjoint(axis)]
            return not marks.isdisjoint(leaf for i in at for leaf in leaves(axes[i]))
        node = graph.producer(value)
        if node is not None and node.op_type == "Conv" and len(axes) > 1:
            return not marks.isdisjoint(leaves(axes[1]))
        if node is not None and node.op_type == "Softmax":  # over queries or keys alone: efficient attention
            value = node.input[0]
            continue
        step = upstream(graph, value, axes, marked)
        if step is None:
            return None
        value, axes, marked = step
    return None


_NOT = "so it has no weights that sum to 1, and is not shown"
_LINEAR = (
    "linear attention: keys and values are multiplied first, and queries read what comes of it; no number of the graph "
    "stands for a query and a key, and none is shown"
)


def _by_scores(graph: Graph, steps: list[Step]) -> str:
    """What lies between a product of queries and keys and the values, in words."""
    ops = [step.node.op_type for step in steps]
    if "Exp" in ops:
        return (
            "the exponentials of a product of two tensors weigh a tensor, and are not divided by their sum before: a "
            "softmax that is completed behind the values, " + _NOT
        )
    if any(op in ("Clip", "Relu", "Max") and _thresholded(graph, steps[:i]) for i, op in enumerate(ops)):
        return "sparsemax or entmax attention: scores less a threshold of their own, cut off at 0, weigh a tensor"
    name = "attention without a softmax"
    if "Sigmoid" in ops:
        name = "sigmoid attention"
    elif "Relu" in ops:
        squared = any(
            (s.node.op_type == "Pow" and scalar(graph, s.node.input[1]) == 2)
            or (s.node.op_type == "Mul" and s.node.input[0] == s.node.input[1])
            for s in steps[ops.index("Relu") :]
        )
        name = "squared ReLU attention" if squared else "ReLU attention"
    elif curve := next((op for op in _NAMED if op in ops), ""):
        name = f"attention by {curve}"
    if _renormalised(graph, steps):
        return f"{name}, divided by its sums: a product of two tensors weighs a tensor, and no exponential is between"
    return f"{name}: a product of two tensors weighs a tensor, and no softmax is between them, {_NOT}"


def _thresholded(graph: Graph, steps: list[Step]) -> bool:
    """Whether a number from each row is subtracted from its scores (not a bias or mask), found by sorting the row."""
    for step in steps:
        if step.node.op_type == "Sub" and list(step.node.input).index(step.source) == 0:
            stack, seen = [step.node.input[1]], 0
            while stack and seen < 40:
                node = graph.producer(stack.pop())
                seen += 1
                if node is not None and node.op_type in ("TopK", "CumSum"):
                    return True
                stack += [] if node is None or _stored_only(graph, node) else [n for n in node.input if n]
    return False


def _stored_only(graph: Graph, node: NodeProto) -> bool:
    """Whether a node reads no data."""
    return not any(depends(graph, n) for n in node.input if n)


def _renormalised(graph: Graph, steps: list[Step]) -> bool:
    """Whether weights are divided by their own sums over an axis."""
    for step in steps:
        if step.node.op_type != "Div" or step.node.input[0] != step.source:
            continue
        value = step.node.input[1]
        for _ in range(6):
            node = graph.producer(value)
            if node is None:
                break
            if node.op_type in ("ReduceSum", "ReduceL1"):
                return True
            if node.op_type not in ("Add", "Max", "Clip", "Expand", "Cast", "Unsqueeze", "Abs"):
                break
            value = next((n for n in node.input if n and depends(graph, n)), node.input[0])
    return False
