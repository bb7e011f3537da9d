"""T5's and WavLM's position biases as onnxruntime's own operators, which have no CPU kernel.

They are not attention but feed one (its attention_bias), and a graph that contains them cannot run on the CPU.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attnx.graph.load.nodes import attributes
from attnx.records import Miss
from attnx.sites.emit import INT64, Emit, prefix_of
from attnx.sites.finding import Replacement
from attnx.sites.fused.packed import restore
from attnx.sites.stages import input_of

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def relative(graph: Graph, node: NodeProto) -> Replacement | Miss:
    """RelativePositionBias: the bias for each distance's bucket, [1,H,Q,K].

    Two things are not what they seem. The table is declared [buckets,heads], but its bytes are [heads,buckets], which
    is how the kernel reads them. And onnxruntime's optimizer, the only tool that writes this operator, derives
    `max_distance` from a logarithm in the model as if there were 32 buckets; with another number it writes a wrong
    distance (and its CUDA kernel computes a bias that is not the model's). The model's own logarithm is restored here;
    with 32 buckets all three agree.
    Source: Raffel et al. 2020 (T5), section 2.1; onnxruntime.transformers.onnx_model_t5.
    """
    a = attributes(node)
    table = node.input[0]
    e = Emit(graph, prefix_of(graph, node), table)
    buckets, heads = e.size(table, 0), e.size(table, 1)
    if buckets is None or heads is None:
        return Miss(node.name, "com.microsoft.RelativePositionBias", "the size of its table is not known")
    i, j = (e.arange(e.reshape(e.cast(node.input[n], INT64), 1)) for n in (1, 2))
    distance = e.op("Sub", e.unsqueeze(j, 0), e.unsqueeze(i, 1))
    zero = e.ints(0)
    after = e.op("Greater", distance, zero)
    back = e.op("Sub", zero, distance)
    first = zero
    if a.get("is_bidirectional"):
        buckets //= 2
        first = e.op("Where", after, e.ints(buckets), zero)
        steps = e.op("Where", after, distance, back)
    else:
        steps = e.op("Where", after, zero, back)
    exact = buckets // 2
    farthest = a["max_distance"] / (8 if a.get("is_bidirectional") else 16)
    near = e.op("Less", steps, e.ints(exact))
    ratio = e.op("Div", e.cast(e.op("Where", near, e.ints(exact), steps), e.work), e.number(exact))
    spread = e.op("Div", e.op("Log", ratio), e.number(math.log(farthest)))
    far = e.op("Add", e.cast(e.op("Mul", spread, e.number(buckets - exact)), INT64), e.ints(exact))
    last = e.ints(buckets - 1)
    far = e.op("Where", e.op("Greater", far, last), last, far)
    bucket = e.op("Add", e.op("Where", near, steps, far), first)
    by_head = e.reshape(table, heads, e.size(table, 0))
    e.unsqueeze(e.op("Gather", by_head, bucket, axis=1), 0, out=node.output[0])
    return Replacement(e.nodes, e.initializers, required=True)


def gated(graph: Graph, node: NodeProto) -> Replacement | Miss:
    """GatedRelativePositionBias: a bias [1,H,S,S] times a gate for each query, [B,H,S,1].

    Source: Chen et al. 2022 (WavLM), section 3.1; onnxruntime's schema of the operator.
    """
    heads = attributes(node)["num_heads"]
    query, query_bias, position, weight, bias, eco = node.input[:6]
    e = Emit(graph, prefix_of(graph, node), query)
    x = e.op("Add", e.real(query), e.real(query_bias))
    if offset := input_of(node, 6):
        x = restore(e, x, offset)
    by_head = e.transpose(e.reshape(x, 0, 0, heads, -1), 0, 2, 1, 3)
    mixed = e.op("Add", e.op("MatMul", by_head, e.real(weight)), e.real(bias))
    halves = e.reshape(mixed, 0, 0, 0, 2, -1)
    gates = e.op("Sigmoid", e.reduce("ReduceSum", halves, 4, keep=False))
    u, r = e.slice(gates, 0, 1, 3), e.slice(gates, 1, 2, 3)
    one, two = e.number(1.0), e.number(2.0)
    gate = e.op("Add", e.op("Mul", u, e.op("Sub", e.op("Mul", r, e.real(eco)), one)), two)
    e.back(e.op("Mul", gate, e.real(position)), query, out=node.output[0])
    return Replacement(e.nodes, e.initializers, required=True)
