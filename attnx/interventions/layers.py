"""Layers of a stack: from the sums in which attentions are added to the stream to what each layer adds and gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Axes
from attnx.graph.axes.paths import depends
from attnx.interventions.joins import STEPS, SUMS, Join, LostError, Term, layout_of, moved, sign_in
from attnx.interventions.leading import Sum, in_front, leading
from attnx.interventions.norms import SAME, normed
from attnx.interventions.stream_end import Back, must_be_last, must_pass
from attnx.records import Place

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


def starts_of(chain: Sequence[Join]) -> list[int]:
    """Where layers begin among the attentions of a stack: at self-attention, if there is any."""
    starts = [at for at, join in enumerate(chain) if join.site.kind == "self"] or list(range(len(chain)))
    return starts if starts[0] == 0 else [0, *starts]


def stack_of(
    graph: Graph,
    chain: Sequence[Join],
    ends: Sequence[Back],
    inside: Sequence[Mapping[str, bool]],
    outs: Collection[str],
) -> Stack:
    """The layers of attentions that share one stream.

    Args:
        graph: The graph.
        chain: The attentions, in order.
        ends: The way from each to the next, and from the last to the end.
        inside: For each, whether what is added with it and behind it is computed from its layer's stream.
        outs: Where attentions are added, in any stack.

    Raises:
        LostError: What the axes of the stream stand for is not known, or where a layer ends is not.
    """
    layers: list[Layer] = []
    behind: list[list[Sum]] = []
    again: set[int] = set()
    """Layers at whose end an earlier stream is added, which belongs to none."""
    bounds = [*starts_of(chain), len(chain)]
    for at, stop in pairwise(bounds):
        first = chain[at]
        layer = Layer(Place(first.stream, _given(first)))
        sums: list[Sum] = []
        for i in range(at, stop):
            join, end, own = chain[i], ends[i], inside[i]
            axes: Axes | None = join.axes
            layout = layout_of(axes, join.names)
            layer.terms.append(join.term)
            layer.terms += [_term(graph, name, layout, sign, own[name]) for name, sign in join.beside]
            sums, value = [], join.out
            steps = end.steps if i + 1 < stop else end.steps[: _own_steps(end, own)]
            again |= {len(layers)} if len(steps) < len(end.steps) else set()
            for node, source, target in steps:
                before, axes, value = layout_of(axes, join.names), moved(graph, node, axes, source), target
                some = [n for n in node.input if n in end.terms] if node.op_type in SUMS else []
                if some:
                    layout = layout_of(axes, join.names)
                    terms = [_term(graph, n, layout, sign_in(node, n), own[n]) for n in some]
                    sums.append(Sum(source, before, terms))
                    layer.terms += terms
            layout = layout_of(axes, join.names)
            if layout is not None:
                layer.out = Place(_first(graph, value), layout)
        layers.append(layer)
        behind.append(sums)
    _begin(graph, layers, behind)
    for number, layer in enumerate(layers):
        if layer.out is not None:
            last = number + 1 == len(layers)
            must_pass(graph, chain[bounds[number + 1] - 1], layer.out.value, outs, last)
            if last:
                must_be_last(graph, layer.out.value)
    for number, (one, two) in enumerate(pairwise(layers)):
        two.given = two.given if number in again else one.out or two.given
    ways = [*(end.plain for end in ends), *(join.plain for join in chain), not again]
    return Stack(
        layers,
        [tuple(join.site.index for join in chain[at:stop]) for at, stop in pairwise(bounds)],
        any(end.norm for end in ends),
        all(ways) and all(term.inside for layer in layers for term in layer.terms),
    )


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


def _begin(graph: Graph, layers: Sequence[Layer], behind: Sequence[Sequence[Sum]]) -> None:
    """Move what begins a layer from the end of the layer before it."""
    count = leading(graph, behind)
    if not count:
        return
    given = layers[0].given
    found = in_front(graph, given.value, behind[0][-count:])
    if not found:
        return
    for sums, (one, two) in zip(behind, pairwise(layers), strict=False):
        began = sums[-count:]
        layout = began[0].layout
        assert layout is not None
        one.out = Place(_first(graph, began[0].stream), layout)
        terms = [term for some in began for term in some.terms]
        del one.terms[-len(terms) :]
        two.terms[:0] = terms
    layers[0].given = Place(found[0][0], given.layout)
    layers[0].terms[:0] = [_term(graph, added, given.layout, sign) for _, added, sign in found]


def _given(join: Join) -> str:
    layout = layout_of(join.axes, join.names)
    if layout is None:
        raise LostError("what the axes of the residual stream stand for cannot be told")
    return layout


def _term(graph: Graph, added: str, layout: str | None, sign: int, inside: bool = True) -> Term:
    if layout is None:
        raise LostError("what the axes of the residual stream stand for cannot be told")
    return Term(Place(_own(graph, added), layout), Place(added, layout), None, sign, inside)


def _own(graph: Graph, value: str) -> str:
    """A sublayer's output before its norm and factors."""
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

__all__ = ["Layer", "Stack", "stack_of"]
