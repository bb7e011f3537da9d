"""The residual stream: where attention and MLP are added to it, and what it is after each layer."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnx.graph.axes import Atom, Axes, forward, leaves
from attnx.graph.paths import above, depends, reaches
from attnx.graph.projections import output_axes
from attnx.interventions.norms import SAME, norm_of, normed, unchanged
from attnx.records import Place, Site

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.index import Graph

_VIEWS = frozenset("Reshape Transpose Squeeze Unsqueeze Flatten Expand".split()) | SAME
_CLAMPS = frozenset(("Clip", "Min", "Max"))
_ADDS = ("Add", "Sum")
_STEPS = 80


@dataclass(frozen=True, slots=True)
class Term:
    """What one sublayer adds to the stream."""

    place: Place
    """What it gives: its bias added, before any norm of it, any factor, and before it joins; axes b, q, d."""
    added: Place
    """The same as it is added to the stream: behind its norm and factors."""
    site: int | None = None
    """Index of the attention; None for an MLP, or whatever else is added."""


@dataclass(slots=True)
class Layer:
    """One layer of a stack."""

    given: Place
    """The stream as the layer gets it."""
    terms: list[Term] = field(default_factory=list)
    """What its sublayers add, in order."""
    out: Place | None = None
    """The stream behind it, after whatever norm closes the layer."""

    @property
    def mlps(self) -> list[Term]:
        """What is added besides attention."""
        return [term for term in self.terms if term.site is None]


@dataclass(slots=True)
class Stack:
    """Layers that hand one stream on."""

    layers: list[Layer]
    sites: list[tuple[int, ...]]
    """The attentions of each layer."""
    normed: bool
    """Whether the stream itself passes through norms between sublayers (BERT, BART)."""
    plain: bool = True
    """Whether the stream is a sum of what is added to it and nothing else (no factors, no other tensors)."""


class Lost(Exception):
    """Where the residual stream could not be followed, in words."""


@dataclass(slots=True)
class _Join:
    """Where an attention is added to the stream."""

    site: Site
    out: str
    stream: str
    term: Term
    beside: list[str]
    axes: Axes
    """Of `out`."""
    names: list[tuple[str, Atom]]
    plain: bool


@dataclass(slots=True)
class _Back:
    """The way from one layer's stream back to the attention that was added last."""

    steps: list[tuple[NodeProto, str, str]]
    """Node, the input that carries the stream, the output; in order of the data. Norms are one step."""
    terms: list[str]
    norm: bool
    plain: bool


class Streams:
    """Finds the stacks of a model, once."""

    def __init__(self, graph: Graph, sites: Sequence[Site]) -> None:
        self.graph, self.sites = graph, sites
        self.lost: dict[int, str] = {}
        """Site index -> why its part of the stream was not found."""
        self._joins: dict[int, _Join] = {}
        for site in sites:
            if site.kind in ("self", "cross"):
                try:
                    self._joins[site.index] = self._join(site)
                except Lost as error:
                    self.lost[site.index] = str(error)
        self.stacks = self._stacks()

    def of(self, site: int) -> tuple[Stack, int]:
        """The stack that a site stands in, and its layer there.

        Raises:
            Lost: It stands in none.
        """
        for stack in self.stacks:
            for number, sites in enumerate(stack.sites):
                if site in sites:
                    return stack, number
        raise Lost(self.lost.get(site, "it is in no stack of layers"))

    def term(self, site: int) -> Term:
        """What an attention adds to the stream.

        Raises:
            Lost: It was not found.
        """
        if site not in self._joins:
            raise Lost(self.lost.get(site, "it is no attention over tokens"))
        return self._joins[site].term

    # From W_O to the sum

    def _join(self, site: Site) -> _Join:
        graph = self.graph
        found = output_axes(graph, site)
        query = site.places.get("query")
        if found is None:
            raise Lost("its output projection was not found for sure")
        if query is None:
            raise Lost("where its query is was not found")
        out, axes, names = found
        asked = above(graph, [query.value])
        node, other, reached = self._first_sum(out, asked)
        mine = [name for name in node.input if name in reached]
        stream, beside = self._stream_in(other, asked, graph.shape(node.output[0]), 2) or (other, [])
        branch, added, more, way, plain = self._way(mine[0], out, reached)
        axes_of = {out: axes}
        current: Axes | None = axes
        for maker, source, target in way:
            current = _moved(graph, maker, current, source)
            if current is not None:
                axes_of[target] = current
        if current is None:
            raise Lost("the axes of what it adds to the stream cannot be followed")
        layout, behind = (_layout(axes_of.get(value), names) for value in (branch, added))
        if layout is None or behind is None:
            raise Lost("what the axes of its output stand for cannot be told")
        whole = _moved(graph, node, current, mine[0])
        if whole is None:
            raise Lost("the axes of the stream cannot be followed")
        term = Term(Place(branch, layout), Place(added, behind), site.index)
        return _Join(site, node.output[0], stream, term, [*beside, *more, *mine[1:]], whole, names, plain)

    def _first_sum(self, out: str, asked: set[str]) -> tuple[NodeProto, str, set[str]]:
        """The first node downstream that adds to it what its query was made of."""
        graph = self.graph
        reached = {out}
        heap = [(graph.position(node), node.output[0]) for node in graph.consumers(out)]
        heapq.heapify(heap)
        done: set[str] = set()
        while heap:
            _, name = heapq.heappop(heap)
            node = graph.producer(name)
            if name in done or node is None or node.op_type in ("Shape", "Size"):
                continue
            done.add(name)
            if node.op_type in _ADDS:
                shape = graph.shape(name)
                for other in node.input:
                    if other not in reached and self._stream_in(other, asked, shape, 2) is not None:
                        return node, other, reached
            for made in node.output:
                if made:
                    reached.add(made)
                    for reader in graph.consumers(made):
                        heapq.heappush(heap, (graph.position(reader), next(o for o in reader.output if o)))
        raise Lost("what it gives is never added to what its query was made of")

    def _stream_in(
        self, value: str, asked: set[str], shape: tuple[int | None, ...] | None, depth: int
    ) -> tuple[str, list[str]] | None:
        """The stream in a sum, and what else is in it."""
        graph = self.graph
        own = graph.shape(value)
        if own is None or shape is None or len(own) != len(shape) or own[-1] != shape[-1]:
            return None
        if not asked.isdisjoint((value, unchanged(graph, value))) and (depends(graph, value) or own == shape):
            return value, []
        node = graph.producer(unchanged(graph, value))
        if depth == 0 or node is None or node.op_type not in _ADDS:
            return None
        for name in node.input:
            if (inner := self._stream_in(name, asked, shape, depth - 1)) is not None:
                rest = [n for n in node.input if n != name and depends(graph, n)]
                return inner[0], [*inner[1], *rest]
        return None

    def _way(
        self, value: str, out: str, reached: set[str]
    ) -> tuple[str, str, list[str], list[tuple[NodeProto, str, str]], bool]:
        """From W_O's product to the stream.

        Returns:
            The sublayer's output; the same as it is added; what is added beside it; the steps; and whether nothing
            changes what is added together.
        """
        graph = self.graph
        steps: list[tuple[NodeProto, str, str]] = []
        beside: list[str] = []
        end = added = value
        plain = True
        for _ in range(_STEPS):
            if value == out:
                # What stands before the first step that changes it; views and its bias belong to it.
                return end, added, beside, steps[::-1], plain
            node = graph.producer(value)
            assert node is not None
            source = normed(graph, value)
            if source is not None and source in reached:
                steps.append((node, source, value))
                end = value = source
                continue
            carried = sorted((n for n in node.input if n in reached), key=lambda name: -_position(graph, name))
            if not carried:
                break
            others = [n for n in node.input if n and n not in reached and depends(graph, n)]
            steps.append((node, carried[0], value))
            if node.op_type in _ADDS and others:
                plain = plain and end == added
                beside += others
                end = added = carried[0]
            elif node.op_type not in (*_VIEWS, *_CLAMPS, *_ADDS):
                end = carried[0]
            value = carried[0]
        raise Lost("the way from its output projection to the stream cannot be followed")

    # From layer to layer

    def _stacks(self) -> list[Stack]:
        order = sorted(self._joins.values(), key=lambda j: _position(self.graph, j.out))
        by_out = {join.out: join for join in order}
        before: dict[int, tuple[_Join | None, _Back]] = {}
        for join in order:
            try:
                before[join.site.index] = self._back(join.stream, by_out)
            except Lost as error:
                self.lost[join.site.index] = str(error)
        stacks: list[Stack] = []
        open_at: dict[int, list[_Join]] = {}
        chains: list[list[_Join]] = []
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
            try:
                stacks.append(self._stack(chain, [before[j.site.index][1] for j in chain]))
            except Lost as error:
                self.lost.update({j.site.index: str(error) for j in chain})
        return stacks

    def _back(self, value: str, outs: dict[str, _Join]) -> tuple[_Join | None, _Back]:
        """Follow the stream upstream until an attention was added to it, or to where it begins."""
        graph = self.graph
        back = _Back([], [], False, True)
        for _ in range(_STEPS):
            if value in outs:
                break
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
            if node.op_type in _VIEWS or node.op_type in _CLAMPS:
                source = str(node.input[0])
            elif node.op_type in _ADDS and len(live) > 1:
                stream = self._older(live, outs)
                if stream is None:
                    break
                back.terms += [n for n in live if n != stream]
                source = stream
            elif node.op_type in ("Add", "Mul", "Div") and len(live) == 1:
                source = live[0]
                back.plain = back.plain and not self._leads(source, outs)
            elif self._leads(value, outs):
                raise Lost(f"the residual stream passes through {node.op_type} {node.name!r}, which is not followed")
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

    def _older(self, live: Sequence[str], outs: Collection[str]) -> str | None:
        """Of the terms of a sum, the one that the others are made of; else the one that an attention was added to."""
        graph = self.graph
        for name in live:
            rest = [n for n in live if n != name]
            if all(reaches(graph, n, {name, unchanged(graph, name)}, outs) for n in rest):
                return name
        led = [name for name in live if self._leads(name, outs)]
        return led[0] if len(led) == 1 else None

    def _stack(self, chain: Sequence[_Join], backs: Sequence[_Back]) -> Stack:
        graph = self.graph
        starts = [at for at, join in enumerate(chain) if join.site.kind == "self"] or list(range(len(chain)))
        if starts[0] != 0:
            starts = [0, *starts]
        tail = self._tail(chain[-1], any(back.norm for back in backs))
        ends = [*backs[1:], tail]
        layers: list[Layer] = []
        for number, at in enumerate(starts):
            stop = starts[number + 1] if number + 1 < len(starts) else len(chain)
            first = chain[at]
            given = Place(first.stream, self._given(first))
            layer = Layer(given)
            for join, end in zip(chain[at:stop], ends[at:stop], strict=True):
                axes: Axes | None = join.axes
                layer.terms.append(join.term)
                layout = _layout(axes, join.names)
                for name in join.beside:
                    layer.terms.append(self._term(name, layout))
                value = join.out
                for node, source, target in end.steps:
                    axes = _moved(graph, node, axes, source)
                    value = target
                    if node.op_type in _ADDS:
                        layout = _layout(axes, join.names)
                        layer.terms += [self._term(n, layout) for n in node.input if n in end.terms]
                layout = _layout(axes, join.names)
                if layout is not None:
                    layer.out = Place(_first(graph, value), layout)
            layers.append(layer)
        for one, two in zip(layers, layers[1:], strict=False):
            two.given = one.out or two.given
        return Stack(
            layers,
            [
                tuple(j.site.index for j in chain[at : starts[n + 1] if n + 1 < len(starts) else len(chain)])
                for n, at in enumerate(starts)
            ],
            any(back.norm for back in ends),
            all(back.plain for back in ends) and all(join.plain for join in chain),
        )

    def _given(self, join: _Join) -> str:
        layout = _layout(join.axes, join.names)
        if layout is None:
            raise Lost("what the axes of the residual stream stand for cannot be told")
        return layout

    def _term(self, added: str, layout: str | None) -> Term:
        if layout is None:
            raise Lost("what the axes of the residual stream stand for cannot be told")
        return Term(Place(self._own(added), layout), Place(added, layout))

    def _own(self, value: str) -> str:
        """What a sublayer gives, before its norm and factors."""
        graph = self.graph
        best = value
        for _ in range(_STEPS):
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

    def _tail(self, join: _Join, norm: bool) -> _Back:
        """From the last attention to the end of the last layer."""
        graph = self.graph
        back = _Back([], [], False, True)
        value = join.out
        for _ in range(8):
            step = self._next(value, norm or join.out == value)
            if step is None:
                break
            back.steps += step[0]
            back.terms += step[1]
            back.norm = back.norm or step[2]
            value = back.steps[-1][2]
        if back.norm or (norm and not back.steps) or (norm and back.terms):
            closed = norm_of(graph, value)
            if closed is not None:
                node = graph.producer(closed)
                assert node is not None
                back.steps.append((node, value, closed))
                back.norm = True
        return back

    def _next(self, value: str, through: bool) -> tuple[list[tuple[NodeProto, str, str]], list[str], bool] | None:
        """The next sum of the stream and something that is made of it; `through`: also of its norm."""
        graph = self.graph
        found = self._sum_with(value)
        if found is not None:
            return found, [n for n in found[-1][0].input if n != found[-1][1] and depends(graph, n)], False
        closed = norm_of(graph, value) if through else None
        if closed is None:
            return None
        found = self._sum_with(closed)
        if found is None:
            return None
        node = graph.producer(closed)
        assert node is not None
        beside = [n for n in found[-1][0].input if n != found[-1][1] and depends(graph, n)]
        return [(node, value, closed), *found], beside, True

    def _sum_with(self, value: str) -> list[tuple[NodeProto, str, str]] | None:
        """The steps to a sum in which a tensor stands beside one that is made of it."""
        graph = self.graph
        stack: list[tuple[str, list[tuple[NodeProto, str, str]]]] = [(value, [])]
        while stack:
            name, steps = stack.pop(0)
            for node in graph.consumers(name):
                if len(steps) < 6 and node.op_type in _VIEWS | _CLAMPS and node.input[0] == name:
                    stack.append((node.output[0], [*steps, (node, name, node.output[0])]))
                elif node.op_type in _ADDS:
                    others = [n for n in node.input if n != name and depends(graph, n)]
                    same = [n for n in others if graph.shape(n) == graph.shape(name)]
                    if same and all(reaches(graph, n, {value}) for n in same):
                        return [*steps, (node, name, node.output[0])]
        return None


def _first(graph: Graph, value: str) -> str:
    """The first tensor that holds the numbers of `value`: before casts to its own type."""
    while (node := graph.producer(value)) is not None and node.op_type in SAME:
        before = node.input[0]
        one, two = graph.facts.get(before), graph.facts.get(value)
        if one is None or two is None or one.dtype != two.dtype:
            break
        if node.name.startswith("attnx/") and len(graph.consumers(before)) == 1:
            break  # inside a fused node, which need not be opened for it
        value = before
    return value


def _position(graph: Graph, value: str) -> int:
    node = graph.producer(value)
    return -1 if node is None else graph.position(node)


def _moved(graph: Graph, node: NodeProto, axes: Axes | None, source: str) -> Axes | None:
    """The axes behind a step; a norm, whole as one step, leaves them as they are."""
    if axes is None:
        return None
    if normed(graph, node.output[0]) == source:
        return axes
    return forward(graph, node, axes, source)


def _layout(axes: Axes | None, names: Sequence[tuple[str, Atom]]) -> str | None:
    """Axes in words: "b q d", "(b q) d"; None where batch and queries are not apart from the features."""
    if axes is None:
        return None
    known = {id(leaf): (letter, leaf.size) for letter, atom in names for leaf in atom.leaves()}
    words: list[str] = []
    for axis in axes:
        letters: list[str] = []
        for leaf in leaves(axis):
            letter = known.get(id(leaf), ("d", leaf.size))[0]
            if not letters or letters[-1] != letter:
                letters.append(letter)
        words.append("1" if not letters else letters[0] if len(letters) == 1 else f"({' '.join(letters)})")
    flat = " ".join(words)
    return flat if flat.count("d") == 1 and flat.count("q") <= 1 and flat.count("b") <= 1 else None
