"""Arithmetic that the shape rules share: numpy's broadcast and matrix product on sizes of which some are unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attnx.graph.fact import Fact, Shape, ints
from attnx.graph.shapes.symbols import PROBE

if TYPE_CHECKING:
    from onnx import NodeProto

Rule = Callable[["NodeProto", dict[str, Any], Sequence[Fact]], list[Shape | None]]
Of = Callable[[dict[str, Any], Sequence[Fact]], list[Shape | None]]
"""A rule that needs no node."""


def broadcast(*shapes: Shape | None) -> Shape | None:
    """Numpy's broadcast of shapes in which None is an unknown size.

    A buffer shorter than a probe size is cut at its end, or is empty beyond it; when the model runs, it is as long as
    the tensor that it is combined with.
    """
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes) or not known:
        return None
    rank = max(len(s) for s in known)
    out: list[int | None] = []
    for i in range(-rank, 0):
        dims = {s[i] for s in known if len(s) >= -i} - {1}
        sizes = dims - {None}
        if len(sizes) == 2 and 0 <= min(sizes) < PROBE <= max(sizes):  # type: ignore[type-var,operator]
            sizes = {max(sizes)}  # type: ignore[type-var]
        out.append(1 if not dims else sizes.pop() if len(sizes) == 1 else None)
    return tuple(out)


def matmul(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of a matrix product with numpy's rules for leading axes."""
    if a is None or b is None or not a or not b:
        return None
    if len(a) == 1 and len(b) == 1:
        return ()
    if len(a) == 1:
        return (*b[:-2], b[-1])
    if len(b) == 1:
        return a[:-1]
    lead = broadcast(a[:-2], b[:-2])
    return None if lead is None else (*lead, a[-2], b[-1])


def axes_of(a: dict[str, Any], x: Sequence[Fact], at: int = 1) -> list[int] | None:
    """The axes of a node: from its input `at` since opset 13, from its attribute before that."""
    if len(x) > at:
        return ints(x[at])
    return [int(i) for i in a["axes"]] if "axes" in a else None


def like(*at: int) -> Rule:
    """Each output has the shape of one of the inputs."""
    return lambda _n, _a, x: [x[i].shape if i < len(x) else None for i in at]


def of(rule: Of) -> Rule:
    """A rule that needs only the attributes and the inputs."""
    return lambda _n, a, x: rule(a, x)


def resized(s: Shape | None, *last: int | None) -> Shape | None:
    """A shape with its last axes replaced."""
    return None if s is None else (*s[: len(s) - len(last)], *last)


def last_of(s: Shape | None) -> int | None:
    """The size of a shape's last axis."""
    return s[-1] if s else None


def number_of(x: Sequence[Fact], at: int) -> int | None:
    """A whole number held by an input."""
    held = ints(x[at]) if at < len(x) else None
    return held[0] if held else None
