"""Small Transformers in float64 numpy, with a hook at every quantity, and the same as ONNX graphs in several spellings.

Nothing here shares code with attnx. What an intervention is, is written here a second time: `edited` makes the hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray
Hook = Callable[[str, int, Array], Array]
WIDTH, HEADS, SIZE, INNER, VOCABULARY, LONGEST = 16, 4, 8, 24, 13, 12
LOWEST = float(np.finfo(np.float32).min)
MS = "com.microsoft"


@dataclass(frozen=True)
class Kind:
    """How a model is built, and how its graph is written."""

    layers: int = 2
    kv: int = HEADS
    """Key/value heads."""
    causal: bool = True
    norm: str = "pre"
    """pre, post (BERT), sandwich (Gemma 2: also behind each sublayer), mixed (attention as post, MLP as pre)."""
    parallel: bool = False
    """Attention and MLP read the same stream."""
    joined: str = "branches"
    """How a parallel layer is summed: branches, (m + a) + x; stream, (x + a) + m; at once, Sum(x, a, m); one of
    `SIGNS`; or turned, m - (x + a), which numpy does not follow. In other layers, subtracted: x - a, then x - m; late,
    (x + a) + c; early, (x + c) + a; clamped, x + a within what half precision can hold."""
    scale: str = ""
    """What a sublayer's output is multiplied with before it is added: number, or features (a stored vector)."""
    kept: float = 1.0
    """What the stream is multiplied with where a sublayer's output is added to it (DeepNorm, in post-norm models)."""
    macaron: bool = False
    """Whether half of an MLP comes before the attention (Conformer); with `closed`, a norm closes each layer."""
    closed: bool = False
    """Whether a post-norm model ends with a norm of its own, behind the last layer's."""
    written: bool = False
    """Whether layer norms are written out."""
    rms: bool = False
    """RMS norms, written out."""
    sink: bool = False
    cap: float | None = None
    """Softcap of the logits."""
    low: float = -np.inf
    """What a mask adds to hidden cells."""
    spelling: str = "plain"
    """plain; stacked (one product for Q, K and V); merged ([B*H,Q,D]); flat (products over [B*Q,E])."""
    fused: str = ""
    """mha, gqa: fused attention; skip: the stream inside skip norms; or several."""
    experts: bool = False
    """Whether the MLP is written as two halves that a sum joins (a mixture of experts)."""
    apart: bool = False
    """Whether such halves are added to the stream one after the other."""
    places: bool = False
    """Whether query and key are multiplied with positions too, and the key scaled for one product alone (DeBERTa)."""
    every: bool = True
    """Whether all positions have logits; else the last alone."""
    picks: str = ""
    """How positions are picked between the last layer and the final norm, which numpy does not follow: slice, the last;
    gather, the last without an axis for it; lengths, each row's last real one; product, the same by ones and zeros;
    mean, of all."""

    @property
    def posts(self) -> tuple[bool, bool]:
        """Whether the stream is normed behind attention and MLP."""
        return self.norm in ("post", "mixed"), self.norm == "post"


SIGNS = {"subtracted": (1, -1), "both subtracted": (-1, -1), "less the difference": (1, -1), "difference": (-1, 1)}
"""The signs of attention and MLP in parallel layers that are (x + a) - m, x - (m + a), x - (m - a) and (m - a) + x."""


def weights(kind: Kind, seed: int = 0) -> dict[str, Array]:
    """Every weight by name, float32."""
    rng = np.random.default_rng(seed)
    w: dict[str, Array] = {"table": rng.normal(size=(VOCABULARY, WIDTH)), "places": rng.normal(size=(LONGEST, WIDTH))}
    norms = ["in", "mid", "behind1", "behind2"]
    for layer in range(kind.layers):
        for name, columns in (("q", HEADS), ("k", kind.kv), ("v", kind.kv)):
            w[f"{layer}{name}"] = rng.normal(size=(WIDTH, columns * SIZE)) / 3
            w[f"{layer}{name}b"] = rng.normal(size=columns * SIZE) / 3
        w[f"{layer}o"], w[f"{layer}ob"] = rng.normal(size=(HEADS * SIZE, WIDTH)) / 3, rng.normal(size=WIDTH) / 3
        w[f"{layer}up"], w[f"{layer}upb"] = rng.normal(size=(WIDTH, INNER)) / 3, rng.normal(size=INNER) / 3
        w[f"{layer}down"], w[f"{layer}downb"] = rng.normal(size=(INNER, WIDTH)) / 4, rng.normal(size=WIDTH) / 3
        w[f"{layer}scales"] = np.linspace(0.3, 1.6, 2 * WIDTH).reshape(2, WIDTH)
        w[f"{layer}shifts"] = np.linspace(-1, 1, 2 * WIDTH).reshape(2, WIDTH)
        more = np.random.default_rng(100 + layer)
        for name, shape in (("firstup", (WIDTH, INNER)), ("firstdown", (INNER, WIDTH)), ("firstupb", (INNER,))):
            w[f"{layer}{name}"] = more.normal(size=shape) / 3
        w[f"{layer}firstdownb"], w[f"{layer}firstb"] = more.normal(size=(2, WIDTH)) / 3
        w[f"{layer}firstg"] = 1 + more.normal(size=WIDTH) / 4
        w[f"{layer}sink"] = rng.normal(size=HEADS)
        w[f"{layer}pk"], w[f"{layer}pq"] = rng.normal(size=(2, SIZE, LONGEST)) / 4
        for name in norms:
            w[f"{layer}{name}g"], w[f"{layer}{name}b"] = 1 + rng.normal(size=WIDTH) / 4, rng.normal(size=WIDTH) / 4
    w["endg"], w["endb"] = 1 + rng.normal(size=WIDTH) / 4, rng.normal(size=WIDTH) / 4
    w["head"], w["headb"] = rng.normal(size=(WIDTH, VOCABULARY)), rng.normal(size=VOCABULARY)
    return {name: a.astype(np.float32) for name, a in w.items()}


# In numpy


def signs(kind: Kind) -> tuple[int, int]:
    """The signs with which attention and MLP are added."""
    if kind.joined not in SIGNS:
        return 1, 1
    return SIGNS[kind.joined] if kind.parallel else (-1, -1)


def _keep(_name: str, _layer: int, array: Array) -> Array:
    return array


def _norm(kind: Kind, w: dict[str, Array], name: str, x: Array) -> Array:
    if kind.rms:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}g"]
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}g"] + w[f"{name}b"]


def softmax(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


def seen(kind: Kind, mask: Array) -> Array:
    """Who may look at whom, bool [B,1,Q,K]."""
    length = mask.shape[1]
    triangle = np.tri(length, dtype=bool) if kind.causal else np.ones((length, length), bool)
    return triangle & (mask[:, None, None, :] > 0)


def run(kind: Kind, w32: dict[str, Array], ids: Array, mask: Array, hook: Hook = _keep) -> Array:
    """Logits [B,Q,V] (the last position's alone, [B,1,V]), float64; `hook` may change what it is given."""
    w = {name: a.astype(np.float64) for name, a in w32.items()}
    x = hook("given", 0, w["table"][ids] + w["places"][: ids.shape[1]])
    for layer in range(kind.layers):
        if kind.macaron:
            x = x + 0.5 * hook("first mlp", layer, _mlp(w, f"{layer}first", _norm(kind, w, f"{layer}first", x)))
        a = hook(
            "attention",
            layer,
            _attend(kind, w, layer, x if kind.posts[0] else _norm(kind, w, f"{layer}in", x), mask, hook),
        )
        if kind.norm == "sandwich":
            a = _norm(kind, w, f"{layer}behind1", a)
        plus, times = signs(kind)
        a = a * factor(kind, w, layer, 0)
        middle = _kept_in(kind, x, w, layer, 0) + plus * a
        if kind.posts[0]:
            middle = _norm(kind, w, f"{layer}in", middle)
        before = x if kind.parallel else middle
        inner = before if kind.posts[1] else _norm(kind, w, f"{layer}mid", before)
        m = hook("mlp", layer, _mlp(w, f"{layer}", inner))
        if kind.norm == "sandwich":
            m = _norm(kind, w, f"{layer}behind2", m)
        middle = middle if kind.parallel else _kept_in(kind, middle, w, layer, 1)
        x = middle + times * m * factor(kind, w, layer, 1)
        if kind.posts[1]:
            x = _norm(kind, w, f"{layer}mid", x)
        if kind.macaron and kind.closed:
            x = _norm(kind, w, f"{layer}behind1", x)
        x = hook("residual", layer, x)
    return head(kind, w, x)


def _kept_in(kind: Kind, x: Array, w: dict[str, Array], layer: int, sublayer: int) -> Array:
    """The stream before something is added, with the constants that shift or scale it."""
    x = kind.kept * x
    return x + w[f"{layer}shifts"][sublayer] if kind.joined in ("late", "early") else x


def head(kind: Kind, w: dict[str, Array], x: Array) -> Array:
    """All that follows the last layer."""
    if kind.norm != "post" or kind.closed:
        x = _norm(kind, w, "end", x)
    if not kind.every:
        x = x[:, -1:]
    logits = x @ w["head"] + w["headb"]
    return logits if kind.cap is None else kind.cap * np.tanh(logits / kind.cap)


def _mlp(w: dict[str, Array], name: str, x: Array) -> Array:
    inner = np.maximum(x @ w[f"{name}up"] + w[f"{name}upb"], 0)
    return np.asarray(inner @ w[f"{name}down"] + w[f"{name}downb"])


def _attend(kind: Kind, w: dict[str, Array], layer: int, x: Array, mask: Array, hook: Hook) -> Array:
    batch, length, _ = x.shape

    def split(name: str) -> Array:
        return (x @ w[f"{layer}{name}"] + w[f"{layer}{name}b"]).reshape(batch, length, -1, SIZE).transpose(0, 2, 1, 3)

    q, k, v = (hook(long, layer, split(name)) for name, long in (("q", "query"), ("k", "key"), ("v", "value")))
    k, v = (np.repeat(side, HEADS // kind.kv, axis=1) for side in (k, v))
    scaled = q @ k.transpose(0, 1, 3, 2) / np.sqrt(SIZE)
    if kind.places:
        scaled = scaled + q @ w[f"{layer}pk"][:, :length] + (k @ w[f"{layer}pq"][:, :length]).transpose(0, 1, 3, 2)
    low = kind.low
    masked = hook(
        "masked",
        layer,
        np.where(seen(kind, mask), scaled, low) if np.isinf(low) else scaled + np.where(seen(kind, mask), 0, low),
    )
    if kind.sink:
        column = np.broadcast_to(w[f"{layer}sink"][None, :, None, None], (batch, HEADS, length, 1))
        share = softmax(np.concatenate([masked, column], -1))[..., :-1]
    else:
        share = softmax(masked)
    context = hook("context", layer, hook("weights", layer, np.nan_to_num(share)) @ v)
    return context.transpose(0, 2, 1, 3).reshape(batch, length, -1) @ w[f"{layer}o"] + w[f"{layer}ob"]


def factor(kind: Kind, w: dict[str, Array], layer: int, sublayer: int) -> Array:
    """What a sublayer's output is multiplied with."""
    return {"": np.ones(()), "number": np.array(0.4), "features": w[f"{layer}scales"][sublayer]}[kind.scale]


def recorded(kind: Kind, w: dict[str, Array], ids: Array, mask: Array) -> dict[tuple[str, int], Array]:
    """Every quantity of an unedited run."""
    out: dict[tuple[str, int], Array] = {}

    def note(name: str, layer: int, array: Array) -> Array:
        out[name, layer] = array
        return array

    out["logits", 0] = run(kind, w, ids, mask, note)
    return out


def picked(name: str, shape: tuple[int, ...], heads: Any, queries: Any, keys: Any) -> Array:
    """Which cells are meant, bool."""
    letters = {"key": "bhkd", "value": "bhkd", "masked": "bhqk", "weights": "bhqk"}.get(
        name, "bqd" if len(shape) == 3 else "bhqd"
    )
    out = np.ones(shape, bool)
    for letter, chosen in (("h", heads), ("q", queries), ("k", keys)):
        if chosen is not None and letter in letters:
            line = np.isin(np.arange(shape[letters.index(letter)]), chosen)
            out &= line.reshape([-1 if other == letter else 1 for other in letters])
    return out


def edited(
    kind: Kind,
    mask: Array,
    what: str,
    layers: Any = None,
    heads: Any = None,
    queries: Any = None,
    keys: Any = None,
    theirs: dict[tuple[str, int], Array] | None = None,
    keep_self: bool = False,
) -> Hook:
    """A hook that makes an intervention: zero, mean, unpadded, uniform, knockout, or the name of what is patched."""
    at = {"zero": "context", "mean": "context", "unpadded": "context", "uniform": "weights", "knockout": "masked"}.get(
        what, what
    )

    def hook(name: str, layer: int, array: Array) -> Array:
        if at not in (name, name.removeprefix("first ")) or (layers is not None and layer not in layers):
            return array
        cells = picked(name, array.shape, heads, queries, keys)
        if what == "zero":
            return np.where(cells, 0.0, array)
        if what in ("mean", "unpadded"):
            real = np.ones_like(mask) if what == "mean" else mask
            by = real / real.sum(1, keepdims=True)
            return np.where(cells, (array * by[:, None, :, None]).sum(2, keepdims=True), array)
        if what == "uniform":
            may = np.broadcast_to(seen(kind, mask), array.shape)
            return np.where(cells, may / np.maximum(may.sum(-1, keepdims=True), 1), array)
        if what == "knockout":
            own = np.eye(array.shape[2], dtype=bool) if keep_self else False
            return np.where(cells & ~np.asarray(own), -np.inf, array)
        assert theirs is not None
        return np.where(cells, theirs[name, layer], array)

    return hook


# As a graph


class Graph:
    """A graph in the making; methods return the names of values."""

    def __init__(self, kind: Kind, w: dict[str, Array]) -> None:
        self.kind, self.w = kind, w
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, Array] = {}

    def op(self, op: str, *inputs: Any, domain: str = "", outputs: int = 1, **attributes: Any) -> str:
        """Add a node; arrays among its inputs become constants."""
        outs = [f"v{len(self.nodes)}" if i == 0 else f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        names = [x if isinstance(x, str) else self.const(x) for x in inputs]
        self.nodes.append(helper.make_node(op, names, outs, name=f"n{len(self.nodes)}", domain=domain, **attributes))
        return outs[0]

    def const(self, value: Any) -> str:
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        name = next(
            (
                n
                for n, a in self.tensors.items()
                if a.dtype == array.dtype and np.array_equal(a, array) and a.shape == array.shape
            ),
            None,
        )
        if name is None:
            name = f"c{len(self.tensors)}"
            self.tensors[name] = array
        return name

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def linear(self, x: str, weight: str, bias: str | None = None) -> str:
        """A product and its bias, over [B,Q,...] or [B*Q,...]."""
        if self.kind.spelling == "flat":
            flat = self.op("Reshape", x, self.ints(-1, self.w[weight].shape[0]))
            made = self.op("Gemm", flat, self.w[weight], *([self.w[bias]] if bias else []))
            return self.op("Reshape", made, self.op("Concat", "shape", self.ints(self.w[weight].shape[1]), axis=0))
        made = self.op("MatMul", x, self.w[weight])
        return self.op("Add", self.w[bias], made) if bias else made

    def norm(self, name: str, x: str) -> str:
        if self.kind.written:
            centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
            variance = self.op("ReduceMean", self.op("Pow", centred, np.float32(2)), axes=[-1])
            root = self.op("Sqrt", self.op("Add", variance, np.float32(1e-5)))
            scaled = self.op("Mul", self.op("Div", centred, root), self.w[f"{name}g"])
            return self.op("Add", scaled, self.w[f"{name}b"])
        if not self.kind.rms:
            return self.op("LayerNormalization", x, self.w[f"{name}g"], self.w[f"{name}b"], axis=-1, epsilon=1e-5)
        square = self.op("ReduceMean", self.op("Pow", x, np.float32(2)), axes=[-1])
        size = self.op("Div", np.float32(1), self.op("Sqrt", self.op("Add", square, np.float32(1e-5))))
        return self.op("Mul", self.w[f"{name}g"], self.op("Mul", x, size))

    def heads(self, x: str, count: int) -> str:
        return self.op("Transpose", self.op("Reshape", x, self.ints(0, 0, count, SIZE)), perm=[0, 2, 1, 3])

    def attend(self, layer: int, x: str) -> str:
        kind, w = self.kind, self.w
        if "mha" in kind.fused:
            parts = [self.linear(x, f"{layer}{name}", f"{layer}{name}b") for name in "qkv"]
            made = self.op("MultiHeadAttention", *parts, "", "", "bias", domain=MS, num_heads=HEADS)
            return self.linear(made, f"{layer}o", f"{layer}ob")
        if "gqa" in kind.fused:
            parts = [self.linear(x, f"{layer}{name}", f"{layer}{name}b") for name in "qkv"]
            made = self.op(
                "GroupQueryAttention",
                *parts,
                "",
                "",
                "lengths",
                "total",
                domain=MS,
                num_heads=HEADS,
                kv_num_heads=kind.kv,
            )
            return self.linear(made, f"{layer}o", f"{layer}ob")
        if kind.spelling == "stacked":
            whole = np.concatenate([w[f"{layer}{n}"] for n in "qkv"], 1)
            bias = np.concatenate([w[f"{layer}{n}b"] for n in "qkv"])
            packed = self.op("Add", self.op("MatMul", x, whole), bias)
            five = self.op(
                "Transpose", self.op("Reshape", packed, self.ints(0, 0, 3, HEADS, SIZE)), perm=[2, 0, 3, 1, 4]
            )
            q, k, v = (self.op("Gather", five, np.array(i, np.int64), axis=0) for i in range(3))
        else:
            q, k, v = (
                self.heads(self.linear(x, f"{layer}{n}", f"{layer}{n}b"), HEADS if n == "q" else kind.kv) for n in "qkv"
            )
        if kind.kv != HEADS:
            k, v = (self._repeated(side) for side in (k, v))
        if kind.spelling == "merged":
            return self._merged(layer, q, k, v)
        turned = self.op("Transpose", k, perm=[0, 1, 3, 2])
        if kind.places:
            masked = self.op("Add", self._with_places(layer, q, k, turned), "bias")
        else:
            masked = self.op("Add", self.op("Mul", self.op("MatMul", q, turned), np.float32(SIZE**-0.5)), "bias")
        if kind.sink:
            column = self.op(
                "Expand",
                w[f"{layer}sink"].reshape(1, -1, 1, 1),
                self.op(
                    "Concat",
                    self.op("Gather", "shape", self.ints(0), axis=0),
                    self.ints(HEADS),
                    self.op("Gather", "shape", self.ints(1), axis=0),
                    self.ints(1),
                    axis=0,
                ),
            )
            share = self.op("Softmax", self.op("Concat", masked, column, axis=-1), axis=-1)
            share = self.op("Slice", share, self.ints(0), self.ints(-1), self.ints(3))
        else:
            share = self.op("Softmax", masked, axis=-1)
        context = self.op("MatMul", share, v)
        joined = self.op("Reshape", self.op("Transpose", context, perm=[0, 2, 1, 3]), self.ints(0, 0, HEADS * SIZE))
        return self.linear(joined, f"{layer}o", f"{layer}ob")

    def _with_places(self, layer: int, q: str, k: str, turned: str) -> str:
        """The scores, with what query and key make of positions added."""
        content = self.op("MatMul", q, self.op("Div", turned, np.float32(SIZE**0.5)))
        length = self.op("Gather", "shape", self.ints(1), axis=0)
        tables = [self.op("Slice", self.w[f"{layer}{n}"], self.ints(0), length, self.ints(1)) for n in ("pk", "pq")]
        asked = self.op("MatMul", q, tables[0])
        asking = self.op("Transpose", self.op("MatMul", k, tables[1]), perm=[0, 1, 3, 2])
        return self.op("Add", content, self.op("Add", asked, asking))

    def _repeated(self, side: str) -> str:
        wide = self.op("Unsqueeze", side, self.ints(2))
        times = HEADS // self.kind.kv
        wide = self.op("Expand", wide, self.ints(1, 1, times, 1, 1))
        return self.op(
            "Reshape",
            wide,
            self.op("Concat", self.op("Gather", "shape", self.ints(0), axis=0), self.ints(HEADS, -1, SIZE), axis=0),
        )

    def _merged(self, layer: int, q: str, k: str, v: str) -> str:
        """[B*H,Q,D], as torch's nn.MultiheadAttention and old exports have it; the scale on the query."""
        three = self.op(
            "Concat", self.ints(-1), self.op("Gather", "shape", self.ints(1), axis=0), self.ints(SIZE), axis=0
        )
        q = self.op("Mul", q, np.float32(SIZE**-0.5))
        q, k, v = (self.op("Reshape", side, three) for side in (q, k, v))
        product = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 2, 1]))
        ends = [self.op("Gather", "shape", self.ints(i), axis=0) for i in (0, 1)]
        four = self.op("Reshape", product, self.op("Concat", ends[0], self.ints(HEADS), ends[1], ends[1], axis=0))
        masked = self.op("Add", four, "bias")
        flat = self.op("Reshape", masked, self.op("Concat", self.ints(-1), ends[1], ends[1], axis=0))
        context = self.op("MatMul", self.op("Softmax", flat, axis=-1), v)
        split = self.op(
            "Reshape", context, self.op("Concat", ends[0], self.ints(HEADS), ends[1], self.ints(SIZE), axis=0)
        )
        joined = self.op("Reshape", self.op("Transpose", split, perm=[0, 2, 1, 3]), self.ints(0, 0, HEADS * SIZE))
        return self.linear(joined, f"{layer}o", f"{layer}ob")

    def mlp(self, layer: int, x: str, first: str = "") -> str | list[str]:
        name = f"{layer}{first}"
        inner = self.op("Relu", self.linear(x, f"{name}up", f"{name}upb"))
        if not self.kind.experts:
            return self.linear(inner, f"{name}down", f"{name}downb")
        halves = np.split(self.w[f"{layer}down"], 2)
        ends = [self.ints(0), self.ints(INNER // 2), self.ints(INNER)]
        parts = []
        for i, half in enumerate(halves):
            made = self.op("MatMul", self.op("Slice", inner, ends[i], ends[i + 1], self.ints(-1)), half)
            parts.append(self.op("Add", made, self.w[f"{layer}downb"] / 2))
        if self.kind.apart:
            return parts
        parts = [self.op("Unsqueeze", part, self.ints(2)) for part in parts]
        return self.op("ReduceSum", self.op("Concat", *parts, axis=2), self.ints(2), keepdims=0)


def build(kind: Kind, w: dict[str, Array], folder: Path) -> Path:
    """Write a model."""
    g = Graph(kind, w)
    g.nodes.append(helper.make_node("Shape", ["input_ids"], ["shape"], name="shape"))
    _bias(g)
    x = g.op("Gather", w["table"], "input_ids")
    places = g.op("Slice", w["places"], g.ints(0), g.op("Gather", "shape", g.ints(1), axis=0), g.ints(0))
    x = g.op("Add", x, places)
    x = _skipped(g, x) if "skip" in kind.fused else _layers(g, x)
    if not kind.every:
        x = g.op("Slice", x, g.ints(-1), g.ints(2**62), g.ints(1))
    logits = g.op("Add", g.op("MatMul", x, w["head"]), w["headb"])
    if kind.cap is not None:
        logits = g.op("Mul", g.op("Tanh", g.op("Div", logits, np.float32(kind.cap))), np.float32(kind.cap))
    g.nodes.append(helper.make_node("Identity", [logits], ["logits"], name="logits"))
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "length"])
        for n in ("input_ids", "attention_mask")
    ]
    middle: list[int | str] = (
        ["length"] if not kind.picks else [1] if kind.picks in ("slice", "product", "mean") else []
    )
    middle = middle if kind.every else [1]
    out = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", *middle, VOCABULARY])
    tensors = [numpy_helper.from_array(a, n) for n, a in g.tensors.items()]
    graph = helper.make_graph(g.nodes, "g", inputs, [out], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def _bias(g: Graph) -> None:
    """What the mask adds, [B,1,Q,K], called "bias"; and what GroupQueryAttention takes in its place."""
    kind = g.kind
    if "gqa" in kind.fused:
        count = g.op("ReduceSum", "attention_mask", g.ints(1), keepdims=0)
        g.nodes.append(
            helper.make_node("Cast", [g.op("Sub", count, g.ints(1))], ["lengths"], name="lengths", to=TensorProto.INT32)
        )
        size = g.op("Gather", "shape", np.array(1, np.int64), axis=0)
        g.nodes.append(helper.make_node("Cast", [size], ["total"], name="total", to=TensorProto.INT32))
        return
    there = g.op("Unsqueeze", g.op("Cast", "attention_mask", to=TensorProto.BOOL), g.ints(1, 2))
    length = g.op("Gather", "shape", np.array(1, np.int64), axis=0)
    steps = g.op("Range", np.array(0, np.int64), length, np.array(1, np.int64))
    row = g.op("Unsqueeze", steps, g.ints(1))
    triangle = g.op("LessOrEqual", steps, row if kind.causal else g.op("Add", row, np.array(10**6, np.int64)))
    whole = g.op("And", triangle, there)
    g.nodes.append(
        helper.make_node("Where", [whole, g.const(np.float32(0)), g.const(np.float32(kind.low))], ["bias"], name="bias")
    )


def _layers(g: Graph, x: str) -> str:
    kind = g.kind
    for layer in range(kind.layers):
        if kind.macaron:
            half = g.op("Mul", g.mlp(layer, g.norm(f"{layer}first", x), "first"), np.float32(0.5))
            x = g.op("Add", x, half)
        a = g.attend(layer, x if kind.posts[0] else g.norm(f"{layer}in", x))
        a = g.norm(f"{layer}behind1", a) if kind.norm == "sandwich" else a
        a = g.op("Mul", a, factor(kind, g.w, layer, 0)) if kind.scale else a
        if kind.parallel:
            m = g.mlp(layer, g.norm(f"{layer}mid", x))
            m = g.op("Mul", factor(kind, g.w, layer, 1), m) if kind.scale else m
            sums = {
                "branches": lambda x, a, m: g.op("Add", g.op("Add", m, a), x),
                "stream": lambda x, a, m: g.op("Add", g.op("Add", x, a), m),
                "at once": lambda x, a, m: g.op("Sum", x, a, m),
                "subtracted": lambda x, a, m: g.op("Sub", g.op("Add", x, a), m),
                "both subtracted": lambda x, a, m: g.op("Sub", x, g.op("Add", m, a)),
                "less the difference": lambda x, a, m: g.op("Sub", x, g.op("Sub", m, a)),
                "turned": lambda x, a, m: g.op("Sub", m, g.op("Add", x, a)),
                "difference": lambda x, a, m: g.op("Add", g.op("Sub", m, a), x),
            }
            x = sums[kind.joined](_kept(g, x), a, m)
            continue
        x = _sum(g, layer, 0, x, a)
        x = g.norm(f"{layer}in", x) if kind.posts[0] else x
        ends = g.mlp(layer, x if kind.posts[1] else g.norm(f"{layer}mid", x))
        for m in ends if isinstance(ends, list) else [ends]:
            m = g.norm(f"{layer}behind2", m) if kind.norm == "sandwich" else m
            x = _sum(g, layer, 1, x, g.op("Mul", factor(kind, g.w, layer, 1), m) if kind.scale else m)
        x = g.norm(f"{layer}mid", x) if kind.posts[1] else x
        x = g.norm(f"{layer}behind1", x) if kind.macaron and kind.closed else x
    return x if kind.norm == "post" and not kind.closed else g.norm("end", _picked(g, x))


def _sum(g: Graph, layer: int, sublayer: int, x: str, added: str) -> str:
    """The stream with what a sublayer adds, as the kind joins them."""
    how, shift = g.kind.joined, g.w[f"{layer}shifts"][sublayer]
    x = _kept(g, x)
    if how == "late":
        return g.op("Add", g.op("Add", x, added), shift)
    if how == "early":
        return g.op("Add", g.op("Add", shift, x), added)
    if how == "clamped":
        return g.op("Clip", g.op("Add", x, added), np.float32(-6e4), np.float32(6e4))
    if how == "subtracted":
        return g.op("Sub", x, added)
    return g.op("Add", *((added, x) if sublayer else (x, added)))


def _kept(g: Graph, x: str) -> str:
    return x if g.kind.kept == 1 else g.op("Mul", x, np.float32(g.kind.kept))


def _picked(g: Graph, x: str) -> str:
    """Positions of the last layer's stream, picked as the kind says."""
    if g.kind.picks == "slice":
        return g.op("Slice", x, g.ints(-1), g.ints(2**62), g.ints(1))
    if g.kind.picks == "gather":
        return g.op("Gather", x, np.array(-1, np.int64), axis=1)
    if g.kind.picks == "mean":
        return g.op("ReduceMean", x, axes=[1])
    if g.kind.picks:
        last = g.op("Sub", g.op("ReduceSum", "attention_mask", g.ints(1), keepdims=0), g.ints(1))
        size = g.op("Gather", "shape", g.ints(1), axis=0)
        if g.kind.picks == "product":
            ones = g.op("OneHot", last, size, np.array([0, 1], np.float32))
            return g.op("MatMul", g.op("Unsqueeze", ones, g.ints(1)), x)
        rows = [np.array(0, np.int64), g.op("Gather", "shape", np.array(0, np.int64), axis=0), np.array(1, np.int64)]
        at = g.op("Add", g.op("Mul", g.op("Range", *rows), size), last)
        return g.op("Gather", g.op("Reshape", x, g.ints(-1, WIDTH)), at, axis=0)
    return x


def _skipped(g: Graph, x: str) -> str:
    """The same with sums and norms in one operator, W_O's and the MLP's bias in it."""
    kind, w = g.kind, g.w
    names = [n for layer in range(kind.layers) for n in (f"{layer}in", f"{layer}mid")]

    def skip(stream: str, branch: str, norm: str, bias: Array) -> tuple[str, str]:
        made = g.op(
            "SkipLayerNormalization",
            branch,
            stream,
            w[f"{norm}g"],
            w[f"{norm}b"],
            bias,
            domain=MS,
            epsilon=1e-5,
            outputs=4,
        )
        node = g.nodes[-1]
        node.output[1] = node.output[2] = ""
        return made, node.output[3]

    def bare(biased: str) -> str:
        node = g.nodes.pop()
        assert node.op_type == "Add"
        assert node.output[0] == biased
        return str(node.input[1])

    if kind.norm == "post":
        for layer in range(kind.layers):
            x, _ = skip(x, bare(g.attend(layer, x)), f"{layer}in", w[f"{layer}ob"])
            x, _ = skip(x, bare(g.mlp(layer, x)), f"{layer}mid", w[f"{layer}downb"])
        return x
    normed = g.norm(names[0], x)
    for layer in range(kind.layers):
        normed, x = skip(x, bare(g.attend(layer, normed)), f"{layer}mid", w[f"{layer}ob"])
        behind = f"{layer + 1}in" if layer + 1 < kind.layers else "end"
        normed, x = skip(x, bare(g.mlp(layer, normed)), behind, w[f"{layer}downb"])
    return normed


def feeds(kind: Kind, seed: int = 0) -> tuple[dict[str, Array], dict[str, Array]]:
    """A clean and a corrupt feed of one shape; the second row is padded on the right."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, VOCABULARY, (2, 7))
    other = ids.copy()
    other[:, 2:5] = (other[:, 2:5] + 1 + rng.integers(0, VOCABULARY - 1, (2, 3))) % VOCABULARY
    mask = np.ones_like(ids)
    mask[1, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}, {"input_ids": other, "attention_mask": mask}


KINDS: dict[str, Kind] = {
    "pre": Kind(),
    "low": Kind(low=LOWEST),
    "both ways": Kind(causal=False, low=-1e4),
    "post": Kind(norm="post", causal=False, low=LOWEST),
    "sandwich": Kind(norm="sandwich", rms=True, kv=2),
    "parallel": Kind(parallel=True),
    "parallel, one by one": Kind(parallel=True, joined="stream", written=True),
    "parallel, at once": Kind(parallel=True, joined="at once", rms=True),
    "subtracted, written": Kind(joined="subtracted", written=True),
    "parallel, both subtracted": Kind(parallel=True, joined="both subtracted", rms=True),
    "post, closed": Kind(norm="post", closed=True, written=True),
    "post, closed, rms": Kind(norm="post", closed=True, rms=True),
    "grouped": Kind(kv=2, rms=True),
    "one key head": Kind(kv=1),
    "sink": Kind(sink=True, kv=2),
    "capped": Kind(cap=3.0),
    "last": Kind(every=False),
    "stacked": Kind(spelling="stacked"),
    "merged": Kind(spelling="merged"),
    "flat": Kind(spelling="flat"),
    "experts": Kind(experts=True, rms=True),
    "places": Kind(places=True, causal=False, low=-1e4),
    "mha": Kind(fused="mha", low=LOWEST),
    "gqa": Kind(fused="gqa", kv=2),
    "skip": Kind(fused="skip"),
    "skip post": Kind(fused="skip", norm="post", causal=False, low=-1e4),
    "gqa skip": Kind(fused="gqa skip", kv=2),
    "mha skip post": Kind(fused="mha skip", norm="post", causal=False, low=-1e4),
    "one layer": replace(Kind(), layers=1),
    "one layer post": Kind(norm="post", layers=1, causal=False),
}
"""Kinds of models, by what is particular about them."""
MORE: dict[str, Kind] = {
    "subtracted": Kind(joined="subtracted"),
    "subtracted, post": Kind(norm="post", joined="subtracted", causal=False, low=LOWEST),
    "parallel, subtracted": Kind(parallel=True, joined="subtracted"),
    "parallel, less the difference": Kind(parallel=True, joined="less the difference"),
    "parallel, difference": Kind(parallel=True, joined="difference"),
    "late": Kind(joined="late", rms=True),
    "late, written": Kind(joined="late", written=True),
    "late, post": Kind(joined="late", norm="post", causal=False, low=LOWEST),
    "early": Kind(joined="early"),
    "clamped": Kind(joined="clamped", rms=True),
    "clamped, one layer": Kind(joined="clamped", layers=1),
    "late, one layer": Kind(joined="late", layers=1),
    "mixed": Kind(norm="mixed", written=True, layers=3),
    "mixed, rms": Kind(norm="mixed", rms=True),
    "mixed, one layer": Kind(norm="mixed", layers=1),
    "two experts, one by one": Kind(experts=True, apart=True, layers=3),
    "two experts, one by one, rms": Kind(experts=True, apart=True, rms=True),
    "macaron": Kind(macaron=True),
    "macaron, written": Kind(macaron=True, written=True, scale="features", layers=3),
    "macaron, subtracted": Kind(macaron=True, rms=True, joined="subtracted"),
    "macaron, parallel": Kind(macaron=True, parallel=True),
    "conformer": Kind(macaron=True, closed=True, causal=False, low=LOWEST),
    "kept in part": Kind(kept=0.7),
    "kept in part, written": Kind(kept=1.3, written=True, joined="subtracted", scale="features"),
    "kept in part, parallel": Kind(kept=0.7, parallel=True),
    "kept in part, parallel, one by one": Kind(kept=0.7, parallel=True, joined="stream", rms=True),
    "deep norm": Kind(kept=1.4, norm="post", causal=False, low=LOWEST),
    "scaled": Kind(scale="number"),
    "scaled by features, rms": Kind(scale="features", rms=True),
    "scaled, parallel": Kind(scale="features", parallel=True),
    "scaled, sandwich": Kind(scale="features", norm="sandwich", rms=True),
    "scaled, subtracted": Kind(scale="number", joined="subtracted", written=True),
    "scaled, post": Kind(scale="features", norm="post", causal=False, low=LOWEST),
}
"""Others, for what hangs on how the stream is summed alone."""
