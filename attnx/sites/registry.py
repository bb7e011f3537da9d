"""The recognisers of spelled-out attention, one per room, in the order in which they look.

`ROOMS` examine one softmax, `JOINS` several that belong together. Each sees what those before it found, and may return
something better. A new room is one new entry; no other file imports the rooms that come after `spelled`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from attnx.records import Miss
from attnx.sites.finding import Finding
from attnx.sites.spelled import joined, softmax
from attnx.sites.strided import bands, blocks

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

Look = Callable[["NodeProto", Finding | Miss | None], Finding | Miss | None]
"""From a node and what was found around it so far to what is found there now."""
ROOMS: Sequence[Callable[[Graph], Look]] = (softmax.recogniser, bands.recogniser)
"""For each room: a graph with its fused nodes replaced -> the room's recogniser for its nodes."""

Join = Callable[["Graph", Sequence[Finding]], list[tuple[Finding, list[Finding]]]]
"""A graph with its fused nodes replaced, and its sites -> sites made of several of them, each with its parts."""
JOINS: Sequence[Join] = (blocks.join, joined.join)


def recognise(graph: Graph) -> Callable[[NodeProto], Finding | Miss | None]:
    """The recogniser of a graph, which combines what all rooms find around a node."""
    looks = [room(graph) for room in ROOMS]

    def of_node(node: NodeProto) -> Finding | Miss | None:
        found: Finding | Miss | None = None
        for look in looks:
            found = look(node, found)
        return found

    return of_node
