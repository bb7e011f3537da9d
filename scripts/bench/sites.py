"""How long `attnx sites` takes to find the attention of a large graph, imports and loading told apart.

    python scripts/bench/sites.py [--nodes 3000] [--kind TEXT] [--runs 5]

Writes decoders of ordinary layers (norms, rotary embedding, grouped heads, a mask made of positions and padding) until
each has the number of nodes asked for, and finds the sites of each: with free sizes, with fixed ones, and with a
sliding window in every other layer. Nothing is run, and the weights are a few numbers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, GROUPS, SIZE = 8, 2, 16
WIDTH = HEADS * SIZE


class Decoder:
    """A decoder written node by node."""

    def __init__(self, fixed: bool, window: int | None) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, np.ndarray] = {}
        self.fixed, self.window = fixed, window

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=f"n{len(self.nodes)}", **attributes))
        return out

    def const(self, value: object, dtype: object = np.int64) -> str:
        array = np.asarray(value, dtype=dtype)
        name = f"c{len(self.tensors)}"
        self.tensors[name] = array
        return name

    def weight(self, rows: int, columns: int) -> str:
        return self.const(np.full((rows, columns), 0.01), np.float32)

    def shape_of(self, value: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", value), self.const([axis]), axis=0)

    def norm(self, x: str) -> str:
        mean = self.op("ReduceMean", self.op("Pow", x, self.const(2.0, np.float32)), axes=[-1])
        root = self.op("Sqrt", self.op("Add", mean, self.const(1e-6, np.float32)))
        return self.op("Mul", self.op("Div", x, root), self.const(np.ones(WIDTH), np.float32))

    def heads(self, x: str, count: int) -> str:
        made = self.op("MatMul", x, self.weight(WIDTH, count * SIZE))
        shape = self.op(
            "Concat", self.shape_of(x, 0), self.shape_of(x, 1), self.const([count]), self.const([SIZE]), axis=0
        )
        return self.op("Transpose", self.op("Reshape", made, shape), perm=[0, 2, 1, 3])

    def turned(self, x: str, cos: str, sin: str) -> str:
        half = [
            self.op("Slice", x, self.const([a]), self.const([b]), self.const([3]))
            for a, b in ((0, SIZE // 2), (SIZE // 2, SIZE))
        ]
        other = self.op("Concat", self.op("Neg", half[1]), half[0], axis=3)
        return self.op("Add", self.op("Mul", x, cos), self.op("Mul", other, sin))

    def repeated(self, x: str) -> str:
        one = self.op("Unsqueeze", x, self.const([2]))
        length = self.shape_of(x, 2)
        batch = self.shape_of(x, 0)
        parts = [batch, self.const([GROUPS]), self.const([HEADS // GROUPS]), length, self.const([SIZE])]
        whole = self.op("Expand", one, self.op("Concat", *parts, axis=0))
        return self.op("Reshape", whole, self.op("Concat", batch, self.const([HEADS]), length, parts[-1], axis=0))

    def mask(self, ids: str, keep: str, window: int | None) -> str:
        length = self.op("Squeeze", self.shape_of(ids, 1), self.const([0]))
        count = self.op("Range", self.const(0), length, self.const(1))
        row, column = (self.op("Unsqueeze", count, self.const([i])) for i in (1, 0))
        seen = self.op("GreaterOrEqual", row, column)
        if window is not None:
            seen = self.op("And", seen, self.op("Less", self.op("Sub", row, column), self.const(window)))
        real = self.op("Cast", self.op("Unsqueeze", keep, self.const([1, 2])), to=TensorProto.BOOL)
        allowed = self.op("And", self.op("Unsqueeze", seen, self.const([0, 1])), real)
        return self.op("Where", allowed, self.const(0.0, np.float32), self.const(-3.4e38, np.float32))

    def layer(self, x: str, mask: str, cos: str, sin: str) -> str:
        h = self.norm(x)
        query, key, value = self.heads(h, HEADS), self.heads(h, GROUPS), self.heads(h, GROUPS)
        query, key = self.turned(query, cos, sin), self.turned(key, cos, sin)
        key, value = self.repeated(key), self.repeated(value)
        scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.op("Add", self.op("Mul", scores, self.const(SIZE**-0.5, np.float32)), mask)
        context = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        merged = self.op("Concat", self.shape_of(x, 0), self.shape_of(x, 1), self.const([WIDTH]), axis=0)
        context = self.op("Reshape", self.op("Transpose", context, perm=[0, 2, 1, 3]), merged)
        x = self.op("Add", x, self.op("MatMul", context, self.weight(WIDTH, WIDTH)))
        h = self.norm(x)
        gate = self.op("MatMul", h, self.weight(WIDTH, WIDTH))
        gate = self.op("Mul", gate, self.op("Sigmoid", gate))
        up = self.op("Mul", gate, self.op("MatMul", h, self.weight(WIDTH, WIDTH)))
        return self.op("Add", x, self.op("MatMul", up, self.weight(WIDTH, WIDTH)))

    def build(self, nodes: int, path: Path) -> tuple[int, int]:
        """Write the file; give the number of nodes and of layers."""
        ids, keep = "input_ids", "attention_mask"
        masks = [self.mask(ids, keep, w) for w in dict.fromkeys((None, self.window))]
        x = self.op("Gather", self.weight(64, WIDTH), ids)
        length = self.op("Squeeze", self.shape_of(ids, 1), self.const([0]))
        place = self.op("Cast", self.op("Range", self.const(0), length, self.const(1)), to=TensorProto.FLOAT)
        speed = self.const(10000.0 ** -(np.arange(SIZE) % (SIZE // 2) / (SIZE // 2)), np.float32)
        angle = self.op("Mul", self.op("Unsqueeze", place, self.const([1])), speed)
        cos, sin = self.op("Cos", angle), self.op("Sin", angle)
        layers = 0
        while len(self.nodes) < nodes:
            x = self.layer(x, masks[layers % len(masks)], cos, sin)
            layers += 1
        sizes: list[int | str] = [1, 64] if self.fixed else ["batch", "sequence"]
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, sizes) for name in (ids, keep)]
        tensors = [numpy_helper.from_array(v, name) for name, v in self.tensors.items()]
        graph = helper.make_graph(self.nodes, "decoder", inputs, [helper.make_empty_tensor_value_info(x)], tensors)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return len(self.nodes), layers


KINDS = {"free sizes": (False, None), "fixed sizes": (True, None), "a window of 4,096": (False, 4096)}


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3000, help="nodes of each graph, at least")
    parser.add_argument("--kind", default="", help="only kinds whose name holds this text")
    parser.add_argument("--runs", type=int, default=5, help="runs of each; the least is the figure")
    asked = parser.parse_args()
    start = time.perf_counter()
    from attnx.sites.recognise import find

    print(f"imports {time.perf_counter() - start:.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        for name, (fixed, window) in KINDS.items():
            if asked.kind not in name:
                continue
            path = Path(folder) / "model.onnx"
            nodes, layers = Decoder(fixed, window).build(asked.nodes, path)
            taken = []
            for _ in range(asked.runs):
                start = time.perf_counter(), time.process_time()
                found = find(path)
                taken.append((time.perf_counter() - start[0], time.process_time() - start[1]))
            sites = found.sites
            if len(sites) != layers or not all(s.causal and s.kv_heads == GROUPS for s in sites):
                raise SystemExit(f"{name}: {len(sites)} sites of {layers} layers, or not what was written")
            windows = sorted({s.window for s in sites if s.window is not None})
            print(
                f"{name}: {nodes:,} nodes, {layers} layers, windows {windows}: "
                f"{min(taken)[0]:.2f} s (of {asked.runs}), {min(t[1] for t in taken):.2f} s of the processor"
            )


if __name__ == "__main__":
    main()
