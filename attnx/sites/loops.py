"""Attention inside a Loop or Scan that cannot be unrolled: one query per step, and every step's stages are output.

A decoder that generates inside the graph runs its body once per token. Its attention is recognised in the body as in a
separate graph. Every stage becomes a scan output of the body, so that the query axis counts the steps that really ran;
keys and values that are the same at every step are taken as they are.

Source: ONNX operator specifications, Loop-21, Scan-21, ConcatFromSequence-11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from attnx.graph.axes.origins import streams
from attnx.graph.load.nodes import attribute, op_name
from attnx.graph.shapes.index import Graph
from attnx.layout import parse
from attnx.records import Kind, Miss, Place
from attnx.sites.emit import OLDEST, Emit, opset_of
from attnx.sites.finding import Finding, Replacement
from attnx.sites.stepping import Body

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

QUERIES = ("query", "scores", "scaled", "capped", "masked", "weights", "context")
LAYERS = (
    "holds attention of several queries in its body, which runs as often as {op} says: a step may be a layer, and is "
    "no query; it is not tapped"
)
GROWS = (
    "its {op} runs as often as the run says, and what it attends to grows from step to step: rows of several lengths "
    "are no one matrix"
)


@dataclass(slots=True)
class Looked:
    """What was found in a graph."""

    opened: Graph
    """The graph, with every fused node replaced."""
    replacements: dict[str, tuple[NodeProto, Replacement]]
    findings: list[Finding]
    misses: list[Miss]


@dataclass(slots=True)
class Stepped:
    """What was found in the body of one node."""

    node: NodeProto
    findings: list[Finding] = field(default_factory=list)
    misses: list[Miss] = field(default_factory=list)
    key: str = ""
    replacement: Replacement | None = None
    """The node with outputs for every stage."""


Look = Callable[[Graph], Looked]


def open_loops(graph: Graph, look: Look, wanted: Callable[[GraphProto], bool]) -> list[Stepped]:
    """The attention in bodies whose number of steps is known only at run time.

    Args:
        graph: The flat graph.
        look: Recognises attention in a graph.
        wanted: Returns whether a body may hold attention.
    """
    out = []
    for node in graph.nodes:
        if node.op_type not in ("Loop", "Scan"):
            continue
        body = attribute(node, "body") if node.domain in ("", "ai.onnx") else None
        if body is not None and wanted(body.g) and opset_of(graph) >= OLDEST:
            out.append(_Opener(graph, node, look, wanted).open())
    return out


class _Opener:
    """Opens one Loop or Scan."""

    def __init__(self, graph: Graph, node: NodeProto, look: Look, wanted: Callable[[GraphProto], bool]) -> None:
        self.outer, self.node, self.look, self.wanted = graph, node, look, wanted
        self.body = Body(graph, node)
        self.made = Stepped(node, key=f"attnx/{node.name or next(o for o in node.output if o)}/steps")
        self.emit = Emit(graph, self.made.key)
        self.names: dict[str, str] = {}
        """A value of the body -> its stack over the steps, outside the body."""

    def open(self) -> Stepped:
        looked = self.look(self.body.graph)
        inner = open_loops(self.body.graph, self.look, self.wanted)
        self.made.misses = [*looked.misses, *(miss for one in inner for miss in one.misses)]
        kept: dict[str, tuple[NodeProto, Replacement]] = dict(looked.replacements)
        for finding in looked.findings:
            self._take(looked.opened, finding, stacked=False)
        for one in inner:
            if one.replacement is not None:
                kept[one.key] = (one.node, one.replacement)
                for finding in one.findings:
                    self._take(looked.opened, finding, stacked=True)
        if self.made.findings:
            nodes = self.body.rewritten(kept, self.names, self.emit)
            required = any(stand_in.required for _, stand_in in kept.values())
            self.made.replacement = Replacement(
                nodes, self.emit.initializers, required, at=next(o for o in self.node.output if o)
            )
        return self.made

    def _take(self, inside: Graph, finding: Finding, stacked: bool) -> None:
        """Turn a site of the body into one of the graph around it, or record why that is impossible."""
        weights = finding.places.get("weights")
        if weights is not None and not stacked and any(n[0] == "q" for a in parse(weights.layout) for n, _ in a):
            reason = LAYERS.format(op=self.node.op_type)
            self.made.misses.append(Miss(self.node.name, op_name(self.node), reason))
            return
        places: dict[str, Place] = {}
        for quantity in QUERIES:
            place = finding.places.get(quantity)
            if place is not None:
                if not stacked and not self.body.steady(inside, place.value):
                    reason = GROWS.format(op=self.node.op_type)
                    self.made.misses.append(Miss(finding.node.name, op_name(finding.node), reason))
                    return
                places[quantity] = self._over_steps(place, stacked)
        for quantity in ("key", "value"):
            place = finding.places.get(quantity)
            if place is not None and (held := self._held(inside, place)) is not None:
                places[quantity] = held
        if "weights" not in places:
            return
        absent = [q for q in ("key", "value") if q in finding.places and q not in places]
        kind = finding.kind or _kind(inside, finding)
        self.made.findings.append(
            replace(
                finding, places=places, kind=kind, key=self.made.key, needs=(), replacement=None, product="", beside=(),
                query_from=self.body.outside(inside, finding.query_from, moving=True),
                key_from=self.body.outside(inside, finding.key_from), pieces=1,
                value_from=self.body.outside(inside, finding.value_from), carries=self.body.carries(inside, finding),
                causal=finding.causal if finding.causal is not None else kind == "self",
                absent=(*finding.absent, *absent), notes=[*finding.notes, self._note(absent, stacked)],
            )
        )  # fmt: skip

    def _note(self, absent: Sequence[str], stacked: bool) -> str:
        if stacked:
            return "the steps of the loops within one another follow each other, as they ran"
        gone = f"; {' and '.join(absent)} are others at every step, and no one tensor" if absent else ""
        return f"one query a step of the {self.node.op_type} {self.node.name!r}, as many as it ran{gone}"

    def _over_steps(self, place: Place, stacked: bool) -> Place:
        name = self.names.setdefault(place.value, self.emit.name(f"{len(self.names)}/{place.value}"))
        self.body.taken[place.value] = stacked, len(parse(place.layout))
        if stacked:
            return replace(place, value=name)  # its first axis already counts steps: those of all loops in a row
        return replace(place, value=name, layout=f"q {place.layout}")

    def _held(self, inside: Graph, place: Place) -> Place | None:
        """A key or value that is the same at every step."""
        outer = self.body.same(inside, place.value)
        if outer is not None:
            return replace(place, value=outer)
        if not self.body.fixed(inside, place.value) or not self.body.steady(inside, place.value):
            return None
        name = self.names.setdefault(place.value, self.emit.name(f"{len(self.names)}/{place.value}"))
        self.body.taken[place.value] = False, len(parse(place.layout))
        first = f"{name}/first"
        self.body.firsts[first] = name
        return replace(place, value=first, layout=f"1 {place.layout}")


def _kind(inside: Graph, finding: Finding) -> Kind:
    alike = streams(inside, finding.query_from) & streams(inside, finding.key_from)
    return "self" if finding.query_from == finding.key_from or alike else "cross"
