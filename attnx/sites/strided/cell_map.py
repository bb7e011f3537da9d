"""Which query and key each cell of rearranged scores belongs to, found by carrying their places to the cell.

The steps between the product and the softmax are evaluated on short inputs whose numbers encode places (see
cell_tracing.py). It is attention only if every row of the softmax then holds keys for one query, all of the same text
and head; the proof also yields the meaning of the axes of query and key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.operands import matched
from attnx.graph.axes.paths import makers, ways_back
from attnx.graph.fact import Fact
from attnx.graph.masks.mask_probe import keeping
from attnx.graph.shapes.infer import Part, infer
from attnx.records import Array
from attnx.sites.strided.cell_tracing import carriers, copied
from attnx.sites.strided.row_proof import Mixed, Proof, Seen, read
from attnx.sites.strided.signatures import signatures
from attnx.sites.strided.sources import Source, Weighed, cut, known_shape, together
from attnx.sites.strided.subgraph_eval import Run, enact, enact_all
from attnx.sites.strided.trial_sizes import trial_sizes

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_MOST_NODES = 20_000
_QUERY, _KEY = "attnx/query", "attnx/key"


class Places:
    """Proves where the cells of rearranged scores belong, for one graph; sites written alike are proved only once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._proved: dict[tuple[int, ...], Proof | Mixed | None] = {}
        self._known: dict[tuple[tuple[str, int], ...], tuple[dict[str, Fact], dict[str, Fact]]] = {}
        self._reached: dict[tuple[frozenset[str], tuple[str, ...], tuple[tuple[str, int], ...]], bool] = {}
        self._above: dict[tuple[str, ...], list[NodeProto]] = {}

    def prove(self, logits: Sequence[str], source: Source, use: Weighed | None) -> Proof | Mixed | None:
        """Follow places from query and key to the cells of the softmaxes' inputs, whose last axes are normalised.

        Args:
            logits: The input of the softmax, or of each of several that are parts of one attention.
            source: What all their scores are made from.
            use: What the weights are multiplied by.

        Returns:
            `Mixed` where rows combine several heads; None where the graph cannot be evaluated or shows something else.
        """
        signature = signatures(self.graph, logits, (source.query, *source.keys))
        if use is not None:
            signature += signatures(self.graph, use.contexts, (*use.weights, *use.values))
        key = tuple(signature)
        if key not in self._proved:
            self._proved[key] = self._prove(logits, source, use)
        return self._proved[key]

    def _prove(self, logits: Sequence[str], source: Source, use: Weighed | None) -> Proof | Mixed | None:
        made = []
        for name in logits:
            nodes = carriers(self.graph, name, {source.query, *source.keys})
            names = {source.query: _QUERY} | {key: f"{_KEY}/{i}" for i, key in enumerate(source.keys)}
            copy = copied(self.graph, nodes, name, names, _QUERY)
            if copy is None or len(nodes) > _MOST_NODES:
                return None
            made.append((name, *copy))
        products = {way.product.out for name in logits for way in ways_back(self.graph, name)}
        sides = [n for p in sorted(products) if (node := self.graph.producer(p)) is not None for n in node.input if n]
        for sizes, fits in trial_sizes(self.graph, source.products):
            if not fits and not self._reaches(source, sizes, sides):
                continue
            seen = self._run(source, sizes, made, logits)
            if seen is None:
                continue
            proof = read(seen, twice=len(logits) > 1)
            if not isinstance(proof, Proof):
                return proof
            if source.chosen is not None:
                self._facts(sizes, source.chosen)
                if (proof := self._chosen(proof, seen, *source.chosen)) is None:
                    continue
            proof = replace(proof, lengths=_lengths(seen, source, proof))
            if proof.tokens is None and seen.query[proof.query.length] not in proof.lengths:
                return None  # rows of some queries, without anything that shows which
            if use is None:
                return proof
            self._facts(sizes, (*use.values, *use.contexts))
            return self._weighed(proof, seen, use)
        return None

    def _facts(self, sizes: dict[str, int], values: Sequence[str]) -> tuple[dict[str, Fact], dict[str, Fact]]:
        """The inputs at these sizes, and the resulting facts for these values and those requested before.

        No other part of the graph is walked: at most sizes, the first few values show that there will be no result.
        """
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            given = keeping(self.graph, sizes, self.graph.inputs)
            given |= {name: _marked(given[name]) for name in self._marks() if name in given}
            self._known[key] = given, {}
        given, facts = self._known[key]
        new = [node for node in self._makers(tuple(values)) if not any(o in facts for o in node.output)]
        if new or not facts:
            facts.update(infer(self.graph, sizes, given, part=Part(new, facts)))
        return given, facts

    def _makers(self, values: tuple[str, ...]) -> list[NodeProto]:
        """See `makers`."""
        if values not in self._above:
            self._above[values] = makers(self.graph, values)
        return self._above[values]

    def _marks(self) -> list[str]:
        """Inputs that say which tokens attend to all others and are attended to by all."""
        return [name for name in self.graph.inputs if "global" in name.lower()]

    def _reaches(self, source: Source, sizes: dict[str, int], sides: Sequence[str]) -> bool:
        """Whether a run at these sizes gets as far as the products: an unsuitable length fails at the blocks before.

        This takes a fraction of the nodes between the products and the softmax, and of their cells.

        Args:
            source: Query and key.
            sizes: The sizes of the inputs.
            sides: What is multiplied, including the products of masks.
        """
        shapes = self._shapes(source, sizes)
        if shapes is None:
            return False
        key = (frozenset((source.query, *source.keys)), tuple(sides), tuple(sorted(sizes.items())))
        if key not in self._reached:
            _, facts = self._facts(sizes, sides)
            one, two = (0 * _ones(shape) for shape in shapes)
            given = {source.query: one, **cut(facts, source.keys, source.beside, two)}
            wanted = [name for name in dict.fromkeys(sides) if name not in given and not self.graph.is_constant(name)]
            self._reached[key] = enact_all(self.graph, facts, [Run([], name, given) for name in wanted]) is not None
        return self._reached[key]

    def _shapes(self, source: Source, sizes: dict[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The shapes of query and key at these sizes; None where their features are not those of the product."""
        _, facts = self._facts(sizes, (source.query, *source.keys))
        one, two = known_shape(facts.get(source.query)), together(facts, source.keys, source.beside)
        if one is None or two is None or one[-1] % source.size or two[-1] % source.size:
            return None
        return one, two

    def _run(
        self,
        source: Source,
        sizes: dict[str, int],
        made: Sequence[tuple[str, list[NodeProto], str]],
        logits: Sequence[str],
    ) -> Seen | None:
        shapes = self._shapes(source, sizes)
        if shapes is None:
            return None
        given, facts = self._facts(sizes, logits)
        (one, two), size = shapes, source.size
        parts: list[tuple[Array, Array, Array]] = []
        for name, copies, target in made:
            sides = [(_counted(one, size), _ones(two)), (_ones(one), _counted(two, size))]
            places = [f"{_KEY}/{i}" for i in range(len(source.keys))]
            runs = [
                Run(copies, target, {_QUERY: q, **cut(facts, source.keys, source.beside, k, places)}) for q, k in sides
            ]
            runs.append(
                Run([], name, {source.query: 0 * _ones(one), **cut(facts, source.keys, source.beside, 0 * _ones(two))})
            )
            done = enact_all(self.graph, facts, runs)
            if done is None or len({array.shape for array in done}) > 1:
                return None
            asked, found, masked = done
            parts.append((asked, found, masked))
        batch = next((f.shape[0] for f in given.values() if f.shape), None)
        split = (one[-1] != size, two[-1] != size)
        asked, found, masked = (
            _stacked([part[i] for part in parts], fill) for i, fill in enumerate((0.0, 0.0, -np.inf))
        )
        apart = tuple(part[0].shape for part in parts)
        return Seen(_view(one, size), _view(two, size), split, asked, found, masked, batch, facts, apart)

    def _chosen(self, proof: Proof, seen: Seen, rows: str, hidden: str) -> Proof | None:
        """The proof with what identifies the tokens that have queries; None if their rows are not just a selection."""
        whole, few = known_shape(seen.facts.get(hidden)), seen.query
        made = copied(self.graph, carriers(self.graph, rows, {hidden}), rows, {hidden: _QUERY}, _KEY)
        if whole is None or made is None or len(whole) != 3 or proof.query.heads != 2 or len(few) != 3:
            return None
        counted = enact(self.graph, seen.facts, *made, {_QUERY: _counted(whole, whole[-1])})
        sizes = (few[proof.query.batch], seen.key[proof.key.length])
        axes = [axis for axis in (0, 1) if (whole[1 - axis], whole[axis]) == sizes]
        if counted is None or counted.shape[:-1] != few[:2] or len(axes) != 1:
            return None
        there = counted[..., 0] > 0
        place = np.unravel_index(counted[..., 0][there].astype(np.int64) - 1, whole[:2])
        same = place[1 - axes[0]] == np.nonzero(there)[proof.query.batch]
        return replace(proof, tokens=axes[0], causal=False, window=None) if there.any() and same.all() else None

    def _weighed(self, proof: Proof, seen: Seen, use: Weighed) -> Proof:
        """The proof with the layouts of value and context, where random weights and values reveal them."""
        fact = together(seen.facts, use.values, use.beside)
        cells, at = seen.cells, proof.query
        keys = None if cells is None else cells.at(seen, proof.key.length)
        if fact is None or cells is None or keys is None:
            return proof
        drawn = np.random.default_rng(7)
        row = np.zeros(seen.asked.shape, np.float32)
        weights = drawn.integers(1, 8, len(keys), np.int8).astype(np.float32)
        row[cells.there.reshape(row.shape)] = weights
        value = drawn.integers(-7, 8, fact, np.int8).astype(np.float32)
        asking = np.unravel_index(cells.asks, seen.query)
        head = np.zeros_like(cells.asks) if at.heads is None else asking[at.heads]
        sizes = (seen.query[at.batch], proof.heads, seen.query[at.length], seen.key[proof.key.length])
        begins = np.ravel_multi_index((asking[at.batch], head, asking[at.length], np.zeros_like(head)), sizes)
        flat = np.repeat(begins, cells.counts) + keys
        if proof.twice:
            whole = np.bincount(flat, weights, minlength=prod(sizes)).reshape(sizes).astype(np.float32)
        else:
            whole = np.zeros(sizes, np.float32)
            whole.reshape(-1)[flat] = weights
        for i, name in enumerate(use.contexts):
            given = _apart(use.weights, row, seen.parts) | cut(seen.facts, use.values, use.beside, value)
            made = enact(self.graph, seen.facts, [], name, given)
            pair = None if made is None else matched(whole, value, made, proof.key, proof.query)
            if pair is not None:
                return replace(proof, value=pair[0], context=pair[1], at=i)
        return proof


def _stacked(parts: Sequence[Array], fill: float) -> Array:
    """The rows of several softmaxes in one array, short ones padded; those of a single softmax unchanged."""
    if len(parts) == 1:
        return parts[0]
    width = max(part.shape[-1] for part in parts)
    rows = [part.reshape(-1, part.shape[-1]) for part in parts]
    return np.concatenate([np.pad(r, ((0, 0), (0, width - r.shape[1])), constant_values=fill) for r in rows])


def _apart(names: Sequence[str], rows: Array, shapes: Sequence[tuple[int, ...]]) -> dict[str, Array]:
    """The inverse of `_stacked`: the rows of each softmax, by the name of its weights."""
    if len(names) == 1:
        return {names[0]: rows}
    out, at = {}, 0
    for name, shape in zip(names, shapes, strict=True):
        count = prod(shape[:-1])
        out[name] = rows[at : at + count, : shape[-1]].reshape(shape)
        at += count
    return out


def _lengths(seen: Seen, source: Source, proof: Proof) -> tuple[int, ...]:
    """The number of keys in each of the key's tensors."""
    if source.beside is None:
        return (seen.key[proof.key.length],)
    return tuple((known_shape(seen.facts.get(part)) or ())[source.beside.axis] for part in source.keys)


def _view(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The sizes of a tensor's axes without its features, with heads split from them."""
    return shape[:-1] if shape[-1] == size else (*shape[:-1], shape[-1] // size)


def _counted(shape: tuple[int, ...], size: int) -> Array:
    """1, 2, 3 ... in the order of the axes, in the first feature of each place; float32 of that shape."""
    out = np.zeros((*_view(shape, size), size), np.float32)
    out[..., 0] = np.arange(1, out[..., 0].size + 1).reshape(out.shape[:-1])
    return out.reshape(shape)


def _ones(shape: tuple[int, ...]) -> Array:
    return np.ones(shape, np.float32)


def _marked(fact: Fact) -> Fact:
    """An input that says which tokens attend to all: here, the first of each text."""
    if fact.value is None:
        return fact
    value = np.zeros_like(fact.value)
    if value.ndim:
        value[..., 0] = 1
    return Fact(fact.shape, fact.dtype, value)
