"""Name the axes of an attention computation: b batch, h head, q query, k key, d feature."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING

from attnx.graph.axes import MIXED, Atom, Axes, forward, leaves
from attnx.graph.index import attributes
from attnx.graph.product import Product, find_product

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.index import Graph

PROBE = 1000
"""Sizes above this may be probe sizes of symbolic dimensions; a head count or head size never is."""


class Letters:
    """A letter for each atom; see `layout`."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._kept: list[Atom] = []  # keeps the atoms alive, so that their ids stay theirs
        self.heads: int | None = 1
        self.head_size: int | None = 1

    def name(self, atoms: Iterable[Atom], letter: str) -> None:
        """Give a letter to atoms, numbered where there are several; earlier names stay."""
        fresh = [leaf for atom in atoms for leaf in atom.leaves() if id(leaf) not in self._names]
        for i, leaf in enumerate(fresh):
            token = letter if len(fresh) == 1 else f"{letter}{i}"
            self._names[id(leaf)] = f"{token}:{leaf.size}" if letter == "h" and leaf.size is not None else token
            self._kept.append(leaf)

    def named(self, atom: Atom) -> bool:
        """Whether every leaf of an atom has a letter."""
        return all(id(leaf) in self._names for leaf in atom.leaves())

    def layout(self, axes: Axes) -> str | None:
        """Axes in einops style, "(b h:4) q k"; "1" for an axis of size 1; None where an atom has no letter."""
        words: list[str] = []
        for axis in axes:
            atoms = leaves(axis)
            tokens = [self._names.get(id(a), f"h:{a.size}" if a.name == MIXED else "") for a in atoms]
            if not all(tokens):
                return None
            words.append("1" if not tokens else tokens[0] if len(tokens) == 1 else f"({' '.join(tokens)})")
        return " ".join(words)


def name_axes(
    graph: Graph, out_axes: Axes, query_axes: Axes, key_axes: Axes, keys: list[Atom], contracted: list[Atom],
    use: tuple[Product, Axes] | None,
) -> Letters:  # fmt: skip
    """Letters for the atoms of the score product and, where there is one, of the product with the value.

    Args:
        graph: The graph.
        out_axes: Axes of the score product's result.
        query_axes: Axes of its query operand.
        key_axes: Axes of its key operand.
        keys: The atoms that the softmax normalises.
        contracted: The atoms that the score product sums over.
        use: The product of weights and value, and the axes of the value in it.
    """
    letters = Letters()
    letters.name(keys, "k")
    letters.name(contracted, "d")
    free = [leaf for axis in out_axes for leaf in leaves(axis) if not letters.named(leaf)]
    heads: list[Atom] | None = None
    if use is not None:
        product, value_axes = use
        weighing = product.left_axes if value_axes is product.right_axes else product.right_axes
        mine = {id(leaf) for axis in (*out_axes, *weighing) for leaf in leaves(axis)}
        feature = [
            leaf for axis in value_axes for leaf in leaves(axis) if id(leaf) not in mine and not letters.named(leaf)
        ]
        heads = _merged_with(graph, product, feature, [id(a) for a in free])
        free = [leaf for atom in free for leaf in atom.leaves()]  # reshapes behind the product may have split them
        letters.name(feature, "d")
    known = {id(a) for a in free}
    if heads and not any(id(leaf) in known for atom in heads for leaf in atom.leaves()):
        # Heads are mixed between the product and the value: those behind are other atoms than those before.
        letters.name(heads, "h")
        heads = None
    if heads is None:
        heads = _by_position(out_axes, query_axes, letters)
    chosen = {id(leaf) for atom in heads for leaf in atom.leaves()}
    letters.name([a for a in free if id(a) in chosen], "h")
    in_key = {id(leaf) for axis in key_axes for leaf in leaves(axis)}
    in_query = {id(leaf) for axis in query_axes for leaf in leaves(axis)}
    asking = [a for a in free if id(a) in in_query and id(a) not in in_key and id(a) not in chosen]
    if not asking and use is not None:
        # A learned vector in the place of the query: what tells rows of weights apart, and not values, is the query.
        weighed = {id(leaf) for axis in use[1] for leaf in leaves(axis)}
        asking = [a for a in free if id(a) not in weighed and id(a) not in chosen]
    letters.name(asking, "q")
    letters.name([a for a in free if id(a) not in chosen], "b")
    letters.heads = _count([a for a in free if id(a) in chosen])
    letters.head_size = _count([leaf for atom in contracted for leaf in atom.leaves()])
    return letters


def _count(atoms: list[Atom]) -> int | None:
    total = 1
    for atom in atoms:
        if atom.size is None or atom.size > PROBE * 16:
            return None
        total *= atom.size
    return total


def _by_position(out_axes: Axes, query_axes: Axes, letters: Letters) -> list[Atom]:
    """Without a value to follow: of two or more batch axes, the last is the heads' (the field's convention).

    A batch that was exported as 1 has no atom, and still stands before the heads.
    """
    batch = [axis for axis in out_axes[:-2] if axis and not all(letters.named(a) for a in axis)]
    after_one = len(batch) == 1 and batch[0] is out_axes[-3] and not any(out_axes[:-3])
    return list(leaves(batch[-1])) if len(out_axes) >= 4 and (len(batch) >= 2 or after_one) else []


def _flat(axes: Axes) -> list[Atom]:
    return [atom for axis in axes for atom in axis]


def _split_and_joined(graph: Graph, node: NodeProto, axes: Axes, marks: set[int]) -> list[Atom] | None:
    """Heads that were stacked on the batch axis: a Split of that axis whose parts are joined again on the features'."""
    if node.op_type != "Split" or len(node.output) < 2:
        return None
    axis = attributes(node).get("axis", 0) % len(axes)
    join = next((n for n in graph.consumers(node.output[0]) if n.op_type == "Concat"), None)
    atoms = leaves(axes[axis])
    if join is None or list(join.input) != list(node.output) or len(atoms) != 1:
        return None
    onto = attributes(join).get("axis", 0) % len(axes)
    if onto == axis or not any(id(a) in marks for a in leaves(axes[onto])):
        return None
    count, size = len(node.output), atoms[0].size
    if size is not None and size % count:
        return None
    if size == count:
        return atoms
    atoms[0].split(count, None if size is None else size // count)
    return [atoms[0].parts[0]]


def _merged_with(graph: Graph, product: Product, feature: list[Atom], free: list[int]) -> list[Atom] | None:
    """The atoms that the context's features are merged with on the way to the output projection: the heads.

    None where the context cannot be followed to a reshape or a projection.
    """
    marks = {id(a) for a in feature}
    stack: list[tuple[str, Axes, int]] = [(product.out, product.out_axes, 0)]
    seen: set[str] = set()
    while stack:
        value, axes, depth = stack.pop(0)
        if value in seen or depth > 24:
            continue
        seen.add(value)
        marks = {id(leaf) for a in feature for leaf in a.leaves()}
        for axis in axes:
            atoms = leaves(axis)
            if any(id(a) in marks for a in atoms):
                merged = [a for a in atoms if id(a) not in marks]
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
                atoms = [
                    leaf
                    for own, traced in zip(mine, axes, strict=True)
                    if any(id(a) in summed for a in own)
                    for leaf in leaves(traced)
                ]
                merged = [a for a in atoms if id(a) not in marks]
                if feature and any(id(a) in marks for a in atoms) and merged:
                    return merged
                if (
                    feature
                    and any(id(a) in marks for a in atoms)
                    and len(axes) > 3
                    and len(mine) == len(after.out_axes)
                ):
                    # One matrix a head (absorbed projections): what comes out has other features, in the same heads.
                    for own, traced in zip(mine, axes, strict=True):
                        if len(own) == 1 and not own[0].parts and traced:
                            own[0].parts = tuple(leaves(traced))
                    theirs = after.right_axes if value == after.left else after.left_axes
                    new = [a for axis in theirs for a in axis if id(a) not in summed and a in _flat(after.out_axes)]
                    feature = [*feature, *[a for a in new if not any(a in own for own in mine)]]
                    stack.append((after.out, after.out_axes, depth + 1))
                elif feature and any(id(a) in marks for a in atoms):
                    return []
                continue
            if node.op_type in ("MatMulNBits", "QLinearMatMul", "MatMulInteger", "DynamicQuantizeMatMul", "QGemm"):
                if axes and value == node.input[0]:
                    atoms = leaves(axes[-1])
                    if any(id(a) in marks for a in atoms):
                        return [a for a in atoms if id(a) not in marks]
                continue
            following = forward(graph, node, axes, value) if node.output else None
            if following is not None:
                if node.op_type in ("Concat", "Slice", "Pad"):
                    following = _resized(following, graph.shape(node.output[0]), marks)
                stack.append((node.output[0], following, depth + 1))
    return None


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
