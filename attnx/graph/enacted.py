"""Run a part of a graph on numpy arrays, by onnx's reference implementation: no weights, no inputs, only what is given.

Where infer.py carries the numbers that follow from shapes and masks, this computes all of a few steps, sequences and
sizes that depend on numbers included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnx.records import Array

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.index import Graph
    from attnx.graph.infer import Fact

_MOST = 20_000
"""Nodes that are run at most."""
_NEVER = frozenset("Loop Scan If RandomNormal RandomUniform RandomNormalLike RandomUniformLike Bernoulli".split())


def enact(
    graph: Graph, facts: Mapping[str, Fact], extra: Sequence[NodeProto], target: str, given: Mapping[str, Array]
) -> Array | None:
    """Compute one value.

    Args:
        graph: The graph.
        facts: What is known of its values at the sizes that are meant: shapes, and the model's inputs.
        extra: Nodes besides the graph's own, in order.
        target: The value.
        given: Values in the place of what would make them.

    Returns:
        None where it needs a weight that is not small, an input that is not known, or an operator that is not ONNX's.
    """
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    makers = {o: node for node in extra for o in node.output if o}
    feed = dict(given)
    needed: dict[int, NodeProto] = {}
    seen: set[str] = set()
    stack = [target]
    while stack:
        name = stack.pop()
        if name in seen or name in feed:
            continue
        seen.add(name)
        node = makers.get(name) or graph.producer(name)
        held = graph.constant(name) if graph.is_constant(name) else None
        if node is None or held is not None:
            fact = facts.get(name)
            value = held if held is not None else None if fact is None else fact.value
            if value is None:
                return None
            feed[name] = value
            continue
        if node.op_type in ("Shape", "Size") and name not in makers and node.input[0] not in given:
            size = facts.get(name)
            if size is not None and size.value is not None:
                feed[name] = size.value
                continue
        if node.domain not in ("", "ai.onnx") or node.op_type in _NEVER or len(needed) > _MOST:
            return None
        needed[id(node)] = node
        stack += [n for n in node.input if n]
    order = [*sorted((n for n in needed.values() if n.output[0] not in makers), key=graph.position)]
    nodes = _sorted([*order, *(n for n in extra if id(n) in needed)], set(feed))
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype), None)
        for n, x in feed.items()
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "part", inputs, [helper.make_empty_tensor_value_info(target)]),
        opset_imports=[helper.make_opsetid("", graph.opset)],
        ir_version=8,
    )
    try:
        with np.errstate(all="ignore"):
            return np.asarray(ReferenceEvaluator(model).run(None, feed)[0])
    except Exception:
        # Sizes that do not fit, an operator that the reference refuses: the value is unknown, nothing else.
        return None


def _sorted(nodes: list[NodeProto], known: set[str]) -> list[NodeProto]:
    """Nodes in an order in which each reads what is made before it."""
    from attnx.graph.flatten import sort_nodes

    return list(sort_nodes(nodes, known))
