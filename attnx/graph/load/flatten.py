"""Flatten a model: inline local functions, splice the If branches that run into the main graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from attnx.errors import ModelError, lacks_memory
from attnx.graph.load.nodes import attribute, subgraphs
from attnx.graph.load.outline import Outline, Outlines

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

Choose = Callable[["NodeProto"], bool | None]
"""For an If node: True for then, False for else, None where unknown."""


def inline_functions(proto: ModelProto) -> ModelProto:
    """`proto` with its local functions inlined; the same object where it has none."""
    if not proto.functions:
        return proto
    from onnx import inliner

    try:
        return inliner.inline_local_functions(proto)
    except Exception as error:
        if lacks_memory(error):
            raise
        raise ModelError(
            f"the model's local functions cannot be inlined: {str(error).splitlines()[0][:200]}",
            "Export the model again.",
        ) from None


def splice_ifs(graph: GraphProto, choose: Choose) -> list[str]:
    """Replace each If whose branch `choose` knows by the nodes of that branch, in place, repeatedly.

    Returns:
        Names of the If nodes that were spliced.
    """
    from onnx import helper

    spliced: list[str] = []
    taken = {t.name for t in graph.initializer} | {i.name for i in graph.input}
    taken.update(name for node in graph.node for name in node.output)
    while True:
        nodes: list[NodeProto] = []
        changed = False
        for node in graph.node:
            which = choose(node) if node.op_type == "If" and node.domain in ("", "ai.onnx") else None
            branch = attribute(node, "then_branch" if which else "else_branch") if which is not None else None
            if branch is None:
                nodes.append(node)
                continue
            changed = True
            spliced.append(node.name)
            inner = branch.g
            own = [t.name for t in inner.initializer] + [name for n in inner.node for name in n.output if name]
            rename = {name: f"{node.name}/{name}" for name in own if name in taken}
            wanted = {
                o.name: target for o, target in zip(inner.output, node.output, strict=False) if target and o.name in own
            }
            rename |= {k: v for k, v in wanted.items() if k not in {t.name for t in inner.initializer}}
            for tensor in inner.initializer:
                copy = graph.initializer.add()
                copy.CopyFrom(tensor)
                copy.name = rename.get(tensor.name, tensor.name)
            for child in inner.node:
                nodes.append(renamed(child, rename))
            for o, target in zip(inner.output, node.output, strict=False):
                source = rename.get(o.name, o.name)
                if target and source != target:
                    nodes.append(helper.make_node("Identity", [source], [target], name=f"{node.name}/{target}"))
            taken.update(rename.get(name, name) for name in own)
        if not changed:
            return spliced
        del graph.node[:]
        graph.node.extend(nodes)


def renamed(node: NodeProto, rename: dict[str, str]) -> NodeProto:
    """A copy of a node with other names for its values, including those that its subgraphs read from outside."""
    from onnx import NodeProto

    copy = NodeProto()
    copy.CopyFrom(node)
    if rename:
        for names in (copy.input, copy.output):
            for i, name in enumerate(names):
                names[i] = rename.get(name, name)
        for _, inner in subgraphs(copy):
            _rename_outer(inner, rename)
    return copy


def _rename_outer(graph: GraphProto, rename: dict[str, str]) -> None:
    """Rename what a subgraph reads from outside; names that it defines itself hide the outer ones."""
    own = {t.name for t in graph.initializer} | {i.name for i in graph.input}
    own.update(name for node in graph.node for name in node.output)
    live = {k: v for k, v in rename.items() if k not in own}
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = live.get(name, name)
        for _, inner in subgraphs(node):
            _rename_outer(inner, live)
    for o in graph.output:
        o.name = live.get(o.name, o.name)


def _ordered(outlines: Sequence[Outline], maker: Mapping[str, int], known: set[str]) -> bool:
    """Whether all that nodes read is known, or made by nodes before them."""
    made = known - maker.keys()
    for outline in outlines:
        if not made.issuperset(outline.reads):
            return False
        made.update(outline.outputs)
    return True


def sort_nodes(
    nodes: Iterable[NodeProto], known: set[str], outline: Callable[[NodeProto], Outline] | None = None
) -> list[NodeProto]:
    """Nodes in an order in which every value is made before it is read; otherwise in file order.

    Args:
        nodes: The nodes, in file order.
        known: The values that none of them makes.
        outline: Returns what a node holds; read off the node where None.

    Raises:
        ModelError: The graph has a cycle, or reads a value that nothing makes.
    """
    from heapq import heappop, heappush

    nodes = list(nodes)
    outlines = list(map(outline or Outlines().of, nodes))
    maker: dict[str, int] = {}
    for i, one in enumerate(outlines):
        for name in one.outputs:
            if name and name in maker:
                raise ModelError(f"the value {name!r} is made by two nodes", "The file is damaged; export it again.")
            if name:
                maker[name] = i
    if _ordered(outlines, maker, known):
        return nodes
    waiting: list[int] = []
    readers: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        needs = set()
        for name in outlines[i].reads:
            if name in maker:
                needs.add(maker[name])
            elif name not in known:
                raise ModelError(
                    f"node {node.name or node.op_type!r} reads {name!r}, which nothing in the graph makes",
                    "The file is damaged; export it again.",
                )
        waiting.append(len(needs))
        for j in needs:
            readers[j].append(i)
    ready = [i for i, n in enumerate(waiting) if n == 0]
    order: list[NodeProto] = []
    while ready:
        i = heappop(ready)
        order.append(nodes[i])
        for j in readers[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heappush(ready, j)
    if len(order) < len(nodes):
        stuck = next(n for i, n in enumerate(nodes) if waiting[i] > 0)
        raise ModelError(f"the graph has a cycle at node {stuck.name or stuck.op_type!r}", "Export the model again.")
    return order
