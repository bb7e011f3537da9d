"""Small decoders and encoder-decoders written node by node, as exporters lay them out; and the same in float64 numpy.

Nothing here shares code with attnx. Width 16, 2 heads of 8, 2 layers, 24 tokens; weights from a seed, large enough that
attention is far from uniform and that greedy decoding does not fall into one token.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, SIZE, LAYERS, VOCABULARY, LONGEST = 16, 2, 8, 2, 24, 32
F, I, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL  # noqa: E741
Array = np.ndarray


def weights(seed: int = 1) -> dict[str, Array]:
    """Every weight by name: encoder "e", decoder self "d", decoder cross "c"."""
    rng = np.random.default_rng(seed)
    out = {"table": rng.standard_normal((VOCABULARY, WIDTH)), "places": rng.standard_normal((LONGEST, WIDTH)) * 0.7}
    out["head"] = rng.standard_normal((WIDTH, VOCABULARY))
    for part in "edc":
        for layer in range(LAYERS):
            for name in "qkvo":
                out[f"{part}{layer}{name}"] = rng.standard_normal((WIDTH, WIDTH)) / (2.2 if name in "qk" else 4)
    return {k: v.astype(np.float32) for k, v in out.items()}


# The same in numpy, float64.


def _split(x: Array) -> Array:
    return x.reshape(x.shape[0], -1, HEADS, SIZE).transpose(0, 2, 1, 3)


def _attend(w: dict[str, Array], part: str, x: Array, memory: Array, seen: Array) -> tuple[Array, dict[str, Array]]:
    q, k, v = (_split(side @ w[part + n].astype(np.float64)) for side, n in ((x, "q"), (memory, "k"), (memory, "v")))
    scores = q @ k.transpose(0, 1, 3, 2)
    masked = np.where(seen, scores / np.sqrt(SIZE), -np.inf)
    e = np.exp(masked - masked.max(-1, keepdims=True))
    share = e / e.sum(-1, keepdims=True)
    context = share @ v
    out = context.transpose(0, 2, 1, 3).reshape(x.shape) @ w[part + "o"].astype(np.float64)
    return x + out, {"query": q, "key": k, "value": v, "scores": scores, "weights": share, "context": context}


def _embed(w: dict[str, Array], ids: Array, mask: Array) -> Array:
    places = np.maximum(np.cumsum(mask, 1) - 1, 0)
    return (w["table"][ids] + w["places"][places]).astype(np.float64)


@dataclass
class Ran:
    """What a model in numpy gave."""

    logits: Array
    encoder: list[dict[str, Array]] = field(default_factory=list)
    decoder: list[dict[str, Array]] = field(default_factory=list)
    cross: list[dict[str, Array]] = field(default_factory=list)


def decoder(w: dict[str, Array], ids: Any, mask: Any = None) -> Ran:
    """A causal decoder over whole sequences [B,T]."""
    ids = np.atleast_2d(ids)
    mask = np.ones_like(ids) if mask is None else np.atleast_2d(mask)
    seen = np.tril(np.ones((ids.shape[1],) * 2, bool))[None, None] & (mask[:, None, None, :] > 0)
    x, ran = _embed(w, ids, mask), Ran(np.zeros(0))
    for layer in range(LAYERS):
        x, arrays = _attend(w, f"d{layer}", x, x, seen)
        ran.decoder.append(arrays)
    ran.logits = x @ w["head"].astype(np.float64)
    return ran


def encoder_decoder(w: dict[str, Array], source: Any, target: Any) -> Ran:
    """An encoder-decoder over one source and what its decoder is fed."""
    source, target = np.atleast_2d(source), np.atleast_2d(target)
    ran = Ran(np.zeros(0))
    memory = _embed(w, source, np.ones_like(source))
    for layer in range(LAYERS):
        memory, arrays = _attend(w, f"e{layer}", memory, memory, np.array(True))
        ran.encoder.append(arrays)
    x = _embed(w, target, np.ones_like(target))
    seen = np.tril(np.ones((target.shape[1],) * 2, bool))[None, None]
    for layer in range(LAYERS):
        x, arrays = _attend(w, f"d{layer}", x, x, seen)
        ran.decoder.append(arrays)
        x, arrays = _attend(w, f"c{layer}", x, memory, np.array(True))
        ran.cross.append(arrays)
    ran.logits = x @ w["head"].astype(np.float64)
    return ran


def greedy(step: Any, ids: list[int], count: int, stop: int | None = None) -> list[int]:
    """Write on by recomputing everything at each step; `step` gives logits [T,vocabulary] of ids."""
    for _ in range(count):
        ids = [*ids, int(np.argmax(step(ids)[-1]))]
        if ids[-1] == stop:
            break
    return ids


# As graphs.


class Graph:
    """Collects nodes; values are names."""

    def __init__(self, w: dict[str, Array], prefix: str = "") -> None:
        self.w, self.prefix = w, prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def op(self, kind: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        name = f"{self.prefix}{kind}_{len(self.nodes)}"
        out = to or f"{name}_out"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=name, **attributes))
        return out

    def const(self, value: Any, kind: Any = np.int64) -> str:
        array = np.asarray(value, kind)
        name = f"{self.prefix}c_{array.dtype}_{array.shape}_{array.tobytes().hex()[:60]}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def weight(self, name: str) -> str:
        self.constants[f"{self.prefix}w_{name}"] = numpy_helper.from_array(self.w[name], f"{self.prefix}w_{name}")
        return f"{self.prefix}w_{name}"

    def heads(self, x: str) -> str:
        split = self.op("Reshape", x, self.const([0, -1, HEADS, SIZE]))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def size(self, value: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", value), self.const(axis), axis=0)

    def embed(self, ids: str, places: str) -> str:
        return self.op(
            "Add",
            self.op("Gather", self.weight("table"), ids, axis=0),
            self.op("Gather", self.weight("places"), places, axis=0),
        )

    def causal(self, ids: str, mask: str) -> str:
        """Additive [B,1,Q,K]: keys up to the query's own place, counted over the cache, and no padding."""
        total, new = self.size(mask, 1), self.size(ids, 1)
        rows = self.op("Range", self.op("Sub", total, new), total, self.const(1))
        keys = self.op("Range", self.const(0), total, self.const(1))
        past = self.op(
            "LessOrEqual", self.op("Unsqueeze", keys, self.const([0])), self.op("Unsqueeze", rows, self.const([1]))
        )
        real = self.op("Equal", self.op("Unsqueeze", mask, self.const([1, 2])), self.const(1))
        seen = self.op("And", past, real)
        return self.op("Where", seen, self.const(0.0, np.float32), self.const(np.finfo(np.float32).min, np.float32))

    def attend(self, part: str, x: str, keys: str, values: str, mask: str | None) -> str:
        query = self.heads(self.op("MatMul", x, self.weight(f"{part}q")))
        scores = self.op("MatMul", query, self.op("Transpose", keys, perm=[0, 1, 3, 2]))
        scaled = self.op("Div", scores, self.const(np.sqrt(SIZE), np.float32))
        share = self.op("Softmax", self.op("Add", scaled, mask) if mask else scaled, axis=-1)
        context = self.op("Transpose", self.op("MatMul", share, values), perm=[0, 2, 1, 3])
        flat = self.op("Reshape", context, self.const([0, -1, WIDTH]))
        return self.op("Add", x, self.op("MatMul", flat, self.weight(f"{part}o")))

    def keys_values(self, part: str, x: str) -> tuple[str, str]:
        key, value = (self.heads(self.op("MatMul", x, self.weight(part + n))) for n in "kv")
        return key, value

    def model(self, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, list(self.constants.values()))
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(made)
        return made


def info(name: str, kind: int, shape: list[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


_CACHE = ["batch", HEADS, "past_sequence_length", SIZE]
_GROWN = ["batch", HEADS, "past_sequence_length + sequence_length", SIZE]
_INPUTS = [
    info("input_ids", I, ["batch", "sequence"]),
    info("attention_mask", I, ["batch", "total"]),
    info("position_ids", I, ["batch", "sequence"]),
]


def _caches(kind: str = "past_key_values", sides: tuple[str, ...] = ("",)) -> list[str]:
    return [f"{kind}.{layer}.{side}{name}" for layer in range(LAYERS) for side in sides for name in ("key", "value")]


def _decode(g: Graph, cached: bool) -> None:
    x = g.embed("input_ids", "position_ids")
    mask = g.causal("input_ids", "attention_mask")
    for layer in range(LAYERS):
        key, value = g.keys_values(f"d{layer}", x)
        for name, side in (("key", key), ("value", value)):
            old = f"past_key_values.{layer}.{name}"
            to = f"{g.prefix}present.{layer}.{name}"
            _ = g.op("Concat", old, side, to=to, axis=2) if cached else g.op("Identity", side, to=to)
        x = g.attend(f"d{layer}", x, f"{g.prefix}present.{layer}.key", f"{g.prefix}present.{layer}.value", mask)
    g.op("MatMul", x, g.weight("head"), to=f"{g.prefix}logits")


def _outputs(prefix: str = "") -> list[onnx.ValueInfoProto]:
    logits = info(f"{prefix}logits", F, ["batch", "sequence", VOCABULARY])
    return [logits, *(info(prefix + n, F, _GROWN) for n in _caches("present"))]


def plain_decoder(w: dict[str, Array], length: int | None = None) -> onnx.ModelProto:
    """Without a cache; for exactly `length` tokens, where that is given."""
    g = Graph(w)
    _decode(g, cached=False)
    inputs = [info(n, I, ["batch", length or "sequence"]) for n in ("input_ids", "attention_mask", "position_ids")]
    return g.model(inputs, _outputs()[:1])


def cached_decoder(w: dict[str, Array]) -> onnx.ModelProto:
    """With past_key_values in and present out."""
    g = Graph(w)
    _decode(g, cached=True)
    return g.model([*_INPUTS, *(info(n, F, _CACHE) for n in _caches())], _outputs())


def merged_decoder(w: dict[str, Array]) -> onnx.ModelProto:
    """Both in one If on use_cache_branch, as merged exports have it."""
    branches = {}
    constants: dict[str, onnx.TensorProto] = {}
    for name, cached in (("then_branch", True), ("else_branch", False)):
        g = Graph(w, prefix=f"{name[:4]}_")
        _decode(g, cached)
        constants |= g.constants
        branches[name] = helper.make_graph(g.nodes, name, [], _outputs(g.prefix))
    node = helper.make_node("If", ["use_cache_branch"], ["logits", *_caches("present")], name="optimum::if", **branches)
    inputs = [*_INPUTS, *(info(n, F, _CACHE) for n in _caches()), info("use_cache_branch", BOOL, [1])]
    graph = helper.make_graph([node], "g", inputs, _outputs(), list(constants.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def static_decoder(w: dict[str, Array]) -> onnx.ModelProto:
    """With caches of LONGEST places, written at cache_position, and a mask over all of them."""
    g = Graph(w)
    x = g.embed("input_ids", "position_ids")
    keys = g.op("Range", g.const(0), g.const(LONGEST), g.const(1))
    past = g.op("LessOrEqual", g.op("Unsqueeze", keys, g.const([0])), g.op("Unsqueeze", "cache_position", g.const([1])))
    real = g.op("Equal", g.op("Unsqueeze", "attention_mask", g.const([1, 2])), g.const(1))
    mask = g.op(
        "Where", g.op("And", past, real), g.const(0.0, np.float32), g.const(np.finfo(np.float32).min, np.float32)
    )
    shape = g.op("Concat", g.const([1]), g.const([HEADS]), g.op("Shape", "cache_position"), g.const([SIZE]), axis=0)
    at = g.op("Expand", g.op("Unsqueeze", "cache_position", g.const([0, 1, 3])), shape)
    for layer in range(LAYERS):
        for name, new in zip(("key", "value"), g.keys_values(f"d{layer}", x), strict=True):
            g.op("ScatterElements", f"past_key_values.{layer}.{name}", at, new, axis=2, to=f"present.{layer}.{name}")
        x = g.attend(f"d{layer}", x, f"present.{layer}.key", f"present.{layer}.value", mask)
    g.op("MatMul", x, g.weight("head"), to="logits")
    fixed = [1, HEADS, LONGEST, SIZE]
    inputs = [
        info("input_ids", I, [1, "sequence"]), info("attention_mask", I, [1, LONGEST]),
        info("position_ids", I, [1, "sequence"]), info("cache_position", I, ["sequence"]),
        *(info(n, F, fixed) for n in _caches()),
    ]  # fmt: skip
    return g.model(inputs, [_outputs()[0], *(info(n, F, fixed) for n in _caches("present"))])


def encoder(w: dict[str, Array]) -> onnx.ModelProto:
    g = Graph(w)
    places = g.op("Sub", g.op("CumSum", "attention_mask", g.const(1)), g.const(1))
    x = g.embed("input_ids", places)
    for layer in range(LAYERS):
        x = g.attend(f"e{layer}", x, *g.keys_values(f"e{layer}", x), None)
    g.op("Identity", x, to="last_hidden_state")
    inputs = [info(n, I, ["batch", "encoder_sequence"]) for n in ("input_ids", "attention_mask")]
    return g.model(inputs, [info("last_hidden_state", F, ["batch", "encoder_sequence", WIDTH])])


def cross_decoder(w: dict[str, Array], *, cached: bool) -> onnx.ModelProto:
    """The decoder of an encoder-decoder: first call (hidden states in), or later ones (all caches in)."""
    g = Graph(w)
    new = g.size("input_ids", 1)
    old = g.size("past_key_values.0.decoder.key", 2) if cached else g.const(0)
    total = g.op("Add", old, new)
    rows = g.op("Range", old, total, g.const(1))
    x = g.embed("input_ids", g.op("Unsqueeze", rows, g.const([0])))
    keys = g.op("Range", g.const(0), total, g.const(1))
    seen = g.op("LessOrEqual", g.op("Unsqueeze", keys, g.const([0])), g.op("Unsqueeze", rows, g.const([1])))
    mask = g.op("Where", seen, g.const(0.0, np.float32), g.const(np.finfo(np.float32).min, np.float32))
    for layer in range(LAYERS):
        for name, side in zip(("key", "value"), g.keys_values(f"d{layer}", x), strict=True):
            old, to = f"past_key_values.{layer}.decoder.{name}", f"present.{layer}.decoder.{name}"
            _ = g.op("Concat", old, side, to=to, axis=2) if cached else g.op("Identity", side, to=to)
        x = g.attend(f"d{layer}", x, f"present.{layer}.decoder.key", f"present.{layer}.decoder.value", mask)
        if cached:
            sides = (f"past_key_values.{layer}.encoder.key", f"past_key_values.{layer}.encoder.value")
        else:
            sides = (f"present.{layer}.encoder.key", f"present.{layer}.encoder.value")
            for to, side in zip(sides, g.keys_values(f"c{layer}", "encoder_hidden_states"), strict=True):
                g.op("Identity", side, to=to)
        real = g.op("Equal", g.op("Unsqueeze", "encoder_attention_mask", g.const([1, 2])), g.const(1))
        hide = g.op("Where", real, g.const(0.0, np.float32), g.const(np.finfo(np.float32).min, np.float32))
        x = g.attend(f"c{layer}", x, *sides, hide)
    g.op("MatMul", x, g.weight("head"), to="logits")
    source = ["batch", HEADS, "encoder_sequence", SIZE]
    inputs = [
        info("encoder_attention_mask", I, ["batch", "encoder_sequence"]),
        info("input_ids", I, ["batch", "sequence"]),
    ]
    outputs = [
        info("logits", F, ["batch", "sequence", VOCABULARY]),
        *(info(n, F, _GROWN) for n in _caches("present", ("decoder.",))),
    ]
    if cached:
        inputs += [
            info(n, F, source if "encoder" in n else _CACHE)
            for n in _caches("past_key_values", ("decoder.", "encoder."))
        ]
    else:
        inputs.append(info("encoder_hidden_states", F, ["batch", "encoder_sequence", WIDTH]))
        outputs += [info(n, F, source) for n in _caches("present", ("encoder.",))]
    return g.model(inputs, outputs)


def one_file(w: dict[str, Array]) -> onnx.ModelProto:
    """Encoder and decoder as one graph."""
    first, second = encoder(w), cross_decoder(w, cached=False)
    for model, mark in ((first, "E/"), (second, "D/")):
        keep = {i.name for i in model.graph.input}
        for node in model.graph.node:
            node.name = mark + node.name
            for names in (node.input, node.output):
                names[:] = [n if n in keep or not n else mark + n for n in names]
        for tensor in model.graph.initializer:
            tensor.name = mark + tensor.name
    for node in second.graph.node:
        swap = {"encoder_hidden_states": "E/last_hidden_state", "encoder_attention_mask": "attention_mask"}
        node.input[:] = [{**swap, "input_ids": "decoder_input_ids"}.get(n, n) for n in node.input]
    nodes = [*first.graph.node, *second.graph.node, helper.make_node("Identity", ["D/logits"], ["logits"], name="out")]
    inputs = [*first.graph.input, info("decoder_input_ids", I, ["batch", "decoder_sequence"])]
    graph = helper.make_graph(
        nodes, "g", inputs, [second.graph.output[0]], [*first.graph.initializer, *second.graph.initializer]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(folder: Path, *, config: dict[str, Any] | None = None, **models: onnx.ModelProto) -> Path:
    """Write models and their config.json into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in models.items():
        onnx.save(model, folder / f"{name}.onnx")
    (folder / "config.json").write_text(json.dumps(config or {}))
    return folder
