"""The steps that all decompositions of fused operators consist of, from heads to the named stages of a site.

Values are float32 (float64 in float64 graphs) and laid out [B,H,Q,D], [B,Hkv,K,D] and [B,H,Q,K].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.records import Place
from attnx.sites.emit import BFLOAT16, Emit
from attnx.sites.finding import Finding, Replacement

if TYPE_CHECKING:
    from onnx import NodeProto

Change = Callable[[str], str]
"""Adds nodes that compute a new value from a value; returns the new value's name."""
LAYOUTS = {"query": "b h q d", "key": "b h k d", "value": "b h k d", "context": "b h q d"}
"""Layouts of the values that `attend` names; every other quantity is "b h q k"."""


def input_of(node: NodeProto, index: int) -> str:
    """The name of an input of a node, "" where it has none at that index."""
    return node.input[index] if index < len(node.input) else ""


def output_of(node: NodeProto, index: int) -> str:
    """The name of an output of a node, "" where the node does not have it."""
    return node.output[index] if index < len(node.output) else ""


def split_heads(e: Emit, x: str, heads: int) -> str:
    """[B,S,H*D] -> [B,H,S,D]."""
    return e.transpose(e.reshape(x, 0, 0, heads, -1), 0, 2, 1, 3)


def merge_heads(e: Emit, x: str, like: str, out: str) -> str:
    """[B,H,S,D] -> [B,S,H*D] under the name `out`, in the type of the graph's value `like`."""
    merged = e.reshape(e.transpose(x, 0, 2, 1, 3), 0, 0, -1)
    return e.back(merged, like, out=out)


def default_scale(e: Emit, given: float | None, head_size: int | None, query: str) -> tuple[str, float | None]:
    """The factor on the scores, as a constant and as a number (None where it is known only at run time).

    Args:
        e: Where the nodes go.
        given: The operator's own scale; None for 1/sqrt(head size).
        head_size: D, where known.
        query: [B,H,Q,D], whose last axis gives D otherwise.
    """
    scale = given if given is not None else (1 / math.sqrt(head_size) if head_size else None)
    if scale is not None:
        return e.number(scale), scale
    return e.op("Reciprocal", e.op("Sqrt", e.cast(e.dim(query, 3), e.work))), None


def rms_norm(e: Emit, x: str, weight: str, epsilon: float) -> str:
    """RMS norm over the last axis: x / sqrt(mean(x^2) + epsilon) * weight [D].

    Source: Zhang and Sennrich 2019, eq. 4.
    """
    mean = e.reduce("ReduceMean", e.op("Mul", x, x), -1)
    return e.op("Mul", e.op("Div", x, e.op("Sqrt", e.op("Add", mean, e.number(epsilon)))), e.real(weight))


def rotary(e: Emit, x: str, cos_cache: str, sin_cache: str, positions: str, interleaved: bool, offset: int = 0) -> str:
    """Rotary embedding of [B,H,S,D]. Source: Su et al. 2021 (RoFormer), eq. 34.

    Args:
        e: Where the nodes go.
        x: [B,H,S,D].
        cos_cache: [M,R/2] with R the number of channels that rotate; the rest passes through.
        sin_cache: As `cos_cache`.
        positions: int64 [B,S] or [1,S].
        interleaved: Whether channels rotate in pairs (0,1), (2,3) ... instead of (0,R/2), (1,R/2+1) ...
        offset: The first channel that rotates.
    """
    cos, sin = (e.unsqueeze(e.gather_real(cache, positions), 1) for cache in (cos_cache, sin_cache))
    return _turned(e, x, cos, sin, interleaved, offset)


def rotary_without_cache(e: Emit, x: str, positions: str, channels: int) -> str:
    """Rotary embedding of [B,H,S,D] by halves over its first `channels`, base 10000; positions int64 [S]."""
    rates = e.number(10000.0 ** (-np.arange(0, channels, 2) / channels))
    angle = e.unsqueeze(e.op("Mul", e.unsqueeze(e.cast(positions, e.work), 1), rates), 0, 1)
    return _turned(e, x, e.op("Cos", angle), e.op("Sin", angle), interleaved=False, offset=0)


def _turned(e: Emit, x: str, cos: str, sin: str, interleaved: bool, offset: int) -> str:
    """[B,H,S,D] with channels rotated by angles whose cosines and sines are [B,1,S,R/2]."""
    half = e.dim(cos, 3)
    start, middle = e.ints(offset), e.op("Add", half, e.ints(offset))
    stop = e.op("Add", middle, half)
    if interleaved:
        turned = e.slice(x, start, stop, 3)
        first, second = (e.op("Slice", turned, e.ints(i), e.ints(2**62), e.ints(3), e.ints(2)) for i in (0, 1))
    else:
        first, second = e.slice(x, start, middle, 3), e.slice(x, middle, stop, 3)
    one = e.op("Sub", e.op("Mul", first, cos), e.op("Mul", second, sin))
    two = e.op("Add", e.op("Mul", second, cos), e.op("Mul", first, sin))
    if interleaved:
        pairs = [e.reshape(e.concat([e.unsqueeze(one, 4), e.unsqueeze(two, 4)], 4), 0, 0, 0, -1)]
    else:
        pairs = [one, two]
    lead = [e.slice(x, 0, offset, 3)] if offset else []
    return e.concat([*lead, *pairs, e.slice(x, stop, 2**62, 3)], 3)


def attend(
    e: Emit,
    query: str,
    key: str,
    value: str,
    *,
    heads: int | None,
    kv_heads: int | None,
    scale: str,
    softcap: float = 0.0,
    add: Sequence[str] = (),
    visible: str = "",
    hidden: float = -math.inf,
    guard: bool = False,
    sink: str = "",
    precision: int = 0,
    score_change: Change | None = None,
    weight_change: Change | None = None,
) -> str:
    """Name every stage of softmax(scale * Q K^T ...) V under the prefix; returns the context's name.

    Grouped heads are multiplied without repeating keys: the queries of one key head are stacked as rows.

    Args:
        e: Where the nodes go.
        query: [B,H,Q,D].
        key: [B,Hkv,K,D].
        value: [B,Hkv,K,Dv].
        heads: H; None where it is known only at run time.
        kv_heads: Hkv; None likewise.
        scale: A scalar constant.
        softcap: c of c * tanh(x / c); 0 for none.
        add: Added to the capped scores, in this order; each broadcasts to [B,H,Q,K].
        visible: Boolean, broadcasts to [B,H,Q,K]: False cells are set to `hidden`.
        hidden: The value of hidden cells.
        guard: Whether rows without a visible cell (all minus infinity) get weights of 0 instead of NaN.
        sink: Logits that join the softmax and are then cut off, broadcasting to [B,H,Q,1].
        precision: The data type of the softmax, if it is not that of the stages.
        score_change: Applies the operator's own changes to the scores, after `add` and before its softmax.
        weight_change: Turns the softmax's result into what the operator multiplies the values by.
    """
    names = {
        q: e.name(q) for q in ("query", "key", "value", "scores", "scaled", "capped", "masked", "weights", "context")
    }
    for quantity, source in (("query", query), ("key", key), ("value", value)):
        e.op("Identity", source, out=names[quantity])
    q, k, v = names["query"], names["key"], names["value"]
    grouped = heads is None or heads != kv_heads
    h, hkv = heads or e.dim(q, 1), kv_heads or e.dim(k, 1)
    rows = e.reshape(q, 0, hkv, -1, e.dim(q, 3)) if grouped else q
    product = e.op("MatMul", rows, e.transpose(k, 0, 1, 3, 2), out="" if grouped else names["scores"])
    if grouped:
        e.reshape(product, 0, h, -1, e.dim(k, 2), out=names["scores"])
    e.op("Mul", names["scores"], scale, out=names["scaled"])
    if softcap:
        cap = e.number(softcap)
        e.op("Mul", e.op("Tanh", e.op("Div", names["scaled"], cap)), cap, out=names["capped"])
    else:
        e.op("Identity", names["scaled"], out=names["capped"])
    x = names["capped"]
    for term in add:
        x = e.op("Add", x, term)
    if score_change:
        x = score_change(x)
    if visible:
        x = e.op("Where", visible, x, e.number(hidden))
    masked = e.op("Identity", x, out=names["masked"])
    if sink:
        column = e.expand(sink, e.dim(masked, 0), h, e.dim(masked, 2), 1)
        joined = e.softmax(e.concat([masked, column], 3))
        weights = e.slice(joined, 0, -1, 3)
    elif precision not in (0, e.work):
        weights = e.cast(e.softmax(e.cast(masked, precision)), e.work)
    else:
        weights = e.softmax(masked)
    if guard:
        empty = e.op("Equal", e.reduce("ReduceMax", masked, 3), e.number(-math.inf))
        weights = e.op("Where", empty, e.number(0.0), weights)
    if weight_change:
        weights = weight_change(weights)
    e.op("Identity", weights, out=names["weights"])
    if grouped:
        stacked = e.reshape(names["weights"], 0, hkv, -1, e.dim(masked, 3))
        return e.reshape(e.op("MatMul", stacked, v), 0, h, -1, e.dim(v, 3), out=names["context"])
    return e.op("MatMul", names["weights"], v, out=names["context"])


def bias_name(e: Emit, bias: str) -> str | None:
    """What a site's bias input is, in words, as far as the node that makes it shows; None without one."""
    if not bias:
        return None
    for _ in range(4):
        maker = e.graph.producer(bias)
        if maker is None:
            break
        if maker.op_type in ("RelativePositionBias", "GatedRelativePositionBias"):
            return "relative position"
        if maker.op_type not in ("Slice", "Add", "Cast", "Identity", "Unsqueeze", "Squeeze", "Expand"):
            break
        bias = maker.input[0]
    return "attention_bias"


def found(e: Emit, node: NodeProto, *, required: bool = False, **facts: Any) -> Finding:
    """The finding for the stages that `attend` named under the prefix of `e`.

    Args:
        e: Where the nodes were added.
        node: The fused node.
        required: Whether the CPU cannot run the node, or gives wrong results.
        **facts: Further fields of the Finding.
    """
    places = {
        quantity: Place(e.name(quantity), LAYOUTS.get(quantity, "b h q k"))
        for quantity in ("query", "key", "value", "scores", "scaled", "capped", "masked", "weights", "context")
    }
    brain = e.dtype(node.input[0]) == BFLOAT16  # the CPU has no attention kernel for it
    replacement = Replacement(e.nodes, e.initializers, required or brain)
    return Finding(node, places, product=e.name("scores"), replacement=replacement, **facts)
