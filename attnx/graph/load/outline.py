"""What nodes hold, read once: protobuf makes new text of every name each time that it is asked for one."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from attnx.graph.load.nodes import reads_of

if TYPE_CHECKING:
    from onnx import NodeProto

_GRAPHS = (5, 10)
"""The types of attributes that hold graphs."""


class Outline(NamedTuple):
    """One node."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reads: Collection[str]
    """The values that it reads, including in its subgraphs."""
    kind: int | None
    """The same number for nodes with the same operator, domain and attributes; None for one that holds graphs."""
    stored: bool
    """See `nodes.is_stored`."""


class Outlines:
    """Outlines of the nodes of one file, and of graphs made from it: equal names are one object, kinds are numbered."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._kinds: dict[tuple[str, str, tuple[bytes, ...]], int] = {}
        self._kept: dict[int, tuple[NodeProto, Outline]] = {}

    def keep(self, node: NodeProto) -> Outline:
        """The outline of a node that stays as it is, made once."""
        found = self._kept.get(id(node))
        if found is None:
            found = self._kept[id(node)] = node, self._made(node)
        return found[1]

    def of(self, node: NodeProto) -> Outline:
        """The outline of any node."""
        found = self._kept.get(id(node))
        return self._made(node) if found is None else found[1]

    def _made(self, node: NodeProto) -> Outline:
        one = self._names.setdefault
        op, domain = node.op_type, node.domain
        inputs = tuple([one(name, name) for name in node.input])
        outputs = tuple([one(name, name) for name in node.output])
        stored = op == "Constant" and not domain and not inputs
        parts = (op, domain, tuple([a.SerializeToString() for a in node.attribute]))
        kind = self._kinds.get(parts)
        if kind is None:
            if any(a.type in _GRAPHS for a in node.attribute):
                return Outline(op, inputs, outputs, reads_of(node), None, stored)
            kind = self._kinds[parts] = len(self._kinds)
        reads = tuple([name for name in inputs if name]) if "" in inputs else inputs
        return Outline(op, inputs, outputs, reads, kind, stored)
