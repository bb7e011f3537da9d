"""Where each attention is added to the residual stream."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Atom, Axes, leaves
from attnx.graph.axes.axes import forward
from attnx.graph.axes.paths import above, depends
from attnx.graph.axes.projections import output_axes
from attnx.interventions.norms import SAME, normed, unchanged
from attnx.records import Place, Site

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

VIEWS = frozenset("Reshape Transpose Squeeze Unsqueeze Flatten Expand".split()) | SAME
"""Operators that output the numbers of their first input, at most rearranged."""
CLAMPS = frozenset(("Clip", "Min", "Max"))
"""Operators that keep half precision finite and change nothing else."""
ADDS = ("Add", "Sum")
SUMS = (*ADDS, "Sub")
"""Operators that the stream can pass through as a sum; of Sub, only through what is subtracted from."""
SHIFTS = frozenset((*SUMS, "Mul", "Div"))
"""Operators that shift or scale the stream where their other inputs are constants."""
STEPS = 80
"""The most nodes on one sublayer's path to the stream."""


@dataclass(frozen=True, slots=True)
class Term:
    """What one sublayer adds to the stream."""

    place: Place
    """Its output: with its bias, but before any norm, any factor and the sum; axes b, q, d. Where other data gate it,
    behind the gate."""
    added: Place
    """The same as it is added to the stream: after its norm and factors."""
    site: int | None = None
    """Index of the attention; None for an MLP or anything else that is added."""
    sign: int = 1
    """-1 if `added` is subtracted from the stream."""
    inside: bool = True
    """Whether it is computed from the stream of its own layer; not an earlier stream that is added again (a long skip
    connection), nor what the stream has no part in."""
    projected: Place | None = None
    """Of an attention that is gated, its output before the gate."""


class LostError(Exception):
    """The residual stream could not be followed; the message says where."""


@dataclass(slots=True)
class Join:
    """Where an attention is added to the stream."""

    site: Site
    out: str
    stream: str
    term: Term
    beside: list[tuple[str, int]]
    """What else the sum adds, and -1 if it is subtracted."""
    axes: Axes
    """Layout of `out`."""
    names: list[tuple[str, Atom]]
    plain: bool


class Joins:
    """Finds the sums of a graph in which attentions are added to the stream."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def find(self, site: Site) -> Join:
        """Follow an attention from its output projection to the stream.

        Raises:
            LostError: It is not added to a stream, or the way there is not known.
        """
        graph = self.graph
        found = output_axes(graph, site)
        query = site.places.get("query")
        if found is None:
            raise LostError("its output projection was not found with certainty")
        if query is None:
            raise LostError("where its query is was not found")
        out, axes, names = found
        asked = above(graph, [query.value])
        for name in list(asked):  # the sum that an embedding's norm is of comes out beside it
            node = graph.producer(name)
            if node is not None and node.op_type == "EmbedLayerNormalization":
                asked.update(out for out in node.output if out)
        node, other, reached = self._first_sum(out, asked)
        mine = [name for name in node.input if name in reached]
        stream, beside, whole = self._stream_in(other, asked, graph.shape(node.output[0]), 2) or (other, [], True)
        beside += [(n, 1) for n in node.input if n != other and n not in mine and depends(graph, n)]
        branch, added, more, way, plain, bare = self._way(mine[0], out, reached, sign_in(node, mine[0]))
        axes_of = {out: axes}
        current: Axes | None = axes
        for maker, source, target in way:
            current = moved(graph, maker, current, source)
            if current is not None:
                axes_of[target] = current
        if current is None:
            raise LostError("the axes of what it adds to the stream cannot be followed")
        layout, behind, before = (layout_of(axes_of.get(value), names) for value in (branch, added[0], bare))
        if layout is None or behind is None or before is None:
            raise LostError("what the axes of its output stand for cannot be told")
        summed = moved(graph, node, current, mine[0])
        if summed is None:
            raise LostError("the axes of the stream cannot be followed")
        gated = None if bare == branch else Place(bare, before)
        term = Term(Place(branch, layout), Place(added[0], behind), site.index, added[1], projected=gated)
        beside += [*more, *((name, 1) for name in mine[1:])]
        return Join(site, node.output[0], stream, term, beside, summed, names, plain and whole)

    def _first_sum(self, out: str, asked: set[str]) -> tuple[NodeProto, str, set[str]]:
        """The first node downstream that adds the source of its query to it."""
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
            if node.op_type in SUMS:
                shape = graph.shape(name)
                for other in carriers(node):
                    if other not in reached and self._stream_in(other, asked, shape, 2) is not None:
                        return node, other, reached
            for made in node.output:
                if made:
                    reached.add(made)
                    for reader in graph.consumers(made):
                        heapq.heappush(heap, (graph.position(reader), next(o for o in reader.output if o)))
        raise LostError("what it gives is never added to what its query was made of")

    def _stream_in(
        self, value: str, asked: set[str], shape: tuple[int | None, ...] | None, depth: int
    ) -> tuple[str, list[tuple[str, int]], bool] | None:
        """The stream in a sum, the other terms with their signs, and whether no constant changes the stream."""
        graph = self.graph
        own = graph.shape(value)
        if own is None or shape is None or len(own) != len(shape) or own[-1] != shape[-1]:
            return None
        if not asked.isdisjoint((value, unchanged(graph, value))) and (depends(graph, value) or own == shape):
            return value, [], True
        node = graph.producer(unchanged(graph, value))
        if depth == 0 or node is None:
            return None
        if (source := carried(graph, node)) is not None:
            found = self._stream_in(source, asked, shape, depth - 1)
            return None if found is None else (*found[:2], found[2] and node.op_type not in SHIFTS)
        for name in carriers(node) if node.op_type in SUMS else ():
            if (inner := self._stream_in(name, asked, shape, depth - 1)) is not None:
                rest = [(n, sign_in(node, n)) for n in node.input if n != name and depends(graph, n)]
                return inner[0], [*inner[1], *rest], inner[2]
        return None

    def _way(
        self, value: str, out: str, reached: set[str], sign: int
    ) -> tuple[str, tuple[str, int], list[tuple[str, int]], list[tuple[NodeProto, str, str]], bool, str]:
        """From W_O's product to the stream.

        Args:
            value: What the sum that joins the stream adds.
            out: W_O's product.
            reached: What is downstream of it.
            sign: -1 if that sum subtracts it.

        Returns:
            The sublayer's output; the same as it is added, with its sign; what else is added, with signs; the steps;
            whether nothing changes the sum of these; and the output before any gate.
        """
        graph = self.graph
        steps: list[tuple[NodeProto, str, str]] = []
        beside: list[tuple[str, int]] = []
        end = added = value
        gated: str | None = None
        own = sign
        plain = True
        for _ in range(STEPS):
            if value == out:
                # The tensor before the first step that changes it; views and its bias belong to it.
                return gated or end, (added, own), beside, steps[::-1], plain, end
            node = graph.producer(value)
            assert node is not None
            source = normed(graph, value)
            if source is not None and source in reached:
                steps.append((node, source, value))
                end = value = source
                continue
            carried = sorted((n for n in node.input if n in reached), key=lambda name: -position(graph, name))
            if not carried:
                break
            others = [n for n in node.input if n and n not in reached and depends(graph, n)]
            steps.append((node, carried[0], value))
            if node.op_type in SUMS and others:
                plain = plain and end == added
                beside += [(name, own * sign_in(node, name)) for name in others]
                own *= sign_in(node, carried[0])
                end = added = carried[0]
                gated = None
            elif node.op_type not in (*VIEWS, *CLAMPS, *ADDS):
                gated = (gated or end) if others and graph.shape(value) == graph.shape(carried[0]) else gated
                end = carried[0]
            value = carried[0]
        raise LostError("the way from its output projection to the stream cannot be followed")


def carried(graph: Graph, node: NodeProto) -> str | None:
    """The input that a node passes on: rearranged, clamped, or shifted or scaled by what no input decides."""
    if node.op_type in VIEWS:
        return str(node.input[0])
    live = [name for name in node.input if name and depends(graph, name)]
    if len(live) != 1 or node.op_type not in CLAMPS | SHIFTS or graph.shape(live[0]) != graph.shape(node.output[0]):
        return None
    return live[0] if live[0] in carriers(node) else None


def carriers(node: NodeProto) -> list[str]:
    """The inputs of a sum, product or quotient that can be the stream: not what is subtracted or divided by."""
    return list(node.input[:1] if node.op_type in ("Sub", "Div") else node.input)


def sign_in(node: NodeProto, name: str) -> int:
    """-1 if a sum subtracts this input."""
    return -1 if node.op_type == "Sub" and name == node.input[1] else 1


def position(graph: Graph, value: str) -> int:
    """The position of the node that makes a value; -1 for inputs and constants."""
    node = graph.producer(value)
    return -1 if node is None else graph.position(node)


def moved(graph: Graph, node: NodeProto, axes: Axes | None, source: str) -> Axes | None:
    """The axes after a step; a norm counts as one step and leaves them unchanged."""
    if axes is None:
        return None
    if normed(graph, node.output[0]) == source:
        return axes
    return forward(graph, node, axes, source)


def layout_of(axes: Axes | None, names: Sequence[tuple[str, Atom]]) -> str | None:
    """Axes in words: "b q d", "(b q) d"; None if batch and queries are not separate from the features."""
    if axes is None:
        return None
    known = {leaf: (letter, leaf.size) for letter, atom in names for leaf in atom.leaves()}
    words: list[str] = []
    for axis in axes:
        letters: list[str] = []
        for leaf in leaves(axis):
            letter = known.get(leaf, ("d", leaf.size))[0]
            if not letters or letters[-1] != letter:
                letters.append(letter)
        words.append("1" if not letters else letters[0] if len(letters) == 1 else f"({' '.join(letters)})")
    flat = " ".join(words)
    return flat if flat.count("d") == 1 and flat.count("q") <= 1 and flat.count("b") <= 1 else None
