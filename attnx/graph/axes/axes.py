"""Follow the axes of a tensor through Transpose, Reshape and similar operators, forward and backward.

Following axes through a Reshape splits their atoms, see atoms.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnx.graph.axes.atoms import Atom, Axes, atoms_of, fresh, leaves, split_alike, split_to
from attnx.graph.axes.product import find_product
from attnx.graph.load.nodes import CURVES, ROUNDS, attributes

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.fact import Shape
    from attnx.graph.shapes.index import Graph

ELEMENTWISE = (
    frozenset(
        (
            "Add Sub Mul Div Where Cast CastLike Identity Dropout Tanh Clip Min Max Exp Neg Pow Sqrt Relu Sigmoid "
            "Softmax LayerNormalization RMSNormalization "
            "SimplifiedLayerNormalization LpNormalization RotaryEmbedding Gelu Erf IsNaN Abs PRelu Trilu "
            "QLinearSoftmax BiasSoftmax Log Reciprocal SkipLayerNormalization SkipSimplifiedLayerNormalization "
            "BiasGelu QLinearAdd QLinearMul QLinearConcat Sum Softplus Elu Mod Concat Slice Pad Gather GatherElements "
            "ScatterND ScatterElements Not And Or"
        ).split()
    )
    | {*CURVES, "Sign", "Round", "Floor", "Ceil"}
    | ROUNDS
)
"""Operators that keep axes where they are (Concat, Slice, Pad: the axis changes length, not its meaning)."""


def forward(graph: Graph, node: NodeProto, axes: Axes, source: str) -> Axes | None:
    """The axes of a node's first output, given those of its input `source`; None where they cannot be followed."""
    op, a = node.op_type, attributes(node)
    out_shape = graph.shape(node.output[0])
    if op == "Transpose":
        perm = a.get("perm") or list(range(len(axes)))[::-1]
        return [axes[i] for i in perm]
    if op in ("Reshape", "Flatten"):
        return None if out_shape is None else split_to(axes, out_shape)
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
        return None  # where a part lands depends on numbers, not on axes
    if op in ELEMENTWISE:
        return _broadcast(axes, out_shape if op not in ("Concat", "QLinearConcat", "Slice", "Pad") else None)
    return None


MIXED = "mixed heads"
"""Name of the atoms that replace the heads after a product that mixes them."""
MIXING = ("MatMul", "Einsum", "Conv", "ReduceSum")
"""Products that may mix heads: `forward` follows the axes that they leave unchanged."""


def _mix(graph: Graph, node: NodeProto, axes: Axes, source: str) -> Axes | None:
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
    split_alike(mine, axes)
    other = product.right_axes if source == product.left else product.left_axes
    own = atoms_of(mine)
    for atom in atoms_of(other) - own - set(leaves(product.contracted)):
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
            out[i] = [Atom(size)]  # broadcast here: an axis that the source did not have
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
        return None if shape is None else split_to(axes, shape)
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
