#!/usr/bin/env python3
"""Write a Llama-style decoder with random weights: the size and shape of a real one, to measure time and memory with.

    python scripts/bench/make_decoder.py OUT.onnx [--layers 30 --heads 9 --kv-heads 3 --head-size 64 --ffn 1536 ...]

The default is 30 layers, 9 query and 3 key/value heads of 64, 135M parameters in float32 (538 MB): RMSNorm, rotary
embedding, grouped queries, a causal mask added to the scores, SiLU-gated feed-forward, embedding tied to the logits.
Inputs: input_ids and attention_mask, int64 [batch, sequence]. The weights say nothing; what a run costs does not depend
on them.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class Shape:
    layers: int = 30
    heads: int = 9
    kv_heads: int = 3
    head_size: int = 64
    ffn: int = 1536
    vocab: int = 49152
    positions: int = 8192

    @property
    def width(self) -> int:
        return self.heads * self.head_size


class Writer:
    """Collects nodes and weights."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(seed)
        self._shared: dict[tuple[object, ...], str] = {}

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: object) -> str:
        out = f"{name or kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=f"/{out}", **attributes))
        return out

    def weight(self, name: str, *dims: int) -> str:
        values = self.rng.standard_normal(dims, dtype=np.float32) * np.float32(0.04)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def const(self, value: object, dtype: type = np.int64) -> str:
        array = np.asarray(value, dtype)
        key = (array.tobytes(), array.shape, array.dtype.str)
        if key not in self._shared:
            self._shared[key] = f"const_{len(self._shared)}"
            self.weights.append(numpy_helper.from_array(array, self._shared[key]))
        return self._shared[key]

    def norm(self, x: str, name: str) -> str:
        self.weights.append(numpy_helper.from_array(np.ones(self.shape.width, np.float32), name))
        mean = self.op("ReduceMean", self.op("Mul", x, x), self.const([-1]), keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.const(1e-5, np.float32)))
        return self.op("Mul", self.op("Div", x, root), name)

    def heads(self, x: str, count: int) -> str:
        split = self.op("Reshape", x, self.const([0, 0, count, self.shape.head_size]))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def turn(self, x: str, cos: str, sin: str) -> str:
        half = self.shape.head_size // 2
        low = self.op("Slice", x, self.const([0]), self.const([half]), self.const([3]))
        high = self.op("Slice", x, self.const([half]), self.const([2 * half]), self.const([3]))
        turned = self.op("Concat", self.op("Neg", high), low, axis=-1)
        return self.op("Add", self.op("Mul", x, cos), self.op("Mul", turned, sin))

    def repeat(self, x: str, target: str) -> str:
        """Each key/value head for its group of query heads."""
        shape = self.shape
        wide = self.op("Expand", self.op("Unsqueeze", x, self.const([2])), target)
        return self.op("Reshape", wide, self.const([0, shape.heads, -1, shape.head_size]))

    def layer(self, at: int, x: str, cos: str, sin: str, mask: str, target: str) -> str:
        shape, name = self.shape, f"layers.{at}"
        h = self.norm(x, f"{name}.input_norm")
        kv = shape.kv_heads * shape.head_size
        query = self.heads(self.op("MatMul", h, self.weight(f"{name}.q", shape.width, shape.width)), shape.heads)
        key = self.heads(self.op("MatMul", h, self.weight(f"{name}.k", shape.width, kv)), shape.kv_heads)
        value = self.heads(self.op("MatMul", h, self.weight(f"{name}.v", shape.width, kv)), shape.kv_heads)
        key = self.repeat(self.turn(key, cos, sin), target)
        value = self.repeat(value, target)
        scores = self.op("MatMul", self.turn(query, cos, sin), self.op("Transpose", key, perm=[0, 1, 3, 2]))
        scaled = self.op("Mul", scores, self.const(shape.head_size**-0.5, np.float32))
        weights = self.op("Softmax", self.op("Add", scaled, mask), name=f"{name}.Softmax", axis=-1)
        context = self.op("Transpose", self.op("MatMul", weights, value), perm=[0, 2, 1, 3])
        flat = self.op("Reshape", context, self.const([0, 0, shape.width]))
        x = self.op("Add", x, self.op("MatMul", flat, self.weight(f"{name}.o", shape.width, shape.width)))
        h = self.norm(x, f"{name}.post_norm")
        gate = self.op("MatMul", h, self.weight(f"{name}.gate", shape.width, shape.ffn))
        up = self.op("MatMul", h, self.weight(f"{name}.up", shape.width, shape.ffn))
        inner = self.op("Mul", self.op("Mul", gate, self.op("Sigmoid", gate)), up)
        return self.op("Add", x, self.op("MatMul", inner, self.weight(f"{name}.down", shape.ffn, shape.width)))


def build(shape: Shape, seed: int = 0) -> onnx.ModelProto:
    """The whole model."""
    w = Writer(shape, seed)
    size = w.op("Shape", "input_ids")
    length = w.op("Gather", size, w.const(1), axis=0)
    positions = w.op("Range", w.const(0), length, w.const(1))
    exponents = np.arange(0, shape.head_size, 2, dtype=np.float32) / shape.head_size
    frequencies = (1e4**-exponents)[None, :].astype(np.float32)
    angle = w.op(
        "MatMul",
        w.op("Unsqueeze", w.op("Cast", positions, to=TensorProto.FLOAT), w.const([1])),
        w.const(frequencies, np.float32),
    )
    both = w.op("Concat", angle, angle, axis=-1)
    cos, sin = w.op("Cos", both), w.op("Sin", both)
    later = w.op("Greater", w.op("Unsqueeze", positions, w.const([0])), w.op("Unsqueeze", positions, w.const([1])))
    padded = w.op("Equal", w.op("Unsqueeze", "attention_mask", w.const([1, 2])), w.const(0))
    hidden = w.op("Or", later, padded)
    mask = w.op("Where", hidden, w.const(np.finfo(np.float32).min, np.float32), w.const(0.0, np.float32))
    batch = w.op("Gather", size, w.const([0]), axis=0)
    target = w.op(
        "Concat", batch, w.const([shape.kv_heads]), w.const([shape.heads // shape.kv_heads]),
        w.op("Unsqueeze", length, w.const([0])), w.const([shape.head_size]), axis=0,
    )  # fmt: skip
    embedding = w.weight("embed_tokens", shape.vocab, shape.width)
    x = w.op("Gather", embedding, "input_ids", axis=0)
    for at in range(shape.layers):
        x = w.layer(at, x, cos, sin, mask, target)
    flat = w.op("Reshape", w.norm(x, "norm"), w.const([-1, shape.width]))
    logits = w.op("Gemm", flat, embedding, transB=1)
    full = w.op("Concat", size, w.const([shape.vocab]), axis=0)
    w.nodes.append(helper.make_node("Reshape", [logits, full], ["logits"], name="/logits"))
    dims = ["batch", "sequence"]
    graph = helper.make_graph(
        w.nodes,
        "decoder",
        [helper.make_tensor_value_info(n, TensorProto.INT64, dims) for n in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [*dims, shape.vocab])],
        w.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--external", action="store_true", help="weights in a file of their own (OUT.onnx.data)")
    parser.add_argument("--seed", type=int, default=0)
    for name, value in vars(Shape()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    options = parser.parse_args()
    shape = Shape(**{name: getattr(options, name) for name in vars(Shape())})
    model = build(shape, options.seed)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(
        model,
        options.out,
        save_as_external_data=options.external,
        location=f"{options.out.name}.data" if options.external else None,
        size_threshold=1024,
    )
    held = sum(int(np.prod(t.dims)) for t in model.graph.initializer)
    print(f"{options.out}: {shape.layers} layers, {shape.heads} heads, {held / 1e6:.0f}M numbers")


if __name__ == "__main__":
    main()
