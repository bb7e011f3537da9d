"""One planted attention in every way that exporters write it, and an oracle that shares no code with attnx.

The weights are planted so that the answers are known: head 0 looks at the previous token, head 1 at itself, head 2 at
the first token (a sink) and head 3 at everything alike. The input is a position code, one-hot in 16 features.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, SIZE, POSITIONS = 4, 16, 16
WIDTH = HEADS * SIZE
SHARP = 6.0
"""Score of the planted key before scaling by 1/sqrt(SIZE): 4 x SHARP."""


def planted() -> dict[str, np.ndarray]:
    """Projections [16, 64] for query, key and value."""
    eye = np.eye(POSITIONS, dtype=np.float64)
    previous = np.eye(POSITIONS, k=1)  # row p: one-hot of p - 1 after transposing
    first = np.zeros((POSITIONS, POSITIONS))
    first[:, 0] = 1.0
    sharp = np.sqrt(SHARP * 4)
    query = [previous.T * sharp, eye * sharp, first * sharp, eye * 0.0]
    key = [eye * sharp, eye * sharp, eye * sharp, eye * sharp]
    rng = np.random.default_rng(7)
    value = rng.standard_normal((POSITIONS, WIDTH))
    return {
        "q": np.concatenate(query, 1).astype(np.float32),
        "k": np.concatenate(key, 1).astype(np.float32),
        "v": value.astype(np.float32),
        "o": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8,
    }


@dataclass(frozen=True)
class Form:
    """How the attention is written."""

    scale: str = "div"
    """div, mul, query, key, sqrt, both_computed, alpha, none"""
    mask: str = "none"
    """none, causal_where, causal_where_swapped, causal_add, causal_trilu, padding"""
    layout: str = "bhqd"
    """bhqd, merged, einsum, bnhd, key_first, grouped, mqa"""
    softmax: str = "op"
    """op, written, shifted, guarded, cast, log, logsumexp, reciprocal, base2, quiet"""
    softcap: float | None = None
    sink: bool = False
    opset: int = 17
    constants: str = "initializer"
    """initializer, node"""
    half: bool = False
    kv_heads: int = HEADS


class Writer:
    """Collects nodes; every method returns the name of a value."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def op(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        outs = [self.name(op) for _ in range(outputs)]
        self.nodes.append(
            helper.make_node(op, list(inputs), outs, name=self.name(f"n_{op}"), domain=domain, **attributes)
        )
        return outs[0]

    def const(self, value: Any, dtype: Any = None) -> str:
        array = np.asarray(value, dtype=dtype)
        if array.dtype == np.float32 and self.form.half:
            array = array.astype(np.float16)
        name = self.name("c")
        tensor = numpy_helper.from_array(array, name)
        if self.form.constants == "node":
            self.nodes.append(helper.make_node("Constant", [], [name], name=self.name("n_c"), value=tensor))
        else:
            self.initializers.append(tensor)
        return name

    def f(self, value: Any) -> str:
        return self.const(value, np.float32)

    def i(self, *values: int) -> str:
        return self.const(values, np.int64)

    def unsqueeze(self, x: str, *axes: int) -> str:
        if self.form.opset < 13:
            return self.op("Unsqueeze", x, axes=list(axes))
        return self.op("Unsqueeze", x, self.i(*axes))

    def squeeze(self, x: str, *axes: int) -> str:
        if self.form.opset < 13:
            return self.op("Squeeze", x, axes=list(axes))
        return self.op("Squeeze", x, self.i(*axes))

    def reduce(self, op: str, x: str, axis: int) -> str:
        if self.form.opset >= 18 or (op == "ReduceSum" and self.form.opset >= 13):
            return self.op(op, x, self.i(axis), keepdims=1)
        return self.op(op, x, axes=[axis], keepdims=1)

    def dim(self, x: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", x), self.i(axis))


def scale_of(form: Form) -> float:
    return 1.0 if form.scale == "none" else 1 / np.sqrt(SIZE)


def build(form: Form) -> onnx.ModelProto:
    """x [batch, seq, 16], mask [batch, seq] (where it is used) -> y [batch, seq, 64]."""
    w, p = Writer(form), planted()
    kind = TensorProto.FLOAT16 if form.half else TensorProto.FLOAT
    kv = WIDTH // HEADS * form.kv_heads
    q = w.op("MatMul", "x", w.f(p["q"]))
    k = w.op("MatMul", "x", w.f(p["k"][:, :kv]))
    v = w.op("MatMul", "x", w.f(p["v"][:, :kv]))
    if form.scale == "query":
        q = w.op("Mul", q, w.f(1 / np.sqrt(SIZE)))
    batch, length = w.dim("x", 0), w.dim("x", 1)
    _, context = _attend(w, form, q, k, v, batch, length)
    y = w.op("MatMul", context, w.f(p["o"]))
    w.nodes.append(helper.make_node("Identity", [y], ["y"], name="out"))
    inputs = [helper.make_tensor_value_info("x", kind, ["batch", "seq", POSITIONS])]
    if form.mask == "padding":
        inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "seq"]))
    outputs = [helper.make_tensor_value_info("y", kind, ["batch", "seq", WIDTH])]
    graph = helper.make_graph(w.nodes, "planted", inputs, outputs, w.initializers)
    opsets = [helper.make_opsetid("", form.opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if form.opset < 21 else 10)


def _split(w: Writer, x: str, batch: str, length: str, heads: int) -> str:
    shape = w.op("Concat", batch, length, w.i(heads, SIZE), axis=0)
    return w.op("Reshape", x, shape)


def _computed_root(w: Writer, form: Form, q: str) -> str:
    """The root of the scale as torch writes it: the head size is read off a shape at run time."""
    kind = TensorProto.FLOAT16 if form.half else TensorProto.FLOAT
    size = w.op("Cast", w.op("Gather", w.op("Shape", q), w.i(-1)), to=kind)
    return w.op("Sqrt", w.op("Div", w.f([1.0]), w.op("Sqrt", size)))


def _stack(w: Writer, x: str) -> str:
    """tf.concat(tf.split(x, heads, 2), 0): the heads go on the batch axis, outermost."""
    parts = _parts(w, x, 2)
    return w.op("Concat", *parts, axis=0)


def _unstack(w: Writer, x: str) -> str:
    return w.op("Concat", *_parts(w, x, 0), axis=2)


def _parts(w: Writer, x: str, axis: int) -> list[str]:
    outs = [w.name("part") for _ in range(HEADS)]
    w.nodes.append(helper.make_node("Split", [x], outs, name=w.name("n_Split"), axis=axis))
    return outs


def _attend(w: Writer, form: Form, q: str, k: str, v: str, batch: str, length: str) -> tuple[str, str]:
    if form.layout == "stacked":
        q4, k4, v4 = (_stack(w, x) for x in (q, k, v))
        scores = w.op("MatMul", q4, w.op("Transpose", k4, perm=[0, 2, 1]))
        weights = _normalise(w, form, scores, length, -1)
        return weights, _unstack(w, w.op("MatMul", weights, v4))
    q4, k4, v4 = (_split(w, x, batch, length, h) for x, h in ((q, HEADS), (k, form.kv_heads), (v, form.kv_heads)))
    if form.layout in ("einsum", "bnhd", "key_first"):
        if form.scale == "sqrt":
            q4, k4 = w.op("Mul", q4, w.f(SIZE**-0.25)), w.op("Mul", k4, w.f(SIZE**-0.25))
        elif form.scale == "key":
            k4 = w.op("Div", k4, w.f(np.sqrt(SIZE)))
        elif form.scale == "both_computed":
            root = _computed_root(w, form, q4)
            q4, k4 = w.op("Mul", q4, root), w.op("Mul", k4, root)
        equation = "bkhd,bqhd->bhkq" if form.layout == "key_first" else "bqhd,bkhd->bhqk"
        operands = (k4, q4) if form.layout == "key_first" else (q4, k4)
        scores = w.op("Einsum", *operands, equation=equation)
        weights = _normalise(w, form, scores, length, -2 if form.layout == "key_first" else -1)
        second = "bhkq,bkhd->bqhd" if form.layout == "key_first" else "bhqk,bkhd->bqhd"
        context = w.op("Einsum", weights, v4, equation=second)
        return weights, w.op("Reshape", context, w.op("Concat", batch, length, w.i(WIDTH), axis=0))
    q4, v4 = (w.op("Transpose", x, perm=[0, 2, 1, 3]) for x in (q4, v4))
    kt = w.op("Transpose", k4, perm=[0, 2, 3, 1])
    if form.layout == "grouped":
        group = HEADS // form.kv_heads
        q4 = w.op("Reshape", q4, w.op("Concat", batch, w.i(form.kv_heads, group), length, w.i(SIZE), axis=0))
        kt, v4 = w.unsqueeze(kt, 2), w.unsqueeze(v4, 2)
    elif form.layout == "repeated":
        group = HEADS // form.kv_heads

        def repeat(x: str, rest: list[str]) -> str:
            wide = w.op("Expand", w.unsqueeze(x, 2), w.op("Concat", batch, w.i(form.kv_heads, group), *rest, axis=0))
            return w.op("Reshape", wide, w.op("Concat", batch, w.i(HEADS), *rest, axis=0))

        kt, v4 = repeat(kt, [w.i(SIZE), length]), repeat(v4, [length, w.i(SIZE)])
    elif form.layout == "merged":
        lead = w.op("Mul", batch, w.i(HEADS))
        q4 = w.op("Reshape", q4, w.op("Concat", lead, length, w.i(SIZE), axis=0))
        kt = w.op("Reshape", kt, w.op("Concat", lead, w.i(SIZE), length, axis=0))
        v4 = w.op("Reshape", v4, w.op("Concat", lead, length, w.i(SIZE), axis=0))
    if form.scale == "sqrt":
        q4, kt = w.op("Mul", q4, w.f(SIZE**-0.25)), w.op("Mul", kt, w.f(SIZE**-0.25))
    elif form.scale == "key":
        kt = w.op("Div", kt, w.f(np.sqrt(SIZE)))
    elif form.scale == "both_computed":
        root = _computed_root(w, form, q4)
        q4, kt = w.op("Mul", q4, root), w.op("Mul", kt, root)
    if form.scale == "alpha":
        scores = w.op("FusedMatMul", q4, kt, domain="com.microsoft", alpha=float(1 / np.sqrt(SIZE)))
    else:
        scores = w.op("MatMul", q4, kt)
    weights = _normalise(w, form, scores, length, -1)
    context = w.op("MatMul", weights, v4)
    if form.layout in ("merged", "grouped"):
        context = w.op("Reshape", context, w.op("Concat", batch, w.i(HEADS), length, w.i(SIZE), axis=0))
    context = w.op("Transpose", context, perm=[0, 2, 1, 3])
    return weights, w.op("Reshape", context, w.op("Concat", batch, length, w.i(WIDTH), axis=0))


def _normalise(w: Writer, form: Form, scores: str, length: str, axis: int) -> str:
    if form.scale == "div":
        scores = w.op("Div", scores, w.f(np.sqrt(SIZE)))
    elif form.scale == "mul":
        scores = w.op("Mul", scores, w.f(1 / np.sqrt(SIZE)))
    if form.softcap:
        scores = w.op("Mul", w.op("Tanh", w.op("Div", scores, w.f(form.softcap))), w.f(form.softcap))
    scores = _mask(w, form, scores, length, axis)
    if form.sink:
        one = w.op("Mul", w.op("Slice", scores, w.i(0), w.i(1), w.i(-1)), w.f(0.0))
        scores = w.op("Concat", scores, w.op("Add", one, w.f(2.0)), axis=-1)
    weights = _softmax(w, form, scores, axis)
    if form.sink:
        weights = w.op("Slice", weights, w.i(0), w.i(-1), w.i(-1))
    return weights


def _mask(w: Writer, form: Form, scores: str, length: str, axis: int) -> str:
    if form.mask == "none":
        return scores
    low = -60000.0 if form.half else -1e9
    if form.mask == "padding":
        kind = TensorProto.FLOAT16 if form.half else TensorProto.FLOAT
        axes = (1, 2, 3) if form.layout == "grouped" else (1, 2)
        keep = w.op("Cast", w.unsqueeze("attention_mask", *axes), to=kind)
        if axis == -2:
            keep = w.op("Transpose", keep, perm=[0, 1, 3, 2])
        bias = w.op("Mul", w.op("Sub", w.f(1.0), keep), w.f(low))
        if form.layout != "merged":
            return w.op("Add", scores, bias)
        shape = w.op("Shape", scores)  # to four axes for the mask, and back, as BLOOM does
        four = w.op("Concat", w.dim("x", 0), w.i(HEADS), length, length, axis=0)
        return w.op("Reshape", w.op("Add", w.op("Reshape", scores, four), bias), shape)
    size = w.squeeze(length, 0)
    count = w.op("Range", w.const(0, np.int64), size, w.const(1, np.int64))
    row, column = w.unsqueeze(count, 1), w.unsqueeze(count, 0)
    rows, columns = (row, column) if axis == -1 else (column, row)
    later = w.op("Less", rows, columns)
    if form.mask == "causal_where":
        return w.op("Where", later, w.f(low), scores)
    if form.mask == "causal_where_swapped":
        return w.op("Where", w.op("Not", later), scores, w.f(low))
    return w.op("Add", scores, w.op("Where", later, w.f(low), w.f(0.0)))


def _softmax(w: Writer, form: Form, scores: str, axis: int) -> str:
    if form.softmax == "cast":
        wide = w.op("Softmax", w.op("Cast", scores, to=TensorProto.FLOAT), axis=axis)
        return w.op("Cast", wide, to=TensorProto.FLOAT16 if form.half else TensorProto.FLOAT)
    if form.softmax in ("written", "shifted"):
        if form.softmax == "shifted":
            scores = w.op("Sub", scores, w.reduce("ReduceMax", scores, axis))
        top = w.op("Exp", scores)
        return w.op("Div", top, w.reduce("ReduceSum", top, axis))
    if form.softmax == "log":
        return w.op("Exp", w.op("LogSoftmax", scores, axis=axis))
    if form.softmax == "logsumexp":
        return w.op("Exp", w.op("Sub", scores, w.reduce("ReduceLogSumExp", scores, axis)))
    if form.softmax == "reciprocal":
        top = w.op("Exp", scores)
        return w.op("Mul", top, w.op("Reciprocal", w.reduce("ReduceSum", top, axis)))
    if form.softmax == "base2":  # 2 to the power of scores x log2(e)
        top = w.op("Pow", w.f(2.0), w.op("Mul", scores, w.f(np.log2(np.e))))
        return w.op("Div", top, w.reduce("ReduceSum", top, axis))
    if form.softmax == "quiet":
        top = w.op("Exp", scores)
        return w.op("Div", top, w.op("Add", w.reduce("ReduceSum", top, axis), w.f(1.0)))
    if form.softmax == "guarded":
        weights = w.op("Softmax", scores, axis=axis)
        return w.op("Where", w.op("IsNaN", weights), w.f(0.0), weights)
    return w.op("Softmax", scores, axis=axis)


def oracle(form: Form, x: np.ndarray, keep: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Every quantity in float64, by plain loops over batch and head."""
    p = {name: value.astype(np.float64) for name, value in planted().items()}
    batch, length = x.shape[:2]
    group = HEADS // form.kv_heads
    out: dict[str, list[Any]] = {}
    for b in range(batch):
        rows: dict[str, list[Any]] = {}
        for h in range(HEADS):
            g = h // group
            q = x[b].astype(np.float64) @ p["q"][:, h * SIZE : (h + 1) * SIZE]
            k = x[b].astype(np.float64) @ p["k"][:, g * SIZE : (g + 1) * SIZE]
            v = x[b].astype(np.float64) @ p["v"][:, g * SIZE : (g + 1) * SIZE]
            scores = q @ k.T
            scaled = scores * scale_of(form)
            capped = np.tanh(scaled / form.softcap) * form.softcap if form.softcap else scaled
            weights = np.zeros_like(scores)
            for i in range(length):
                seen = [
                    j for j in range(length)
                    if not (form.mask.startswith("causal") and j > i) and (keep is None or keep[b, j])
                ]  # fmt: skip
                top = np.exp(capped[i, seen] - capped[i, seen].max())
                total = top.sum() + (np.exp(2.0 - capped[i, seen].max()) if form.sink else 0.0)
                total += np.exp(-capped[i, seen].max()) if form.softmax == "quiet" else 0.0
                weights[i, seen] = top / total
            found = {"query": q, "key": k, "value": v, "scores": scores, "scaled": scaled, "capped": capped,
                     "weights": weights, "context": weights @ v}  # fmt: skip
            for name, array in found.items():
                rows.setdefault(name, []).append(array)
        for name, arrays in rows.items():
            out.setdefault(name, []).append(np.stack(arrays))
    return {name: np.stack(arrays) for name, arrays in out.items()}


def code(batch: int, length: int, seed: int = 0) -> np.ndarray:
    """Position codes [batch, length, 16] with a little noise, so that no two rows are alike."""
    noise = np.random.default_rng(seed).standard_normal((batch, length, POSITIONS)) * 0.05
    return (np.eye(POSITIONS)[:length][None] + noise).astype(np.float32)


def save(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    onnx.save(model, path)
    return path
