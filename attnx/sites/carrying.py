"""Where a text's tokens stand in every value of a graph: numbers that stand for tokens, carried through its operators.

Each value has an array of its own rank that says, cell by cell, which token the cell stands for. An axis along which
nothing changes has size 1. Operators that move cells move these numbers as well; those that mix tokens (attention,
convolutions, recurrent cells) leave each at its position. See `orders` for what this is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.graph.fact import UNKNOWN, Fact, ints
from attnx.graph.shapes.evaluate import evaluate
from attnx.records import Array

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

NOTHING, SOME = 0, -1
"""A cell of no token (a learned vector, padding); a cell of a token that only a run tells (sorted, or picked by it)."""
SPAN = 1 << 20
"""Token i of text t has the number 1 + t * SPAN + i."""
_FEW = 8
"""Up to this many parts that differ are one token's features; more are tokens, which are being mixed."""


Outputs = Sequence[Array | None]
"""The tokens of each output of a node; None, or a missing one, where its cells stand for none."""
Rule = Callable[["Carrier", "NodeProto", dict[str, Any]], Outputs]
"""From what is known, a node and its attributes."""
MOST = 1 << 26
"""The most cells of a value that is looked into: what a file says of its sizes may be anything."""


class Carrier:
    """The numbers of the values known so far.

    Attributes:
        graph: The graph.
        facts: Shapes and small numbers of its values, at the sizes of the texts.
        held: Value -> its tokens' numbers; one that stands for no token is absent.
        by_mask: Whether tokens were moved to places that a mask or positions decide.
    """

    def __init__(self, graph: Graph, facts: Mapping[str, Fact], texts: Sequence[str]) -> None:
        """Number the positions of texts.

        Args:
            graph: See above.
            facts: See above.
            texts: Inputs whose second axis is a text.
        """
        self.graph, self.facts = graph, facts
        self.held: dict[str, Array] = {}
        self.by_mask = False
        self._lengths: dict[int, int] = {}
        self._texts = texts
        for text, name in enumerate(texts):
            shape = self.shape(name)
            if shape is not None and 1 < shape[1] < SPAN:
                self._lengths[text] = shape[1]
                wide = [shape[1] if axis == 1 else 1 for axis in range(len(shape))]
                self.held[name] = (1 + text * SPAN + np.arange(shape[1])).reshape(wide)

    @cached_property
    def of_text(self) -> set[str]:
        """Values that a text's numbers decide."""
        return self.graph.behind(self._texts)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The whole shape of a value; None where part of it is unknown, or it has no cells or more than `MOST`."""
        shape = self.facts.get(name, UNKNOWN).shape
        if shape is None or None in shape or 0 in shape:
            return None
        whole = tuple(int(d) for d in shape if d is not None)
        return whole if prod(whole) <= MOST else None

    def rank(self, name: str) -> int | None:
        """The number of axes of a value."""
        shape = self.facts.get(name, UNKNOWN).shape
        return None if shape is None else len(shape)

    def known(self, name: str) -> list[int] | None:
        """The whole numbers of a value that no input's numbers decide."""
        return ints(self.facts.get(name))

    @property
    def lengths(self) -> set[int]:
        """How many tokens the texts have."""
        return set(self._lengths.values())

    def length(self, number: int) -> int:
        """How many tokens the text has that a token's number belongs to."""
        return self._lengths[(number - 1) // SPAN]

    def at_home(self, array: Array) -> bool:
        """Whether every token of a text stands at its own position along one axis."""
        n = max(array.shape, default=1)
        if n < 2 or array.size != n:
            return False
        first = int(array.flat[0])
        whole = first > 0 and (first - 1) % SPAN == 0 and self.length(first) == n
        return whole and bool((np.diff(array.ravel()) == 1).all())

    def joined(self, one: Array, two: Array) -> Array | None:
        """The tokens of a value that is computed from two, cell by cell; None where tokens are mixed.

        Of two texts the first decides. Of one text, what is in its place decides.

        Args:
            one: The tokens of the first.
            two: Those of the second.
        """
        rank = max(one.ndim, two.ndim)
        one, two = (array.reshape((1,) * (rank - array.ndim) + array.shape) for array in (one, two))
        texts = [(int(array.max()) - 1) // SPAN for array in (one, two)]
        if texts[0] != texts[1] and min(texts) >= 0:
            return one if texts[0] < texts[1] else two
        if not _differ(one, two):
            return known_first(one, two)
        for decides in (self.at_home, _in_place):
            if (found := next((array for array in (one, two) if decides(array)), None)) is not None:
                return found
        return None

    def summed(self, array: Array, axis: int) -> Array | None:
        """The tokens of sums over an axis, which keeps size 1; None where these are over tokens."""
        parts = np.moveaxis(array, axis, 0)
        if len(parts) == 1:
            return array
        new = [0, *(i for i in range(1, len(parts)) if not np.array_equal(parts[i], parts[i - 1]))]
        if len(new) > _FEW:
            return None
        made: Array | None = parts[0]
        for i in new[1:]:
            made = None if made is None else self.joined(made, parts[i])
        return None if made is None else np.expand_dims(made, axis % array.ndim)

    def moved(self, node: NodeProto, values: Sequence[Array | None]) -> list[Array] | None:
        """What a node that only moves cells makes of tokens; None where it cannot be worked out.

        Args:
            node: The node.
            values: The tokens, and the numbers that say how they are moved.
        """
        if any(v is None and name for v, name in zip(values[1:], node.input[1:], strict=False)):
            return None
        self.by_mask |= not self.graph.dynamic.isdisjoint(node.input[1:2])
        try:
            return [narrowed(made) for made in evaluate(node, values, self.graph.opset)]
        except Exception:
            return None  # an operator, a form of it or a size that numpy and the reference refuse

    def unsure(self, array: Array, rank: int, in_order: bool = False) -> Array | None:
        """The tokens of cells picked by numbers that only a run tells.

        Args:
            array: The tokens of the cells that are picked from.
            rank: The number of axes of the result.
            in_order: Whether those picked keep their order: as many as there were are then all of them.
        """
        return None if in_order and self.at_home(array) else np.full((1,) * rank, SOME)


def _differ(one: Array, two: Array) -> bool:
    return bool(((one > 0) & (two > 0) & (one != two)).any())


def known_first(one: Array, two: Array) -> Array:
    """For each cell the token that one of two names; `SOME` where they name two."""
    a, b = np.broadcast_arrays(one, two)
    made = np.where(a > 0, a, np.where(b > 0, b, np.minimum(a, b)))
    return np.where((a > 0) & (b > 0) & (a != b), SOME, made)


def _in_place(array: Array) -> bool:
    """Whether tokens stand at their own positions along one axis; others may be of none, as in a padded text."""
    flat = array.ravel()
    at = np.flatnonzero(flat > 0)
    return array.size == max(array.shape, default=1) and at.size > 1 and bool(((flat[at] - 1) % SPAN == at).all())


def narrowed(array: Array) -> Array:
    """The same, with size 1 for each axis along which nothing changes."""
    for axis in range(array.ndim):
        if array.shape[axis] > 1:
            first = array.take([0], axis)
            array = first if bool((array == first).all()) else array
    return array


def widened(array: Array, sizes: Mapping[int, int]) -> Array:
    """The same, with the whole size of some axes."""
    return np.broadcast_to(array, [sizes.get(i, n) for i, n in enumerate(array.shape)])


def reshaped(array: Array, before: Sequence[int], after: Sequence[int]) -> Array | None:
    """The tokens of a tensor after a reshape; only axes that tokens stand along are written out.

    Args:
        array: Its tokens.
        before: Its shape.
        after: Its new shape.
    """
    wide, out = [1] * len(before), [1] * len(after)
    i = j = 0
    while i < len(before) or j < len(after):
        if i < len(before) and before[i] == 1:
            i += 1
        elif j < len(after) and after[j] == 1:
            j += 1
        elif i == len(before) or j == len(after):
            return None
        else:
            here, there = (i, j)
            p, q, i, j = before[i], after[j], i + 1, j + 1
            while p != q:
                if p < q and i < len(before):
                    p, i = p * before[i], i + 1
                elif q < p and j < len(after):
                    q, j = q * after[j], j + 1
                else:
                    return None
            if any(n > 1 for n in array.shape[here:i]):
                wide[here:i], out[there:j] = before[here:i], after[there:j]
    return narrowed(np.broadcast_to(array, wide).reshape(out))


def in_order(graph: Graph, name: str) -> bool:
    """Whether places are those of what is not zero, which come in order."""
    for _ in range(8):
        node = graph.producer(name)
        if node is None or node.op_type == "NonZero":
            return node is not None
        if node.op_type not in (
            "Transpose",
            "Squeeze",
            "Unsqueeze",
            "Reshape",
            "Cast",
            "Gather",
            "Slice",
            "Concat",
            "Split",
        ):
            return False
        name = node.input[0]
    return False
