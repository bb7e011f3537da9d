"""A model's graph with places to intervene in: heads, positions, edges and values are inputs of one session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from attnx.errors import UnsupportedError
from attnx.graph.load.flatten import renamed
from attnx.interventions.points import Key, Point
from attnx.layout import axis_of
from attnx.taps.tap import Tapped, check_runnable, finish
from attnx.taps.writer import Nodes

if TYPE_CHECKING:
    from onnx import ModelProto

    from attnx.interventions.wide import Wide

Mode = Literal["set", "mean", "hide", "fill"]
"""set: given values; mean: the weighted mean over queries; hide: minus infinity; fill: 0 in rows with NaN."""
_FLOAT, _BOOL = 1, 9


@dataclass(frozen=True, slots=True)
class Hook:
    """One way in which a point can be changed. Its inputs have the rank of the tensor, and broadcast to it."""

    point: Point
    mode: Mode

    @property
    def name(self) -> str:
        """Prefix of the names of its inputs."""
        return f"attnx/{self.mode}/{self.point.quantity}/{self.point.place.value}"

    @property
    def mask(self) -> str:
        """Input, bool: which cells are changed."""
        return f"{self.name}/mask"

    @property
    def values(self) -> str | None:
        """Input, float32: the values to set, or the weight of each query in the mean."""
        return f"{self.name}/values" if self.mode in ("set", "mean") else None


@dataclass(frozen=True, slots=True)
class Edited:
    """A model with hooks, ready for a session."""

    tapped: Tapped
    hooks: tuple[Hook, ...]
    taken: Mapping[Key, str]
    """Key of a point -> output with its changed tensor."""
    shapes: Mapping[Key, str]
    """Key of a point -> output with its tensor's shape."""


def edit(
    wide: Wide,
    hooks: Sequence[Hook],
    *,
    outputs: Collection[str] | None = None,
    take: Sequence[Point] = (),
    measure: Sequence[Point] = (),
    begin: str | None = None,
    enter: Callable[[ModelProto], None] | None = None,
) -> Edited:
    """Write hooks into a model; if they change nothing, it computes the same as the file.

    Args:
        wide: The model.
        hooks: The hooks; at one tensor they act in this order: fill, hide, mean, set.
        outputs: Which of the model's own outputs to keep; None for all.
        take: Points whose changed tensors become outputs.
        measure: Points whose shapes become outputs.
        begin: A tensor that becomes an input of the same name: what computes it is not run.
        enter: Modifies the copy before hooks are written.

    Raises:
        UnsupportedError: A mean over queries that have no axis of their own.
    """
    points = [*(hook.point for hook in hooks), *take, *measure]
    values = [point.place.value for point in points]
    proto = wide.opened([*values, *([begin] if begin else [])], [p.site for p in points if p.site is not None])
    check_runnable(wide.found, proto)
    own = len(proto.graph.node)
    writer = _Hooks(wide, proto)
    if begin is not None:
        writer.begin(begin)
    if enter is not None:
        enter(proto)
    order = ("fill", "hide", "mean", "set")
    after: dict[Key, str] = {}
    by_key: dict[tuple[str, tuple[str, ...] | None], list[Hook]] = {}
    for hook in hooks:
        by_key.setdefault((hook.point.place.value, hook.point.readers), []).append(hook)
    for of_tensor in sorted(by_key.values(), key=lambda hooks: hooks[0].point.readers is None):
        # Hooks for only some readers come first: afterwards the tensor has another name.
        name = writer.chain(sorted(of_tensor, key=lambda hook: order.index(hook.mode)))
        after.update({hook.point.key: name for hook in of_tensor})
    taken = {point.key: writer.output(after.get(point.key, point.place.value), point) for point in take}
    shapes = {point.key: writer.node("Shape", [after.get(point.key, point.place.value)]) for point in measure}
    kept = [o for o in wide.found.graph.outputs if (outputs is None or o in outputs) and o != begin]
    tapped = finish(wide.found, proto, own, kept, [*taken.values(), *shapes.values()])
    return Edited(tapped, tuple(hooks), taken, shapes)


class _Hooks(Nodes):
    """Writes hooks."""

    def __init__(self, wide: Wide, proto: ModelProto) -> None:
        super().__init__(wide.graph, proto)
        self._wide = wide

    def chain(self, hooks: Sequence[Hook]) -> str:
        """Write all hooks of one tensor for the same readers; returns the name of the tensor they read."""
        point = hooks[0].point
        value = point.place.value
        before = value
        if point.readers is None:
            before = self.rename_made(value)
        current = before
        for hook in hooks:
            current = self._changed(hook, current)
        if point.readers is not None:
            self._rewire(value, current, point.readers)
            return current
        if before == value:  # an input or a constant: it cannot be renamed
            readers = list(self._graph.consumers(value))
            self._rewire(value, current, [next(o for o in n.output if o) for n in readers])
            return current
        last = self._proto.graph.node[-1]
        last.output[0] = value
        return value

    def _changed(self, hook: Hook, current: str) -> str:
        value = hook.point.place.value
        rank = len(self._graph.shape(value) or ())
        self._declare(hook.mask, _BOOL, rank)
        mask = hook.mask
        if hook.values is not None:
            self._declare(hook.values, _FLOAT, rank)
        if hook.mode == "set":
            assert hook.values is not None
            other = self._as(hook.values, value)
        elif hook.mode == "mean":
            assert hook.values is not None
            other = self._as(self._mean(hook.point, current, hook.values), value)
        elif hook.mode == "hide":
            other = self._as(self.number(-np.inf), value)
        else:
            nan = self.node("IsNaN", [current])
            mask = self.node("And", [mask, nan])
            other = self._as(self.number(0.0), value)
        # A new name each time: nodes are shared if their inputs are the same, and these get renamed.
        return self.node("Where", [mask, other, current])

    def _mean(self, point: Point, current: str, weights: str) -> str:
        axis = axis_of(point.place.layout, "q")
        if axis is None:
            raise UnsupportedError(
                f"{point.title}: its queries stand on no axis of their own ({point.place.layout}), so no mean "
                "over them is taken"
            )
        value = point.place.value
        wide = current if self.dtype(value) == _FLOAT else self.node("Cast", [current], to=_FLOAT)
        return self.summed(self.node("Mul", [wide, weights]), axis, keep=1)

    def output(self, name: str, point: Point) -> str:
        """The name under which a tensor can be an output."""
        kind = self.dtype(point.place.value)
        if kind == 16:  # bfloat16: numpy has no such type
            return self.node("Cast", [name], to=_FLOAT)
        made = any(name in node.output for node in self._proto.graph.node)
        return name if made else self.node("Identity", [name])

    def _as(self, value: str, like: str) -> str:
        kind = self.dtype(like)
        return value if kind == _FLOAT else self.node("Cast", [value], to=kind)

    def _declare(self, name: str, kind: int, rank: int) -> None:
        from onnx import helper

        dims = [f"{name}/{i}" for i in range(rank)]
        self._proto.graph.input.append(helper.make_tensor_value_info(name, kind, dims))

    def _rewire(self, value: str, changed: str, readers: Collection[str]) -> None:
        """Make some nodes read the changed tensor."""
        for node in self._proto.graph.node:
            if value in node.input and next((o for o in node.output if o), "") in readers:
                node.CopyFrom(renamed(node, {value: changed}))


__all__ = ["Edited", "Hook", "Mode", "edit"]
