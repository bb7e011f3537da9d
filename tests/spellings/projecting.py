"""Queries, keys and values: projected, split into heads, normalised or rotated."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.spellings.pen import Arrays, Pen


def layer_norm(p: Pen, x: str, size: int) -> str:
    if p.opset >= 17:
        return str(p.op("LayerNormalization", x, p.c(np.ones(size)), p.c(np.zeros(size)), epsilon=1e-5))
    moved = p.op("Sub", x, p.reduce("ReduceMean", x, -1))
    spread = p.reduce("ReduceMean", p.op("Pow", moved, p.c(2.0)), -1)
    return str(p.op("Div", moved, p.op("Sqrt", p.op("Add", spread, p.c(1e-5)))))


def project(p: Pen, c: dict[str, Any], w: Arrays, b: Arrays, hq: str, hx: str, hm: str) -> tuple[str, str, str]:
    """q, k and v as [b, n, h, d], each made as the choice says."""
    kind = c["project"]
    H, Hk, D, Dv = c["heads"], c["kv"], c["size"], c["vsize"]
    C = w["q"].shape[0]
    early = D**-0.5 if c["scale"] == "query_early" else None
    order = (0, 2, 1) if c["inner"] else (0, 1, 2)
    flat = {n: a.transpose(order).reshape(C, -1) for n, a in w.items()}
    flat_b = {n: (a.T if c["inner"] else a).reshape(-1) for n, a in b.items()}
    bias_on = c["bias_on"]
    shapes = {"q": (H, D), "k": (Hk, D), "v": (Hk, Dv)}

    def heads(y: str, n: str) -> str:
        if early is not None and n == "q":
            y = p.op("Mul", y, p.c(early))
        if c["inner"]:  # features outermost: "b n (d h)"
            return p.turn(p.reshape(y, 0, 0, *shapes[n][::-1]), 0, 1, 3, 2)
        return p.reshape(y, 0, 0, *shapes[n])

    def add(y: str, n: str) -> str:
        return p.op("Add", p.c(flat_b[n]), y) if bias_on else y

    sources = {"q": hq, "k": hm, "v": hm}
    out: dict[str, str] = {}
    if kind in ("packed", "sliced"):
        order = ["q", "k", "v"]
        y = p.op("MatMul", hx, p.c(np.concatenate([flat[n] for n in order], 1)))
        if bias_on:
            y = p.op("Add", y, p.c(np.concatenate([flat_b[n] for n in order])))
        sizes = [flat[n].shape[1] for n in order]
        at = np.cumsum([0, *sizes])
        if kind == "packed" and len(set(sizes)) == 1:
            parts = p.split(y, 3, 2, sizes[0])
        else:
            parts = [p.slice(y, int(at[i]), int(at[i + 1]) if i < 2 else 2**31 - 1, 2) for i in range(3)]
        out = {n: heads(part, n) for n, part in zip(order, parts, strict=True)}
    elif kind in ("packed5", "packed5first", "gathered5"):
        stacked = np.stack([w["q"], w["k"], w["v"]], 1 if kind != "packed5" else 2)  # c 3 h d, or c h 3 d (NeoX)
        y = p.op("MatMul", hx, p.c(stacked.reshape(C, -1)))
        if bias_on:
            y = p.op("Add", y, p.c(np.stack([b["q"], b["k"], b["v"]], 0 if kind != "packed5" else 1).reshape(-1)))
        if kind == "packed5":
            y = p.reshape(y, 0, 0, H, 3 * D)
            parts = p.split(y, 3, 3, D)
        elif kind == "packed5first":
            y = p.turn(p.reshape(y, 0, 0, 3, H, D), 2, 0, 1, 3, 4)
            parts = [p.axes("Squeeze", t, 0) for t in p.split(y, 3, 0, 1)]
        else:
            y = p.turn(p.reshape(y, 0, 0, 3, H, D), 2, 0, 3, 1, 4)
            parts = [p.turn(p.op("Gather", y, p.c(i, np.int64), axis=0), 0, 2, 1, 3) for i in range(3)]
        out = dict(zip("qkv", parts, strict=True))
        if early is not None:
            out["q"] = p.op("Mul", out["q"], p.c(early))
    else:
        for n, src in sources.items():
            if kind == "gemm" and not (n == "q" and c["query"] == "latent"):
                rows = p.reshape(src, -1, C)
                y = p.op("Gemm", rows, p.c(flat[n].T), p.c(flat_b[n]), transB=1)
                if early is not None and n == "q":
                    y = p.op("Mul", y, p.c(early))
                out[n] = p.reshape(y, p.dim(src, 0), p.dim(src, 1), *shapes[n])
            elif kind == "einsum":
                y = p.op("Einsum", src, p.c(w[n]), equation="abc,cde->abde")
                if bias_on:
                    y = p.op("Add", y, p.c(b[n]))
                out[n] = p.op("Mul", y, p.c(early)) if early is not None and n == "q" else y
            elif kind in ("conv1d", "conv2d"):
                t = p.turn(src, 0, 2, 1)
                weight = flat[n].T[:, :, None]
                if kind == "conv2d":
                    t, weight = p.axes("Unsqueeze", t, 3), weight[..., None]
                y = p.op("Conv", t, p.c(weight), p.c(flat_b[n])) if bias_on else p.op("Conv", t, p.c(weight))
                if kind == "conv2d":
                    y = p.axes("Squeeze", y, 3)
                if early is not None and n == "q":
                    y = p.op("Mul", y, p.c(early))
                y = p.reshape(y, 0, *shapes[n], -1)
                out[n] = p.turn(y, 0, 3, 1, 2)
            else:
                out[n] = heads(add(p.op("MatMul", src, p.c(flat[n])), n), n)
    return out["q"], out["k"], out["v"]


def _table(p: Pen, angles: np.ndarray, length: Any) -> str:
    """A stored table of angles, longer than the text and cut to its length: [n, 1, d]."""
    stored = np.concatenate([angles, np.zeros((20, angles.shape[1]))])[:, None]
    return str(p.op("Slice", p.c(stored), p.i(0), p.i(length) if isinstance(length, int) else length, p.i(0)))


def normalise(p: Pen, c: dict[str, Any], x: str, t: np.ndarray, rng: Any, length: Any) -> tuple[str, np.ndarray]:
    """Norm over the features, or a rotary embedding, of [b, n, h, d] in the graph and [b, h, n, d] beside it."""
    kind, size = c["norm"], t.shape[-1]
    if kind == "l2":
        norm = p.reduce("ReduceL2", x, -1)
        y = p.op("Div", x, p.op("Max", norm, p.c(1e-12)) if p.opset >= 12 else norm)
        return y, t / np.linalg.norm(t, axis=-1, keepdims=True)
    if kind == "lp":
        return p.op("LpNormalization", x, axis=3, p=2), t / np.linalg.norm(t, axis=-1, keepdims=True)
    if kind == "rms":
        g = rng.uniform(0.5, 1.5, size)
        mean = p.reduce("ReduceMean", p.op("Mul", x, x), -1)
        y = p.op("Mul", p.op("Div", x, p.op("Sqrt", p.op("Add", mean, p.c(1e-6)))), p.c(g))
        return y, t / np.sqrt((t**2).mean(-1, keepdims=True) + 1e-6) * g
    if kind == "layer":
        return layer_norm(p, x, size), (t - t.mean(-1, keepdims=True)) / np.sqrt(t.var(-1, keepdims=True) + 1e-5)
    n = t.shape[2]
    angle = np.arange(n)[:, None] * 10000.0 ** (-np.arange(size // 2) * 2 / size)
    cos, sin = np.cos(angle), np.sin(angle)
    half = size // 2
    if kind == "rotary":
        cos, sin = np.concatenate([cos, cos], -1), np.concatenate([sin, sin], -1)
        rotated = np.concatenate([-t[..., half:], t[..., :half]], -1)
        turned = p.op("Concat", p.op("Neg", p.slice(x, half, 2**31 - 1, 3)), p.slice(x, 0, half, 3), axis=3)
        table = [_table(p, f, length) for f in (cos, sin)]
        return p.op("Add", p.op("Mul", x, table[0]), p.op("Mul", turned, table[1])), t * cos + rotated * sin
    even, odd = t[..., 0::2], t[..., 1::2]
    out = np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(t.shape)
    e, o = (p.op("Slice", x, p.i(i), p.i(2**31 - 1), p.i(3), p.i(2)) for i in (0, 1))
    gc, gs = (_table(p, f, length) for f in (cos, sin))
    first = p.op("Sub", p.op("Mul", e, gc), p.op("Mul", o, gs))
    second = p.op("Add", p.op("Mul", e, gs), p.op("Mul", o, gc))
    both = p.op("Concat", p.axes("Unsqueeze", first, 4), p.axes("Unsqueeze", second, 4), axis=4)
    return p.op("Reshape", both, p.op("Shape", x)), out
