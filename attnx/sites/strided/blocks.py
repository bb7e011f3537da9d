"""Attention in blocks of queries, each with its own softmax (BigBird): reassembled into one matrix over tokens.

The softmaxes of a layer run side by side over keys that were gathered for them, and their contexts are joined along
the queries. The model's own steps show which query and key each of their cells belongs to, as for bands. A key that was
gathered twice for a query has two cells; their weights add up, as they do in the context.

Source: Zaheer et al. 2020, BigBird, section 2 and appendix D (blocked sparse attention).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from attnx.graph.axes.moved import origin
from attnx.graph.axes.paths import Way, depends, ways_back
from attnx.graph.axes.softmax_forms import find_softmax
from attnx.records import Place
from attnx.sites.emit import OLDEST, Emit, opset_of, prefix_of
from attnx.sites.finding import Finding, Replacement
from attnx.sites.strided.cell_map import Places
from attnx.sites.strided.cells import Cells
from attnx.sites.strided.row_proof import Proof
from attnx.sites.strided.sources import Source, Weighed
from attnx.sites.strided.weighing import GATHERED, Scaling, described, guarded, scaling, weighed

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_SUMMED = (
    "a key that was gathered more than once for a query has the sum of its weights, and masked is the logarithm of the "
    "sum of its exponentials"
)


@dataclass(frozen=True, slots=True)
class _Block:
    """One softmax over a part of the queries."""

    finding: Finding
    logits: str
    weights: str
    value: str
    at: frozenset[int]
    """The inputs of the Concat that it makes."""
    ways: tuple[Way, ...]


def join(graph: Graph, findings: Sequence[Finding]) -> list[tuple[Finding, list[Finding]]]:
    """The sites that consist of blocks, each with its blocks.

    Args:
        graph: The graph, with every fused node replaced.
        findings: The sites found so far.
    """
    groups: dict[str, list[_Block]] = {}
    for finding in findings:
        for concat, block in _blocks(graph, finding):
            groups.setdefault(concat, []).append(block)
    out: list[tuple[Finding, list[Finding]]] = []
    places = Places(graph)
    for concat, blocks in groups.items():
        node = graph.producer(concat)
        parts = [b.finding for b in blocks]
        if node is None or len(blocks) < 2 or any(part in taken for _, taken in out for part in parts):
            continue
        whole = frozenset().union(*(b.at for b in blocks)) == frozenset(range(len(node.input)))
        if whole and (made := _joined(graph, node, blocks, places)) is not None:
            out.append((made, parts))
    return out


def _blocks(graph: Graph, finding: Finding) -> list[tuple[str, _Block]]:
    """What a softmax may be a block of: for each Concat that its context enters, the block."""
    found = find_softmax(graph, finding.node)
    shape = None if found is None else graph.shape(found.logits)
    if found is None or not shape or not isinstance(found.axis, int) or opset_of(graph) < OLDEST:
        return []
    plain = not (found.sink or found.masked) and found.base is None and found.axis % len(shape) == len(shape) - 1
    weights = guarded(graph, found.out)
    use = weighed(graph, weights) if plain else None
    ways = tuple(w for w in ways_back(graph, found.logits) if all(depends(graph, n) for n in _sides(w)))
    if use is None or not ways:
        return []
    inputs: dict[str, set[int]] = {}
    for context in use.contexts:
        for node in graph.consumers(context):
            if node.op_type == "Concat":
                places = {i for i, name in enumerate(node.input) if name == context}
                inputs.setdefault(node.output[0], set()).update(places)
    return [
        (concat, _Block(finding, found.logits, weights, use.value, frozenset(at), ways))
        for concat, at in inputs.items()
    ]


def _sides(way: Way) -> tuple[str, str]:
    return way.product.left, way.product.right


def _joined(graph: Graph, concat: NodeProto, blocks: Sequence[_Block], places: Places) -> Finding | None:
    """One site for all blocks, if every cell has one query and one key, and every query has a row."""
    if len({b.value for b in blocks}) != 1:
        return None
    made = [_by_origins(graph, b) for b in blocks]  # a mask may be a product too, but of other tensors
    for both in [pair for pair in made[0] if all(pair in of for of in made)]:
        ways = [way for of in made for way in of[both]]
        sizes = {tuple(leaf.size for atom in way.product.contracted for leaf in atom.leaves()) for way in ways}
        size = sizes.pop() if len(sizes) == 1 else (None,)
        for query, key in () if None in size else (both, both[::-1]):
            source = Source(query, key, prod(s or 1 for s in size), tuple(way.product.out for way in ways))
            found = _proved(graph, concat, blocks, source, {scaling(graph, way, source) for way in ways}, places)
            if found is not None:
                return found
    return None


def _by_origins(graph: Graph, block: _Block) -> dict[tuple[str, str], list[Way]]:
    """A block's ways to its products, by the two tensors that the products are made from."""
    out: dict[tuple[str, str], list[Way]] = {}
    for way in block.ways:
        one, two = sorted(origin(graph, side) or "" for side in _sides(way))
        if one and one != two:
            out.setdefault((one, two), []).append(way)
    return out


def _proved(
    graph: Graph, concat: NodeProto, blocks: Sequence[_Block], source: Source, scales: set[Scaling], places: Places
) -> Finding | None:
    logits, weights = [b.logits for b in blocks], tuple(b.weights for b in blocks)
    use = Weighed(weights, blocks[0].value, _contexts(graph, concat))
    proof = places.prove(logits, source, use) if len(scales) == 1 else None
    if not isinstance(proof, Proof) or not proof.whole:
        return None
    cells = Cells(graph, f"{prefix_of(graph, concat)}/blocks", source, proof)
    finding = described(blocks[0].finding.node, source, use, proof, scales.pop())
    finding.notes.insert(0, f"{len(blocks)} softmaxes over blocks of queries are shown as one matrix over tokens")
    if proof.twice:
        finding.notes.append(_SUMMED)
    made = cells.summed(logits, weights) if proof.twice else cells.arrays(logits, weights, seen=False)
    for quantity, value in zip(("masked", "weights"), made or (), strict=False):
        finding.places[quantity] = Place(value, "b h q k")
    return None if made is None else _filed(finding, concat, cells.emit)


def _contexts(graph: Graph, concat: NodeProto) -> tuple[str, ...]:
    """What may be the context: the joined tensor and what it is moved to, the farthest first."""
    found = [concat.output[0]]
    while True:
        readers = [n for n in graph.consumers(found[-1]) if n.op_type in GATHERED and n.input[0] == found[-1]]
        if len(readers) != 1:
            return tuple(reversed(found))
        found.append(readers[0].output[0])


def _filed(finding: Finding, concat: NodeProto, emit: Emit) -> Finding:
    """The finding, with its nodes placed next to the Concat that joins the contexts."""
    finding.key, finding.carries = emit.prefix, concat.output[0]
    finding.replacement = Replacement([concat, *emit.nodes], emit.initializers, at=concat.output[0])
    return finding
