"""Find which axes hold heads after the context: those that are merged with its features before a projection."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Atom, Axes, Axis, axes_with, beside, leaves, split_alike
from attnx.graph.axes.axes import forward
from attnx.graph.axes.paths import depends
from attnx.graph.axes.product import Product, find_product
from attnx.graph.load.nodes import ROUNDS, attributes

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_VIEWS = (
    "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Cast", "Identity", *ROUNDS,
)  # fmt: skip
_DEEPEST = 48
"""The number of nodes in a row that are examined after the context."""
_INTEGER = ("MatMulNBits", "QLinearMatMul", "MatMulInteger", "DynamicQuantizeMatMul", "QGemm")


def merged_with(graph: Graph, product: Product, feature: list[Atom]) -> list[Atom] | None:
    """The atoms that the context's features are merged with on the way to the output projection: the heads.

    Args:
        graph: The graph.
        product: The product of weights and value.
        feature: The atoms of the value's features in it.

    Returns:
        Their atoms, none where the features are projected on their own; None where the context cannot be followed to a
        reshape or a projection.
    """
    return _Walk(graph, product, feature).heads()


class _Walk:
    """The walk from a context through everything made from it, nearest first, until the heads are found.

    Attributes:
        feature: The atoms of the features, as the product of weights and value has them.
        marks: The same atoms, as reshapes have split them up to the value being examined.
    """

    def __init__(self, graph: Graph, product: Product, feature: list[Atom]) -> None:
        self.graph, self.context, self.feature = graph, product.out, feature
        self.marks: set[Atom] = set(feature)
        self._queue: list[tuple[str, Axes, int]] = [(product.out, product.out_axes, 0)]
        self._projected: set[str] = set()
        """Values behind a projection that left every axis but the features' in place: one matrix for each head, or the
        output projection itself, where what the features stand beside is a map's rows and columns."""

    def heads(self) -> list[Atom] | None:
        """See `merged_with`."""
        seen: set[str] = set()
        while self._queue:
            value, axes, depth = self._queue.pop(0)
            if value in seen or depth > _DEEPEST:
                continue
            seen.add(value)
            self.marks = set(leaves(self.feature))
            merged = beside(axes, self.marks)
            if merged:
                return merged
            for node in self.graph.consumers(value):
                found = self._at(node, value, axes, depth + 1)
                if found is not None:
                    return found
        return [] if self._projected else None

    def _at(self, node: NodeProto, value: str, axes: Axes, depth: int) -> list[Atom] | None:
        """The heads as shown by a node that reads `value`; None where it shows none, and its output is queued."""
        apart = _split_and_joined(self.graph, node, axes, self.marks)
        if apart is not None:
            return apart
        product = find_product(self.graph, node.output[0]) if node.output else None
        if product is not None and product.node is node and value in (product.left, product.right):
            return self._at_product(product, value, axes, depth)
        if node.op_type in _INTEGER:
            return self._at_integers(node, axes) if value == node.input[0] else None
        self._follow(node, value, axes, depth)
        return None

    def _at_product(self, product: Product, value: str, axes: Axes, depth: int) -> list[Atom] | None:
        """The heads as shown by a product: what it sums over besides the features, or has a separate matrix for."""
        mine, theirs = product.left_axes, product.right_axes
        if value != product.left:
            mine, theirs = theirs, mine
        if len(mine) != len(axes):
            return None
        contracted = set(product.contracted)
        summed = leaves(atom for at in axes_with(mine, contracted) for atom in axes[at])
        if self.marks.isdisjoint(summed):
            return None  # it sums over something else
        heads = [a for a in summed if a not in self.marks]
        if heads:
            return heads
        shared = _in_both(mine, theirs, contracted)
        if shared and not depends(self.graph, product.other(value)):
            return leaves(atom for at in axes_with(mine, shared) for atom in axes[at])
        if len(axes) > 3 and len(mine) == len(product.out_axes):
            self.feature = _projected_in_place(product, mine, axes, theirs, contracted, self.feature)
            self._queue.append((product.out, product.out_axes, depth))
            self._projected.add(product.out)
            return None
        return []  # projected on its own

    def _at_integers(self, node: NodeProto, axes: Axes) -> list[Atom] | None:
        """The heads as shown by a product of integers, which sums over the last axis."""
        summed = leaves(axes[-1]) if axes else []
        if self.marks.isdisjoint(summed):
            return None
        return [a for a in summed if a not in self.marks] or _matrix_each(self.graph, node, axes)

    def _follow(self, node: NodeProto, value: str, axes: Axes, depth: int) -> None:
        """Queue the output that a node makes from `value`, where its axes can be followed."""
        if value in self._projected:
            if sum(depends(self.graph, name) for name in node.input if name) > 1:
                return  # what is joined with another part of the model is its stream: the projection was the output's
            self._projected.update(node.output[:1])
        after = forward(self.graph, node, axes, value) if node.output else None
        if after is None or _joins_parts(self.graph, node, after, self.marks, self.context):
            return  # heads that were cut out one by one cannot be seen in their features
        if node.op_type in ("Concat", "Slice", "Pad"):
            after = _resized(after, self.graph.shape(node.output[0]), self.marks)
        self._queue.append((node.output[0], after, depth))


def _matrix_each(graph: Graph, node: NodeProto, axes: Axes) -> list[Atom]:
    """The atoms of the axes along which a stored integer operand has a separate matrix for each place."""
    at = 3 if node.op_type == "QLinearMatMul" else 1
    shape = graph.shape(node.input[at]) if len(node.input) > at else None
    if shape is None or depends(graph, node.input[at]):
        return []
    lead = [i for i in range(3, min(len(shape), len(axes)) + 1) if shape[-i] != 1]
    return [leaf for i in lead for leaf in leaves(axes[-i])]


def _joins_parts(graph: Graph, node: NodeProto, axes: Axes, marks: set[Atom], context: str) -> bool:
    """Whether a Concat puts slices of the context side by side along the axis of its features."""
    at = attributes(node).get("axis", 0) if node.op_type == "Concat" else len(axes)
    if not -len(axes) <= at < len(axes) or marks.isdisjoint(leaves(axes[at])):
        return False
    for name in node.input:
        for _ in range(12):
            maker = graph.producer(name)
            if name == context or maker is None or maker.op_type not in (*_VIEWS, "Slice", "Gather", "Split"):
                break
            name = maker.input[0]
        if name != context:
            return False
    return True


def _in_both(mine: Axes, theirs: Axes, summed: set[Atom]) -> set[Atom]:
    """Atoms that both operands of a product have and that are not summed: each of them has a separate matrix."""
    return {a for axis in mine for a in axis} & {a for axis in theirs for a in axis} - summed


def _projected_in_place(
    after: Product, mine: Axes, axes: Axes, theirs: Axes, summed: set[Atom], feature: list[Atom]
) -> list[Atom]:
    """One matrix per head (absorbed projections): the result has other features, in the same heads."""
    split_alike(mine, axes)
    out = [a for axis in after.out_axes for a in axis]
    new = [a for axis in theirs for a in axis if a not in summed and a in out]
    return [*feature, *[a for a in new if not any(a in own for own in mine)]]


def _split_and_joined(graph: Graph, node: NodeProto, axes: Axes, marks: set[Atom]) -> list[Atom] | None:
    """Heads that a Split separates and a Concat joins on the features' axis (stacked on the batch, or alone)."""
    if node.op_type != "Split" or len(node.output) < 2:
        return None
    count, axis = len(node.output), attributes(node).get("axis", 0) % len(axes)
    parts = _outer(axes[axis], count)
    if parts is None:
        return None
    heads, rest = parts
    now: Axes | None = [*axes[:axis], rest, *axes[axis + 1 :]]
    value = node.output[0]
    for _ in range(8):
        join = next(iter(graph.consumers(value)), None)
        if join is None or now is None:
            return None
        if join.op_type == "Concat":
            onto = attributes(join).get("axis", 0) % len(now)
            held = not marks.isdisjoint(leaves(now[onto]))
            return heads if held and len(join.input) == count and join.input[0] == value else None
        if join.op_type not in _VIEWS:
            return None
        now = forward(graph, join, now, value)
        value = join.output[0]
    return None


def _outer(axis: Axis, count: int) -> tuple[list[Atom], list[Atom]] | None:
    """An axis divided into its outermost `count` places and the rest within each; None where it does not divide so."""
    atoms, taken = leaves(axis), 1
    for i, atom in enumerate(atoms):
        if taken == count:
            return atoms[:i], atoms[i:]
        if atom.size is None or count % (taken * atom.size) == 0:
            taken *= atom.size or count
            if atom.size is None:
                return None
            continue
        left = count // taken
        if atom.size % left:
            return None
        atom.split(left, atom.size // left)
        return [*atoms[:i], atom.parts[0]], [atom.parts[1], *atoms[i + 1 :]]
    return (atoms, []) if taken == count else None


def _resized(axes: Axes, shape: tuple[int | None, ...] | None, marks: set[Atom]) -> Axes:
    """Axes whose length a Concat, Slice or Pad has changed get an atom of the new length; features keep their atoms."""
    if shape is None or len(shape) != len(axes):
        return axes
    out: Axes = []
    for axis, size in zip(axes, shape, strict=True):
        atoms = leaves(axis)
        sizes = [atom.size for atom in atoms]
        same = size is None or None in sizes or prod(n for n in sizes if n is not None) == size
        out.append(axis if same or not marks.isdisjoint(atoms) else [Atom(size)])
    return out
