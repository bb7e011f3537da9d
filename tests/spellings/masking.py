"""What is added to scores, and what is hidden, in every place where it may be written."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.spellings.laying import Back
from tests.spellings.pen import Pen

LOW = -1e9


def draw_bias(c: dict[str, Any], rng: Any, H: int, Q: int, K: int) -> np.ndarray | None:
    """What is added to the scores besides a mask: [1,H,Q,K]."""
    if c["bias"] == "alibi":
        slopes = 2.0 ** (-8.0 * np.arange(1, H + 1) / H)
        return np.asarray(slopes[None, :, None, None] * -np.abs(np.arange(Q)[:, None] - np.arange(K)[None, :]))
    if c["bias"] in ("learned", "table"):
        return np.asarray(rng.standard_normal((1, H, Q, K)))
    return None


def count(p: Pen, n: Any) -> str:
    if isinstance(n, int):
        return p.c(np.arange(n), np.int64)
    return str(p.op("Range", p.c(0, np.int64), p.axes("Squeeze", n, 0), p.c(1, np.int64)))


def write_bias(p: Pen, c: dict[str, Any], s: str, bias: np.ndarray | None, back: Back, dims: dict[str, Any]) -> str:
    """The scores with the bias added."""
    if bias is None:
        return s
    s = back.four(s)
    if c["bias"] == "alibi":
        rows, columns = p.axes("Unsqueeze", count(p, dims["q"]), 1), p.axes("Unsqueeze", count(p, dims["k"]), 0)
        apart = p.op("Cast", p.op("Neg", p.op("Abs", p.op("Sub", columns, rows))), to=1)
        H = bias.shape[1]
        slopes = p.c((2.0 ** (-8.0 * np.arange(1, H + 1) / H)).reshape(H, 1, 1))
        term = p.axes("Unsqueeze", p.op("Mul", slopes, apart), 0)
        return back.three(p.op("Add", s, in_five(p, back, term)))
    laid = bias if back.rank == 3 else back.lay(bias)
    term = p.c(laid)
    if c["bias"] == "table":  # a table of values, gathered by stored places
        term = p.op("Gather", p.c(laid.ravel()), p.c(np.arange(laid.size).reshape(laid.shape), np.int64))
    return back.three(p.op("Add", s, term))


def in_five(p: Pen, back: Back, term: str) -> str:
    if back.form == "five":
        return p.reshape(term, 1, back.Hk, back.H // back.Hk, back.dims["q"], back.dims["k"])
    return back.lay_value(term)


class Mask:
    """What is hidden: which cells, and where it is written."""

    def __init__(
        self, p: Pen, c: dict[str, Any], rng: Any, sizes: tuple[int, int, int], free: tuple[Any, Any, Any],
        dims: dict[str, Any],
    ) -> None:  # fmt: skip
        (B, Q, K), (bdim, qdim, kdim) = sizes, free
        self.p, self.dims, self.Q, self.K = p, dims, Q, K
        kind = c["mask"]
        self.visible = np.ones((B, 1, Q, K), bool)
        self.kind = kind
        self.causal = kind.startswith("causal") or kind == "cumsum"
        self.value = ""
        if kind.startswith("pad") or kind in ("after", "inside", "causal_pad"):
            keep = np.ones((B, K), np.int64)
            keep[0, -1] = 0
            keep[-1, -2:] = 0
            self.visible &= keep.astype(bool)[:, None, None, :]
            dtype = rng.choice([np.int64, np.int32, np.float32, bool])
            self.value = p.given("mask", keep.astype(dtype), [bdim, kdim])
        if self.causal:
            self.visible &= np.tril(np.ones((Q, K), bool))
        if kind in ("mask_input", "bool_input"):
            see = rng.random((B, 1, Q, K)) < 0.7
            see[..., 0] = True
            self.visible &= see
            if kind == "bool_input":
                self.value = p.given("mask", see, [bdim, 1, qdim, kdim])
            else:
                self.value = p.given("mask", np.where(see, 0, LOW).astype(np.float32), [bdim, 1, qdim, kdim])

    def keep(self, to: int) -> str:
        """[b, 1, 1, k] of the padding input."""
        p = self.p
        return str(p.op("Cast", p.axes("Unsqueeze", self.value, 1, 2), to=to))

    def later(self) -> str:
        """Boolean [q, k]: the key is later than the query."""
        p, d = self.p, self.dims
        rows, columns = p.axes("Unsqueeze", count(p, d["q"]), 1), p.axes("Unsqueeze", count(p, d["k"]), 0)
        return str(p.op("Greater", columns, rows))

    def triangle(self) -> tuple[str, str]:
        """(hidden, visible) as booleans [1, 1, q, k]."""
        p, d = self.p, self.dims
        if self.kind == "causal_trilu":
            ones = p.op("Expand", p.c(1.0), p.shape(d["q"], d["k"]))
            see = p.op("Cast", p.op("Trilu", ones, upper=0), to=9)
        elif self.kind == "causal_buffer":
            table = p.c(np.tril(np.ones((1, 1, 32, 32))), bool)
            t = p.op("Slice", table, p.i(0), p.i(d["q"]) if isinstance(d["q"], int) else d["q"], p.i(2))
            see = p.op("Slice", t, p.i(0), p.i(d["k"]) if isinstance(d["k"], int) else d["k"], p.i(3))
            return p.op("Not", see), see
        elif self.kind == "cumsum":
            ones = p.op("Expand", p.c(1.0), p.shape(d["k"]))
            place = p.op("CumSum", ones, p.c(0, np.int64))
            see = p.op("Not", p.op("Less", p.axes("Unsqueeze", place, 1), p.axes("Unsqueeze", place, 0)))
        else:
            hide = p.axes("Unsqueeze", self.later(), 0, 1)
            return hide, p.op("Not", hide)
        see = p.axes("Unsqueeze", see, 0, 1)
        return p.op("Not", see), see

    def before(self, s: str, back: Back) -> str:
        p, kind = self.p, self.kind
        if kind in ("none", "after", "inside"):
            return s
        s = back.four(s)
        lay = back.lay_value
        if kind == "pad_add":
            s = p.op("Add", s, lay(p.op("Mul", p.op("Sub", p.c(1.0), self.keep(1)), p.c(LOW))))
        elif kind == "pad_where":
            s = p.op("Where", lay(self.keep(9)), s, p.c(-np.inf))
        elif kind == "pad_bool_and":
            k = self.keep(9)
            q = p.op("Expand", p.c([[[[True]]]], bool), p.shape(self.dims["b"], 1, self.dims["q"], 1))
            s = p.op("Where", lay(p.op("And", k, q)), s, p.c(np.finfo(np.float32).min))
        elif kind == "pad_times":
            keep = lay(self.keep(1))
            s = p.op("Sub", p.op("Mul", s, keep), p.op("Mul", p.op("Sub", p.c(1.0), keep), p.c(-LOW)))
        elif kind == "pad_min":
            s = p.op("Min", s, lay(p.op("Sub", p.op("Mul", self.keep(1), p.c(2e9)), p.c(1e9))))
        elif kind == "pad_log":
            s = p.op("Add", s, lay(p.op("Log", self.keep(1))))
        elif kind == "mask_input":
            s = p.op("Add", lay(self.value), s)
        elif kind == "bool_input":
            s = p.op("Where", lay(p.op("Not", self.value)), p.c(LOW), s)
        elif kind in ("causal_where", "causal_trilu", "causal_buffer", "cumsum"):
            hide, _ = self.triangle()
            s = p.op("Where", lay(hide), p.c(LOW), s)
        elif kind == "causal_add":
            hide, _ = self.triangle()
            s = p.op("Add", s, lay(p.op("Mul", p.op("Cast", hide, to=1), p.c(-1e4))))
        elif kind == "causal_times":
            _, see = self.triangle()
            see = lay(p.op("Cast", see, to=1))
            s = p.op("Sub", p.op("Mul", s, see), p.op("Mul", p.c(1e4), p.op("Sub", p.c(1.0), see)))
        elif kind == "causal_pad":
            _, see = self.triangle()
            both = p.op("And", see, self.keep(9))
            s = p.op("Add", s, lay(p.op("Where", both, p.c(0.0), p.c(LOW))))
        elif kind == "causal_scatter":
            at = np.argwhere(np.triu(np.ones((self.Q, self.K)), 1))
            base = p.c(np.zeros((self.Q, self.K)))
            table = p.op("ScatterND", base, p.c(at, np.int64), p.c(np.full(len(at), LOW)))
            s = p.op("Add", s, lay(p.axes("Unsqueeze", table, 0, 1)))
        return back.three(s)

    def inside(self, e: str, back: Back) -> str:
        if self.kind != "inside":
            return e
        return back.three(self.p.op("Mul", back.four(e), back.lay_value(self.keep(1))))

    def behind(self, a: str, back: Back) -> str:
        p = self.p
        if self.kind != "after":
            return a
        a = back.three(p.op("Mul", back.four(a), back.lay_value(self.keep(1))))
        return str(p.op("Div", a, p.op("Add", p.reduce("ReduceSum", a, back.axis), p.c(1e-9))))
