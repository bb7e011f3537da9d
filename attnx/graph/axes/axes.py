"""Follow the axes of a tensor through Transpose, Reshape and their like.

An axis is a run of atoms; an atom is an axis that no reshape has split so far. Reshaping [B*H, Q, D] to [B, H, Q, D]
splits one atom in two, and because every tensor refers to the same atoms, the split is known at once wherever that atom
occurs. Axes of size 1 have no atoms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.graph.load.nodes import attributes

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.fact import Shape
    from attnx.graph.shapes.index import Graph

ELEMENTWISE = frozenset(
    (
        "Add Sub Mul Div Where Cast CastLike Identity Dropout Tanh Clip Min Max Exp Neg Pow Sqrt Relu Sigmoid "
        "Softmax QuantizeLinear DequantizeLinear DynamicQuantizeLinear LayerNormalization RMSNormalization "
        "SimplifiedLayerNormalization LpNormalization RotaryEmbedding Gelu Erf IsNaN Abs PRelu Trilu "
        "QLinearSoftmax BiasSoftmax Log Reciprocal SkipLayerNormalization SkipSimplifiedLayerNormalization "
        "BiasGelu QLinearAdd QLinearMul Sum Softplus Elu Mod Concat Slice Pad Gather GatherElements ScatterND "
        "ScatterElements Not And Or"
    ).split()
)
"""Operators that keep axes where they are (Concat, Slice, Pad: the axis changes length, not its meaning)."""


class Atom:
    """One indivisible run of an axis, until a reshape divides it."""

    __slots__ = ("name", "parts", "size")

    def __init__(self, size: int | None, name: str = "") -> None:
        self.size, self.name = size, name
        self.parts: tuple[Atom, ...] = ()

    def leaves(self) -> list[Atom]:
        """The atoms that this one has been divided into."""
        return [leaf for part in self.parts for leaf in part.leaves()] if self.parts else [self]

    def split(self, *sizes: int | None) -> None:
        """Divide into parts of these sizes, outermost first."""
        self.parts = tuple(Atom(size) for size in sizes)


Axis = list[Atom]
Axes = list[Axis]


def fresh(shape: Sequence[int | None]) -> Axes:
    """Axes with one new atom each (none for size 1)."""
    return [[] if size == 1 else [Atom(size)] for size in shape]


def leaves(axis: Axis) -> Axis:
    """An axis as the atoms that its atoms have been divided into."""
    return [leaf for atom in axis for leaf in atom.leaves()]


def tie(mine: Axes, traced: Axes) -> None:
    """Let the atoms that a product has of its own for an operand's axes be those that the axes were traced to."""
    for own, known in zip(mine, traced, strict=True):
        if len(own) == 1 and not own[0].parts and known:
            own[0].parts = tuple(leaves(known))


def reshape(axes: Axes, target: Sequence[int | None]) -> Axes | None:
    """Distribute the atoms of `axes`, in order, over the sizes of `target`; None where they do not fit."""
    flat = [leaf for axis in axes for leaf in leaves(axis)]
    if any(a.size is None for a in flat) or None in target:
        return _loose(axes, target)
    out: Axes = []
    queue = list(flat)
    for size in target:
        need, axis = int(size or 0), []
        while need > 1:
            if not queue:
                return None
            atom = queue.pop(0)
            have = int(atom.size or 0)
            if have == 0:
                return None
            if need % have == 0:
                axis.append(atom)
                need //= have
            elif have % need == 0:
                atom.split(need, have // need)
                axis.append(atom.parts[0])
                queue.insert(0, atom.parts[1])
                need = 1
            else:
                return None
        out.append(axis)
    return None if queue else out


def _loose(axes: Axes, target: Sequence[int | None]) -> Axes | None:
    """Where sizes are unknown: match equal sizes from both ends; one stretch in the middle may be merged whole."""
    source = [leaves(axis) for axis in axes]
    sizes = [_size(axis) for axis in source]
    wanted = list(target)
    left = 0
    while left < min(len(source), len(wanted)) and sizes[left] is not None and sizes[left] == wanted[left]:
        left += 1
    right = 0
    while (
        right < min(len(source), len(wanted)) - left
        and sizes[-1 - right] is not None
        and sizes[-1 - right] == wanted[-1 - right]
    ):
        right += 1
    middle, gap = source[left : len(source) - right], wanted[left : len(wanted) - right]
    if len(middle) == len(gap) and all(
        a is None or b is None or a == b for a, b in zip(map(_size, middle), gap, strict=True)
    ):
        filled = middle
    elif len(gap) == 1:
        filled = [[atom for axis in middle for atom in axis]]
    elif len(middle) == 1 and len(middle[0]) == 1 and sum(g is None for g in gap) <= 1:
        parts = [g for g in gap if g != 1]
        middle[0][0].split(*parts)
        queue = list(middle[0][0].parts)
        filled = [[] if g == 1 else [queue.pop(0)] for g in gap]
    else:
        return None
    return source[:left] + filled + source[len(source) - right :]


def _size(axis: Axis) -> int | None:
    sizes = [leaf.size for leaf in leaves(axis)]
    return None if any(s is None for s in sizes) else int(np.prod([s for s in sizes if s is not None], dtype=object))


def forward(graph: Graph, node: NodeProto, axes: Axes, source: str) -> Axes | None:
    """The axes of a node's first output, given those of its input `source`; None where they cannot be followed."""
    op, a = node.op_type, attributes(node)
    out_shape = graph.shape(node.output[0])
    if op == "Transpose":
        perm = a.get("perm") or list(range(len(axes)))[::-1]
        return [axes[i] for i in perm]
    if op in ("Reshape", "Flatten"):
        return None if out_shape is None else reshape(axes, out_shape)
    if op == "Unsqueeze":
        return _unsqueeze(axes, _axes_of(graph, node, a))
    if op == "Squeeze":
        drop = _axes_of(graph, node, a)
        if drop is None:
            return [axis for axis in axes if axis]
        gone = {i % len(axes) for i in drop}
        return [axis for i, axis in enumerate(axes) if i not in gone]
    if op in ("Expand", "Tile"):
        return _broadcast(axes, out_shape)
    if op == "Gather":
        index = graph.shape(node.input[1])
        axis = a.get("axis", 0) % len(axes)
        if index is None or node.input[0] != source:
            return None
        return axes[:axis] + ([axes[axis]] if len(index) == 1 else fresh(index)) + axes[axis + 1 :]
    if op in MIXING:
        return _mix(graph, node, axes, source)
    if op in ("ScatterND", "ScatterElements") and source != node.input[0]:
        return None  # where a part lands is told by numbers, not by axes
    if op in ELEMENTWISE:
        return _broadcast(axes, out_shape if op not in ("Concat", "Slice", "Pad") else None)
    return None


MIXED = "mixed heads"
"""Name of the atoms that come out of such a product in the place of the heads."""
MIXING = ("MatMul", "Einsum", "Conv")
"""Products with a constant that may mix heads: `forward` follows the axes that they leave alone."""


def _mix(graph: Graph, node: NodeProto, axes: Axes, source: str) -> Axes | None:
    from attnx.graph.axes.product import find_product

    if node.op_type == "Conv":
        shape = graph.shape(node.output[0])
        one = graph.shape(node.input[1])
        if shape is None or one is None or any(d != 1 for d in one[2:]) or len(axes) != len(shape):
            return None
        return [axes[0], [] if shape[1] == 1 else [Atom(shape[1], MIXED)], *axes[2:]]
    product = find_product(graph, node.output[0])
    if product is None:
        return None
    mine = product.left_axes if source == product.left else product.right_axes
    if len(mine) != len(axes):
        return None
    tie(mine, axes)
    constant = product.right_axes if source == product.left else product.left_axes
    for atom in (atom for axis in constant for atom in axis if atom not in product.contracted):
        atom.name = MIXED
    return product.out_axes


def _axes_of(graph: Graph, node: NodeProto, a: dict[str, Any]) -> list[int] | None:
    if len(node.input) > 1:
        known = graph.known(node.input[1])
        return None if known is None else [int(i) for i in known.ravel()]
    return a.get("axes")


def _unsqueeze(axes: Axes, at: list[int] | None) -> Axes | None:
    if at is None:
        return None
    out = list(axes)
    rank = len(axes) + len(at)
    for i in sorted(i % rank for i in at):
        out.insert(i, [])
    return out


def _broadcast(axes: Axes, shape: Shape | None) -> Axes:
    if shape is None or len(shape) < len(axes):
        return axes
    out: Axes = [[] for _ in range(len(shape) - len(axes))] + list(axes)
    for i, size in enumerate(shape):
        if not out[i] and size not in (1, None):
            out[i] = [Atom(size)]  # stretched here: an axis that the source did not have
    return out


def backward(graph: Graph, node: NodeProto, axes: Axes, source: str) -> Axes | None:
    """The axes of a node's input `source`, given those of its first output; None where they cannot be followed."""
    op, a = node.op_type, attributes(node)
    shape = graph.shape(source)
    if op == "Transpose":
        perm = a.get("perm") or list(range(len(axes)))[::-1]
        if len(perm) != len(axes):
            return None
        out: Axes = [[] for _ in perm]
        for i, p in enumerate(perm):
            out[p] = axes[i]
        return out
    if op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
        return None if shape is None else reshape(axes, shape)
    if shape is None:
        return None
    if op == "Gather":
        index, axis = graph.shape(node.input[1]), a.get("axis", 0) % len(shape)
        if index is None or source != node.input[0]:
            return None
        middle: Axes = [axes[axis]] if len(index) == 1 else fresh([shape[axis]])
        return axes[:axis] + middle + axes[axis + len(index) :]
    if op in ELEMENTWISE or op in ("Split", "Expand", "Tile"):
        tail = axes[len(axes) - len(shape) :] if len(shape) <= len(axes) else None
        return None if tail is None else [[] if size == 1 else axis for axis, size in zip(tail, shape, strict=True)]
    return None
