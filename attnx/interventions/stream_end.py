"""Where the residual stream ends: from the last attention of a stack to the end of its last layer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnx.graph.axes.paths import depends, reaches
from attnx.interventions.joins import CLAMPS, SUMS, VIEWS, Join, LostError, carriers
from attnx.interventions.norms import norm_of, scaled, unchanged

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


@dataclass(slots=True)
class Back:
    """The path from one layer's stream back to the attention that was added last."""

    steps: list[tuple[NodeProto, str, str]]
    """Node, the input that carries the stream, the output; in data order. A norm is one step."""
    terms: list[str]
    norm: bool
    plain: bool


def end_of(graph: Graph, join: Join, norm: bool) -> Back:
    """From the last attention to the end of the last layer."""
    back = Back([], [], False, True)
    value = join.out
    for _ in range(8):
        step = _next(graph, value, norm or join.out == value, join.stream)
        if step is None:
            break
        back.steps += step[0]
        back.terms += step[1]
        back.norm = back.norm or step[2]
        back.plain = back.plain and not any(scaled(graph, node) == source for node, source, _ in step[0])
        value = back.steps[-1][2]
    _must_end(graph, value, join.stream)
    if back.norm or (norm and not back.steps) or (norm and back.terms):
        closed = norm_of(graph, value)
        if closed is not None:
            node = graph.producer(closed)
            assert node is not None
            back.steps.append((node, value, closed))
            back.norm = True
    return back


def _must_end(graph: Graph, value: str, given: str) -> None:
    """Make sure that the stream is not subtracted from something where its last sum was found."""
    sources, shape = {value, given, unchanged(graph, given)}, graph.shape(value)
    for node in graph.consumers(value):
        if node.op_type == "Sub" and all(
            graph.shape(n) == shape and (n == value or computed(graph, n, value, sources)) for n in node.input
        ):
            raise LostError(f"the residual stream is subtracted in Sub {node.name!r}: it is lost there")


def _next(
    graph: Graph, value: str, through: bool, given: str
) -> tuple[list[tuple[NodeProto, str, str]], list[str], bool] | None:
    """The next sum of the stream and something computed from it; `through`: also from its norm.

    An MLP beside the last attention reads what that attention was added to: the stream `given`.
    """
    found = _sum_with(graph, value, given)
    if found is not None:
        return found, [n for n in found[-1][0].input if n != found[-1][1] and depends(graph, n)], False
    closed = norm_of(graph, value) if through else None
    if closed is None:
        return None
    found = _sum_with(graph, closed)
    if found is None:
        return None
    node = graph.producer(closed)
    assert node is not None
    beside = [n for n in found[-1][0].input if n != found[-1][1] and depends(graph, n)]
    return [(node, value, closed), *found], beside, True


def _sum_with(graph: Graph, value: str, given: str | None = None) -> list[tuple[NodeProto, str, str]] | None:
    """The steps to a sum of a tensor and something computed from it, or from the stream `given`."""
    sources = {value} if given is None else {value, given, unchanged(graph, given)}
    stack: list[tuple[str, list[tuple[NodeProto, str, str]]]] = [(value, [])]
    while stack:
        name, steps = stack.pop(0)
        for node in graph.consumers(name):
            carries = (node.op_type in VIEWS | CLAMPS and node.input[0] == name) or scaled(graph, node) == name
            if len(steps) < 6 and carries:
                stack.append((node.output[0], [*steps, (node, name, node.output[0])]))
            elif node.op_type in SUMS and name in carriers(node):
                others = [n for n in node.input if n != name and depends(graph, n)]
                same = [n for n in others if graph.shape(n) == graph.shape(name)]
                if same and all(computed(graph, n, value, sources) for n in same):
                    return [*steps, (node, name, node.output[0])]
    return None


def computed(graph: Graph, name: str, value: str, sources: Collection[str]) -> bool:
    """Whether a tensor is computed from one of the sources, and is no copy of an earlier stream."""
    if reaches(graph, name, {value}):
        return True
    return unchanged(graph, name) not in sources and reaches(graph, name, sources)


__all__ = ["Back", "computed", "end_of"]
