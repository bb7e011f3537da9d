"""The sizes of inputs at which a graph with blocks of a fixed size may run, likely ones first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attnx.graph.axes.paths import makers, upstream
from attnx.graph.masks.mask_probe import small_sizes
from attnx.graph.shapes.symbols import PROBE

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph

_TRIES = 16
_SHORT = 256
"""Up to this many tokens, two texts are tried first, which show more than one."""


def trial_sizes(graph: Graph, products: Sequence[str]) -> Iterator[tuple[dict[str, int], bool]]:
    """Input sizes to try: two texts, or one, of each length; long texts alone first.

    Yields:
        The sizes, and whether the graph itself says that it runs at them.
    """
    tried: list[dict[str, int]] = []
    lengths = _lengths(graph, products)
    # A graph that was unrolled runs at one length only, the end of its last block: tried before all others.
    ends = _ends(graph, products)
    for length in dict.fromkeys([*ends, *lengths[:1], *_largest(graph, lengths, products), *lengths]):
        named = small_sizes(graph, length)
        for batch in (2, 1) if length <= _SHORT else (1, 2):
            sizes = {n: batch if k == 1 and graph.sizes.get(n, 0) > PROBE else k for n, k in named.items()}
            if sizes not in tried:
                tried.append(sizes)
                yield sizes, length in ends and len(tried) == 1


def _lengths(graph: Graph, products: Sequence[str]) -> list[int]:
    """Lengths at which a graph with hard-coded block sizes may run, short ones first."""
    free = [size for size in graph.sizes.values() if size > PROBE]
    sizes = {d for p in products for d in (graph.shape(p) or ()) if d is not None and 1 < d <= 2 * PROBE}
    fixed = [d for d in sizes if all(d % size for size in free)]
    found = {(n + 1) * d // 2 for n in fixed for d in fixed if n != d and d % 2 == 0}
    found |= {times * d for times in (1, 2, 4) for d in fixed}
    return sorted(n for n in found | {32} if 8 <= n <= 4 * PROBE)[:_TRIES]


def _ends(graph: Graph, products: Sequence[str]) -> list[int]:
    """The end of the last block that the graph cuts out of a text at a place of its own, upstream of products."""
    free = set(graph.sizes.values())
    found: set[int] = set()
    for node in makers(graph, products):
        if node.op_type != "Slice" or len(node.input) < 4:
            continue
        starts, ends, axes = (graph.constant(n) if graph.is_constant(n) else None for n in node.input[1:4])
        shape = graph.shape(node.input[0])
        if shape is None or starts is None or ends is None or axes is None:
            continue
        for start, end, axis in zip(*(a.ravel().tolist() for a in (starts, ends, axes)), strict=False):
            if 0 < start < end and 8 <= end <= 4 * PROBE and shape[axis] in free:
                found.add(end)
    return [max(found)] if found else []


def _largest(graph: Graph, lengths: Sequence[int], products: Sequence[str]) -> list[int]:
    """The largest of these lengths that the graph holds as a number, upstream of products."""
    held: set[int] = set()
    for name in upstream(graph, products):
        value = graph.constant(name) if graph.is_constant(name) else None
        if value is not None and value.dtype.kind == "i":
            held.update(value.ravel().tolist())
    return [max(held.intersection(lengths))] if held.intersection(lengths) else []
