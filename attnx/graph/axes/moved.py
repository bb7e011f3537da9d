"""Which tensor the cells of another came from: traced back through steps that move cells and change none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.axes.paths import depends

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph

_MOVES = {
    **dict.fromkeys(
        "Reshape Transpose Slice Gather GatherND GatherElements Unsqueeze Squeeze Identity Cast CastLike Flatten "
        "Expand Pad Tile".split(),
        (0,),
    ),
    "ScatterND": (0, 2),
    "ScatterElements": (0, 2),
    "Where": (1, 2),
}
"""Operators that move cells and change none, and which of their inputs hold the cells."""


def origin(graph: Graph, value: str) -> str | None:
    """The one tensor whose cells `value` holds, moved, cut, repeated or padded; None where they come from several.

    The search ends at a split: its parts may be query, key and value.
    """
    ends = origins(graph, value)
    return ends[0] if len(ends) == 1 else None


def origins(graph: Graph, value: str) -> tuple[str, ...]:
    """The tensors whose cells `value` holds, in the order in which they are concatenated; see `origin`."""
    ends: dict[str, None] = {}
    seen: set[str] = set()
    stack = [value]
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        node = graph.producer(name)
        at = (
            () if node is None else range(len(node.input)) if node.op_type == "Concat" else _MOVES.get(node.op_type, ())
        )
        live = [] if node is None else [node.input[i] for i in at if i < len(node.input)]
        live = [n for n in live if depends(graph, n)]
        if live:
            stack += reversed(live)
        elif node is None or node.op_type != "ConstantOfShape":
            ends[name] = None
    return tuple(ends)
