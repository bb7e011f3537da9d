"""Where the residual stream ends: from the last attention of a stack to the end of its last layer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnx.graph.axes.paths import below, depends, reaches
from attnx.graph.axes.product import MULTIPLIES
from attnx.interventions.joins import CLAMPS, SHIFTS, SUMS, Join, LostError, carried, carriers
from attnx.interventions.norms import SAME, norm_of, normed, unchanged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_FEW = 6
"""How many nodes between two sums only pass the stream on."""


@dataclass(slots=True)
class Back:
    """The path from one layer's stream back to the attention that was added last."""

    steps: list[tuple[NodeProto, str, str]]
    """Node, the input that carries the stream, the output; in data order. A norm is one step."""
    terms: list[str]
    norm: bool
    plain: bool


def end_of(graph: Graph, join: Join, like: Sequence[Back]) -> Back:
    """From the last attention to the end of the last layer.

    Args:
        graph: The flat graph.
        join: Where that attention is added.
        like: The ways from the layers before it, where there are any, to the next: the last layer ends as they do.
    """
    back = Back([], [], False, True)
    norm = any(one.norm for one in like)
    factors = not (join.plain and all(one.plain for one in like))
    value, sums = join.out, 0
    while (step := _next(graph, value, norm or join.out == value, join.stream, factors)) is not None:
        back.steps += step[0]
        back.terms += step[1]
        back.norm = back.norm or step[2]
        value, sums = back.steps[-1][2], sums + 1
    _must_end(graph, value, join.stream)
    closing = _closing(graph, like[-1], sums) if like else None
    if closing is None and _norms(graph, back, value):
        closing = [None]
    for kind in _passing(graph, value) if closing is None else closing:
        made = norm_of(graph, value) if kind is None else _passed(graph, value, kind)
        if made is None:
            break
        node = graph.producer(made)
        assert node is not None
        back.steps.append((node, value, made))
        back.norm = back.norm or kind is None
        value = made
    back.plain = not any(node.op_type in SHIFTS and carried(graph, node) == source for node, source, _ in back.steps)
    return back


def _closing(graph: Graph, back: Back, sums: int) -> list[str | None]:
    """What a layer does to the stream behind so many sums and before the next: operators, None for a norm."""
    found: list[str | None] = []
    for node, source, value in back.steps:
        if carried(graph, node) == source:
            found.append(node.op_type)
        elif normed(graph, value) == source:
            found.append(None)
        elif sums == 0:
            break
        else:
            found.clear()
            sums -= 1
    return found


def _norms(graph: Graph, back: Back, value: str) -> bool:
    """Whether a layer without another like it ends with a norm: its stream was normed, and what was added last reads
    the stream as it is, not a norm of it.
    """
    if not back.norm or not back.terms:
        return False
    node, stream, _ = back.steps[-1]
    own = norm_of(graph, stream)
    added = [name for name in node.input if name in back.terms]
    return own is None or any(reaches(graph, name, {stream}, {own}) for name in added)


def _passing(graph: Graph, value: str) -> list[str | None]:
    """The constants and clamps that the stream passes as a whole, on its own, before anything else reads it."""
    found: list[str | None] = []
    while len(readers := list(graph.consumers(value))) == 1 and len(found) < _FEW:
        (node,) = readers
        if node.op_type not in CLAMPS | {*SUMS} or carried(graph, node) != value:
            break
        found.append(node.op_type)
        value = node.output[0]
    return found


def _passed(graph: Graph, value: str, kind: str) -> str | None:
    """What an operator that passes the stream on gives."""
    found = [n.output[0] for n in graph.consumers(value) if n.op_type == kind and carried(graph, n) == value]
    return found[0] if len(found) == 1 else None


def must_pass(graph: Graph, join: Join, end: str, outs: Collection[str], last: bool) -> None:
    """Make sure that all that a layer's last attention gives goes through the end of the layer.

    Args:
        graph: The flat graph.
        join: Where that attention is added.
        end: The stream behind the layer.
        outs: Where attentions are added.
        last: It is the last layer: then what the stream makes of the model's outputs is all that is looked at.

    Raises:
        LostError: A later attention, or an output that the end makes, is also made of something else in the layer.
    """
    ends = {end, *_copied(graph, end)}
    around = below(graph, {join.out}, ends if join.out not in ends else ())
    beyond = around - (ends if join.out not in ends else {join.out})
    for node in graph.consumers(join.stream):  # x + mlp(x + attention): that attention is not added to the stream
        carries = node.op_type in SUMS and join.stream in carriers(node) and end not in node.output
        if carries and any(n in beyond and n != join.out for n in node.input):
            raise LostError(f"where its layer ends cannot be told: {node.op_type} {node.name!r} goes round it")
    goals = below(graph, {end}, ()) & set(graph.outputs) if last else set(outs) - {join.out}
    if join.out not in ends and (found := sorted((around - ends) & goals)):
        name = "an output" if last else "a later attention"
        raise LostError(f"where its layer ends cannot be told: {name} also reads something else of it ({found[0]!r})")


def must_be_last(graph: Graph, end: str) -> None:
    """Make sure that nothing is added to the stream behind the last layer, in a way that is not known.

    What follows may norm the stream, pick positions of it, multiply it; it may not join it, or its norm, with what
    weights made of it.

    Raises:
        LostError: Something does.
    """
    copies, stack = set[str](), [end, *_copied(graph, end)]
    while stack:
        value = stack.pop()
        if value not in copies:
            copies.add(value)
            stack += [n.output[0] for n in graph.consumers(value) if carried(graph, n) == value]
            if value == end and (own := norm_of(graph, end)) is not None:
                stack.append(own)
    light, stack = set[str](), [*copies]
    while stack:
        value = stack.pop()
        if value not in light:
            light.add(value)
            stack += [out for n in graph.consumers(value) if n.op_type not in _WEIGHS for out in n.output if out]
    made = below(graph, {end}, ()) - light
    for value in copies:
        for node in graph.consumers(value):
            joined = node.op_type == "Gemm" and len(node.input) > 2 and node.input[2] == value
            weighed = node.op_type in (*_WEIGHS, "Mul", "Div") and not joined
            if not weighed and any(name in made for name in node.input):
                how = f"{node.op_type} {node.name!r} joins the stream with something made of it"
                raise LostError(f"where its layer ends cannot be told: {how}")


_WEIGHS = MULTIPLIES - {"ReduceSum", "Mul"} | {"Conv", "MatMulNBits"}
"""Operators that multiply by weights."""


def _copied(graph: Graph, value: str) -> Iterator[str]:
    """The tensors that a tensor is a copy of."""
    while (node := graph.producer(value)) is not None and node.op_type in SAME:
        value = node.input[0]
        yield value


def _must_end(graph: Graph, value: str, given: str) -> None:
    """Make sure that the stream is not subtracted from something where its last sum was found."""
    sources, shape = {value, given, unchanged(graph, given)}, graph.shape(value)
    for node in graph.consumers(value):
        if node.op_type == "Sub" and all(
            graph.shape(n) == shape and (n == value or computed(graph, n, value, sources)) for n in node.input
        ):
            raise LostError(f"the residual stream is subtracted in Sub {node.name!r}: it is lost there")


def _next(
    graph: Graph, value: str, through: bool, given: str, factors: bool
) -> tuple[list[tuple[NodeProto, str, str]], list[str], bool] | None:
    """The next sum of the stream and something computed from it.

    Args:
        graph: The flat graph.
        value: The stream.
        through: Also from its norm.
        given: The stream before the last attention, which an MLP beside it reads.
        factors: The stream is multiplied by constants on its way.
    """
    found = _sum_with(graph, value, factors, given)
    if found is not None:
        return found, [n for n in found[-1][0].input if n != found[-1][1] and depends(graph, n)], False
    steps: list[tuple[NodeProto, str, str]] = []
    closed = norm_of(graph, value) if through else None
    while through and closed is None:  # what stands between the sum and its norm has no other reader
        (node, *others) = [*graph.consumers(value), None]
        if node is None or others != [None] or carried(graph, node) != value or node.op_type in ("Mul", "Div"):
            break
        steps.append((node, value, node.output[0]))
        value = node.output[0]
        closed = norm_of(graph, value)
    if closed is None:
        return None
    found = _sum_with(graph, closed, factors)
    if found is None:
        return None
    node = graph.producer(closed)
    assert node is not None
    beside = [n for n in found[-1][0].input if n != found[-1][1] and depends(graph, n)]
    return [*steps, (node, value, closed), *found], beside, True


def _sum_with(
    graph: Graph, value: str, factors: bool, given: str | None = None
) -> list[tuple[NodeProto, str, str]] | None:
    """The steps to a sum of a tensor and something computed from it, or from the stream `given`."""
    sources = {value} if given is None else {value, given, unchanged(graph, given)}
    stack: list[tuple[str, list[tuple[NodeProto, str, str]]]] = [(value, [])]
    while stack:
        name, steps = stack.pop(0)
        for node in graph.consumers(name):
            if carried(graph, node) == name:
                if len(steps) < _FEW and (factors or node.op_type not in ("Mul", "Div")):
                    stack.append((node.output[0], [*steps, (node, name, node.output[0])]))
            elif node.op_type in SUMS and name in carriers(node):
                others = [n for n in node.input if n != name and depends(graph, n)]
                same = [n for n in others if graph.shape(n) == graph.shape(name)]
                if same and all(computed(graph, n, value, sources) for n in same):
                    return [*steps, (node, name, node.output[0])]
    return None


def computed(graph: Graph, name: str, value: str, sources: Collection[str], stop: Collection[str] = ()) -> bool:
    """Whether a tensor is computed from one of the sources, and is no copy of an earlier stream.

    Args:
        graph: The flat graph.
        name: The tensor.
        value: The stream that it is added to.
        sources: Earlier tensors of the stream.
        stop: What is not passed on the way to these.
    """
    if reaches(graph, name, {value}, stop):
        return True
    return unchanged(graph, name) not in sources and reaches(graph, name, sources, stop)


__all__ = ["Back", "computed", "end_of"]
