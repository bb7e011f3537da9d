"""Read the steps between the score product and the softmax: where the scale is, softcap, bias, mask, sink."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.atoms import Axes
from attnx.graph.axes.axes import MIXING, forward
from attnx.graph.axes.axis_names import AxisNames
from attnx.graph.axes.factors import factors_of, multiplier, unmoved
from attnx.graph.axes.pairing import Candidate
from attnx.graph.axes.paths import Step, Way, above, depends, scalar, ways_back
from attnx.graph.load.nodes import QUANTISES
from attnx.records import Array

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

Factor = tuple[float | Array, str]
"""A number (or one per head), and the name of the tensor that holds it ("" where it is an attribute)."""


@dataclass(slots=True)
class Reading:
    """What lies between the product and the softmax."""

    query_factors: list[Factor]
    key_factors: list[Factor]
    product_factor: float
    """The factor that the product itself includes (FusedMatMul's alpha)."""
    path_factors: list[Factor] = field(default_factory=list)
    """Scale factors between the product and the softmax (without a softcap's own division)."""
    scaled: int | None = None
    """After how many steps the scaled scores exist as a tensor (0: at the product); None: nowhere."""
    capped: int | None = None
    softcap: float | None = None
    biases: list[str] = field(default_factory=list)
    """What is added to the scores or replaces them: masks and biases, nearest to the product first."""
    sink: tuple[int | None, int | None] | None = None
    """[start, stop) of the part of the last axis that holds keys, where a sink column was added."""
    rescaled: bool = False
    """Whether the scores are also multiplied or divided by numbers that differ from cell to cell or from run to run."""
    pieces: int = 1
    """How many score products share one softmax: 2 where global keys are joined with local ones."""

    def scale(self) -> float | tuple[float, ...]:
        """The whole scale: the product of every factor on the query, the key, the product and the way."""
        total: float | Array = self.product_factor
        for number, _ in [*self.query_factors, *self.key_factors, *self.path_factors]:
            total = total * number
        return float(total) if np.ndim(total) == 0 else tuple(float(x) for x in np.ravel(total))

    def where(self) -> str:
        """Where the scale is applied, in words."""
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


def read_path(graph: Graph, pair: Candidate, names: AxisNames) -> Reading:
    """Read the way from a score product to a softmax.

    Args:
        graph: The graph.
        pair: The score product, its operands, and the way.
        names: The meaning of the axes.
    """
    way = pair.way
    sides = ((pair.query, pair.query_axes), (pair.key, pair.key_axes))
    on_query, on_key = (factors_of(graph, value, names.heads, *names.apart(axes)) for value, axes in sides)
    reading = Reading(on_query, on_key, way.product.factor)
    multipliers = _multipliers(graph, way, names)
    cap = _read_softcap(reading, way.steps, multipliers)
    multipliers = [-1.0 if _negates(step) else m for step, m in zip(way.steps, multipliers, strict=True)]
    scores = _Scores()
    for i, step in enumerate(way.steps):
        if unmoved(graph, step.node) == step.source:
            continue
        if _rounds([step]) or step.node.op_type == "DequantizeLinear":
            scores.exact = False
        if i == cap:
            continue
        if (factor := multipliers[i]) is not None:
            if step.node.op_type == "Sub":
                scores.exact = False
                reading.biases += _others(step)
            reading.path_factors.append((factor, _holder(step)))
            scores.scale(i + 1)
        elif step.node.op_type == "Div":
            scores.exact = False
            reading.rescaled = True
        elif step.node.op_type in _ADDING or step.node.op_type == "Tanh":
            scores.exact = False
            reading.rescaled = reading.rescaled or _rescales(graph, step)
            reading.biases += _others(step) if step.node.op_type != "Tanh" else []
        elif step.node.op_type in MIXING:
            scores.exact = False
        elif step.node.op_type in ("Concat", "Pad"):
            scores.exact = False
            _read_columns(graph, reading, step, way.product.out)
    reading.scaled = scores.scaled
    if reading.softcap is not None:
        _read_capped(reading, way.steps, multipliers, cap or 0)
    return reading


@dataclass(slots=True)
class _Scores:
    """What has happened to the scores up to some step."""

    exact: bool = True
    """They are exactly the product times a number: nothing was added, capped, rounded or concatenated."""
    scaled: int | None = 0
    """The number of steps after which they were last scaled; None once they were scaled after any other change: no
    tensor then holds the scaled scores alone."""

    def scale(self, steps: int) -> None:
        """Multiply by a factor."""
        self.scaled = steps if self.exact else None


def _multipliers(graph: Graph, way: Way, names: AxisNames) -> list[float | Array | None]:
    """What each step multiplies the scores by: a number, or one per head; None where it does something else."""
    out: list[float | Array | None] = []
    axes: Axes | None
    axes, are_heads = names.apart(way.product.out_axes)
    for step in way.steps:
        axes = forward(graph, step.node, axes, step.source) if axes is not None else None
        out.append(multiplier(graph, step.node, step.source, names.heads, axes, are_heads))
    return out


def _read_softcap(reading: Reading, steps: Sequence[Step], multipliers: Sequence[float | Array | None]) -> int | None:
    """Read c of c * tanh(x / c): c is the multiplier after the tanh; the divisor before it holds scale / c.

    Returns:
        The step that multiplies; None without a softcap.
    """
    tanh = _tanh(steps)
    after = next((i for i in range(tanh + 1, len(steps)) if multipliers[i] is not None), None)
    cap = None if after is None else multipliers[after]
    if after is None or not isinstance(cap, float):
        return None
    reading.softcap, reading.capped = cap, after + 1
    return after


def _read_capped(
    reading: Reading, steps: Sequence[Step], multipliers: Sequence[float | Array | None], cap: int
) -> None:
    """Read where the scaled and the capped scores are around a softcap, whose division is part of a factor."""
    assert reading.softcap is not None
    # Even where nothing divides by it here: an optimiser may have moved the division elsewhere.
    reading.path_factors.append((reading.softcap, ""))
    divided = _cap_division(multipliers, _tanh(steps), reading.softcap)
    reading.scaled = divided if divided is not None and not _rounds(steps[:divided]) else None
    if _rounds(steps[:cap]):
        reading.capped = None  # made from rounded scores, which the formula does not reproduce exactly


def _tanh(steps: Sequence[Step]) -> int:
    """The first step that is a tanh; the number of steps if there is none."""
    return next((i for i, step in enumerate(steps) if step.node.op_type == "Tanh"), len(steps))


def _negates(step: Step) -> bool:
    """Whether a step changes the sign of the scores: -x, or y - x."""
    return step.node.op_type == "Neg" or (step.node.op_type == "Sub" and list(step.node.input).index(step.source) == 1)


def _read_columns(graph: Graph, reading: Reading, step: Step, own: str) -> None:
    """Read what a Concat or Pad adds next to the scores: scores of other keys, or a sink's column."""
    concat = step.node.op_type == "Concat"
    beside = _scores_beside(graph, step, own) if concat else 0
    if beside:
        reading.pieces += beside
    elif reading.pieces == 1:
        reading.sink = _sink(graph, step) if concat else _padded(graph, step)


def _rounds(steps: Sequence[Step]) -> bool:
    """Whether any of the steps rounds scores to few bits."""
    return any(s.node.op_type in QUANTISES or s.node.op_type.startswith("QLinear") for s in steps)


def _cap_division(multipliers: Sequence[float | Array | None], tanh: int, cap: float) -> int | None:
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
    """How many of the tensors concatenated with the scores are themselves scores, of other keys.

    A sink's column may be cut from the scores for its shape; it then traces back to the same product.
    """
    ways = (ways_back(graph, name) for name in _others(step) if depends(graph, name))
    return sum(any(way.product.out != own for way in back) for back in ways)


def _others(step: Step) -> list[str]:
    """The inputs of a step's node except the one that carries the scores."""
    return [name for name in step.node.input if name and name != step.source]


def _sink(graph: Graph, step: Step) -> tuple[int | None, int | None] | None:
    """Which part of the last axis holds keys, where the scores are concatenated with a sink column."""
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
    """As `_sink`, where the column is added by Pad."""
    pads = graph.known(step.node.input[1]) if len(step.node.input) > 1 else None
    if pads is None:
        pads = np.asarray(next((list(a.ints) for a in step.node.attribute if a.name == "pads"), []))
    if pads.size < 2:
        return None
    before, after = int(pads.ravel()[pads.size // 2 - 1]), int(pads.ravel()[-1])
    return (before or None, -after or None) if before or after else None


def _rescales(graph: Graph, step: Step) -> bool:
    """Whether a Mul that is no constant factor changes the size of scores, and does not only hide cells with zeros."""
    if step.node.op_type != "Mul":
        return False
    for name in _others(step):
        held, shape = graph.stable(name), graph.shape(name)
        if held is not None:
            if not np.isin(held, (0, 1)).all():
                return True
        elif shape is not None and all(size == 1 for size in shape):
            return True  # one number, as of the length of the text
        elif any(node.op_type in _PROJECTS for made in above(graph, [name]) if (node := graph.producer(made))):
            return True
    return False


_PROJECTS = ("MatMul", "Gemm", "Conv", "Einsum", "FusedMatMul", "MatMulNBits", "MatMulInteger", "QLinearMatMul")
"""Operators that make a factor out of hidden states; none of them makes a mask."""
_ADDING = ("Add", "Sub", "Where", "Min", "Max", "Sum", "Mul", "QLinearAdd", "ScatterND", "ScatterElements")
"""Operators that add to the scores or replace some of them, where they do not scale them."""
_BOOL = 9
"""ONNX's data type of a tensor that selects cells and adds nothing to them."""


def _unstretched(graph: Graph, value: str) -> str:
    """A tensor before it is broadcast over heads."""
    for _ in range(6):
        node = graph.producer(value)
        if node is None or node.op_type not in ("Expand", "Identity", "Cast"):
            break
        value = node.input[0]
    return value


def bias_kind(graph: Graph, reading: Reading, heads: int | None, at: Collection[int] = ()) -> str | None:
    """Name what is added to the scores besides a mask: a bias that differs from head to head; None without one.

    Args:
        graph: The graph.
        reading: The reading, with its biases.
        heads: The number of heads.
        at: The positions of the heads among the axes of the scores, counted from the end (-3); unknown where empty.
    """
    for name in reading.biases:
        fact = graph.facts.get(_unstretched(graph, name))
        shape = None if fact is None or fact.dtype == _BOOL else fact.shape
        if shape is None or scalar(graph, name) is not None or heads in (None, 1) or len(shape) < 3:
            continue
        if any(len(shape) >= -i and shape[i] == heads for i in at) if at else heads in shape[:-2]:
            return "one per head"
    return None
