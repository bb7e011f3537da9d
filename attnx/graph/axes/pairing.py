"""Pair the product that made a softmax's scores with the one that uses its weights, by following their axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Atom, Axes, atoms_of, leaves, split_alike
from attnx.graph.axes.axes import forward
from attnx.graph.axes.origins import streams
from attnx.graph.axes.paths import Step, Way, depends, ways_back
from attnx.graph.axes.product import Product, find_product

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph


class Candidate:
    """A product that may have made the scores, with the axes of the softmax's input expressed in its atoms."""

    __slots__ = ("axes", "key", "key_axes", "keys", "query", "query_axes", "way")

    def __init__(self, way: Way, axes: Axes, keys: list[Atom], left_is_key: bool) -> None:
        p = way.product
        self.way, self.axes, self.keys = way, axes, keys
        self.key, self.query = (p.left, p.right) if left_is_key else (p.right, p.left)
        self.key_axes, self.query_axes = (p.left_axes, p.right_axes) if left_is_key else (p.right_axes, p.left_axes)


def follow(graph: Graph, way: Way, over: tuple[int, ...]) -> Candidate | None:
    """Follow the product's axes to the softmax; the operand that holds the normalised axis is the key.

    Args:
        graph: The graph.
        way: From a product to the softmax.
        over: The axes that the softmax normalises, in order.
    """
    axes: Axes | None = way.product.out_axes
    for step in way.steps:
        axes = forward(graph, step.node, axes, step.source) if axes is not None else None
    if axes is None or max(over) >= len(axes):
        return None
    keys = [leaf for axis in over for leaf in leaves(axes[axis])]
    in_left = atoms_of(way.product.left_axes).issuperset(keys)
    in_right = atoms_of(way.product.right_axes).issuperset(keys)
    if not keys and len(axes) == len(way.product.out_axes) and way.product.node.op_type in ("MatMul", "FusedMatMul"):
        in_left, in_right = over == (len(axes) - 2,), over == (len(axes) - 1,)  # one key: known only by its position
    if in_left == in_right:
        return None
    return Candidate(way, axes, keys, in_left)


def unmixed(graph: Graph, candidate: Candidate, over: tuple[int, ...]) -> Candidate | None:
    """The real score product, where a candidate's key is scores already because it only mixes heads.

    The numbers that mix heads are stored or made from the text. Scores have a normalised axis, from one operand of
    their product, and an axis by which rows differ, from the other. A key written into a cache by a product can have
    such axes too; but what that product sums over, its features, comes from one operand alone.

    Returns:
        None where the key is really a key.
    """
    mix = candidate.way.product
    step = Step(mix.node, candidate.key, mix.out)
    for way in ways_back(graph, candidate.key):
        p = way.product
        if not (depends(graph, p.left) and depends(graph, p.right)):
            continue
        found = follow(graph, Way(p, [*way.steps, step, *candidate.way.steps]), over)
        if found is None:
            continue
        rows = (atoms_of(found.query_axes) - atoms_of(found.key_axes)) & atoms_of(found.axes)
        if not rows:
            continue
        heads = _summed(graph, way, mix, candidate.key)
        if not depends(graph, candidate.query) or (
            heads and heads <= atoms_of(found.query_axes) & atoms_of(found.key_axes)
        ):
            return found
    return None


def _summed(graph: Graph, way: Way, mix: Product, value: str) -> set[Atom]:
    """What a product sums over, expressed in the atoms of the way to one of its operands."""
    axes: Axes | None = way.product.out_axes
    for step in way.steps:
        axes = forward(graph, step.node, axes, step.source) if axes is not None else None
    again = find_product(graph, mix.out)
    mine = None if again is None else again.left_axes if value == again.left else again.right_axes
    if again is None or axes is None or mine is None or len(mine) != len(axes):
        return set()
    split_alike(mine, axes)
    return set(leaves(again.contracted))


def content(graph: Graph, candidates: list[Candidate], on: list[Way]) -> Candidate:
    """Of several products that are added up, the one whose key comes from the same place as the value."""
    if len(candidates) == 1 or not on:
        return candidates[0]
    way = on[0]
    carried = way.steps[-1].target if way.steps else None
    value = way.product.right if carried in (None, way.product.left) else way.product.left
    source = streams(graph, value)

    def rank(c: Candidate) -> tuple[bool, int, int]:
        moved = sum(s.node.op_type in ("GatherElements", "Gather", "Pad", "Slice") for s in c.way.steps)
        return (not (streams(graph, c.key) & source), moved, len(c.way.steps))

    return min(candidates, key=rank)


class Use:
    """The product of weights and value, with the axes of both expressed in the scores' atoms."""

    __slots__ = ("value", "value_axes", "way", "weights_axes")

    def __init__(self, way: Way, weights_axes: Axes, value: str, value_axes: Axes) -> None:
        self.way, self.weights_axes, self.value, self.value_axes = way, weights_axes, value, value_axes


def use_of(graph: Graph, way: Way, chosen: Candidate, weights: str) -> Use | None:
    """Follow the weights to a product; it is the one with the value if it contracts over the keys."""
    axes: Axes | None = chosen.axes
    carried = weights
    for step in way.steps:
        axes = forward(graph, step.node, axes, step.source) if axes is not None else None
        carried = step.target
    p = way.product
    if axes is None:
        return None
    weights_left = carried == p.left
    mine = p.left_axes if weights_left else p.right_axes
    if len(mine) != len(axes):
        return None
    split_alike(mine, axes)
    if set(leaves(p.contracted)) != set(leaves(chosen.keys)):
        return None
    value, value_axes = (p.right, p.right_axes) if weights_left else (p.left, p.left_axes)
    return Use(way, axes, value, value_axes)
