"""Cheaper computation of a band's nodes: products without features that are 0, cells written a block at a time.

Each gives exactly the node's own result; where that cannot be known beforehand, the node itself is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.load.nodes import attributes
from attnx.records import Array

if TYPE_CHECKING:
    from onnx import NodeProto


def narrowed(node: NodeProto, values: list[Array | None]) -> list[Array | None]:
    """The operands of a product, without the summed places where one of them is 0 throughout.

    Places are carried in one of many features; the others add nothing but zeros.
    """
    axes = _summed(node, values)
    if axes is None:
        return values
    sides = [np.asarray(v) for v in values]
    size = sides[0].shape[axes[0]]
    if size < 2 or sides[1].shape[axes[1]] != size:
        return values
    for side, axis, other in ((sides[0], axes[0], sides[1]), (sides[1], axes[1], sides[0])):
        used = side.any(axis=tuple(i for i in range(side.ndim) if i != axis % side.ndim))
        # 0 times infinity is not 0.
        if not used.all() and np.isfinite(other).all():
            kept = np.flatnonzero(used) if used.any() else np.zeros(1, np.int64)
            return [s.take(kept, axis=a) for s, a in zip(sides, axes, strict=True)]
    return values


def _summed(node: NodeProto, values: Sequence[Array | None]) -> tuple[int, int] | None:
    """The axis of each of two operands that a product sums over, if there is just one."""
    if len(values) != 2 or any(v is None or v.ndim < 2 or v.dtype.kind != "f" for v in values):
        return None
    if node.op_type == "MatMul":
        return -1, -2
    if node.op_type not in ("FusedMatMul", "Einsum"):
        return None
    a = attributes(node)
    if node.op_type == "FusedMatMul":
        turned = a.get("transBatchA") or a.get("transBatchB")
        return None if turned else (-2 if a.get("transA") else -1, -1 if a.get("transB") else -2)
    sides, arrow, out = a["equation"].replace(" ", "").partition("->")
    left, _, right = sides.partition(",")
    both = [letter for letter in left if letter in right and letter not in out]
    once = all(len(set(side)) == len(side) for side in (left, right))
    if not arrow or "." in sides or not once or len(both) != 1:
        return None
    return left.index(both[0]), right.index(both[0])


def columns(node: NodeProto, values: Sequence[Array | None]) -> list[Array] | None:
    """The tensors that a Concat joins as columns of the last axis; None where it does something else."""
    parts = [np.asarray(v) for v in values]
    if node.op_type != "Concat" or not parts[0].ndim or any(p.shape != (*parts[0].shape[:-1], 1) for p in parts):
        return None
    return parts if attributes(node).get("axis", 0) % parts[0].ndim == parts[0].ndim - 1 else None


def written(data: Array, places: Sequence[Array], updates: Array, *, over: bool = False) -> Array | None:
    """ScatterND to places that form a grid, each array counting along its own axis; None where they do not.

    Args:
        data: The array to write into.
        places: Where an update goes along each of the first axes of `data`: int64 [..., 1], all of one shape.
        updates: The array to write.
        over: Whether `data` itself may be written into.
    """
    shape = places[0].shape[:-1]
    lines: list[Array] = []
    axes: list[int] = []
    if 0 in shape:
        return None
    for place in places:
        part = place[..., 0]
        moving = [i for i, stride in enumerate(part.strides) if stride and shape[i] > 1]
        if part.shape != shape or len(moving) > 1:
            return None
        lines.append(part[tuple(slice(None) if i in moving else 0 for i in range(part.ndim))].ravel())
        axes += moving or [-1]
    held = [axis for axis in axes if axis >= 0]
    free = [axis for axis, size in enumerate(shape) if size > 1]
    blocks = [_block(line, size) for line, size in zip(lines, data.shape, strict=False)]
    if sorted(held) != free or len(places) > data.ndim or None in blocks:
        return None
    rest = range(len(shape), updates.ndim)
    single = [axis for axis, size in enumerate(shape) if size == 1]
    turned = updates.transpose(*single, *held, *rest)
    out = data if over else np.array(data)
    sizes = (*(len(line) for line in lines), *data.shape[len(places) :])
    out[tuple(block for block in blocks if block is not None)] = turned.reshape(sizes)
    return out


def _block(line: Array, size: int) -> slice | None:
    """The cells of one axis that places refer to, if they are consecutive."""
    if len(line) == 0 or line.min() < -size or line.max() >= size or (np.diff(line) != 1).any():
        return None
    start = int(line[0]) + (size if line[0] < 0 else 0)
    return slice(start, start + len(line)) if start + len(line) <= size else None
