"""A model's graph with fused attention and fused skip norms expanded, so that the residual stream has tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnx.graph.axes.paths import reaches
from attnx.graph.load.flatten import sort_nodes
from attnx.graph.shapes.index import Graph
from attnx.interventions.norms import SKIPS, taken_apart
from attnx.sites.finding import key_of
from attnx.sites.recognise import replaced

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from attnx.sites.finding import Replacement
    from attnx.sites.recognise import Found


@dataclass(frozen=True, slots=True)
class Wide:
    """A model as interventions see it."""

    found: Found
    graph: Graph
    """The graph with every fused attention and skip norm expanded; sites' places refer to it."""
    replacements: Mapping[str, tuple[NodeProto, Replacement]]
    """First output of a fused node -> the node and its replacement."""
    inside: Mapping[str, str]
    """Tensor that only an expanded node has -> key of that node in `replacements`."""

    def opened(self, values: Collection[str], sites: Collection[int] = ()) -> ModelProto:
        """A copy of the model that expands only the fused nodes that contain one of `values` or are `sites`."""
        keys = {key for key, (_, stand_in) in self.replacements.items() if stand_in.required}
        keys |= {self.inside[value] for value in values if value in self.inside}
        keys |= {key for i in sites for key in self.found.fused_of.get(i, ())}
        return replaced(self.found.graph, dict(self.replacements), keys)


def _same(graph: Graph, value: str) -> set[str]:
    """A tensor, and if it is the sum in a skip norm, its norm too: both are computed from the stream."""
    node = graph.producer(value)
    return set(node.output) - {""} if node is not None and node.op_type in SKIPS else {value}


def widen(found: Found) -> Wide:
    """Expand the fused nodes of a model."""
    graph = found.graph
    replacements = dict(found.replacements)
    for node in graph.nodes:
        if node.op_type in SKIPS and len(node.input) > 2:
            # What is added to the stream is computed from it.
            branch = 1 if reaches(graph, node.input[1], _same(graph, node.input[0])) else 0
            replacements[key_of(node)] = (node, taken_apart(graph, node, branch))
    wide = found.opened
    if len(replacements) > len(found.replacements):
        proto = replaced(graph, replacements, set(replacements))
        known = {t.name for t in proto.graph.initializer} | {i.name for i in proto.graph.input}
        known |= {t.values.name for t in proto.graph.sparse_initializer}
        wide = Graph(found.loaded, proto, sort_nodes(proto.graph.node, known))
    inside = {
        name: key
        for key, (node, stand_in) in replacements.items()
        for made in stand_in.nodes
        for name in made.output
        if name and name not in node.output
    }
    return Wide(found, wide, replacements, inside)
