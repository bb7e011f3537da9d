"""Run a part of a graph on numpy arrays: without its weights and inputs, on the given values alone.

Where infer.py carries the numbers that follow from shapes and masks, this computes every number in a few steps,
including sizes that depend on numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.fact import Fact, fact_of
from attnx.graph.load.flatten import sort_nodes
from attnx.graph.load.nodes import attributes
from attnx.graph.shapes.evaluate import NEVER, SIZED_BY_VALUE, evaluate, steady
from attnx.graph.shapes.node_facts import infer_shape
from attnx.records import Array
from attnx.sites.strided.shortcuts import columns, narrowed, written

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_MOST = 20_000
"""The most nodes that are run."""
_CELLS = 1 << 27
"""The most cells that a result may have."""
_SHARED = -1
_Key = tuple[int, str]
"""The run that a value belongs to, or that all runs share it; and the value's name."""


@dataclass(frozen=True, slots=True)
class _Step:
    rank: tuple[int, int]
    node: NodeProto
    side: int
    reads: list[_Key | None]


@dataclass(frozen=True, slots=True)
class Run:
    """One value to compute."""

    extra: Sequence[NodeProto]
    """Nodes in addition to the graph's own."""
    target: str
    given: Mapping[str, Array]
    """Values that replace the results of the graph's nodes."""


def enact(
    graph: Graph, facts: Mapping[str, Fact], extra: Sequence[NodeProto], target: str, given: Mapping[str, Array]
) -> Array | None:
    """Compute one value: see `enact_all`."""
    made = enact_all(graph, facts, [Run(extra, target, given)])
    return None if made is None else made[0]


def enact_all(graph: Graph, facts: Mapping[str, Fact], runs: Sequence[Run]) -> list[Array] | None:
    """Compute the values of several runs together; anything independent of the given values is computed once.

    Args:
        graph: The graph.
        facts: What is known of its values at the given sizes: shapes, and the model's inputs.
        runs: What to compute.

    Returns:
        None where one of them needs a weight that is not small, an unknown input, or an operator that is not ONNX's
        own.
    """
    held: dict[_Key, Array | list[Array]] = {}
    moved = graph.behind({name for run in runs for name in run.given})
    steps: dict[tuple[int, int], _Step] = {}
    wanted: list[_Key] = []
    for at, run in enumerate(runs):
        known: dict[str, Array | list[Array]] = dict(run.given)
        nodes = _needed(graph, facts, moved, run, known)
        if nodes is None:
            return None
        own = {name: at if name in run.given else _SHARED for name in known}
        held.update({(own[name], name): value for name, value in known.items()})
        extra = {id(node) for node in run.extra}
        ranks: dict[str, tuple[int, int]] = {}
        for node in nodes:
            outline = graph.outline(node)
            inputs, outputs = outline.inputs, outline.outputs
            before = [ranks[n] for n in inputs if n in ranks]
            # In file order, which keeps few values at a time; a node from no file comes after the nodes that it reads.
            place = max([p for p, _ in before] + ([] if id(node) in extra else [graph.position(node)]), default=0)
            rank = (place, 1 + max((level for _, level in before), default=0))
            alone = id(node) in extra or any(own[n] != _SHARED for n in inputs if n)
            side = at if alone else _SHARED
            reads = [(own[n], n) if n else None for n in inputs]
            steps.setdefault((side, id(node)), _Step(rank, node, side, reads))
            own |= dict.fromkeys((o for o in outputs if o), side)
            ranks |= dict.fromkeys((o for o in outputs if o), rank)
        wanted.append((own[run.target], run.target))
    ordered = sorted(steps.values(), key=lambda step: step.rank)
    last = {key: i for i, step in enumerate(ordered) for key in step.reads}
    places = _places(ordered, wanted)
    copies: set[_Key] = set()
    try:
        for i, step in enumerate(ordered):
            read = [None if key is None else held[key] for key in step.reads]
            into = step.reads[0] if step.reads else None
            done = into in copies and last[into] == i and into not in wanted and _alone(held, into)
            values = _outputs(graph, step.node, read, (step.side, step.node.output[0]) in places, spent=done)
            held.update({(step.side, name): value for name, value in values.items()})
            copies |= {(step.side, name) for name in values} if _writes(step.node) else set()
            for key in step.reads:
                if last[key] == i and key is not None and key not in wanted:
                    held.pop(key, None)
        return [np.asarray(held[key]) for key in wanted]
    except Exception:
        # Sizes that do not fit, or an operator that the rules and the reference refuse: the value is just unknown.
        return None


def _needed(
    graph: Graph,
    facts: Mapping[str, Fact],
    moved: Collection[str],
    run: Run,
    held: dict[str, Array | list[Array]],
) -> list[NodeProto] | None:
    """The nodes that make a run's target, in order; numbers that are already known are added to `held`.

    Args:
        graph: The graph.
        facts: What is known of its values.
        moved: Values that are made from given ones: their numbers are others than those known.
        run: The run.
        held: What is given.
    """
    extra = run.extra
    makers = {o: node for node in extra for o in node.output if o}
    added = {id(node) for node in extra}
    needed: dict[int, NodeProto] = {}
    seen: set[str] = set()
    stack = [run.target]
    while stack:
        name = stack.pop()
        if name in seen or name in held:
            continue
        seen.add(name)
        node = makers.get(name) or graph.producer(name)
        fact = facts.get(name)
        known = graph.constant(name) if graph.is_constant(name) else None
        sized = node is None or node.op_type in ("Shape", "Size")  # an input, or a size of something not computed
        if known is None and fact is not None and name not in makers and (sized or name not in moved):
            known = fact.value
        if known is not None:
            held[name] = known
        elif node is None or not _known(node) or len(needed) > _MOST:
            return None
        elif graph.is_constant(name):
            return None  # a large weight
        else:
            needed[id(node)] = node
            stack += graph.outline(node).reads
    own = sorted((n for n in needed.values() if id(n) not in added), key=graph.position)
    # The graph's own read none of the others.
    return sort_nodes([*own, *(n for n in extra if id(n) in needed)], set(held), graph.outline)


def _known(node: NodeProto) -> bool:
    """Whether a node may be run by the rule for its operator's name."""
    own = node.domain in ("", "ai.onnx") or (node.domain == "com.microsoft" and node.op_type == "FusedMatMul")
    return own and node.op_type not in NEVER


def _places(steps: Sequence[_Step], wanted: Sequence[_Key]) -> set[_Key]:
    """Values that only say where a ScatterND writes: their columns need not be joined."""
    read = {key for step in steps for i, key in enumerate(step.reads) if key and not (i == 1 and _writes(step.node))}
    return {k for step in steps if _writes(step.node) and (k := step.reads[1])} - read - set(wanted)


def _writes(node: NodeProto) -> bool:
    return node.op_type == "ScatterND" and not node.attribute


def _alone(held: Mapping[_Key, Array | list[Array]], which: _Key) -> bool:
    """Whether no other value that is held may lie in the same memory."""
    own = held[which]
    others = (value for key, value in held.items() if key != which)
    parts = (part for other in others for part in (other if isinstance(other, list) else (other,)))
    return isinstance(own, np.ndarray) and not any(np.may_share_memory(own, part) for part in parts)


def _outputs(
    graph: Graph, node: NodeProto, values: list[Array | list[Array] | None], apart: bool = False, spent: bool = False
) -> dict[str, Array | list[Array]]:
    """The outputs of one node; a sequence is a list of arrays, and so are columns that are to stay separate.

    Args:
        graph: The graph.
        node: The node.
        values: Its inputs.
        apart: Whether columns that it joins are to stay separate.
        spent: Whether its first input may be written over.
    """
    first = values[0] if values else None
    if node.op_type == "SplitToSequence" and isinstance(first, np.ndarray):
        return {node.output[0]: _split(node, first, values[1] if len(values) > 1 else None)}
    if node.op_type == "SequenceAt" and isinstance(first, list):
        return {node.output[0]: first[int(np.asarray(values[1]))]}
    if _writes(node) and isinstance(values[1], list):
        made = written(np.asarray(first), values[1], np.asarray(values[2]), over=spent)
        if made is not None:
            return {node.output[0]: made}
        values[1] = np.concatenate(values[1], axis=-1)
    arrays = [v for v in values if not isinstance(v, list)]
    if len(arrays) != len(values):
        raise TypeError(f"{node.op_type} of a sequence")
    most = prod(max(1, v.size) for v in arrays if v is not None)
    large = most > _CELLS or node.op_type in SIZED_BY_VALUE
    if large and not steady(node, arrays, _size(graph, node, arrays), _CELLS):
        raise ValueError(f"{node.op_type} makes too much")
    if apart and (parts := columns(node, arrays)) is not None:
        return {node.output[0]: parts}
    return dict(zip(node.output, evaluate(node, narrowed(node, arrays), graph.opset), strict=False))


def _size(graph: Graph, node: NodeProto, values: Sequence[Array | None]) -> int | None:
    """The number of cells of the first output, without computing it."""
    known = [Fact() if v is None else fact_of(v) for v in values]
    shaped = infer_shape(graph, node, known)
    shape = shaped[0].shape if shaped else None
    return None if shape is None or None in shape else prod(d for d in shape if d is not None)


def _split(node: NodeProto, array: Array, sizes: object) -> list[Array]:
    """Source: ONNX operator specifications, SplitToSequence-11: pieces of one length, or of given lengths."""
    a = attributes(node)
    axis = a.get("axis", 0)
    given = np.asarray(1 if sizes is None else sizes)
    step = [int(given)] * -(-array.shape[axis] // int(given)) if given.ndim == 0 else [int(n) for n in given]
    parts = np.split(array, np.cumsum(step)[:-1], axis=axis)
    return [p.squeeze(axis) for p in parts] if sizes is None and not a.get("keepdims", 1) else list(parts)
