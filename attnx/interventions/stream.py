"""The residual stream: what attention and MLP add to it in each layer, and its value after each layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from attnx.graph.axes.paths import depends, reaches
from attnx.interventions.joins import (
    SHIFTS,
    SUMS,
    Join,
    Joins,
    LostError,
    Term,
    carried,
    carriers,
    position,
)
from attnx.interventions.layers import Layer, Stack, stack_of, starts_of
from attnx.interventions.norms import normed, unchanged
from attnx.interventions.stream_end import Back, computed, end_of
from attnx.records import Site

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph


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
                backs = [before[j.site.index][1] for j in chain]
                like = [backs[at] for at in starts_of(chain)[1:]] or backs[1:]
                ends = [*backs[1:], end_of(self.graph, chain[-1], like)]
                inside = [self._inside(join, end, by_out) for join, end in zip(chain, ends, strict=True)]
                stack = stack_of(self.graph, chain, ends, inside, by_out)
                self._check_terms(stack)
                stacks.append(stack)
            except LostError as error:
                self.lost.update({j.site.index: str(error) for j in chain})
        return stacks

    def _must_begin(self, join: Join) -> None:
        """Make sure that what an attention seems to be added to is not inside another attention's branch."""
        graph, start = self.graph, join.stream
        for other in self._joins.values():
            branch = {(other.term.projected or other.term.place).value}
            if other is join or other.out == start or not reaches(graph, start, branch):
                continue
            if reaches(graph, other.out, {start}):
                raise LostError("what it is added to is no residual stream but part of what another attention adds")

    def _check_terms(self, stack: Stack) -> None:
        """Make sure that nothing else that is added to the stream is an attention whose way there is not known.

        Raises:
            LostError: An attention is among it.
        """
        givens = {layer.given.value for layer in stack.layers} | {join.out for join in self._joins.values()}
        for term in (term for layer in stack.layers for term in layer.terms if term.site is None):
            if (why := self.lost_in(term.added.value, givens)) is not None:
                raise LostError(why)

    def lost_in(self, value: str, stop: Collection[str] = ()) -> str | None:
        """Why an attention that a tensor is made of was not followed to the stream; None if there is none.

        Args:
            value: The tensor.
            stop: Where the search ends.
        """
        for site in self.sites:
            made = {site.places[name].value for name in ("weights", "context") if name in site.places}
            if site.index in self.lost and site.index not in self._joins and reaches(self.graph, value, made, stop):
                return self.lost[site.index]
        return None

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


__all__ = ["Layer", "LostError", "Stack", "Streams", "Term"]
