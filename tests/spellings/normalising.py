"""The softmax, in every way in which it is written, and what it gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.spellings.laying import Back
from tests.spellings.masking import Mask
from tests.spellings.pen import Pen


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def weigh(c: dict[str, Any], z: np.ndarray, plan: Mask) -> tuple[np.ndarray, np.ndarray | None, bool]:
    """Weights of biased scores [B,H,Q,K], the softmax's input where it is a stage, and whether there is a sink."""
    see = np.broadcast_to(plan.visible, z.shape)
    x = np.where(see, z, -np.inf)
    sink = c["softmax"] in ("one", "zeros")
    if sink:
        e = np.exp(x)
        w = e / (1 + e.sum(-1, keepdims=True))
    elif c["mask"] == "after":
        w = _softmax(z) * see
        w = w / (w.sum(-1, keepdims=True) + 1e-9)
    else:
        w = _softmax(x)
    return w, (None if c["mask"] in ("after", "inside") else x), sink


def write_softmax(p: Pen, c: dict[str, Any], s: str, back: Back, plan: Mask, dims: dict[str, Any]) -> str:
    kind, axis = c["softmax"], back.axis
    at = axis if p.opset >= 11 else axis + back.rank
    last = axis == -1
    if kind == "positive":
        return str(p.op("Softmax", s, axis=back.rank + axis))
    if kind == "turned" and last and back.rank == 4 and p.opset >= 13:
        return p.turn(p.op("Softmax", p.turn(s, 0, 1, 3, 2), axis=2), 0, 1, 3, 2)
    if kind == "flat" and last:
        two = p.op("Softmax", p.reshape(s, -1, dims["k"]), axis=-1)
        return str(p.op("Reshape", two, p.op("Shape", s)))
    if kind == "flat3" and last and back.rank == 4 and back.form != "heads_first":
        three = p.op("Softmax", p.reshape(s, -1, dims["q"], dims["k"]), axis=2)
        return p.reshape(three, dims["b"], back.H, dims["q"], dims["k"])
    if kind in ("written", "stable", "reciprocal", "eps", "one", "base2", "exp2_written", "pow_inverse"):
        sink = kind == "one"
        if kind in ("stable", "eps"):
            s = p.op("Sub", s, p.reduce("ReduceMax", s, at))
        if kind == "base2":
            e = p.op("Pow", p.c(2.0), p.op("Mul", s, p.c(np.log2(np.e))))
        elif kind == "exp2_written":
            e = p.op("Exp", p.op("Mul", p.op("Mul", s, p.c(1.4426950408889634)), p.c(0.6931471805599453)))
        else:
            e = p.op("Exp", s)
        e = plan.inside(e, back)
        total = p.reduce("ReduceSum", e, at)
        if sink:
            total = p.op("Add", p.c(1.0), total)
        if kind == "eps":
            total = p.op("Add", total, p.c(1e-9))
        if kind == "reciprocal":
            return str(p.op("Mul", e, p.op("Reciprocal", total)))
        if kind == "pow_inverse":
            return str(p.op("Mul", p.op("Pow", total, p.c(-1.0)), e))
        return str(p.op("Div", e, total))
    if kind == "log":
        return str(p.op("Exp", p.op("LogSoftmax", s, axis=at)))
    if kind == "logsumexp":
        return str(p.op("Exp", p.op("Sub", s, p.reduce("ReduceLogSumExp", s, at))))
    if kind == "cast":
        wide = p.op("Softmax", p.op("Cast", s, to=11), axis=at)
        return str(p.op("Cast", wide, to=1))
    if kind == "zeros":
        if not last:
            zero = p.op("Mul", p.slice(s, 0, 1, back.rank - 2), p.c(0.0))
            joined = p.op("Concat", zero, s, axis=back.rank - 2)
            return p.slice(p.op("Softmax", joined, axis=at), 1, 2**31 - 1, back.rank - 2)
        shape = p.op("Concat", p.op("Slice", p.op("Shape", s), p.i(0), p.i(back.rank - 1), p.i(0)), p.i(1), axis=0)
        zero = p.op("Expand", p.c(0.0), shape)
        joined = p.op("Concat", zero, s, axis=back.rank - 1)
        return p.slice(p.op("Softmax", joined, axis=-1), 1, 2**31 - 1, back.rank - 1)
    return str(p.op("Softmax", s, axis=at))


def follow(p: Pen, c: dict[str, Any], a: str) -> str:
    kind = c["after"]
    if kind == "dropout":
        return str(p.op("Dropout", a, p.c(0.1), p.c(False, bool)) if p.opset >= 12 else p.op("Dropout", a, ratio=0.1))
    if kind == "identity":
        return str(p.op("Identity", a))
    if kind == "nan_guard":
        return str(p.op("Where", p.op("IsNaN", a), p.c(0.0), a))
    if kind == "cast":
        return str(p.op("Cast", p.op("Cast", a, to=11), to=1))
    return a
