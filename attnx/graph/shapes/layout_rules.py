"""Shapes of operators that move, cut, join or repeat elements without changing their values."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.graph.fact import Fact, Shape, ints
from attnx.graph.shapes.arithmetic import Rule, axes_of, broadcast

if TYPE_CHECKING:
    from onnx import NodeProto


def _reshape(node: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    target = ints(x[1]) if len(x) > 1 else [int(v) for v in a.get("shape", [])]
    source = x[0].shape
    if target is None:
        rank = x[1].shape[0] if x[1].shape else None
        return [None if rank is None else (None,) * rank]
    if any(n == 0 for n in target) and not a.get("allowzero"):
        if source is None:
            out0: Shape = tuple(None if n in (0, -1) else n for n in target)
            return [out0]
        target = [n if n else (source[i] if i < len(source) else None) for i, n in enumerate(target)]  # type: ignore[misc]
    out: list[int | None] = [None if n == -1 else n for n in target]
    if -1 in target and source is not None and None not in source and target.count(-1) == 1:
        rest = [n for n in target if n != -1]
        if None not in rest:
            known = int(np.prod(np.array(rest, dtype=object))) if rest else 1
            total = int(np.prod(np.array(source, dtype=object))) if source else 1
            out[target.index(-1)] = total // known if known and total % known == 0 else None
    return [tuple(out)]


def _transpose(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    if s is None:
        return [None]
    perm = a.get("perm") or range(len(s))[::-1]
    return [tuple(s[i] for i in perm)]


def _unsqueeze(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, axes = x[0].shape, axes_of(a, x)
    if s is None or axes is None:
        return [None]
    out: list[int | None] = list(s)
    rank = len(s) + len(axes)
    for i in sorted(i % rank for i in axes):
        out.insert(i, 1)
    return [tuple(out)]


def _squeeze(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, axes = x[0].shape, axes_of(a, x)
    if s is None:
        return [None]
    drop = {i % len(s) for i in axes} if axes is not None else {i for i, d in enumerate(s) if d == 1}
    return [tuple(d for i, d in enumerate(s) if i not in drop)]


def _concat(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    shapes = [f.shape for f in x]
    ranks = {len(s) for s in shapes if s is not None}
    if len(ranks) != 1:
        return [None]
    rank = ranks.pop()
    axis = a.get("axis", 0) % rank
    out: list[int | None] = []
    for i in range(rank):
        sizes = [s[i] if s is not None else None for s in shapes]
        if i == axis:
            out.append(None if None in sizes else sum(n for n in sizes if n is not None))
        else:
            out.append(next((n for n in sizes if n is not None), None))
    return [tuple(out)]


def _bound(end: int) -> int | None:
    """The end of a Slice; exporters write int64's extremes for "to the very end"."""
    return None if abs(end) >= 1 << 60 else end


def _slice(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    if s is None:
        return [None]
    if len(x) > 1:
        starts, ends = ints(x[1]), ints(x[2])
        count = x[1].shape[0] if x[1].shape else 1
        axes = ints(x[3]) if len(x) > 3 and x[3].shape is not None else list(range(count or 1))
        steps = ints(x[4]) if len(x) > 4 and x[4].shape is not None else None
    else:
        starts, ends = list(a["starts"]), list(a["ends"])
        axes, steps = list(a.get("axes", range(len(starts)))), None
    out: list[int | None] = list(s)
    if axes is None:
        return [(None,) * len(s)]
    for i, axis in enumerate(axes):
        size, step = s[axis], steps[i] if steps else 1
        if size is None or starts is None or ends is None:
            out[axis] = None
        else:
            out[axis] = len(range(*slice(starts[i], _bound(ends[i]), step).indices(size)))
    return [tuple(out)]


def _split(node: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, n = x[0].shape, len(node.output)
    if s is None:
        return [None] * n
    axis = a.get("axis", 0) % len(s)
    sizes: list[int | None]
    if len(x) > 1 and x[1].shape is not None:
        given = ints(x[1])
        sizes = list(given) if given is not None else [None] * n
    elif "split" in a:
        sizes = list(a["split"])
    elif s[axis] is None:
        sizes = [None] * n
    else:
        size = int(s[axis] or 0)
        part = -(-size // n)
        sizes = [*[part] * (n - 1), size - part * (n - 1)]
    return [(*s[:axis], d, *s[axis + 1 :]) for d in sizes]


def _gather(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, i = x[0].shape, x[1].shape
    if s is None or i is None:
        return [None]
    axis = a.get("axis", 0) % max(len(s), 1)
    return [(*s[:axis], *i, *s[axis + 1 :])]


def _expand(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    target = ints(x[1])
    if target is None:
        rank = x[1].shape[0] if x[1].shape else None
        return [None if rank is None or x[0].shape is None else (None,) * max(rank, len(x[0].shape))]
    return [broadcast(x[0].shape, tuple(target))]


def _tile(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, times = x[0].shape, ints(x[1])
    if s is None:
        return [None]
    return [tuple(None if d is None or times is None else d * times[i] for i, d in enumerate(s))]


def _pad(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    pads = ints(x[1]) if len(x) > 1 else a.get("pads")
    if s is None or pads is None or (len(x) > 3 and x[3].shape is not None) or len(pads) != 2 * len(s):
        return [None if s is None else (None,) * len(s)]
    return [tuple(None if d is None else d + pads[i] + pads[i + len(s)] for i, d in enumerate(s))]


def _flatten(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s = x[0].shape
    if s is None or None in s:
        return [(None, None)]
    axis = a.get("axis", 1)
    axis = axis + len(s) if axis < 0 else axis
    sizes = [int(d) for d in s if d is not None]
    return [(prod(sizes[:axis]), prod(sizes[axis:]))]


def _gather_nd(_: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> list[Shape | None]:
    s, i, batch = x[0].shape, x[1].shape, a.get("batch_dims", 0)
    if s is None or i is None or i[-1] is None:
        return [None]
    return [(*i[:-1], *s[batch + i[-1] :])]


LAYOUT: dict[str, Rule] = {
    "Reshape": _reshape, "Transpose": _transpose, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Concat": _concat,
    "Slice": _slice, "Split": _split, "Gather": _gather, "GatherND": _gather_nd, "Expand": _expand, "Tile": _tile,
    "Pad": _pad, "Flatten": _flatten,
}  # fmt: skip
