"""How scores lie, and the way from weights back to features."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.spellings.pen import Pen


class Back:
    """How the scores lie, and the way from weights to the output."""

    def __init__(self, p: Pen, c: dict[str, Any], v: str, dims: dict[str, Any]) -> None:
        self.form, self.p, self.c, self.v, self.dims = c["layout"], p, c, v, dims
        self.H, self.Hk, self.Dv = c["heads"], c["kv"], c["vsize"]
        self.axis = -2 if self.form == "key_first" else -1
        self.rank = {"merged": 3, "stacked": 3, "five": 5}.get(self.form, 4)

    def lay(self, a: np.ndarray) -> np.ndarray:
        """A [B or 1, H or 1, Q or 1, K or 1] constant as it broadcasts to the scores of this layout."""
        f = self.form
        if f in ("merged", "stacked"):
            raise ValueError("a constant of four axes does not broadcast to scores of three")
        if f == "key_first":
            return a.swapaxes(2, 3)
        if f == "heads_first":
            return a.swapaxes(0, 1)
        if f == "five":
            return a.reshape(a.shape[0], self.Hk, self.H // self.Hk, *a.shape[2:]) if a.shape[1] > 1 else a[:, :, None]
        return a

    def lay_value(self, x: str) -> str:
        """As `lay`, for a value of [b or 1, h or 1, q or 1, k or 1] in the graph."""
        f, p = self.form, self.p
        if f == "key_first":
            return p.turn(x, 0, 1, 3, 2)
        if f == "heads_first":
            return p.turn(x, 1, 0, 2, 3)
        if f == "five":
            return p.axes("Unsqueeze", x, 2)
        return x

    def four(self, s: str) -> str:
        """Scores of three axes as four, for what is added to them (as BLOOM does)."""
        if self.rank == 3:
            d = self.dims
            if self.form == "stacked":
                return self.p.turn(self.p.reshape(s, self.H, d["b"], d["q"], d["k"]), 1, 0, 2, 3)
            return self.p.reshape(s, d["b"], self.H, d["q"], d["k"])
        return s

    def three(self, s: str) -> str:
        if self.rank == 3:
            d, p = self.dims, self.p
            if self.form == "stacked":
                s = p.turn(s, 1, 0, 2, 3)
            return p.reshape(s, -1, d["q"], d["k"])
        return s

    def finish(self, a: str, rng: Any) -> str:
        """Weights to the layer's output."""
        p, H, Dv, back = self.p, self.H, self.Dv, self.c["back"]
        out = rng.standard_normal((H, Dv, 7)) * 0.3
        if self.form == "stacked":
            joined = p.op("Concat", *p.split(p.op("MatMul", a, self.v), H, 0, -1), axis=2)
            return str(p.op("MatMul", joined, p.c(out.reshape(H * Dv, 7))))
        y = self._context(a)
        if back == "none":
            return y
        if back == "einsum" and p.opset >= 12:
            return str(p.op("Einsum", y, p.c(out), equation="abcd,cde->abe"))
        if back == "per_head":
            return p.reduce("ReduceSum", p.op("MatMul", p.turn(y, 0, 2, 1, 3), p.c(out)), 1, keep=0)
        if back == "flatten_gemm":
            y = p.op("Gemm", p.reshape(y, -1, H * Dv), p.c(out.reshape(H * Dv, 7)), p.c(np.zeros(7)))
            return p.reshape(y, self.dims["b"], self.dims["q"], 7)
        if back == "concat" and H > 1:
            y = p.op("Concat", *[p.axes("Squeeze", t, 2) for t in p.split(y, H, 2, 1)], axis=2)
        elif self.c["inner"]:
            y, out = p.reshape(p.turn(y, 0, 1, 3, 2), 0, 0, H * Dv), out.swapaxes(0, 1)
        else:
            y = p.reshape(y, 0, 0, H * Dv)
        return str(p.op("MatMul", y, p.c(out.reshape(H * Dv, 7))))

    def _context(self, a: str) -> str:
        """[b, q, h, dv]."""
        p, f, d = self.p, self.form, self.dims
        H, Dv = self.H, self.Dv
        if f == "einsum":
            y = p.op("Einsum", a, self.v, equation="bhqk,bkhd->bqhd")
        elif f == "batched_dot":
            y = p.turn(p.op("MatMul", a, self.v), 0, 2, 1, 3)
        elif f == "bhdn":
            y = p.turn(p.op("MatMul", self.v, p.turn(a, 0, 1, 3, 2)), 0, 3, 1, 2)
        elif f == "heads_first":
            y = p.turn(p.op("MatMul", a, self.v), 1, 2, 0, 3)
        elif f == "summed":
            y = p.reduce(
                "ReduceSum", p.op("Mul", p.axes("Unsqueeze", a, -1), p.axes("Unsqueeze", self.v, 2)), 3, keep=0
            )
            y = p.turn(y, 0, 2, 1, 3)
        elif f == "key_first":
            y = p.turn(p.op("MatMul", self.v, a), 0, 3, 1, 2)  # v [b h d k] x a [b h k q]
        elif f == "five":
            y = p.op("MatMul", a, p.axes("Unsqueeze", self.v, 2))
            y = p.turn(p.reshape(y, d["b"], H, d["q"], Dv), 0, 2, 1, 3)
        elif f == "merged":
            y = p.turn(p.reshape(p.op("MatMul", a, self.v), d["b"], H, d["q"], Dv), 0, 2, 1, 3)
        else:
            y = p.turn(p.op("MatMul", a, self.v), 0, 2, 1, 3)
        return str(y)


def _repeat(p: Pen, c: dict[str, Any], x: str, times: int, length: Any, b: Any) -> str:
    """[b, n, hk, d] -> [b, n, h, d], each head `times` times."""
    if times == 1:
        return x
    Hk = c["kv"]
    kind = c["repeat"]
    d = p.dim(x, 3)
    if kind == "gather":
        return str(p.op("Gather", x, p.c(np.repeat(np.arange(Hk), times), np.int64), axis=2))
    if kind == "concat" and Hk == 1:
        return str(p.op("Concat", *[x] * times, axis=2))
    five = p.axes("Unsqueeze", x, 3)
    if kind == "tile":
        five = p.op("Tile", five, p.i(1, 1, 1, times, 1))
    else:
        five = p.op("Expand", five, p.i(1, 1, 1, times, 1))
    return p.reshape(five, b, length, Hk * times, d)


def lay_scores(p: Pen, c: dict[str, Any], q: str, k: str, v: str, dims: dict[str, Any], rng: Any) -> tuple[str, Back]:
    """The plain scores of q, k [b,n,h,d], in the layout chosen, and the way back from their weights."""
    form, H, Hk, D, Dv = (c[n] for n in ("layout", "heads", "kv", "size", "vsize"))
    if form != "five":
        one = Hk == 1 and H > 1 and c["repeat"] == "broadcast" and form in ("bhqd", "batched_dot", "bhdn")
        if not one:
            k, v = _repeat(p, c, k, H // Hk, dims["k"], dims["b"]), _repeat(p, c, v, H // Hk, dims["k"], dims["b"])
    back = Back(p, c, v, dims)
    if form == "einsum":
        return str(p.op("Einsum", q, k, equation=rng.choice(["bqhd,bkhd->bhqk", "aecd,abcd->aceb"]))), back
    if form == "five":
        q5 = p.reshape(p.turn(q, 0, 2, 1, 3), dims["b"], Hk, H // Hk, dims["q"], D)
        back.v = p.turn(v, 0, 2, 1, 3)
        return str(p.op("MatMul", q5, p.axes("Unsqueeze", p.turn(k, 0, 2, 3, 1), 2))), back
    if form == "stacked":
        flat = []
        for x, size in ((q, D), (k, D), (v, Dv)):
            wide = p.reshape(x, 0, 0, H * size)
            flat.append(p.op("Concat", *p.split(wide, H, 2, size), axis=0))
        back.v = flat[2]
        return str(p.op("MatMul", flat[0], p.turn(flat[1], 0, 2, 1))), back
    if form == "bhdn":  # channels first: q [b h d n]
        back.v = p.turn(v, 0, 2, 3, 1)
        return str(p.op("MatMul", p.turn(q, 0, 2, 1, 3), p.turn(k, 0, 2, 3, 1))), back
    if form == "heads_first":
        back.v = p.turn(v, 2, 0, 1, 3)
        return str(p.op("MatMul", p.turn(q, 2, 0, 1, 3), p.turn(k, 2, 0, 3, 1))), back
    q4, v4 = p.turn(q, 0, 2, 1, 3), p.turn(v, 0, 2, 1, 3)
    back.v = v4
    if form == "summed":
        k4 = p.turn(k, 0, 2, 1, 3)
        return p.reduce(
            "ReduceSum", p.op("Mul", p.axes("Unsqueeze", q4, 3), p.axes("Unsqueeze", k4, 2)), 4, keep=0
        ), back
    if form == "key_first":
        back.v = p.turn(v, 0, 2, 3, 1)
        return str(p.op("MatMul", p.turn(k, 0, 2, 1, 3), p.turn(q, 0, 2, 3, 1))), back
    if form == "merged":
        kt = p.reshape(p.turn(k, 0, 2, 3, 1), -1, D, dims["k"])
        back.v = p.reshape(v4, -1, dims["k"], Dv)
        bq = q4
        if c["query"] == "latent":
            bq = p.op("Expand", q4, p.shape(dims["b"], H, dims["q"], D))
        return str(p.op("MatMul", p.reshape(bq, -1, dims["q"], D), kt)), back
    return str(p.op("MatMul", q4, p.turn(k, 0, 2, 3, 1))), back
