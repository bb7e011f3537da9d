"""Attention in random spellings, one a number, and what it is in numpy's float64: what the differential test reads.

A spelling is a choice of projection, layout, place of the scale, bias, mask, softmax and way back to the features, and
of opset and dimensions. Nothing here is shared with attnx; the oracle is computed beside the graph, from the same draw.
Letters: B batch, H query heads, Hk key heads, Q and K positions, D and Dv head sizes, C the width of the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.spellings.drawing import draw
from tests.spellings.laying import Back, lay_scores
from tests.spellings.masking import Mask, draw_bias, write_bias
from tests.spellings.normalising import follow, weigh, write_softmax
from tests.spellings.pen import Arrays, Pen
from tests.spellings.projecting import layer_norm, normalise, project

WIDTH, LATENTS = 12, 3


@dataclass
class Spelling:
    """A model, a feed, and what attnx must say of the one attention in it."""

    model: onnx.ModelProto
    feed: Arrays
    want: Arrays
    """query, key, value [B,H or Hk,...], scores, scaled, weights, context; masked where there is such a stage."""
    site: dict[str, Any]
    """Fields of the Site."""
    choice: dict[str, Any]


def build(number: int) -> Spelling:
    """The spelling of a number."""
    c, rng = draw(number), np.random.default_rng(number)
    p = Pen(c["opset"], c["constants"])
    heads, kv, size, vsize = (c[n] for n in ("heads", "kv", "size", "vsize"))
    batch, length = 1 if c["dims"] == "batch1" else c["batch"], c["seq"]
    latent = c["query"] == "latent"
    asking, asked = LATENTS if latent else length, c["memory"] or length
    free: dict[str, Any] = {
        "symbolic": {"b": "batch", "s": "seq", "m": "memory"}, "fixed": {"b": batch, "s": length, "m": asked},
        "batch1": {"b": 1, "s": "seq", "m": "memory"}, "anonymous": dict.fromkeys("bsm"),
    }[c["dims"]]  # fmt: skip
    if not c["memory"]:
        free["m"] = free["s"]

    def enter(name: str, array: np.ndarray, dim: Any) -> str:
        if c["first"] == "seq":
            turned = array.swapaxes(0, 1).astype(np.float32)
            return p.turn(p.given(name, turned, [dim, free["b"], WIDTH]), 1, 0, 2)
        return p.given(name, array.astype(np.float32), [free["b"], dim, WIDTH])

    x = rng.standard_normal((batch, length, WIDTH))
    hx = enter("x", x, free["s"])
    if c["pre_norm"]:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        hx = layer_norm(p, hx, WIDTH)
    m = rng.standard_normal((batch, asked, WIDTH)) if c["memory"] else x
    hm = enter("memory", m, free["m"]) if c["memory"] else hx
    xq, hq = (x, hx) if not latent else _latents(p, rng, hx, batch)
    shapes = {"q": (heads, size), "k": (kv, size), "v": (kv, vsize)}
    w = {n: rng.standard_normal((WIDTH, *s)) * 0.45 for n, s in shapes.items()}
    b = {n: rng.standard_normal(s) * 0.3 if c["bias_on"] else np.zeros(s) for n, s in shapes.items()}
    truth = {
        n: np.einsum("bsc,chd->bhsd", src, w[n]) + b[n][None, :, None] for n, src in (("q", xq), ("k", m), ("v", m))
    }
    q, k, v = project(p, c, w, b, hq, hx, hm)
    fixed = c["dims"] == "fixed"
    dims: dict[str, Any] = {
        "b": 1 if c["dims"] == "batch1" else batch if fixed else p.dim(hx, 0),
        "q": asking if latent or fixed else p.dim(hx, 1), "k": asked if fixed else p.dim(hm, 1),
    }  # fmt: skip
    if c["norm"] != "none":
        q, truth["q"] = normalise(p, c, q, truth["q"], rng, dims["q"])
        k, truth["k"] = normalise(p, c, k, truth["k"], rng, dims["k"])

    per_head = np.exp(rng.uniform(-1.0, 0.5, heads)) if c["scale"].startswith("learned") else None
    scale = 1.0 if c["scale"] == "none" else size**-0.5
    key, value = (np.repeat(truth[n], heads // kv, 1) for n in "kv")
    scores = np.einsum("bhqd,bhkd->bhqk", truth["q"], key)
    scaled = scores * (scale if per_head is None else per_head[None, :, None, None])
    capped = c["softcap"] * np.tanh(scaled / c["softcap"]) if c["softcap"] else scaled
    bias = draw_bias(c, rng, heads, asking, asked)
    mask = Mask(p, c, rng, (batch, asking, asked), (free["b"], asking if latent else free["s"], free["m"]), dims)

    q, k = _scaled_operands(p, c, q, k, per_head)
    s, back = lay_scores(p, c, q, k, v, dims, rng)
    s = _scaled_scores(p, c, s, k, back, per_head)
    if c["softcap"]:
        s = p.op("Mul", p.op("Tanh", p.op("Div", s, p.c(c["softcap"]))), p.c(c["softcap"]))
    s = mask.before(write_bias(p, c, s, bias, back, dims), back)
    weights, masked, sink = weigh(c, capped if bias is None else capped + bias, mask)
    a = follow(p, c, mask.behind(write_softmax(p, c, s, back, mask, dims), back))
    y = back.finish(a, rng)
    if c["residual"]:
        y = p.op("Add", y, p.reduce("ReduceSum", p.op("MatMul", hx, p.c(np.ones((WIDTH, 1)))), 0, 1, 2, keep=0))
    p.nodes.append(helper.make_node("Identity", [y], ["y"], name="last"))

    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph(p.nodes, "spelling", p.inputs, [output], p.tensors),
        opset_imports=[helper.make_opsetid("", c["opset"])],
        ir_version=7 if c["opset"] < 15 else 8 if c["opset"] < 21 else 10,
    )
    want = {
        "query": truth["q"], "key": truth["k"], "value": truth["v"], "scores": scores, "scaled": scaled,
        "weights": weights, "context": np.einsum("bhqk,bhkd->bhqd", weights, value),
    }  # fmt: skip
    if masked is not None:
        want["masked"] = masked
    site = {
        "kind": "cross" if latent or c["memory"] else "self", "causal": mask.causal, "heads": heads, "kv_heads": kv,
        "head_size": size, "scale": scale if per_head is None else tuple(per_head), "softcap": c["softcap"] or None,
        "sink": sink,
    }  # fmt: skip
    return Spelling(model, p.feed, want, site, c)


def _latents(p: Pen, rng: np.random.Generator, x: str, batch: int) -> tuple[np.ndarray, str]:
    """Stored queries [1,L,C], stretched over the batch or not; and what they are [B,L,C]."""
    stored = rng.standard_normal((LATENTS, WIDTH))
    made = p.axes("Unsqueeze", p.c(stored), 0) if rng.random() < 0.5 else p.c(stored[None])
    if rng.random() < 0.7:
        made = str(p.op("Expand", made, p.shape(p.dim(x, 0), LATENTS, WIDTH)))
    return np.broadcast_to(stored, (batch, LATENTS, WIDTH)), made


def _scaled_operands(p: Pen, c: dict[str, Any], q: str, k: str, per_head: np.ndarray | None) -> tuple[str, str]:
    root = float(np.sqrt(c["size"]))
    if c["scale"] == "query":
        q = p.op("Mul", q, p.c(1 / root))
    elif c["scale"] == "key":
        k = p.op("Div", k, p.c([root]))
    elif c["scale"] == "both":
        q, k = p.op("Mul", q, p.c(root**-0.5)), p.op("Mul", k, p.c(root**-0.5))
    elif c["scale"] == "learned_query" and per_head is not None:
        q = p.op("Mul", q, p.c(per_head.reshape(-1, 1)))
    return q, k


def _scaled_scores(p: Pen, c: dict[str, Any], s: str, k: str, back: Back, per_head: np.ndarray | None) -> str:
    if c["scale"] == "div":
        return str(p.op("Div", s, p.c(np.sqrt(c["size"]))))
    if c["scale"] == "mul":
        return str(p.op("Mul", p.c([c["size"] ** -0.5]), s))
    if c["scale"] == "computed":
        size = p.op("Cast", p.op("Gather", p.op("Shape", k), p.c(-1, np.int64)), to=TensorProto.FLOAT)
        return str(p.op("Div", s, p.op("Sqrt", size)))
    if c["scale"] == "learned" and per_head is not None:
        logit = p.c(np.log(back.lay(per_head.reshape(1, -1, 1, 1))))
        return str(p.op("Mul", s, p.op("Exp", p.op("Min", logit, p.c(np.log(100.0))))))
    return s
