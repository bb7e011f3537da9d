"""Layers of a stack: from the sums in which attentions are added to the stream to what each layer adds and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Axes
from attnx.graph.axes.paths import depends
from attnx.interventions.joins import STEPS, SUMS, Join, LostError, Term, layout_of, moved, sign_in
from attnx.interventions.leading import Sum, in_front, leading
from attnx.interventions.norms import SAME, normed
from attnx.interventions.stream_end import Back, end_of
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
        """The terms other than attention."""
        return [term for term in self.terms if term.site is None]


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


def stack_of(graph: Graph, chain: Sequence[Join], backs: Sequence[Back]) -> Stack:
    """The layers of attentions that share one stream.

    Args:
        graph: The graph.
        chain: The attentions, in order.
        backs: The way from each back to the one before it.

    Raises:
        LostError: What the axes of the stream stand for is not known.
    """
    starts = [at for at, join in enumerate(chain) if join.site.kind == "self"] or list(range(len(chain)))
    if starts[0] != 0:
        starts = [0, *starts]
    tail = end_of(graph, chain[-1], any(back.norm for back in backs))
    ends = [*backs[1:], tail]
    layers: list[Layer] = []
    behind: list[list[Sum]] = []
    bounds = [*starts, len(chain)]
    for at, stop in pairwise(bounds):
        first = chain[at]
        layer = Layer(Place(first.stream, _given(first)))
        sums: list[Sum] = []
        for join, end in zip(chain[at:stop], ends[at:stop], strict=True):
            axes: Axes | None = join.axes
            layout = layout_of(axes, join.names)
            layer.terms.append(join.term)
            layer.terms += [_term(graph, name, layout, sign) for name, sign in join.beside]
            sums, value = [], join.out
            for node, source, target in end.steps:
                before, axes, value = layout_of(axes, join.names), moved(graph, node, axes, source), target
                some = [n for n in node.input if n in end.terms] if node.op_type in SUMS else []
                if some:
                    layout = layout_of(axes, join.names)
                    terms = [_term(graph, n, layout, sign_in(node, n)) for n in some]
                    sums.append(Sum(source, before, terms))
                    layer.terms += terms
            layout = layout_of(axes, join.names)
            if layout is not None:
                layer.out = Place(_first(graph, value), layout)
        layers.append(layer)
        behind.append(sums)
    _begin(graph, layers, behind)
    for one, two in pairwise(layers):
        two.given = one.out or two.given
    return Stack(
        layers,
        [tuple(join.site.index for join in chain[at:stop]) for at, stop in pairwise(bounds)],
        any(back.norm for back in ends),
        all(back.plain for back in ends) and all(join.plain for join in chain),
    )


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


def _term(graph: Graph, added: str, layout: str | None, sign: int) -> Term:
    if layout is None:
        raise LostError("what the axes of the residual stream stand for cannot be told")
    return Term(Place(_own(graph, added), layout), Place(added, layout), None, sign)


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
