"""The nodes between tensors and what is made from their cells, copied to run on other tensors in their place.

Scores can be rearranged between their product and the softmax: cut out of blocks, written into a band, joined with
those of other keys. The notation of such steps does not show what the axes of the result mean, but the steps themselves
do: given numbers that encode places instead of query and key, they carry the places to every cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnx.graph.axes.moved import origin
from attnx.graph.axes.paths import depends, scalar
from attnx.graph.axes.product import find_product, float_source
from attnx.graph.load.nodes import QUANTISES

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_ROUNDS = QUANTISES | {"MatMulInteger", "QLinearMatMul", "QLinearAdd", "QLinearMul", "TRT_FP4QDQ"}
FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16


_PROJECTS = ("Add", "Mul", "Div", "Reshape", "Transpose", "Identity", "Cast")


def chosen(graph: Graph, query: str, key: str) -> tuple[str, str] | None:
    """If only some tokens have queries: the rows that these are projected from, and what the rows were taken from.

    The key must be projected from all rows of the same tensor.
    """
    rows = projected(graph, query)
    hidden = origin(graph, rows)
    if hidden is None or hidden == rows or origin(graph, projected(graph, key)) != hidden:
        return None
    picks = ("GatherND", "GatherElements", "Gather", "ScatterND", "ScatterElements")
    return (rows, hidden) if any(n.op_type in picks for n in carriers(graph, rows, {hidden})) else None


def projected(graph: Graph, value: str) -> str:
    """What a query or key is projected from, before its bias and scale."""
    for _ in range(12):
        node = graph.producer(value)
        product = find_product(graph, value)
        if product is not None:
            live = [n for n in (product.left, product.right) if depends(graph, n)]
            if len(live) != 1:
                break
            value = float_source(graph, live[0])
            continue
        if node is None or node.op_type not in _PROJECTS:
            break
        live = [n for n in node.input if n and depends(graph, n)]
        if len(live) != 1:
            break
        value = live[0]
    return value


def carriers(graph: Graph, target: str, sources: set[str]) -> list[NodeProto]:
    """The nodes through which `target` is made from the sources, in order; sizes read off the sources carry nothing."""
    carried = set(sources)
    found: list[NodeProto] = []
    makers = [n for name in sources if (n := graph.producer(name)) is not None]
    # What is made before all sources is made from none of them.
    first = min(map(graph.position, makers)) if len(makers) == len(sources) else 0
    for _, node in sorted(_above(graph, target, sources, first).items()):
        outline = graph.outline(node)
        if outline.op_type not in ("Shape", "Size") and not carried.isdisjoint(outline.inputs):
            carried.update(o for o in outline.outputs if o)
            found.append(node)
    return found


def _above(graph: Graph, target: str, stop: set[str], first: int) -> dict[int, NodeProto]:
    """The nodes that make `target`, by their position, up to values of `stop`, and none in front of the position."""
    found: dict[int, NodeProto] = {}
    stack = [target]
    while stack:
        value = stack.pop()
        node = None if value in stop else graph.producer(value)
        at = -1 if node is None else graph.position(node)
        if node is None or at < first or at in found:
            continue
        found[at] = node
        outline = graph.outline(node)
        if outline.op_type not in ("Shape", "Size"):
            stack += [name for name in outline.inputs if name]
    return found


def copied(
    graph: Graph, nodes: list[NodeProto], target: str, sources: Mapping[str, str], prefix: str
) -> tuple[list[NodeProto], str] | None:
    """Copy the nodes, with other tensors in place of their sources.

    What is added to the cells (masks, biases) and the numbers that they are multiplied by are left out: the copy must
    move cells exactly as the nodes do, and change none.

    Args:
        graph: The graph.
        nodes: The nodes between the sources and the target, see `carriers`.
        target: The result of the nodes.
        sources: The replacement for each source, in float32.
        prefix: Prefix of the names of the copies.

    Returns:
        The copies, and the name of their result; None where cells are rounded on the way or taken from other tensors.
    """
    from onnx import NodeProto, helper

    names = dict(sources)
    out: list[NodeProto] = []
    cast: dict[str, str] = {}

    def beside(name: str) -> str:
        """An operand that is combined with the cells, in their type."""
        fact = graph.facts.get(name)
        if fact is None or fact.dtype not in (FLOAT16, BFLOAT16):
            return name
        if name not in cast:
            cast[name] = f"{prefix}/wide/{name}"
            out.append(helper.make_node("Cast", [name], [cast[name]], name=cast[name], to=FLOAT))
        return cast[name]

    for node in nodes:
        live = [n for n in node.input if n in names]
        if node.op_type in _ROUNDS:
            return None
        if _leaves(graph, node, live):
            names[node.output[0]] = names[live[0]]
            continue
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{prefix}/{node.name or node.output[0]}"
        for attribute in copy.attribute:
            if node.op_type == "FusedMatMul" and attribute.name == "alpha":
                attribute.f = 1.0
        del copy.input[:], copy.output[:]
        copy.input.extend([names.get(n) or (beside(n) if n else "") for n in node.input])
        copy.output.extend([f"{prefix}/{o}" if o else "" for o in node.output])
        names.update((o, f"{prefix}/{o}") for o in node.output if o)
        out.append(copy)
    return (out, names[target]) if target in names else None


def _leaves(graph: Graph, node: NodeProto, live: list[str]) -> bool:
    """Whether a node leaves cells in place and adds to them, multiplies them by a number, or changes their type."""
    if len(live) != 1:
        return False
    op = node.op_type
    if op == "CastLike" or (op == "Cast" and _to_float(node)):
        return True
    if op in ("Add", "Sum") or (op == "Sub" and node.input[0] == live[0]):
        before, after = graph.shape(live[0]), graph.shape(node.output[0])
        return before is None or after is None or len(before) == len(after)
    if op == "Mul" or (op == "Div" and node.input[0] == live[0]):
        return any(scalar(graph, n) is not None for n in node.input if n != live[0])
    return False


def _to_float(node: NodeProto) -> bool:
    return any(a.name == "to" and a.i in (FLOAT, FLOAT16, BFLOAT16, 11) for a in node.attribute)
