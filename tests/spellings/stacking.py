"""Several attentions of different kinds in one graph: windows in some layers, a shared mask, keys and values of an
earlier layer, shared weights, cross-attention over a second input with a mask of its own, cached keys and values, a
layer whose output nothing reads.

Letters: B batch, H query heads, Hk key heads, Q and K positions, D head size, C width.
"""  # fmt: skip

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.spellings.pen import Arrays, Pen

WIDTH = 12
KINDS = ("full", "causal", "causal", "window", "cross", "shared", "again", "unused", "cached", "scattered")


@dataclass
class Stack:
    """A model, a feed, and for each layer in order what attnx must say of it."""

    model: onnx.ModelProto
    feed: Arrays
    layers: list[dict[str, Any]]
    """kind, causal, heads, kv_heads, scale; and the weights and context [B,H,Q,...] of each."""


def stack(number: int) -> Stack:
    """The stack of a number."""
    r, rng = random.Random(77_000 + number), np.random.default_rng(number)
    p = Pen(r.choice([13, 14, 17, 18, 21, 23]), r.choice(["initializer", "node"]))
    batch, length, memory, past = r.choice([1, 2]), r.choice([5, 6]), r.choice([4, 7]), r.choice([2, 3])
    heads, size = r.choice([(2, 4), (4, 8), (3, 4)]), 0
    heads, size = heads
    kv = r.choice([n for n in (1, 2, heads) if heads % n == 0])
    free = r.random() < 0.5
    dims: dict[str, Any] = {"b": "batch", "s": "seq", "m": "memory", "p": "past"} if free else {
        "b": batch, "s": length, "m": memory, "p": past,
    }  # fmt: skip
    kinds = [r.choice(KINDS) for _ in range(r.choice([2, 3, 4]))]
    if "cached" in kinds or "scattered" in kinds:
        kinds = [k for k in kinds if k not in ("window",)]
    x = rng.standard_normal((batch, length, WIDTH))
    m = rng.standard_normal((batch, memory, WIDTH))
    hx = p.given("x", x.astype(np.float32), [dims["b"], dims["s"], WIDTH])
    hm = p.given("memory", m.astype(np.float32), [dims["b"], dims["m"], WIDTH]) if "cross" in kinds else ""
    kept = {"x": np.ones((batch, length), np.int64), "m": np.ones((batch, memory), np.int64)}
    kept["m"][-1, -1:] = 0
    own_pad = r.random() < 0.5
    if own_pad:
        kept["x"][-1, -1:] = 0
    bias: dict[str, str] = {}
    for n, used in (("x", own_pad), ("m", "cross" in kinds)):
        if used:
            name = "attention_mask" if n == "x" else "memory_mask"
            given = p.given(name, kept[n], [dims["b"], dims["s" if n == "x" else "m"]])
            wide = p.axes("Unsqueeze", given, 1, 2)
            bias[n] = p.op("Mul", p.op("Sub", p.c(1.0), p.op("Cast", wide, to=1)), p.c(-1e9))
    places = p.op("Range", p.c(0, np.int64), p.axes("Squeeze", p.dim(hx, 1), 0), p.c(1, np.int64))
    rows, columns = p.axes("Unsqueeze", places, 1), p.axes("Unsqueeze", places, 0)
    ahead = p.op("Where", p.op("Less", rows, columns), p.c(-1e9), p.c(0.0))
    near = p.op("Where", p.op("Less", p.op("Sub", rows, columns), p.c(2, np.int64)), p.c(0.0), p.c(-1e9))
    outputs = ["y"]
    extra: list[onnx.ValueInfoProto] = []

    def weights() -> dict[str, Any]:
        shapes = {"q": heads, "k": kv, "v": kv}
        made = {n: rng.standard_normal((WIDTH, h, size)) * 0.4 for n, h in shapes.items()}
        made["o"] = rng.standard_normal((heads * size, WIDTH)) * 0.3
        return {"arrays": made, "names": {n: p.c(a.reshape(a.shape[0], -1)) for n, a in made.items()}}

    def split(h: str, n: str, w: dict[str, Any]) -> str:
        y = p.op("MatMul", h, w["names"][n])
        return p.turn(p.reshape(y, 0, 0, heads if n == "q" else kv, size), 0, 2, 1, 3)

    def repeat(y: str) -> str:
        if kv == heads:
            return y
        shape = p.op("Shape", y)
        b, n = (p.op("Gather", shape, p.i(i)) for i in (0, 2))
        wide = p.op("Expand", p.axes("Unsqueeze", y, 2), p.shape(p.op("Identity", b), kv, heads // kv, n, size))
        return p.reshape(wide, b, heads, n, size)

    first: dict[str, Any] | None = None
    held: dict[str, Any] | None = None
    layers: list[dict[str, Any]] = []
    for i, kind in enumerate(kinds):
        w = first if kind == "again" and first is not None else weights()
        first = first or w
        src, hsrc = (m, hm) if kind == "cross" else (x, hx)
        q, hq = np.einsum("bnc,chd->bhnd", x, w["arrays"]["q"]), split(hx, "q", w)
        if kind == "shared" and held is not None:
            k, v, hk, hv = (held[n] for n in ("k", "v", "hk", "hv"))
        else:
            k, v = (np.einsum("bnc,chd->bhnd", src, w["arrays"][n]) for n in "kv")
            hk, hv = split(hsrc, "k", w), split(hsrc, "v", w)
            if kind != "cross":
                held = {"k": k, "v": v, "hk": hk, "hv": hv}
        seen = np.ones((batch, 1, length, k.shape[2]), bool)
        add: list[str] = []
        square = kind != "cross"
        causal = kind in ("causal", "window", "cached")
        if square and kind not in ("cached", "scattered"):
            if causal:
                seen &= np.tril(np.ones((length, length), bool))
                add.append(ahead)
            if kind == "window":
                seen &= (np.arange(length)[:, None] - np.arange(length)) < 2
                add.append(near)
            if own_pad:
                seen &= kept["x"][:, None, None] == 1
                add.append(bias["x"])
        elif kind == "cross":
            seen &= kept["m"][:, None, None] == 1
            add.append(bias["m"])
        if kind == "cached":
            old = [rng.standard_normal((batch, kv, past, size)) for _ in range(2)]
            names = [
                p.given(f"past_key_values.{i}.{t}", o.astype(np.float32), [dims["b"], kv, dims["p"], size])
                for t, o in zip(("key", "value"), old, strict=True)
            ]
            k, v = np.concatenate([old[0], k], 2), np.concatenate([old[1], v], 2)
            hk, hv = (p.op("Concat", o, n, axis=2) for o, n in zip(names, (hk, hv), strict=True))
            seen = np.tril(np.ones((length, past + length), bool), past)[None, None] & np.ones((batch, 1, 1, 1), bool)
            total = p.axes("Squeeze", p.dim(hk, 2), 0)
            before = p.axes("Squeeze", p.dim(names[0], 2), 0)
            every = p.axes("Unsqueeze", p.op("Range", p.c(0, np.int64), total, p.c(1, np.int64)), 0)
            add = [p.op("Where", p.op("Less", p.op("Add", rows, before), every), p.c(-1e9), p.c(0.0))]
            for t, n in (("key", hk), ("value", hv)):
                out = f"present.{i}.{t}"
                p.nodes.append(helper.make_node("Identity", [n], [out], name=f"out_{i}_{t}"))
                extra.append(helper.make_tensor_value_info(out, TensorProto.FLOAT, None))
        if kind == "scattered":
            room, at = length + 3, 1
            old = [rng.standard_normal((kv, room, batch, size)) for _ in range(2)]
            names = [
                p.given(f"cache.{i}.{t}", o.astype(np.float32), [kv, room, dims["b"], size])
                for t, o in zip(("key", "value"), old, strict=True)
            ]
            position = p.given(f"position.{i}", np.arange(at, at + length), [dims["s"]])
            filled = []
            for o, n, name, new in zip(old, (k, v), names, (hk, hv), strict=True):
                whole = o.transpose(1, 2, 0, 3).copy()
                whole[at : at + length] = n.transpose(2, 0, 1, 3)
                filled.append(whole.transpose(1, 2, 0, 3))
                put = p.op(
                    "ScatterND", p.turn(name, 1, 2, 0, 3), p.axes("Unsqueeze", position, 1), p.turn(new, 2, 0, 1, 3)
                )
                filled.append(p.turn(put, 1, 2, 0, 3))
            k, hk, v, hv = filled
            seen = (np.arange(room) <= np.arange(at, at + length)[:, None])[None, None] & np.ones(
                (batch, 1, 1, 1), bool
            )
            reach = p.op("Less", p.axes("Unsqueeze", position, 1), p.c(np.arange(room)[None], np.int64))
            add = [p.op("Where", reach, p.c(-1e9), p.c(0.0))]
        kk, vv = (np.repeat(a, heads // kv, 1) for a in (k, v))
        s = np.where(seen, np.einsum("bhqd,bhkd->bhqk", q, kk) / np.sqrt(size), -np.inf)
        e = np.exp(s - s.max(-1, keepdims=True))
        a = e / e.sum(-1, keepdims=True)
        context = np.einsum("bhqk,bhkd->bhqd", a, vv)
        g = p.op("Div", p.op("MatMul", hq, p.turn(repeat(hk), 0, 1, 3, 2)), p.c(np.sqrt(size)))
        for name in add:
            g = p.op("Add", g, name)
        g = p.op("MatMul", p.op("Softmax", g, axis=-1), repeat(hv))
        g = p.op("MatMul", p.reshape(p.turn(g, 0, 2, 1, 3), 0, 0, heads * size), w["names"]["o"])
        layers.append({
            "drawn": kind, "kind": "cross" if kind == "cross" else "self",
            "causal": None if kind == "scattered" else causal, "heads": heads, "kv_heads": kv, "scale": size**-0.5,
            "weights": a, "context": context,
        })  # fmt: skip
        if kind == "unused" and i + 1 < len(kinds):
            outputs.append(g)
            extra.append(helper.make_tensor_value_info(g, TensorProto.FLOAT, None))
        else:
            x = x + context.transpose(0, 2, 1, 3).reshape(batch, length, -1) @ w["arrays"]["o"]
            hx = p.op("Add", hx, g)
    p.nodes.append(helper.make_node("Identity", [hx], ["y"], name="last"))
    given = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None), *extra]
    model = helper.make_model(
        helper.make_graph(p.nodes, "stack", p.inputs, given, p.tensors),
        opset_imports=[helper.make_opsetid("", p.opset)], ir_version=8 if p.opset < 21 else 10,
    )  # fmt: skip
    return Stack(model, p.feed, layers)
