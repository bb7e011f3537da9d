"""Record where each quantity of a spelled-out attention is: what `spelled` found, as Places."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.atoms import Axes, fresh, leaves
from attnx.graph.axes.axes import MIXING, forward
from attnx.graph.axes.axis_names import AxisNames
from attnx.graph.axes.factors import repeats
from attnx.graph.axes.pairing import Candidate, Use
from attnx.graph.axes.paths import Way, depends, float_of, scalar
from attnx.graph.axes.score_path import Factor, Reading
from attnx.graph.load.nodes import QUANTISES, ROUNDS
from attnx.layout import ORDER, parse
from attnx.records import Place
from attnx.sites.finding import Finding

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_MASK_VIEWS = ("Cast", "Unsqueeze", "Expand", "Squeeze", "Reshape", "Transpose", "Slice")
_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_ROUNDING = ROUNDS
_SAME = (*_ROUNDING, "Cast", "Identity", "Dropout")
Window = tuple[int | None, int | None] | None
Factors = tuple[float | tuple[float, ...], ...]


class Placing:
    """Records the places of a finding."""

    def __init__(self, graph: Graph, finding: Finding, names: AxisNames) -> None:
        self.graph, self.finding, self.names = graph, finding, names

    def place(self, quantity: str, value: str, axes: Axes | None, factors: Factors = (), window: Window = None) -> None:
        layout = self.names.layout(axes) if axes is not None else None
        allowed = set(ORDER.get(quantity, "bhqk"))
        if layout is not None and all(name[0] in allowed for axis in parse(layout) for name, _ in axis):
            tile = self.tile(layout) if quantity in ("key", "value") else 1
            self.finding.places[quantity] = Place(float_of(self.graph, value), layout, factors, window, tile)

    def tile(self, layout: str) -> int:
        """How often a key's heads repeat in order, where the query heads of a group are not adjacent."""
        query = self.finding.places.get("query")
        if query is None:
            return 1
        all_heads = sorted({(n, s) for axis in parse(query.layout) for n, s in axis if n[0] == "h"})
        own = sorted({(n, s) for axis in parse(layout) for n, s in axis if n[0] == "h"})
        if not own or own == all_heads[: len(own)] or any(s is None for _, s in all_heads):
            return 1
        return int(np.prod([s for n, s in all_heads if (n, s) not in own and s is not None]))

    def operand(self, quantity: str, value: str, axes: Axes, factors: list[Factor]) -> None:
        self.place(quantity, value, axes, self.numbers(factors))

    def numbers(self, factors: list[Factor]) -> Factors:
        return tuple(float(n) if np.ndim(n) == 0 else tuple(float(x) for x in np.ravel(n)) for n, _ in factors)

    def path(self, way: Way, reading: Reading, logits: str) -> None:
        factors = (*self.numbers(reading.query_factors), *self.numbers(reading.key_factors))
        if reading.product_factor != 1.0:
            factors = (*factors, reading.product_factor)
        self.place("scores", way.product.out, way.product.out_axes, factors)
        axes: Axes | None = way.product.out_axes
        reached: list[tuple[str, Axes | None]] = [(way.product.out, axes)]
        for step in way.steps:
            axes = forward(self.graph, step.node, axes, step.source) if axes is not None else None
            reached.append((step.target, axes))
        if reading.scaled is not None:
            self.place("scaled", *reached[reading.scaled])
        if reading.capped is not None:
            self.place("capped", *reached[reading.capped])
        at = next((i for i, (v, _) in enumerate(reached) if v == logits), len(reached) - 1)
        while at > 0 and way.steps[at - 1].node.op_type in (*_RESHAPES, *_SAME) and not self.divides(reached[at][1]):
            at -= 1
        self.place("masked", reached[at][0], reached[at][1], (), reading.sink)

    def divides(self, axes: Axes | None) -> bool:
        """Whether merged axes can be separated by size again: [batch x heads x queries, keys] cannot."""
        layout = self.names.layout(axes) if axes is not None else None
        if layout is None:
            return False
        return all(
            sum(size is None for _, size in axis) < 2 or len({name[0] for name, _ in axis}) == 1
            for axis in parse(layout)
        )

    def weights(self, chosen: Candidate, use: Use | None, out: str) -> None:
        """The weights as they weigh the value: after guards, masks and cut sinks; before gates and rounding."""
        value, axes = out, chosen.axes
        alike = {out}
        window: Window = None
        if use is not None:
            current: Axes | None = chosen.axes
            others = mixed(self.graph, use.way)
            chosen_cells = selected(self.graph, use.way)
            for i, step in enumerate(use.way.steps):
                node = step.node
                current = forward(self.graph, node, current, step.source) if current is not None else None
                if node.op_type in MIXING or current is None:
                    break
                if i in chosen_cells:
                    value, axes = (step.target, current) if node.op_type == "Add" else (value, axes)
                    continue
                if is_sum(self.graph, node):
                    break
                if others and node.op_type in ("Mul", "Div"):
                    break  # a share of a mix with other weights: the softmax's own are those before it
                renormalised = any(s.node.op_type == "Div" for s in use.way.steps[i + 1 :])
                if node.op_type == "Mul" and not renormalised and not masks(self.graph, node, step.source):
                    self.finding.gated = True
                    break
                if node.op_type in _SAME and step.source in alike:
                    alike.add(step.target)  # the same numbers as before, rounded
                if node.op_type in _RESHAPES and step.source in alike and not self.divides(axes):
                    value, axes = step.target, current
                if node.op_type in ("Where", "Mul", "Div", "Slice", "Clip", "Split"):
                    value, axes = step.target, current
                    if node.op_type in ("Mul", "Div") and "masked" in self.finding.places:
                        del self.finding.places["masked"]
                        self.finding.absent = (*self.finding.absent, "masked")
                        self.finding.notes.append("the mask is applied after the softmax, so there is no masked stage")
        elif self.finding.sink:
            masked = self.finding.places.get("masked")
            window = masked.window if masked is not None else None
        self.place("weights", value, axes, (), window)

    def to_base_e(self, factor: float) -> None:
        """Convert a softmax of another base to the base e: its logits times ln(base), and its scale too."""
        masked = self.finding.places.get("masked")
        if masked is not None:
            self.finding.places["masked"] = replace(masked, factors=(*masked.factors, 1 / factor))
        for quantity in ("scaled", "capped"):
            self.finding.places.pop(quantity, None)
        scale = self.finding.scale
        self.finding.scale = tuple(s * factor for s in scale) if isinstance(scale, tuple) else (scale or 1.0) * factor


def is_sum(graph: Graph, node: NodeProto) -> bool:
    """Whether a node adds or subtracts two tensors, of data or stored (ConViT's weights by position)."""
    return node.op_type in ("Sub", "Add", "Sum") and sum(scalar(graph, n) is None for n in node.input if n) > 1


def mixed(graph: Graph, way: Way) -> bool:
    """Whether weights of several softmaxes are combined before the value is weighed (differential attention)."""
    chosen = selected(graph, way)
    return any(s.node.op_type in MIXING or is_sum(graph, s.node) for i, s in enumerate(way.steps) if i not in chosen)


def selected(graph: Graph, way: Way) -> set[int]:
    """Steps that choose between the weights and something else cell by cell, written as w x mask + other x (1 - mask).

    This is how tf2onnx writes TensorFlow's SelectV2: as arithmetic instead of a Where.
    """
    found: set[int] = set()
    for i, (first, second) in enumerate(zip(way.steps, way.steps[1:], strict=False)):
        if first.node.op_type != "Mul" or second.node.op_type != "Add" or not masks(graph, first.node, first.source):
            continue
        other = graph.producer(next((n for n in second.node.input if n != second.source), ""))
        if other is not None and other.op_type == "Mul" and any(masks(graph, other, n) for n in other.input):
            found |= {i, i + 1}
    return found


def masks(graph: Graph, node: NodeProto, source: str) -> bool:
    """Whether a Mul multiplies by a mask (bool or integer in origin, or only 0 and 1) and not by a gate."""
    value = next((n for n in node.input if n != source), source)
    known = graph.known(value)
    if known is not None and known.size > 1:
        return bool(np.isin(known, (0, 1)).all())
    for _ in range(8):
        fact = graph.facts.get(value)
        if fact is not None and fact.dtype in (6, 7, 9):
            return True
        maker = graph.producer(value)
        if maker is None or maker.op_type not in _MASK_VIEWS:
            return False
        value = maker.input[0]
    return False


def rounded(way: Way) -> bool:
    """Whether weights are quantised on their way to the value, so that the product holds the rounded ones."""
    return any(s.node.op_type in QUANTISES for s in way.steps) or way.product.node.op_type == "QLinearMatMul"


def heads_in(place: Place | None, heads: int | None) -> int | None:
    """The number of heads that a tensor itself has, before broadcasting."""
    if place is None:
        return heads
    sizes = [size for axis in parse(place.layout) for name, size in axis if name[0] == "h"]
    return None if any(size is None for size in sizes) else int(np.prod([s for s in sizes if s is not None]))


def kv_heads(graph: Graph, key: Place | None, heads: int | None) -> int | None:
    """Number of key heads: fewer than `heads` where the graph repeats each of them (Expand, Tile)."""
    if heads is None or key is None:
        return heads
    value = key.value
    passed: list[tuple[NodeProto, str]] = []
    for _ in range(40):
        node = graph.producer(value)
        if node is None:
            break
        if node.op_type in ("Expand", "Tile"):
            times = _times(graph, node, passed, key.layout)
            if 1 < times <= heads and heads % times == 0:
                return heads // times
            source = node.input[0]
        elif (again := repeats(graph, node)) > 1:
            if again <= heads and heads % again == 0:
                return heads // again
            source = node.input[0]
        elif node.op_type == "Concat":
            live = [n for n in node.input if depends(graph, n) and n not in graph.inputs]
            if not live:
                break
            source = live[-1]
        elif node.op_type in (*_RESHAPES, *_ROUNDING, "Transpose", "Cast", "Identity", "Mul", "Div"):
            source = next((n for n in node.input if depends(graph, n)), node.input[0])
        else:
            break
        passed.append((node, source))
        value = source
    return heads


def _times(graph: Graph, node: NodeProto, passed: list[tuple[NodeProto, str]], layout: str) -> int:
    """How often an Expand or Tile repeats heads; repeats along other axes (blocks, a batch) do not count.

    Args:
        graph: The graph.
        node: The Expand or Tile.
        passed: The nodes between it and the key, nearest to the key first, each with the input that was followed.
        layout: The key's axes.
    """
    before, after = graph.shape(node.input[0]), graph.shape(node.output[0])
    if before is None or after is None:
        return 1
    stood = (1,) * (len(after) - len(before)) + tuple(before)
    grown = {i: b // a for i, (a, b) in enumerate(zip(stood, after, strict=True)) if a and b and a != b and b % a == 0}
    if not grown:
        return 1
    whole = fresh(after)
    repeated = [(atom, times) for i, times in grown.items() for atom in whole[i]]
    axes: Axes | None = whole
    for step, source in reversed(passed):
        axes = forward(graph, step, axes, source) if axes is not None else None
    words = parse(layout)
    if axes is None or len(axes) != len(words):
        return int(np.prod(list(grown.values())))
    times_of = {atom.leaves()[0]: times for atom, times in repeated}
    with_heads = [axis for axis, names in zip(axes, words, strict=True) if any(name[0] == "h" for name, _ in names)]
    return int(np.prod([times_of.get(leaf, 1) for axis in with_heads for leaf in leaves(axis)]))
