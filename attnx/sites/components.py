"""Encoder or decoder: decided by which site feeds which, and by which sites hide the future."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnx.graph.axes.origins import streams
from attnx.graph.axes.paths import above, depends
from attnx.records import Component

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph


@dataclass(frozen=True, slots=True)
class Part:
    """The parts of a site that matter here."""

    query: str
    sources: tuple[str, ...]
    """What it attends to: key, and value."""
    out: str
    """The output that the rest of the graph reads; "" where none is known."""
    cross: bool
    causal: bool


def components(graph: Graph, parts: Sequence[Part], count: int) -> list[Component]:
    """Encoder or decoder, for the first `count` parts; later parts are not sites, but feed sites and are fed by them.

    A cross-attention belongs to a decoder if no other attention uses its output as keys or values: two streams that
    take turns (LXMERT, Grounding DINO), and global tokens that gather for local ones (Pegasus-X), belong to an encoder.
    So does one whose output joins the stream that it attends to, and not the one that asks (global queries of GCViT).
    With the decoder's cross-attentions goes what feeds their queries but not their keys, and everything after them.
    What feeds only their keys is the encoder's, even where it hides the future. Without a cross-attention, hiding the
    future makes a decoder.
    """
    crosses = [i for i, p in enumerate(parts) if p.cross]
    looks = {i: above(graph, parts[i].sources) for i in crosses}
    own = {p.query: above(graph, [p.query]) for p in parts if crosses and not p.cross}
    # What a self-attention attends to besides its own stream: global tokens among the keys of local ones.
    looks |= {j: above(graph, p.sources) - own[p.query] for j, p in enumerate(parts) if crosses and not p.cross}
    ends = [
        i
        for i in crosses
        if not (_looked_at(parts, looks, i) or _mutual(graph, parts, i) or _joins(graph, parts[i].out, looks[i]))
    ]
    in_keys: set[str] = set().union(*(looks[i] for i in ends))
    # For the queries, only what passes through no earlier cross-attention, which carries all that it attended to.
    stop = {parts[i].out for i in ends}
    in_queries: set[str] = set().union(*(above(graph, [parts[i].query], stop) for i in ends))
    fed = [bool(p.out) and p.out in in_keys and p.out not in in_queries for p in parts]
    marked = {p.out for i, p in enumerate(parts) if p.out and (i in ends or (p.causal and not fed[i]))}
    behind = set(marked)
    for _, outline in graph.outlined if behind else ():
        if not behind.isdisjoint(outline.inputs):
            behind.update(o for o in outline.outputs if o)
    out: list[Component] = []
    for p, feeds in zip(parts[:count], fed, strict=False):
        asks = p.out in in_queries and p.out not in in_keys
        out.append("decoder" if asks or (p.out in behind and not feeds) else "encoder")
    return out


def _looked_at(parts: Sequence[Part], looks: Mapping[int, set[str]], i: int) -> bool:
    """Whether the output of a cross-attention is attended to by another, or by a self-attention of another stream."""
    return any(j != i and parts[i].out and parts[i].out in made_of for j, made_of in looks.items())


def _joins(graph: Graph, out: str, attended: set[str]) -> bool:
    """Whether what an attention gives is first added to what its keys or values are made of."""
    reached, heap = {out}, [(graph.position(node), node.output[0]) for node in graph.consumers(out)] if out else []
    heapq.heapify(heap)
    while heap:
        _, name = heapq.heappop(heap)
        node = graph.producer(name)
        if node is None or name in reached or node.op_type in ("Shape", "Size"):
            continue
        if node.op_type in ("Add", "Sum", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"):
            others = [n for n in node.input if n and n not in reached and depends(graph, n)]
            if others:
                return not attended.isdisjoint(others)
        for made in filter(None, node.output):
            reached.add(made)
            for reader in graph.consumers(made):
                first = next(o for o in reader.output if o)
                heapq.heappush(heap, (graph.position(reader), first))
    return False


def _mutual(graph: Graph, parts: Sequence[Part], i: int) -> bool:
    """Whether another cross-attention has the two sides swapped."""
    asks, asked = streams(graph, parts[i].query), streams(graph, parts[i].sources[0])
    return any(
        j != i and p.cross and streams(graph, p.query) & asked and streams(graph, p.sources[0]) & asks
        for j, p in enumerate(parts)
    )
