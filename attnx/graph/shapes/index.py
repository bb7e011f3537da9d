"""A flat graph and what is known of its values: shapes, numbers, and which of them depend on the inputs' data."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from functools import cached_property

import numpy as np

from attnx.graph.fact import Fact
from attnx.graph.load.flat import FlatGraph
from attnx.graph.shapes.infer import Before, infer, probe
from attnx.graph.shapes.symbols import PROBE
from attnx.records import Array


class Graph(FlatGraph):
    """A flat graph with the shapes, types and small numbers of its values, worked out on first use."""

    _before: tuple[Graph, frozenset[str]] | None = None

    def follows(self, before: Graph, fresh: frozenset[str]) -> None:
        """Name the graph that this one was made from, so that what is already known of it is not worked out again.

        Args:
            before: The earlier graph, with the same inputs.
            fresh: The values that are computed differently in this graph, or did not exist in the earlier one.
        """
        self._before = before, fresh

    @cached_property
    def _probed(self) -> tuple[dict[str, int], dict[str, Fact]]:
        before, fresh = self._before or (None, frozenset[str]())
        self._before = None
        if before is None or "_probed" not in vars(before):
            return probe(self)
        return probe(self, Before(*before._probed), fresh)

    @property
    def sizes(self) -> dict[str, int]:
        """The probe size of each named input dimension."""
        return self._probed[0]

    @property
    def facts(self) -> dict[str, Fact]:
        """Shape, type and (where small) numbers of every value, for probe sizes of the symbolic dimensions."""
        return self._probed[1]

    def shape(self, value: str) -> tuple[int | None, ...] | None:
        """The shape of a value with probe sizes for symbolic dimensions; None where even the rank is unknown."""
        fact = self.facts.get(value)
        return fact.shape if fact is not None else None

    def known(self, value: str) -> Array | None:
        """The numbers of a value that do not depend on input data: constants, and what follows from shapes."""
        fact = self.facts.get(value)
        return fact.value if fact is not None else None

    @cached_property
    def _other_facts(self) -> dict[str, Fact]:
        moved = {name: size if size < PROBE else size + 4 * size for name, size in self.sizes.items()}
        return infer(self, moved)

    def stable(self, value: str) -> Array | None:
        """The numbers of a value that are the same for all input sizes; None where they vary or are unknown.

        A factor such as log n is known once n is, and would otherwise be mistaken for a constant.
        """
        if self.is_constant(value):
            return self.constant(value)
        known = self.known(value)
        if known is None:
            return None
        other = self._other_facts.get(value)
        same = other is not None and other.value is not None and np.array_equal(other.value, known)
        return known if same else None

    def varies(self, value: str, axis: int) -> bool:
        """Whether a size depends on the inputs' sizes, even through a division that leaves no multiple of them."""
        one, two = (facts.get(value) for facts in (self.facts, self._other_facts))
        shapes = [fact.shape for fact in (one, two) if fact is not None and fact.shape is not None]
        return len(shapes) == 2 and len(shapes[0]) == len(shapes[1]) and shapes[0][axis] != shapes[1][axis]

    @cached_property
    def dynamic(self) -> set[str]:
        """Values that depend on the data of graph inputs (not only on their shapes)."""
        return self.behind(self.inputs)

    def by_shape(self) -> Graph:
        """The same graph, in which values that depend only on the inputs' shapes count as data too.

        The first decoder layer of DETR attends among learned queries: nothing there depends on the image but its batch.
        """
        other = copy(self)
        other.__dict__["dynamic"] = self.behind(self.inputs, through_shapes=True)
        return other

    def by_products(self) -> Graph:
        """The same graph, in which the result of every projection counts as data, even a projection of constants."""
        other = copy(self)
        seeds = {o for n in self.nodes if n.op_type in ("MatMul", "Gemm", "Conv") for o in n.output}
        other.__dict__["dynamic"] = self.behind(seeds.union(self.inputs), through_shapes=True)
        return other

    def behind(self, values: Collection[str], through_shapes: bool = False) -> set[str]:
        """These values and all that is made from their numbers, and with `through_shapes` from their sizes."""
        found = set(values)
        for node, outline in self.outlined:
            if found.isdisjoint(outline.reads):
                continue
            if through_shapes or outline.op_type not in ("Shape", "Size") or node.domain:
                found.update(o for o in outline.outputs if o)
        return found
