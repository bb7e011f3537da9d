"""Attention whose scores are rearranged before their softmax (Longformer, LED): bands cut out of blocks.

A row of such a softmax runs over the offsets of a window and over the keys that all queries see, not over the keys in
order. When the site is examined, nodes added next to the softmax bring every cell to its own query and key: the model's
own steps carry the places of query and key to the cells, whatever the text's length, its padding and global tokens.

Source: Beltagy et al. 2020, Longformer, section 3.1 and appendix A (the band in chunks).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from attnx.graph.axes.moved import origin, origins
from attnx.graph.axes.paths import depends, ways_back
from attnx.graph.axes.softmax_forms import find_softmax
from attnx.graph.shapes.symbols import PROBE
from attnx.layout import parse
from attnx.records import Miss, Place
from attnx.sites.emit import OLDEST, emitted, opset_of, prefix_of
from attnx.sites.finding import Finding, Replacement
from attnx.sites.spelled.softmax import may_be_moved
from attnx.sites.strided.cell_map import Places
from attnx.sites.strided.cell_tracing import carriers, chosen
from attnx.sites.strided.cells import Cells
from attnx.sites.strided.padding import left_out
from attnx.sites.strided.row_proof import Proof
from attnx.sites.strided.sources import Source, Weighed
from attnx.sites.strided.weighing import Scaling, described, guarded, scaling, side_by_side, weighed

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_OFFSETS = "the softmax runs over offsets of a window, not over keys: each cell is brought to its query and key"
_BLOCKS = "the softmax runs over the keys of several blocks: each cell is brought to its query and key"
_ROWS = (
    "rows of the tokens with global attention alone, which see every key through projections of their own; the rows of "
    "all others are hidden here"
)
_SHARED = (
    "the softmax runs over the keys of a block and, beside them, keys that all queries see: each cell is brought to "
    "its query and key"
)
_MIXED = (
    "its rows mix scores of different heads or texts: they are cut out of memory by steps (as_strided) that were "
    "written for another layout, so the file can hardly compute what its checkpoint does"
)
_REPLACED = "rows of tokens with global attention are made here too, and then written over: see the site behind"


def recogniser(graph: Graph) -> Callable[[NodeProto, Finding | Miss | None], Finding | Miss | None]:
    """See `attnx.sites.registry.Look`: looks again where the axes of rearranged scores could not be followed."""
    places = Places(graph)

    def look(node: NodeProto, found: Finding | Miss | None) -> Finding | Miss | None:
        blocks = _of_neighbours(graph, found)
        moved = recognise(graph, node, places, blocks) if blocks or may_be_moved(found) else None
        if moved is None:
            return found
        if isinstance(moved, Miss):
            # One query whose cached and new keys are concatenated is not a band, whatever its rows look like.
            return moved if not isinstance(found, Finding) or (found.pieces > 1 and not found.causal) else found
        own = graph.producer(moved.replacement.at) if moved.replacement is not None else None
        return found if own is None or emitted(own) else moved  # nodes that replace a fused node are not replaced again

    return look


def _of_neighbours(graph: Graph, found: Finding | Miss | None) -> bool:
    """Whether rows lie in blocks, and the keys of a block are collected from several blocks (LongT5)."""
    key = found.places.get("key") if isinstance(found, Finding) else None
    weights = found.places.get("weights") if isinstance(found, Finding) else None
    if key is None or weights is None or len(parse(weights.layout)) < 5:
        return False
    ends = set(origins(graph, key.value))
    return any(node.op_type == "Concat" for node in carriers(graph, key.value, ends))


def recognise(graph: Graph, node: NodeProto, places: Places, blocks: bool = False) -> Finding | Miss | None:
    """The attention around a softmax over rearranged scores, or why there is none; None where nothing can be proved.

    Args:
        graph: The flat graph, fused nodes replaced.
        node: The softmax.
        places: Proves where the graph's cells belong.
        blocks: Whether its keys are those of whole blocks, which only the text's padding may hide.
    """
    found = find_softmax(graph, node)
    shape = None if found is None else graph.shape(found.logits)
    if found is None or not shape or not isinstance(found.axis, int) or opset_of(graph) < OLDEST:
        return None
    if found.axis % len(shape) != len(shape) - 1 or found.sink or found.masked or found.base is not None:
        return None
    weights = guarded(graph, found.out)
    use = weighed(graph, weights)
    mixed = False
    tried: set[tuple[str, str]] = set()
    ways = ways_back(graph, found.logits)
    back = [w for w in ways if depends(graph, w.product.left) and depends(graph, w.product.right)]
    for way in back:
        product = way.product
        one, two = origin(graph, product.left), origin(graph, product.right)
        sizes = [leaf.size for atom in product.contracted for leaf in atom.leaves()]
        if one is None or two is None or one == two or None in sizes:
            continue
        for query, key in ((one, two), (two, one)):
            if (query, key) in tried:
                continue
            tried.add((query, key))
            products = tuple(w.product.out for w in back)
            source = Source(query, key, prod(s or 1 for s in sizes), products, chosen(graph, query, key))
            proof = places.prove([found.logits], source, use)
            if isinstance(proof, Proof):
                scaled = scaling(graph, way, source)
                return _finding(graph, node, found.logits, weights, scaled, source, use, proof, blocks)
            if proof is not None:
                mixed = True
                tried.add((key, query))  # the same cells would get the same two places
    made = _with_shared_keys(graph, node, found.logits, weights, places)
    return made or (Miss(node.name, node.op_type, _MIXED) if mixed else None)


def _with_shared_keys(graph: Graph, node: NodeProto, logits: str, weights: str, places: Places) -> Finding | None:
    """One query's rows with keys from several tensors: the keys of its block, and those that all queries see."""
    prefix = prefix_of(graph, node)
    wide = graph.by_products()  # shared keys may be learned: projected, though from no input
    sides = [
        (way, origins(wide, way.product.left), origins(wide, way.product.right))
        for way in ways_back(wide, logits)
        if depends(wide, way.product.left) and depends(wide, way.product.right)
    ]
    ways = [way for way, _, _ in sides]
    sizes = {tuple(leaf.size for atom in way.product.contracted for leaf in atom.leaves()) for way in ways}
    size = sizes.pop() if len(sizes) == 1 else (None,)
    if None in size:
        return None
    for query in dict.fromkeys(ends[0] for _, *both in sides for ends in both if len(ends) == 1):
        keys = [two if one == (query,) else one for _, one, two in sides if (query,) in (one, two)]
        parts = tuple(key for key in dict.fromkeys(name for ends in keys for name in ends) if key != query)
        beside = side_by_side(graph, parts) if len(keys) == len(sides) and len(parts) > 1 else None
        if beside is None:
            continue
        products, count = tuple(way.product.out for way in ways), prod(s or 1 for s in size)
        source = Source(query, f"{prefix}/key", count, products, beside=beside)
        pairs = [(way, key) for way, ends in zip(ways, keys, strict=True) for key in ends]
        own = {scaling(graph, way, Source(query, key, count, products)) for way, key in pairs}
        use = weighed(wide, weights, f"{prefix}/value")
        proof = places.prove([logits], source, use) if len(own) == 1 else None
        if isinstance(proof, Proof):
            return _finding(graph, node, logits, weights, own.pop(), source, use, proof)
    return None


def _finding(
    graph: Graph,
    node: NodeProto,
    logits: str,
    weights: str,
    scaled: Scaling,
    source: Source,
    use: Weighed | None,
    proof: Proof,
    blocks: bool = False,
) -> Finding | None:
    cells = Cells(graph, prefix_of(graph, node), source, proof)
    made = cells.arrays([logits], [weights], seen=proof.twice or not blocks)
    if made is None:
        return None
    if proof.value is not None and use is not None and use.beside is not None:
        cells.emit.concat(use.beside.parts, use.beside.axis, out=use.value)
    finding = described(node, source, use, proof, scaled)
    for quantity, value in zip(("masked", "weights"), made, strict=True):
        finding.places[quantity] = Place(value, "b h q k")
    finding.keys_before = _before(graph, source, proof)
    padding = left_out(graph, cells, source, use, proof, finding.places)
    last = graph.producer(weights) or node
    if proof.context is not None and use is not None and (padding or use.beside is not None):
        last = graph.producer(use.contexts[proof.at]) or last  # values and contexts are read too
    finding.replacement = Replacement([last, *cells.emit.nodes], cells.emit.initializers, at=last.output[0])
    finding.carries = weights
    finding.notes.insert(0, _said(source, proof, blocks))
    finding.notes += [padding] if padding else []
    if proof.context is not None and use is not None and _replaced(graph, use.contexts[proof.at]):
        finding.notes.append(_REPLACED)
    if proof.tokens is not None:
        finding.absent = (*finding.absent, "query", "scores", "scaled", "capped")
    return finding


def _said(source: Source, proof: Proof, blocks: bool) -> str:
    if source.beside is not None:
        return _SHARED
    return _ROWS if proof.tokens is not None else _BLOCKS if blocks else _OFFSETS


def _before(graph: Graph, source: Source, proof: Proof) -> int:
    """How many keys come before the text's own, where the text's come last and the number of the others is fixed."""
    if source.beside is None:
        return 0
    *others, text = [(graph.shape(part) or ())[source.beside.axis] for part in source.keys]
    known = [size for size in others if size is not None and size < PROBE]
    asking = (graph.shape(source.query) or ())[proof.query.length]
    return sum(known) if text == asking and len(known) == len(others) else 0


def _replaced(graph: Graph, context: str) -> bool:
    """Whether rows of a context are overwritten."""
    writes = ("ScatterND", "ScatterElements")
    return any(n.op_type in writes and n.input[0] == context for n in graph.consumers(context))
