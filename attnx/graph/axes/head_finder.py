"""Find which axes hold heads: merged with the features behind the context, or split from them before the query."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from attnx.graph.axes.axes import MIXING, Atom, Axes, Axis, backward, forward, leaves, tie
from attnx.graph.axes.paths import depends
from attnx.graph.axes.product import Product, find_product
from attnx.graph.load.nodes import attributes

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_VIEWS = (
    "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Cast", "Identity", "QuantizeLinear", "DequantizeLinear",
)  # fmt: skip
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
    marks = {id(a) for a in feature}
    stack: list[tuple[str, Axes, int]] = [(product.out, product.out_axes, 0)]
    seen: set[str] = set()
    while stack:
        value, axes, depth = stack.pop(0)
        if value in seen or depth > 48:
            continue
        seen.add(value)
        marks = {id(leaf) for a in feature for leaf in a.leaves()}
        merged = _beside(axes, marks)
        if merged:
            return merged
        for node in graph.consumers(value):
            apart = _split_and_joined(graph, node, axes, marks)
            if apart is not None:
                return apart
            after = find_product(graph, node.output[0]) if node.output else None
            if after is not None and after.node is node and value in (after.left, after.right):
                mine = after.left_axes if value == after.left else after.right_axes
                if len(mine) != len(axes):
                    continue
                summed = {id(a) for a in after.contracted}
                atoms = [leaf for at in _where(mine, summed) for leaf in leaves(axes[at])]
                if not feature or not any(id(a) in marks for a in atoms):
                    continue
                merged = [a for a in atoms if id(a) not in marks]
                if merged:
                    return merged
                theirs = after.right_axes if value == after.left else after.left_axes
                matched = _in_both(mine, theirs, summed)
                if matched and not depends(graph, after.other(value)):
                    return [leaf for at in _where(mine, matched) for leaf in leaves(axes[at])]
                if len(axes) > 3 and len(mine) == len(after.out_axes):
                    feature = _projected_in_place(after, mine, axes, theirs, summed, feature)
                    stack.append((after.out, after.out_axes, depth + 1))
                else:
                    return []
                continue
            if node.op_type in _INTEGER:
                if axes and value == node.input[0]:
                    atoms = leaves(axes[-1])
                    if any(id(a) in marks for a in atoms):
                        return [a for a in atoms if id(a) not in marks] or _matrix_each(graph, node, axes)
                continue
            following = forward(graph, node, axes, value) if node.output else None
            if following is not None and _joins_parts(graph, node, following, marks, product.out):
                continue  # heads that were cut out one by one: their features alone do not tell
            if following is not None:
                if node.op_type in ("Concat", "Slice", "Pad"):
                    following = _resized(following, graph.shape(node.output[0]), marks)
                stack.append((node.output[0], following, depth + 1))
    return None


def _matrix_each(graph: Graph, node: NodeProto, axes: Axes) -> list[Atom]:
    """The atoms of the axes along which a stored operand of integers has a matrix of its own for each place."""
    at = 3 if node.op_type == "QLinearMatMul" else 1
    shape = graph.shape(node.input[at]) if len(node.input) > at else None
    if shape is None or depends(graph, node.input[at]):
        return []
    lead = [i for i in range(3, min(len(shape), len(axes)) + 1) if shape[-i] != 1]
    return [leaf for i in lead for leaf in leaves(axes[-i])]


def _joins_parts(graph: Graph, node: NodeProto, axes: Axes, marks: set[int], context: str) -> bool:
    """Whether a Concat puts slices of the context side by side along the axis of its features."""
    at = attributes(node).get("axis", 0) if node.op_type == "Concat" else len(axes)
    if not -len(axes) <= at < len(axes) or not any(id(a) in marks for a in leaves(axes[at])):
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


def _beside(axes: Axes, marks: set[int]) -> list[Atom]:
    """What shares an axis with marked atoms."""
    for axis in axes:
        atoms = leaves(axis)
        if any(id(a) in marks for a in atoms):
            merged = [a for a in atoms if id(a) not in marks]
            if merged:
                return merged
    return []


def _where(axes: Axes, ids: set[int]) -> list[int]:
    return [i for i, axis in enumerate(axes) if any(id(a) in ids for a in axis)]


def _in_both(mine: Axes, theirs: Axes, summed: set[int]) -> set[int]:
    """Atoms that both operands of a product have and that are not summed: a matrix of its own for each of them."""
    other = {id(a) for axis in theirs for a in axis}
    return {id(a) for axis in mine for a in axis if id(a) in other and id(a) not in summed}


def _projected_in_place(
    after: Product, mine: Axes, axes: Axes, theirs: Axes, summed: set[int], feature: list[Atom]
) -> list[Atom]:
    """One matrix a head (absorbed projections): what comes out has other features, in the same heads."""
    tie(mine, axes)
    out = [a for axis in after.out_axes for a in axis]
    new = [a for axis in theirs for a in axis if id(a) not in summed and a in out]
    return [*feature, *[a for a in new if not any(a in own for own in mine)]]


def _split_and_joined(graph: Graph, node: NodeProto, axes: Axes, marks: set[int]) -> list[Atom] | None:
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
            held = any(id(a) in marks for a in leaves(now[onto]))
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


def _resized(axes: Axes, shape: tuple[int | None, ...] | None, marks: set[int]) -> Axes:
    """Axes whose length a Concat, Slice or Pad has changed get an atom of their new length; features keep theirs."""
    if shape is None or len(shape) != len(axes):
        return axes
    out: Axes = []
    for axis, size in zip(axes, shape, strict=True):
        atoms = leaves(axis)
        sizes = [atom.size for atom in atoms]
        same = size is None or None in sizes or prod(n for n in sizes if n is not None) == size
        out.append(axis if same or any(id(a) in marks for a in atoms) else [Atom(size)])
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
        marks = {id(leaf) for a in contracted for leaf in a.leaves()}
        merged = _beside(axes, marks)
        if merged:
            return merged
        product = find_product(graph, value)
        if product is not None:
            return _made_by(graph, product, axes, marks)
        node = graph.producer(value)
        if node is not None and node.op_type == "Conv" and len(axes) > 1:
            return [] if any(id(a) in marks for a in leaves(axes[1])) else None
        if node is not None and node.op_type == "Concat" and (stacked := _stacked(graph, node, axes, marks)):
            return stacked
        step = upstream(graph, value, axes, contracted)
        if step is None:
            return None
        value, axes, contracted = step
    return None


def _stacked(graph: Graph, node: NodeProto, axes: Axes, marks: set[int]) -> list[Atom]:
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
    return leaves(axes[at]) if single and not any(id(a) in marks for a in leaves(axes[at])) else []


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
        marks = {id(leaf) for a in marked for leaf in a.leaves()}
        for i, (axis, size) in enumerate(zip(traced, shape, strict=True)):
            atoms = leaves(axis)
            sizes = [a.size for a in atoms]
            if size is None or None in sizes or prod(n for n in sizes if n is not None) == size:
                continue
            traced[i] = [] if size == 1 else [Atom(size)]  # as long as it is there
            if any(id(a) in marks for a in atoms):
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


def _made_by(graph: Graph, product: Product, axes: Axes, marks: set[int]) -> list[Atom] | None:
    """What else the stored side of a projection gives its result: heads, where it is [width, heads, size]."""
    held = [_stored(graph, side) for side in (product.left, product.right)]
    if not any(held):  # a stored matrix that is transposed first
        held = [not depends(graph, side) for side in (product.left, product.right)]
    if held[0] == held[1] or len(product.out_axes) != len(axes):
        return None
    stored = product.left_axes if held[0] else product.right_axes
    own = {id(a) for axis in stored for a in axis}
    made = [leaf for at in _where(product.out_axes, own) for leaf in leaves(axes[at])]
    return [a for a in made if id(a) not in marks] if any(id(a) in marks for a in made) else None
