"""Let runs enter a batch in the middle of a graph: at their first change, as copies of the unchanged run.

Everything before is computed only once. Every tensor passed from there to the rest of the graph is gathered along
its batch axis, by row numbers that are an input of the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.paths import above, depends, upstream
from attnx.graph.load.flatten import renamed
from attnx.interventions.editing import Hook
from attnx.interventions.stream import LostError
from attnx.records import Array

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from attnx.graph.shapes.index import Graph

_INT64 = 7
_GRAPHS = (5, 10)
_SIZES = 16
"""The most numbers that a tensor of sizes can have."""
_READ_OFF = frozenset("Shape Size Gather Slice Concat Unsqueeze Squeeze Reshape Cast Mul Div Identity Constant".split())
"""Operators that read sizes from a tensor, multiply them and join them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Runs that enter together."""

    number: int
    """Number in the order of the graph, from 0 in each section."""
    own: tuple[Hook, ...]
    """The first hooks that they change."""
    later: tuple[Hook, ...]
    """Other hooks before the next entry; they see the same number of rows."""
    interventions: tuple[int, ...]

    @property
    def rows(self) -> str:
        """Input, int64: for each row from here on, the earlier row that it continues."""
        return f"attnx/rows/{self.number}"

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """All hooks that its rows reach before the next entry."""
        return (*self.own, *self.later)


def enter(
    proto: ModelProto,
    graph: Graph,
    entries: Sequence[Entry],
    ends: Collection[str],
    batch: int,
    before: Collection[str] = (),
) -> None:
    """Write entries into a graph, before hooks are.

    Args:
        proto: A copy of the model, changed in place.
        graph: What is known about its tensors.
        entries: In order.
        ends: Tensors that all runs must output.
        batch: The symbol for the number of rows in shapes.
        before: Tensors that are changed before any run has entered.

    Raises:
        LostError: A run cannot enter there.
    """
    from onnx import helper

    nodes = list(proto.graph.node)
    makers = {name: (node, i) for node in nodes for i, name in enumerate(node.output) if name}
    origin: dict[str, str] = {}
    now: dict[str, str] = {}
    reached: set[str] | None = None
    for entry in entries:
        own = _readers(entry.own)
        behind, made = _behind(nodes, own)
        if not made.isdisjoint(before) or (reached is not None and not reached.issuperset(own)):
            raise LostError("what is changed first lies beside what is changed next")
        reached = made
        if not made.issuperset(ends):
            raise LostError("something that is wanted lies beside what is changed")
        handed = _handed(graph, behind, made, origin)
        if any(h.point.place.value not in made for h in entry.later) or not made.union(handed).issuperset(own):
            raise LostError("something that is changed lies beside what is changed before")
        proto.graph.input.append(helper.make_tensor_value_info(entry.rows, _INT64, [f"{entry.rows}/count"]))
        for value in handed:
            if (sizes := _sizes(graph, value, batch)) is not None:
                after = f"attnx/entered/{entry.number}/{value}"
                _grown(proto, now.get(value, value), entry.rows, after, *sizes)
                _rewire(behind, now.get(value, value), after)
                origin[after], now[value] = value, after
                continue
            axis = _axis(graph, value, batch)
            if axis is None:
                if value in own:
                    raise LostError("what is changed is the same in all rows")
                continue
            source = now.get(value, value)
            if value in own:  # hooks refer to it by name, so the tensor after it keeps that name
                if value not in makers or source != value:
                    raise LostError("what is changed is not a tensor of its own")
                maker, at = makers[value]
                source, after = f"attnx/alone/{value}", value
                maker.output[at] = source
                others = {id(node) for node in nodes} - {id(node) for node in behind}
                _rewire([node for node in nodes if id(node) in others], value, source)
            else:
                after = f"attnx/entered/{entry.number}/{value}"
                _rewire(behind, source, after)
                origin[after], now[value] = value, after
            proto.graph.node.append(helper.make_node("Gather", [source, entry.rows], [after], name=after, axis=axis))


def _readers(hooks: Sequence[Hook]) -> dict[str, frozenset[str] | None]:
    """Changed tensors -> first outputs of the nodes that read them changed; None for all."""
    found: dict[str, frozenset[str] | None] = {}
    for hook in hooks:
        value, readers = hook.point.place.value, hook.point.readers
        before = found.get(value, frozenset())
        found[value] = None if readers is None or before is None else before | frozenset(readers)
    return found


def _behind(nodes: Sequence[NodeProto], own: Mapping[str, frozenset[str] | None]) -> tuple[list[NodeProto], set[str]]:
    """The nodes affected by the changes, and the tensors that they make.

    Raises:
        LostError: A node with a subgraph is among them.
    """
    made: set[str] = set()
    behind: list[NodeProto] = []
    for node in nodes:
        first = next((name for name in node.output if name), "")

        def changed(name: str, first: str = first) -> bool:
            return name in made or (name in own and ((readers := own[name]) is None or first in readers))

        if any(changed(name) for name in node.input):
            if any(attribute.type in _GRAPHS for attribute in node.attribute):
                raise LostError(f"what is changed reaches the inner graph of {node.op_type}")
            behind.append(node)
            made.update(name for name in node.output if name)
    return behind, made


def _handed(graph: Graph, behind: Sequence[NodeProto], made: Collection[str], origin: Mapping[str, str]) -> list[str]:
    """Tensors that these nodes receive, computed from the model's inputs or their sizes, by the model's names."""
    names = dict.fromkeys(origin.get(name, name) for node in behind for name in node.input if name and name not in made)
    inputs = {slot.name for slot in graph.proto.graph.input} - {weight.name for weight in graph.proto.graph.initializer}
    return [name for name in names if depends(graph, name) or not inputs.isdisjoint(upstream(graph, [name]))]


def _sizes(graph: Graph, value: str, batch: int) -> tuple[Array, Array] | None:
    """Which numbers of a tensor are sizes that grow with the rows, and by how much each; None if none are.

    Raises:
        LostError: Whether they do is not known, or they are not 64-bit integers.
    """
    known = graph.known(value)
    if known is None or known.dtype.kind != "i" or known.size > _SIZES:
        return None  # positions depend on the text's length, not on the rows
    of_rows = (known != 0) & (known % batch == 0)
    if not of_rows.any():
        return None
    made = {node.op_type for name in above(graph, [value]) if (node := graph.producer(name)) is not None}
    if not made <= _READ_OFF or known.dtype != np.int64:
        raise LostError(f"{value!r} holds the number of rows in a way that is not known")
    return of_rows, np.where(of_rows, known // batch, 0)


def _grown(proto: ModelProto, value: str, rows: str, name: str, of_rows: Array, times: Array) -> None:
    """The sizes for the current number of rows."""
    from onnx import helper, numpy_helper

    made = {part: f"{name}/{part}" for part in ("which", "times", "rows", "sizes")}
    proto.graph.initializer.append(numpy_helper.from_array(of_rows, made["which"]))
    proto.graph.initializer.append(numpy_helper.from_array(times, made["times"]))
    proto.graph.node.extend(
        [
            helper.make_node("Size", [rows], [made["rows"]], name=made["rows"]),
            helper.make_node("Mul", [made["rows"], made["times"]], [made["sizes"]], name=made["sizes"]),
            helper.make_node("Where", [made["which"], made["sizes"], value], [name], name=name),
        ]
    )


def _axis(graph: Graph, value: str, batch: int) -> int | None:
    """The axis of a tensor with one element per row; None if the tensor is the same for all rows.

    Raises:
        LostError: This is not known, or rows share an axis with something else.
    """
    shape = graph.shape(value)
    if shape is None or any(not isinstance(size, int) or size < 0 for size in shape):
        raise LostError(f"the shape of {value!r} is not known")
    of_rows = [i for i, size in enumerate(shape) if size and size % batch == 0]
    if not of_rows:
        return None
    if len(of_rows) > 1 or shape[of_rows[0]] != batch:
        raise LostError(f"the rows of {value!r} are on no axis of their own")
    return of_rows[0]


def _rewire(nodes: Sequence[NodeProto], value: str, other: str) -> None:
    """Make nodes read another tensor."""
    for node in nodes:
        if value in node.input:
            node.CopyFrom(renamed(node, {value: other}))


__all__ = ["Entry", "enter"]
