"""Nodes that bring each cell of rearranged scores to its own query and key: [B,H,Q,K], for any text length.

Copies of the model's own steps carry the places of query and key to the cells in each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.operands import Operand
from attnx.graph.shapes.symbols import PROBE
from attnx.records import HIDES, Array
from attnx.sites.emit import DOUBLE, FLOAT, INT64, Emit
from attnx.sites.strided.cell_tracing import carriers, copied
from attnx.sites.strided.row_proof import Proof
from attnx.sites.strided.sources import Source

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph

_ADDS = 16
"""The first opset whose ScatterElements can add."""
_MOST_ALIKE = 1 << 16
"""The most cells that a row may have for one key, where its number of cells is unknown."""
_EXACT = float(1 << 24)
"""Whole numbers below this are exact in float32."""


class Cells:
    """Nodes that bring each cell to its place in [B,H,Q,K].

    Args:
        graph: The graph.
        prefix: Prefix of the names of the nodes.
        source: What the scores are made from.
        proof: What was found about their places.
    """

    def __init__(self, graph: Graph, prefix: str, source: Source, proof: Proof) -> None:
        self.graph, self.source, self.proof = graph, source, proof
        self.emit = e = Emit(graph, prefix)
        if source.beside is not None:
            e.concat(source.beside.parts, source.beside.axis, out=source.key)
        self.batch = e.dim(source.query, proof.query.batch)
        self.keys = e.dim(source.key, proof.key.length)
        self.asking = e.dim(source.query, proof.query.length)
        self.queries = self.asking if proof.tokens is None else self.keys
        self.heads = e.ints(proof.heads)

    def arrays(self, logits: Sequence[str], weights: Sequence[str], seen: bool) -> tuple[str, str] | None:
        """Names of masked scores and weights, from softmaxes in which each cell occurs once.

        Args:
            logits: The softmaxes' inputs.
            weights: Their outputs.
            seen: Whether that holds only for the cells that are not hidden: the hidden ones are left out.
        """
        at = self._places(logits, seen)
        if at is None:
            return None
        masked = self._moved(self._real(logits), at, self.emit.number(float("-inf")), "masked")
        return masked, self._moved(self._real(weights), at, self.emit.number(0.0), "weights")

    def summed(self, logits: Sequence[str], weights: Sequence[str]) -> tuple[str, str] | None:
        """Names of masked scores and weights, where a cell may occur several times in the softmaxes.

        The weights of a cell add up, and so do the exponentials of its masked scores, whose logarithm is then taken: if
        the cell occurs once, that is its score.
        """
        e = self.emit
        at = self._places(logits, seen=False)
        if at is None:
            return None
        wide = [e.cast(name, DOUBLE) for name in logits]  # so that exponentials far below the largest do not vanish
        largest = [e.reduce("ReduceMax", name, -1) for name in wide]
        powers = [e.op("Exp", e.op("Sub", *pair)) for pair in zip(wide, largest, strict=True)]
        tops = [e.op("Expand", top, e.op("Shape", name)) for name, top in zip(wide, largest, strict=True)]
        alike = self._most_alike(logits)
        total = self._added(powers, at, e.const(0.0, np.float64), alike)
        row = self._moved(tops, at, e.const(0.0, np.float64))  # the same in all cells of a row: it has one query
        masked = e.cast(e.op("Add", e.op("Log", total), row), e.work, out=e.name("masked"))
        return masked, self._added(self._real(weights), at, e.number(0.0), alike, "weights")

    def _places(self, logits: Sequence[str], seen: bool) -> str | None:
        """Where in [B,H,Q,K] each cell of the softmaxes belongs, int64 [cells], or one past the end."""
        places = [self._places_of(name, seen, f"{i}/" if i else "") for i, name in enumerate(logits)]
        known = [place for place in places if place is not None]
        return self.emit.concat(known, 0) if len(known) == len(places) else None

    def _places_of(self, logits: str, seen: bool, label: str) -> str | None:
        """Where in [B,H,Q,K] each cell belongs, int64 [cells]; one past the end where it belongs nowhere.

        Args:
            logits: The softmax's input.
            seen: Whether hidden cells belong nowhere.
            label: Distinguishes the nodes of one softmax from those of another.
        """
        e, graph, source = self.emit, self.graph, self.source
        nodes = carriers(graph, logits, {source.query, *source.keys})
        found = []
        for side, name, operand in (("query", source.query, self.proof.query), ("key", source.key, self.proof.key)):
            other = source.key if side == "query" else source.query
            ones = e.op("Expand", e.number(1.0), e.op("Shape", other))
            counted = self.counted(name, operand, self.asking if side == "query" else self.keys, side == "query")
            if not counted:
                return None
            given = (
                {source.query: counted, **self._cut(ones)}
                if side == "query"
                else {source.query: ones, **self._cut(counted)}
            )
            made = copied(graph, nodes, logits, given, e.name(f"{label}{side}_of"))
            if made is None:
                return None
            e.nodes += made[0]
            found.append(made[1])
        inside = [e.op("Less", number, e.number(_EXACT)) for number in found]
        inside += [e.op("Greater", number, e.number(0.5)) for number in found]
        zero = e.number(0.0)
        sane = e.all_of(*inside)
        one, two = (e.op("Sub", e.cast(e.op("Where", sane, n, zero), INT64), e.ints(1)) for n in found)
        alike = e.op("Equal", e.op("Div", one, self.queries), e.op("Div", two, self.keys))
        shown = [e.op("Greater", e.real(logits), e.number(HIDES))] if seen else []
        at = e.op("Add", e.op("Mul", one, self.keys), e.op("Mod", two, self.keys))
        kept = e.op("Where", e.all_of(sane, alike, *shown), at, self.cells())
        return e.reshape(kept, -1)

    def _cut(self, whole: str) -> dict[str, str]:
        """What replaces the key, by each of its tensors."""
        e, beside = self.emit, self.source.beside
        if beside is None:
            return {self.source.key: whole}
        found, start = {}, e.ints(0)
        for part in beside.parts:
            end = e.op("Add", start, e.dim(part, beside.axis))
            found[part], start = e.slice(whole, start, end, beside.axis), end
        return found

    def cells(self) -> str:
        """The number of cells of [B,H,Q,K], int64 [1]."""
        e = self.emit
        return e.op("Mul", e.op("Mul", self.batch, self.heads), e.op("Mul", self.queries, self.keys))

    def counted(self, name: str, operand: Operand, length: str, asks: bool) -> str:
        """1, 2, 3 ... in the order of [B,H,length], in the first feature of each place of a query or key.

        Where only some tokens have queries, each is numbered by its place among all tokens; "" where that is unknown.
        """
        e = self.emit
        if asks and self.proof.tokens is not None:
            tokens = self.tokens()
            if not tokens:
                return ""
            row = e.op("Mul", e.arange(e.op("Mul", self.batch, self.heads)), self.keys)
            among = e.op("Add", e.reshape(row, self.batch, self.heads, 1), e.unsqueeze(tokens, 1))
            none = e.op("Expand", e.ints(0), e.op("Shape", among))
            numbers = e.op("Where", e.op("Greater", e.unsqueeze(tokens, 1), e.ints(0)), among, none)
        else:
            numbers = e.op("Add", e.arange(e.op("Mul", e.op("Mul", self.batch, self.heads), length)), e.ints(1))
        order = [operand.batch, operand.heads, operand.length]
        sizes = [self.batch, self.heads, length]
        kept = [i for i, axis in enumerate(order) if axis is not None]
        ordered = e.reshape(e.cast(numbers, FLOAT), *(sizes[i] for i in kept))
        axes = [order[i] for i in kept]
        turned = e.transpose(ordered, *(axes.index(i) for i in range(len(axes))))
        spread = e.op("Mul", e.unsqueeze(turned, len(axes)), e.number(_first(self.source.size)))
        return e.op("Reshape", spread, e.op("Shape", name))

    def tokens(self) -> str:
        """The token of each row's query, counted from 1, or 0 for an empty row: int64 [B,rows]; "" if unknowable."""
        e, graph = self.emit, self.graph
        rows, hidden = self.source.chosen or ("", "")
        shape, at = graph.shape(hidden), self.proof.tokens
        if shape is None or shape[-1] is None or at is None:
            return ""
        numbers = e.cast(e.op("Add", e.arange(self.keys), e.ints(1)), FLOAT)
        spread = e.op("Mul", e.unsqueeze(numbers, *((1, 2) if at == 0 else (0, 2))), e.number(_first(shape[-1])))
        counted = e.op("Expand", spread, e.op("Shape", hidden))
        made = copied(graph, carriers(graph, rows, {hidden}), rows, {hidden: counted}, e.name("chosen"))
        if made is None:
            return ""
        e.nodes += made[0]
        found = e.cast(e.squeeze(e.slice(made[1], 0, 1, 2), 2), INT64)
        return found if self.proof.query.batch == 0 else e.transpose(found, 1, 0)

    def _real(self, names: Sequence[str]) -> list[str]:
        return [self.emit.real(name) for name in names]

    def _moved(self, sources: Sequence[str], at: str, outside: str, label: str = "", **how: str) -> str:
        """Cells moved to their places in [B,H,Q,K]; places without a cell hold `outside`."""
        return self._placed(self._flat(sources), at, outside, label, **how)

    def _added(self, sources: Sequence[str], at: str, outside: str, alike: int, label: str = "") -> str:
        """Cells added up at their places, with at most `alike` cells for one place."""
        if self.emit.opset >= _ADDS:
            return self._moved(sources, at, outside, label, reduction="add")
        return self._placed(*self._runs(self._flat(sources), at, outside, alike), outside, label)

    def _runs(self, flat: str, at: str, nothing: str, alike: int) -> tuple[str, str]:
        """Cells and their places, with those of one place added up: its first cell holds the sum, the others nothing.

        Sorted by place, each cell adds the one 1, 2, 4 ... positions after it if that has the same place.
        """
        e = self.emit
        count = e.op("Shape", at)
        ordered, order = e.fresh("places"), e.fresh("order")
        e.op("TopK", at, count, out=[ordered, order], axis=0, largest=0, sorted=1)
        total = e.op("Gather", flat, order, axis=0)
        step = 1
        while step < alike:
            ends = e.op("Add", count, e.ints(step))
            behind = e.slice(e.concat([ordered, e.const([-1] * step, np.int64)], 0), step, ends, 0)
            more = e.slice(e.concat([total, e.op("Expand", nothing, e.ints(step))], 0), step, ends, 0)
            total = e.op("Add", total, e.op("Where", e.op("Equal", behind, ordered), more, nothing))
            step *= 2
        before = e.slice(e.concat([e.ints(-1), ordered], 0), 0, count, 0)
        return total, e.op("Where", e.op("Equal", before, ordered), self.cells(), ordered)

    def _most_alike(self, logits: Sequence[str]) -> int:
        """The most cells that a row has for one key: as many as the row is wide."""
        widths = [(self.graph.shape(name) or (None,))[-1] for name in logits]
        known = [width for width in widths if width is not None and width < PROBE]
        return max(known) if len(known) == len(widths) else _MOST_ALIKE

    def _flat(self, sources: Sequence[str]) -> str:
        return self.emit.concat([self.emit.reshape(source, -1) for source in sources], 0)

    def _placed(self, flat: str, at: str, outside: str, label: str, **how: str) -> str:
        e = self.emit
        count = self.cells()
        empty = e.op("Expand", outside, e.op("Add", count, e.ints(1)))
        whole = e.op("ScatterElements", empty, at, flat, axis=0, **how)
        shape = (self.batch, self.heads, self.queries, self.keys)
        return e.reshape(e.slice(whole, 0, count, 0), *shape, out=e.name(label) if label else "")


def _first(size: int) -> Array:
    """1 in the first of this many features, 0 in the others."""
    out = np.zeros(size, np.float32)
    out[0] = 1.0
    return out
