"""What layers add before their attention (half of a Macaron or Conformer block), told from what the layer before adds.

Between two attentions stand the end of one layer and the beginning of the next. Behind the last attention stands an end
alone, so that what is more elsewhere is a beginning; and it must also stand in front of the first attention, made with
weights of the same shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnx.graph.axes.paths import above, depends, reaches
from attnx.interventions.joins import STEPS, SUMS, Term, carriers
from attnx.interventions.norms import SAME, normed, unchanged

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph


@dataclass(slots=True)
class Sum:
    """One sum of the stream and what is added to it."""

    stream: str
    """The stream before it."""
    layout: str | None
    """Its axes; None if they are not known."""
    terms: list[Term] = field(default_factory=list)


def leading(graph: Graph, behind: Sequence[Sequence[Sum]]) -> int:
    """How many of the sums behind each layer's last attention, but for the last layer's, begin the next layer.

    Args:
        graph: The graph.
        behind: For each layer, the sums behind its last attention.
    """
    counts = [len(sums) for sums in behind]
    count = counts[0] - counts[-1]
    if len(counts) < 2 or count < 1 or len(set(counts[:-1])) > 1:
        return 0
    began = [sums[-count:] for sums in behind[:-1]]
    if any(one.layout is None for sums in began for one in sums):
        return 0
    made = [[_made_with(graph, one) for one in sums] for sums in began]
    return count if all(of == made[0] for of in made) else 0


def in_front(graph: Graph, value: str, like: Sequence[Sum]) -> list[tuple[str, str, int]]:
    """The sums in front of the first attention that are like those that begin later layers.

    Args:
        graph: The graph.
        value: The stream that the first attention is added to.
        like: The sums that begin a later layer.

    Returns:
        For each sum the stream before it, what is added, and its sign; empty if they are not there.
    """
    found: list[tuple[str, str, int]] = []
    for _ in range(STEPS):
        node = graph.producer(value)
        if len(found) == len(like) or node is None:
            break
        live = [n for n in node.input if n and depends(graph, n)]
        source = normed(graph, value)
        if source is None and node.op_type in SAME:
            source = node.input[0]
        elif source is None:
            if node.op_type not in SUMS or len(live) != 2:
                break
            one, two = live
            source, added = (one, two) if reaches(graph, two, {one, unchanged(graph, one)}) else (two, one)
            if source not in carriers(node) or not reaches(graph, added, {source, unchanged(graph, source)}):
                break
            found.append((source, added, -1 if node.op_type == "Sub" else 1))
        value = source
    found.reverse()
    made = [_weights(graph, added, source) for source, added, _ in found]
    return found if made == [_made_with(graph, one) for one in like] else []


def _made_with(graph: Graph, one: Sum) -> list[tuple[int | None, ...]]:
    return [shape for term in one.terms for shape in _weights(graph, term.added.value, one.stream)]


def _weights(graph: Graph, added: str, stream: str) -> list[tuple[int | None, ...]]:
    """The shapes of the stored matrices between the stream and what is added to it."""
    between = above(graph, [added], {stream, unchanged(graph, stream)})
    shapes = (graph.shape(name) for name in between if not depends(graph, name) and graph.producer(name) is None)
    return sorted((shape for shape in shapes if shape is not None and len(shape) > 1), key=str)


__all__ = ["Sum", "in_front", "leading"]
