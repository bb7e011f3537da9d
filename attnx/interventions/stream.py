"""The residual stream: what attention and MLP add to it in each layer, and its value after each layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Axes
from attnx.graph.axes.paths import depends, reaches
from attnx.interventions.joins import (
    SHIFTS,
    STEPS,
    SUMS,
    Join,
    Joins,
    LostError,
    Term,
    carried,
    carriers,
    layout_of,
    moved,
    position,
    sign_in,
)
from attnx.interventions.norms import SAME, normed, unchanged
from attnx.interventions.stream_end import Back, computed, end_of, must_be_last, must_pass
from attnx.records import Place, Site

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph


@dataclass(slots=True)
class Layer:
    """One layer of a stack."""

    given: Place
    """The stream at the layer's input."""
    terms: list[Term] = field(default_factory=list)
    """What its sublayers add, in order."""
    out: Place | None = None
    """The stream after the layer, including any norm that closes it."""

    @property
    def mlps(self) -> list[Term]:
        """What is computed from the layer's stream and added to it, other than attention."""
        return [term for term in self.terms if term.site is None and term.inside]


@dataclass(slots=True)
class Stack:
    """Layers that share one stream."""

    layers: list[Layer]
    sites: list[tuple[int, ...]]
    """The attentions of each layer."""
    normed: bool
    """Whether the stream itself passes through norms between sublayers (BERT, BART)."""
    plain: bool = True
    """Whether the stream is exactly the sum of what is added to it (no factors, no other tensors)."""


class Streams:
    """Finds the stacks of a model once."""

    def __init__(self, graph: Graph, sites: Sequence[Site]) -> None:
        self.graph, self.sites = graph, sites
        self.lost: dict[int, str] = {}
        """Site index -> why its part of the stream was not found."""
        joins = Joins(graph)
        self._joins: dict[int, Join] = {}
        for site in sites:
            if site.kind in ("self", "cross"):
                try:
                    self._joins[site.index] = joins.find(site)
                except LostError as error:
                    self.lost[site.index] = str(error)
        self.stacks = self._stacks()

    def of(self, site: int) -> tuple[Stack, int]:
        """The stack that a site belongs to, and its layer there.

        Raises:
            LostError: It belongs to none.
        """
        for stack in self.stacks:
            for number, sites in enumerate(stack.sites):
                if site in sites:
                    return stack, number
        raise LostError(self.lost.get(site, "it is in no stack of layers"))

    def term(self, site: int) -> Term:
        """What an attention adds to the stream.

        Raises:
            LostError: It was not found.
        """
        if site not in self._joins:
            raise LostError(self.lost.get(site, "it is not an attention over tokens"))
        return self._joins[site].term

    # From layer to layer

    def _stacks(self) -> list[Stack]:
        order = sorted(self._joins.values(), key=lambda j: position(self.graph, j.out))
        by_out = {join.out: join for join in order}
        before: dict[int, tuple[Join | None, Back]] = {}
        cut: dict[int, str] = {}
        for join in order:
            try:
                behind = self._back(join.stream, by_out)
                if behind[0] is None:
                    self._must_begin(join)
                before[join.site.index] = behind
            except LostError as error:
                self.lost[join.site.index] = str(error)
                cut[join.site.index] = str(error)
        stacks: list[Stack] = []
        open_at: dict[int, list[Join]] = {}
        chains: list[list[Join]] = []
        for join in order:
            if join.site.index not in before:
                continue
            last = before[join.site.index][0]
            if last is not None and last.site.index in open_at:
                chain = open_at.pop(last.site.index)
            else:
                chain = []
                chains.append(chain)
            chain.append(join)
            open_at[join.site.index] = chain
        for chain in chains:
            if why := self._cut_behind(chain[-1].out, by_out, cut):
                self.lost.update({join.site.index: why for join in chain})
                continue
            try:
                stacks.append(self._stack(chain, [before[j.site.index][1] for j in chain]))
            except LostError as error:
                self.lost.update({j.site.index: str(error) for j in chain})
        return stacks

    def _must_begin(self, join: Join) -> None:
        """Make sure that what an attention seems to be added to is not inside another attention's branch."""
        graph, start = self.graph, join.stream
        for other in self._joins.values():
            branch = {other.term.place.value}
            if other is join or other.out == start or not reaches(graph, start, branch):
                continue
            if reaches(graph, other.out, {start}):
                raise LostError("what it is added to is no residual stream but part of what another attention adds")

    def _cut_behind(self, out: str, outs: Mapping[str, Join], cut: Mapping[int, str]) -> str | None:
        """Why the stream behind an attention is lost on the way from the next one: its layer has no known end."""
        others = outs.keys() - {out}
        for join in outs.values():
            if join.site.index in cut and reaches(self.graph, join.stream, {out}, others):
                return cut[join.site.index]
        return None

    def _back(self, value: str, outs: dict[str, Join]) -> tuple[Join | None, Back]:
        """Follow the stream upstream to the last attention that was added, or to its beginning."""
        graph = self.graph
        back = Back([], [], False, True)
        while value not in outs:
            node = graph.producer(value)
            if node is None or not depends(graph, value):
                break
            source = normed(graph, value)
            if source is not None:
                if not self._leads(source, outs):
                    break
                back.norm = True
                back.steps.append((node, source, value))
                value = source
                continue
            live = [n for n in node.input if n and depends(graph, n)]
            if (passed := carried(graph, node)) is not None:
                source = passed
                if node.op_type in SHIFTS:
                    back.plain = back.plain and not self._leads(source, outs)
            elif node.op_type in SUMS and len(live) > 1:
                stream = self._older(live, outs)
                if stream is None:
                    break
                if stream not in carriers(node):
                    raise LostError(f"the residual stream is subtracted in Sub {node.name!r}: it is lost there")
                back.terms += [n for n in live if n != stream]
                source = stream
            elif self._leads(value, outs):
                raise LostError(f"the residual stream passes through {node.op_type} {node.name!r}: it is lost there")
            else:
                break
            if not self._leads(source, outs):
                break
            back.steps.append((node, source, value))
            value = source
        join = outs.get(value)
        if join is None:
            back.terms.clear()
            back.steps.clear()
            back.norm = False
            back.plain = True
        back.steps.reverse()
        back.terms.reverse()
        return join, back

    def _leads(self, value: str, outs: Collection[str]) -> bool:
        """Whether an attention was added upstream."""
        return reaches(self.graph, value, outs)

    def _older(self, live: Sequence[str], outs: Mapping[str, Join]) -> str | None:
        """The term of a sum from which the others are computed; otherwise the one that an attention was added to.

        Where attention and MLP read the same stream, or two MLPs do, the others may be computed from what that
        attention was added to, or from what it gave. A long skip connection adds an earlier stream to a later one.
        """
        graph = self.graph
        for name in live:
            same = self._same(name, outs)
            if all(reaches(graph, n, same, outs) for n in live if n != name):
                return name
        for name in live:
            join, behind = self._behind(name, outs)
            if join is not None:
                sources = {*behind, join.stream, unchanged(graph, join.stream)}
                if all(computed(graph, n, name, sources, outs) for n in live if n != name):
                    return name
        led = [name for name in live if self._leads(name, outs)]
        if len(led) == 1:
            return led[0]
        latest = [n for n in led if all(reaches(graph, n, self._same(other, ())) for other in led)]
        return latest[0] if len(latest) == 1 and self._behind(latest[0], outs)[0] is not None else None

    def _inside(self, join: Join, end: Back, outs: Collection[str]) -> dict[str, bool]:
        """Whether what is added with an attention and behind it is computed from that layer's stream, and is no copy of
        one. What only what that attention was added to made is, unless something that was made behind it came first.
        """
        graph = self.graph
        given = {join.stream, unchanged(graph, join.stream)}
        found: dict[str, bool] = {}
        behind = False
        for name in (*(name for name, _ in join.beside), *end.terms):
            if not self._same(name, ()).isdisjoint({*outs, *given}):
                found[name] = False
            elif reaches(graph, name, {join.out}, outs):
                found[name] = behind = True
            else:
                found[name] = not behind and reaches(graph, name, given, outs)
        return found

    def _same(self, value: str, outs: Collection[str]) -> set[str]:
        """A tensor, and those that it passes on: before casts, views, clamps, and constants that shift or scale it."""
        found = {value}
        while value not in outs and (node := self.graph.producer(value)) is not None:
            source = carried(self.graph, node)
            if source is None or source in found:
                break
            value = source
            found.add(value)
        return found

    def _behind(self, value: str, outs: Mapping[str, Join]) -> tuple[Join | None, set[str]]:
        """The attention that was last added to a stream, and the stream from there on, if sums alone lie between."""
        graph, found = self.graph, set[str]()
        while True:
            same = self._same(value, outs)
            found |= same
            joined = next((name for name in same if name in outs), None)
            if joined is not None:
                return outs[joined], found
            (end,) = (n for n in same if (made := graph.producer(n)) is None or carried(graph, made) is None)
            node = graph.producer(end)
            live = [] if node is None else [n for n in node.input if n and depends(graph, n)]
            older = self._older(live, outs) if node is not None and node.op_type in SUMS and len(live) > 1 else None
            if node is None or older is None or older not in carriers(node):
                return None, found
            value = older

    def _stack(self, chain: Sequence[Join], backs: Sequence[Back]) -> Stack:
        graph = self.graph
        starts = [at for at, join in enumerate(chain) if join.site.kind == "self"] or list(range(len(chain)))
        if starts[0] != 0:
            starts = [0, *starts]
        like = [backs[at] for at in starts[1:]] or list(backs[1:])
        ends = [*backs[1:], end_of(graph, chain[-1], like)]
        layers: list[Layer] = []
        again: set[int] = set()
        """Layers at whose end an earlier stream is added, which belongs to none."""
        outs = {join.out for join in self._joins.values()}
        for number, at in enumerate(starts):
            stop = starts[number + 1] if number + 1 < len(starts) else len(chain)
            first = chain[at]
            given = Place(first.stream, self._given(first))
            layer = Layer(given)
            for join, end in zip(chain[at:stop], ends[at:stop], strict=True):
                axes: Axes | None = join.axes
                inside = self._inside(join, end, outs)
                layer.terms.append(join.term)
                layout = layout_of(axes, join.names)
                layer.terms += [self._term(n, layout, sign, inside[n]) for n, sign in join.beside]
                value = join.out
                steps = end.steps
                if join is chain[stop - 1]:
                    steps = steps[: _own_steps(end, inside)]
                    again |= {number} if len(steps) < len(end.steps) else set()
                for node, source, target in steps:
                    axes = moved(graph, node, axes, source)
                    value = target
                    if node.op_type in SUMS:
                        layout = layout_of(axes, join.names)
                        some = [n for n in node.input if n in end.terms]
                        layer.terms += [self._term(n, layout, sign_in(node, n), inside[n]) for n in some]
                layout = layout_of(axes, join.names)
                if layout is not None:
                    layer.out = Place(_first(graph, value), layout)
            layers.append(layer)
        for number, layer in enumerate(layers):
            last = chain[starts[number + 1] - 1 if number + 1 < len(starts) else -1]
            if layer.out is not None:
                must_pass(graph, last, layer.out.value, outs, number + 1 == len(layers))
        if layers[-1].out is not None:
            must_be_last(graph, layers[-1].out.value)
        for number, (one, two) in enumerate(pairwise(layers)):
            two.given = two.given if number in again else one.out or two.given
        return Stack(
            layers,
            [
                tuple(j.site.index for j in chain[at : starts[n + 1] if n + 1 < len(starts) else len(chain)])
                for n, at in enumerate(starts)
            ],
            any(back.norm for back in ends),
            all(back.plain for back in ends)
            and all(join.plain for join in chain)
            and not again
            and all(term.inside for layer in layers for term in layer.terms),
        )

    def _given(self, join: Join) -> str:
        layout = layout_of(join.axes, join.names)
        if layout is None:
            raise LostError("what the axes of the residual stream stand for cannot be told")
        return layout

    def _term(self, added: str, layout: str | None, sign: int, inside: bool) -> Term:
        if layout is None:
            raise LostError("what the axes of the residual stream stand for cannot be told")
        return Term(Place(self._own(added), layout), Place(added, layout), None, sign, inside)

    def _own(self, value: str) -> str:
        """A sublayer's output before its norm and factors."""
        graph = self.graph
        best = value
        for _ in range(STEPS):
            node = graph.producer(value)
            if node is None:
                break
            source = normed(graph, value)
            if source is not None:
                best = value = source
                continue
            live = [n for n in node.input if n and depends(graph, n)]
            if node.op_type in SAME:
                value = node.input[0]
            elif node.op_type in ("Mul", "Div") and len(live) == 1 and graph.shape(live[0]) == graph.shape(value):
                best = value = live[0]
            else:
                break
        return best


def _own_steps(end: Back, inside: Mapping[str, bool]) -> int:
    """How many steps behind a layer's last attention belong to the layer: not an earlier stream that is added at its
    end, nor the factor that makes room for it.
    """
    last, count = 0, len(end.steps)
    for at, (node, _, _) in enumerate(end.steps):
        added = [inside[n] for n in node.input if n in end.terms] if node.op_type in SUMS else []
        if any(added):
            last, count = at + 1, len(end.steps)
        elif added:
            count = min(count, at)
    while last < count < len(end.steps) and end.steps[count - 1][0].op_type in ("Mul", "Div"):
        count -= 1
    return count


def _first(graph: Graph, value: str) -> str:
    """The first tensor with the numbers of `value`: before lossless casts."""
    while (node := graph.producer(value)) is not None and node.op_type in SAME:
        before = node.input[0]
        one, two = graph.facts.get(before), graph.facts.get(value)
        if one is None or two is None or not (one.dtype == two.dtype or one.dtype in _HALVES):
            break
        if node.name.startswith("attnx/") and len(graph.consumers(before)) == 1:
            break  # inside a fused node that need not be opened for it
        value = before
    return value


_HALVES = (10, 16)
"""Types whose values every other float type can represent: float16, bfloat16."""

__all__ = ["Layer", "LostError", "Stack", "Streams", "Term"]
