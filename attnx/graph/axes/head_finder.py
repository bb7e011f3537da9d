"""Find which axes hold heads: merged with the features behind the context, or split from them before the query."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Atom, Axes, Axis, leaves, split_alike
from attnx.graph.axes.axes import MIXING, backward, forward
from attnx.graph.axes.paths import depends
from attnx.graph.axes.product import Product, find_product
from attnx.graph.load.nodes import attributes

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_VIEWS = (
    "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Cast", "Identity", "QuantizeLinear", "DequantizeLinear",
)  # fmt: skip
_DEEPEST = 48
"""Nodes behind the context that are looked at, in a row."""
_INTEGER = ("MatMulNBits", "QLinearMatMul", "MatMulInteger", "DynamicQuantizeMatMul", "QGemm")


def merged_with(graph: Graph, product: Product, feature: list[Atom]) -> list[Atom] | None:
    """The atoms that the context's features are merged with on the way to the output projection: the heads.

    Args:
        graph: The graph.
        product: The product of weights and value.
        feature: The atoms of the value's features in it.

    Returns:
        Their atoms, none where the features are projected alone; None where the context cannot be followed to a
        reshape or a projection.
    """
    return _Walk(graph, product, feature).heads()


class _Walk:
    """The walk from a context through all that is made of it, nearest first, until the heads show themselves.

    Attributes:
        feature: The atoms of the features, as the product of weights and value has them.
        marks: These, as reshapes have split them by the value that is being looked at.
    """

    def __init__(self, graph: Graph, product: Product, feature: list[Atom]) -> None:
        self.graph, self.context, self.feature = graph, product.out, feature
        self.marks: set[Atom] = set(feature)
        self._queue: list[tuple[str, Axes, int]] = [(product.out, product.out_axes, 0)]

    def heads(self) -> list[Atom] | None:
        """See `merged_with`."""
        seen: set[str] = set()
        while self._queue:
            value, axes, depth = self._queue.pop(0)
            if value in seen or depth > _DEEPEST:
                continue
            seen.add(value)
            self.marks = set(leaves(self.feature))
            merged = _beside(axes, self.marks)
            if merged:
                return merged
            for node in self.graph.consumers(value):
                found = self._at(node, value, axes, depth + 1)
                if found is not None:
                    return found
        return None

    def _at(self, node: NodeProto, value: str, axes: Axes, depth: int) -> list[Atom] | None:
        """The heads as a reader of `value` shows them; None where it does not, and what it makes is queued."""
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
        """The heads as a product shows them: what it sums over besides the features, or has a matrix each for."""
        mine, theirs = product.left_axes, product.right_axes
        if value != product.left:
            mine, theirs = theirs, mine
        if len(mine) != len(axes):
            return None
        contracted = set(product.contracted)
        summed = leaves(atom for at in _where(mine, contracted) for atom in axes[at])
        if self.marks.isdisjoint(summed):
            return None  # it sums over something else
        heads = [a for a in summed if a not in self.marks]
        if heads:
            return heads
        shared = _in_both(mine, theirs, contracted)
        if shared and not depends(self.graph, product.other(value)):
            return leaves(atom for at in _where(mine, shared) for atom in axes[at])
        if len(axes) > 3 and len(mine) == len(product.out_axes):
            self.feature = _projected_in_place(product, mine, axes, theirs, contracted, self.feature)
            self._queue.append((product.out, product.out_axes, depth))
            return None
        return []  # projected alone

    def _at_integers(self, node: NodeProto, axes: Axes) -> list[Atom] | None:
        """The heads as a product of integers shows them, which sums over the last axis."""
        summed = leaves(axes[-1]) if axes else []
        if self.marks.isdisjoint(summed):
            return None
        return [a for a in summed if a not in self.marks] or _matrix_each(self.graph, node, axes)

    def _follow(self, node: NodeProto, value: str, axes: Axes, depth: int) -> None:
        """Queue what a node makes of `value`, where its axes can be followed."""
        after = forward(self.graph, node, axes, value) if node.output else None
        if after is None or _joins_parts(self.graph, node, after, self.marks, self.context):
            return  # heads that were cut out one by one do not show in their features
        if node.op_type in ("Concat", "Slice", "Pad"):
            after = _resized(after, self.graph.shape(node.output[0]), self.marks)
        self._queue.append((node.output[0], after, depth))


def _matrix_each(graph: Graph, node: NodeProto, axes: Axes) -> list[Atom]:
    """The atoms of the axes along which a stored operand of integers has a matrix of its own for each place."""
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


def _beside(axes: Axes, marks: set[Atom]) -> list[Atom]:
    """What shares an axis with marked atoms."""
    for axis in axes:
        atoms = leaves(axis)
        if not marks.isdisjoint(atoms):
            merged = [a for a in atoms if a not in marks]
            if merged:
                return merged
    return []


def _where(axes: Axes, atoms: set[Atom]) -> list[int]:
    """The axes that have any of these atoms."""
    return [i for i, axis in enumerate(axes) if not atoms.isdisjoint(axis)]


def _in_both(mine: Axes, theirs: Axes, summed: set[Atom]) -> set[Atom]:
    """Atoms that both operands of a product have and that are not summed: a matrix of its own for each of them."""
    return {a for axis in mine for a in axis} & {a for axis in theirs for a in axis} - summed


def _projected_in_place(
    after: Product, mine: Axes, axes: Axes, theirs: Axes, summed: set[Atom], feature: list[Atom]
) -> list[Atom]:
    """One matrix a head (absorbed projections): what comes out has other features, in the same heads."""
    split_alike(mine, axes)
    out = [a for axis in after.out_axes for a in axis]
    new = [a for axis in theirs for a in axis if a not in summed and a in out]
    return [*feature, *[a for a in new if not any(a in own for own in mine)]]


def _split_and_joined(graph: Graph, node: NodeProto, axes: Axes, marks: set[Atom]) -> list[Atom] | None:
    """Heads that a Split takes apart and a Concat joins on the features' axis (stacked on the batch, or alone)."""
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
    """An axis as its outermost `count` places and what stands within each; None where it does not divide so."""
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
    """Axes whose length a Concat, Slice or Pad has changed get an atom of their new length; features keep theirs."""
    if shape is None or len(shape) != len(axes):
        return axes
    out: Axes = []
    for axis, size in zip(axes, shape, strict=True):
        atoms = leaves(axis)
        sizes = [atom.size for atom in atoms]
        same = size is None or None in sizes or prod(n for n in sizes if n is not None) == size
        out.append(axis if same or not marks.isdisjoint(atoms) else [Atom(size)])
    return out


def split_from(graph: Graph, query: str, axes: Axes, contracted: list[Atom]) -> list[Atom] | None:
    """The atoms that the query's features were split from, or projected together with: the heads.

    Args:
        graph: The graph.
        query: The query, as it enters the score product.
        axes: Its axes.
        contracted: The atoms of its features.

    Returns:
        Their atoms, none where a projection made the features alone; None where the query cannot be followed to one.
    """
    value = query
    for _ in range(60):
        marks = set(leaves(contracted))
        merged = _beside(axes, marks)
        if merged:
            return merged
        product = find_product(graph, value)
        if product is not None:
            return _made_by(graph, product, axes, marks)
        node = graph.producer(value)
        if node is not None and node.op_type == "Conv" and len(axes) > 1:
            return [] if not marks.isdisjoint(leaves(axes[1])) else None
        if node is not None and node.op_type == "Concat" and (stacked := _stacked(graph, node, axes, marks)):
            return stacked
        step = upstream(graph, value, axes, contracted)
        if step is None:
            return None
        value, axes, contracted = step
    return None


def _stacked(graph: Graph, node: NodeProto, axes: Axes, marks: set[Atom]) -> list[Atom]:
    """The atoms of an axis along which single heads are stacked, each made by a projection of its own."""
    makers = [graph.producer(n) for n in node.input]
    at = attributes(node).get("axis", 0)
    if (
        len(makers) < 2
        or not -len(axes) <= at < len(axes)
        or any(m is None or m.op_type != "Unsqueeze" for m in makers)
    ):
        return []
    shapes = [graph.shape(n) for n in node.input]
    single = all(s is not None and len(s) == len(axes) and s[at] == 1 for s in shapes)
    return leaves(axes[at]) if single and marks.isdisjoint(leaves(axes[at])) else []


def upstream(graph: Graph, value: str, axes: Axes, marked: list[Atom]) -> tuple[str, Axes, list[Atom]] | None:
    """One step towards what made a tensor: the operand that it comes from, its axes, and the marked atoms there.

    An axis that a Split, Slice or Concat made longer or shorter has atoms of its own before it; they are marked where
    the axis held marked ones.
    """
    node = graph.producer(value)
    if node is None or node.op_type in (*MIXING, "Softmax"):
        return None
    live = [n for n in node.input if n and not _stored(graph, n)]
    source = next((n for n in live if _same_size(graph, n, value)), live[0] if live else None)
    traced = backward(graph, node, axes, source) if source is not None else None
    shape = graph.shape(source) if source is not None else None
    if source is None or traced is None:
        return None
    if node.op_type in ("Split", "Slice", "Concat", "Pad", "Gather") and shape is not None:
        marks = set(leaves(marked))
        for i, (axis, size) in enumerate(zip(traced, shape, strict=True)):
            atoms = leaves(axis)
            sizes = [a.size for a in atoms]
            if size is None or None in sizes or prod(n for n in sizes if n is not None) == size:
                continue
            traced[i] = [] if size == 1 else [Atom(size)]  # as long as it is there
            if not marks.isdisjoint(atoms):
                marked = traced[i]
    return source, traced, marked


def _stored(graph: Graph, value: str) -> bool:
    """Whether a value is stored with the model, or is whole numbers (shapes, places): no query comes from it."""
    fact = graph.facts.get(value)
    return graph.is_constant(value) or (fact is not None and fact.dtype in (6, 7))


def _same_size(graph: Graph, a: str, b: str) -> bool:
    one, other = graph.shape(a), graph.shape(b)
    if one is None or other is None or None in one or None in other:
        return False
    return prod(n for n in one if n) == prod(n for n in other if n)


def _made_by(graph: Graph, product: Product, axes: Axes, marks: set[Atom]) -> list[Atom] | None:
    """What else the stored side of a projection gives its result: heads, where it is [width, heads, size]."""
    held = [_stored(graph, side) for side in (product.left, product.right)]
    if not any(held):  # a stored matrix that is transposed first
        held = [not depends(graph, side) for side in (product.left, product.right)]
    if held[0] == held[1] or len(product.out_axes) != len(axes):
        return None
    stored = product.left_axes if held[0] else product.right_axes
    own = {a for axis in stored for a in axis}
    made = [leaf for at in _where(product.out_axes, own) for leaf in leaves(axes[at])]
    return [a for a in made if a not in marks] if not marks.isdisjoint(made) else None
