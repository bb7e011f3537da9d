"""Values that are made alike, told by a number, so that what holds of one of them is proved only once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnx.graph.load.outline import Outline

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph


_NOTHING = Outline("", (), (), (), None, False)


def signatures(graph: Graph, targets: Sequence[str], sources: Sequence[str]) -> list[int]:
    """For each of these values, a number that is the same for values made from their sources in the same way."""
    known: dict[str, int] = {name: i for i, name in enumerate(sources, 1)}
    stack = list(targets)
    while stack:
        name = stack[-1]
        if name in known:
            stack.pop()
            continue
        node = graph.producer(name)
        outline = _NOTHING if node is None else graph.outline(node)
        if node is None or outline.op_type in ("Constant", "Shape", "Size"):
            held = graph.constant(name)
            shape = graph.shape(outline.inputs[0] if outline.inputs else name)
            own_name = name if held is None and not outline.inputs else ""
            known[name] = hash((own_name, shape, None if held is None else (held.dtype.str, held.tobytes())))
            continue
        read = outline.inputs
        waiting = [n for n in read if n and n not in known]
        if waiting:
            stack += waiting
            continue
        how: object = outline.kind
        if how is None:
            how = (node.op_type, tuple(sorted(a.SerializeToString(deterministic=True) for a in node.attribute)))
        at = outline.outputs.index(name)
        known[name] = hash((how, at, tuple([known[n] if n else 0 for n in read])))
    return [known[target] for target in targets]
