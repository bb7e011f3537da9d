"""Read the steps between the score product and the softmax: where the scale sits, softcap, bias, mask, sink."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.axes import Axes, forward
from attnx.graph.axes.axis_names import Letters
from attnx.graph.axes.factors import factors_of, multiplier, unmoved
from attnx.graph.axes.paths import Step, Way, depends, scalar, ways_back
from attnx.records import Array

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

Factor = tuple[float | Array, str]
"""A number (or one a head), and the name of the tensor that holds it ("" where it is an attribute)."""


@dataclass(slots=True)
class Reading:
    """What lies between the product and the softmax."""

    query_factors: list[Factor]
    key_factors: list[Factor]
    product_factor: float
    """Factor that the product itself carries (FusedMatMul's alpha)."""
    path_factors: list[Factor] = field(default_factory=list)
    """Scale factors met between the product and the softmax (a softcap's own division left out)."""
    scaled: int | None = None
    """How many steps behind the product the scaled scores stand as a tensor (0: the product); None: nowhere."""
    capped: int | None = None
    softcap: float | None = None
    biases: list[str] = field(default_factory=list)
    """What is added to or selected into the scores: masks and biases, nearest the product first."""
    sink: tuple[int | None, int | None] | None = None
    """[start, stop) of the last axis that belongs to keys, where a sink column was put beside them."""
    pieces: int = 1
    """How many score products stand side by side in one softmax: 2 where global keys stand beside local ones."""

    def scale(self) -> float | tuple[float, ...]:
        """The whole scale: every factor on the query, the key, the product and the way, multiplied."""
        total: float | Array = self.product_factor
        for number, _ in [*self.query_factors, *self.key_factors, *self.path_factors]:
            total = total * number
        return float(total) if np.ndim(total) == 0 else tuple(float(x) for x in np.ravel(total))

    def where(self) -> str:
        """Where the scale sits, in words."""
        places = []
        if self.query_factors and self.key_factors:
            places.append("on query and key")
        elif self.query_factors or self.key_factors:
            places.append("on the query" if self.query_factors else "on the key")
        if self.product_factor != 1.0:
            places.append("in the product (alpha)")
        if self.path_factors:
            places.append("after QK^T")
        return ", ".join(places) if places else "none in the graph"


def read_path(graph: Graph, way: Way, query: tuple[str, Axes], key: tuple[str, Axes], letters: Letters) -> Reading:
    """Read one way from a score product to a softmax.

    Args:
        graph: The graph.
        way: From the product to the softmax.
        query: The query operand and its axes.
        key: The key operand and its axes.
        letters: What the axes stand for.
    """
    heads = letters.heads
    sides = [factors_of(graph, value, heads, *letters.apart(axes)) for value, axes in (query, key)]
    reading = Reading(sides[0], sides[1], way.product.factor)
    multipliers: list[float | Array | None] = []
    axes: Axes | None
    axes, are_heads = letters.apart(way.product.out_axes)
    for step in way.steps:
        axes = forward(graph, step.node, axes, step.source) if axes is not None else None
        multipliers.append(multiplier(graph, step.node, step.source, heads, axes, are_heads))
    tanh = next((i for i, s in enumerate(way.steps) if s.node.op_type == "Tanh"), None)
    cap = None
    if tanh is not None:
        # c * tanh(x / c): the cap is what multiplies behind the tanh; what divides before it holds scale / c.
        after = next((i for i in range(tanh + 1, len(way.steps)) if multipliers[i] is not None), None)
        if after is not None and isinstance(multipliers[after], float):
            cap, reading.softcap, reading.capped = after, float(multipliers[after]), after + 1  # type: ignore[arg-type]
    for i, step in enumerate(way.steps):
        turned = step.node.op_type == "Sub" and list(step.node.input).index(step.source) == 1
        if step.node.op_type == "Neg" or turned:
            multipliers[i] = -1.0
    contiguous, last = True, 0
    for i, step in enumerate(way.steps):
        factor = multipliers[i]
        if unmoved(graph, step.node) == step.source:
            continue
        if step.node.op_type.startswith("QLinear"):
            contiguous = False  # rounded here, as by the two below
        if factor is not None and i != cap:
            if step.node.op_type == "Sub":
                reading.biases += [n for n in step.node.input if n and n != step.source]
                contiguous = False
            reading.path_factors.append((factor, _holder(step)))
            if contiguous:
                last = i + 1
            else:
                last = -1  # scaled again behind a bias or mask: the scaled scores alone are no tensor
        elif (
            step.node.op_type in ("Add", "Sub", "Where", "Min", "Max", "Sum", "Mul", "Tanh", "QLinearAdd", *_WRITING)
            and i != cap
        ):
            contiguous = False
            if step.node.op_type != "Tanh":
                reading.biases += [n for n in step.node.input if n and n != step.source]
        elif step.node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            contiguous = False  # rounded here: what follows is no longer scores x scale to the last digit
        elif step.node.op_type in ("Concat", "Pad"):
            contiguous = False
            beside = _scores_beside(graph, step, way.product.out) if step.node.op_type == "Concat" else 0
            if beside:
                reading.pieces += beside
            elif reading.pieces == 1:
                reading.sink = _sink(graph, step) if step.node.op_type == "Concat" else _padded(graph, step)
    if reading.softcap is not None:  # even where nothing divides by it here: an optimiser may have put that elsewhere
        reading.path_factors.append((reading.softcap, ""))
        divided = _cap_division(multipliers, tanh or 0, reading.softcap)
        last = divided if divided is not None and not _rounds(way.steps[:divided]) else -1
        if _rounds(way.steps[: cap or 0]):
            reading.capped = None  # made of rounded scores, which the formula does not give to the last digit
    reading.scaled = last if last >= 0 else None
    return reading


def _rounds(steps: list[Step]) -> bool:
    """Whether scores are rounded to integers in some steps."""
    return any(s.node.op_type == "QuantizeLinear" or s.node.op_type.startswith("QLinear") for s in steps)


def _cap_division(multipliers: list[float | Array | None], tanh: int, cap: float) -> int | None:
    """The step that divides by the cap, right before the tanh: the scaled scores are its input. None if merged."""
    for i in range(tanh - 1, -1, -1):
        factor = multipliers[i]
        if factor is None:
            continue
        return i if np.ndim(factor) == 0 and abs(float(factor) * cap - 1) < 1e-6 else None
    return None


def _holder(step: Step) -> str:
    return next((n for n in step.node.input if n != step.source), "")


def _scores_beside(graph: Graph, step: Step, own: str) -> int:
    """How many of the tensors concatenated with the scores are scores themselves, of other keys.

    A sink's column may be cut from the scores, for its shape: that leads back to their own product.
    """
    ways = (ways_back(graph, name) for name in _others(step) if depends(graph, name))
    return sum(any(way.product.out != own for way in back) for back in ways)


def _others(step: Step) -> list[str]:
    """The inputs of a step's node but the one that the way comes from."""
    return [name for name in step.node.input if name and name != step.source]


def _sink(graph: Graph, step: Step) -> tuple[int | None, int | None] | None:
    """Which part of the last axis is keys, where the scores are concatenated with a sink column."""
    node: NodeProto = step.node
    at = list(node.input).index(step.source)
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
    shapes = [graph.shape(name) for name in node.input]
    widths = [shape[axis] if shape and -len(shape) <= axis < len(shape) else None for shape in shapes]
    before, after = widths[:at], widths[at + 1 :]
    if None in before or None in after:
        return None
    start, stop = sum(w or 0 for w in before), sum(w or 0 for w in after)
    return start or None, -stop or None


def _padded(graph: Graph, step: Step) -> tuple[int | None, int | None] | None:
    """As `_sink`, where a column is put beside the scores by Pad."""
    pads = graph.known(step.node.input[1]) if len(step.node.input) > 1 else None
    if pads is None:
        pads = np.asarray(next((list(a.ints) for a in step.node.attribute if a.name == "pads"), []))
    if pads.size < 2:
        return None
    before, after = int(pads.ravel()[pads.size // 2 - 1]), int(pads.ravel()[-1])
    return (before or None, -after or None) if before or after else None


_WRITING = ("ScatterND", "ScatterElements")
_BOOL = 9
"""ONNX's data type of what selects cells and adds nothing to them."""


def _unstretched(graph: Graph, value: str) -> str:
    """A tensor before it is stretched over heads."""
    for _ in range(6):
        node = graph.producer(value)
        if node is None or node.op_type not in ("Expand", "Identity", "Cast"):
            break
        value = node.input[0]
    return value


def bias_kind(graph: Graph, reading: Reading, heads: int | None, at: Collection[int] = ()) -> str | None:
    """Names what is added to the scores besides a mask: a bias that differs from head to head; None without one.

    Args:
        graph: The graph.
        reading: With the biases.
        heads: How many there are.
        at: Where the heads stand among the axes of the scores, counted from the end (-3); unknown where empty.
    """
    for name in reading.biases:
        fact = graph.facts.get(_unstretched(graph, name))
        shape = None if fact is None or fact.dtype == _BOOL else fact.shape
        if shape is None or scalar(graph, name) is not None or heads in (None, 1) or len(shape) < 3:
            continue
        if any(len(shape) >= -i and shape[i] == heads for i in at) if at else heads in shape[:-2]:
            return "one a head"
    return None
