"""Reading the masks of many layers holds one layer's cells at a time, however long the text a window needs."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from attnx.sites.recognise import find

WIDTH = 300


def layers(count: int) -> onnx.ModelProto:
    """`count` layers of attention of 4 heads of 8 over the last 300 tokens, one after another."""
    nodes, weights = [], [numpy_helper.from_array(np.float32(-1e9), "hidden")]

    def op(kind: str, *inputs: str, **attributes: object) -> str:
        out = f"{kind}_{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [out], name=f"/{out}", **attributes))
        return out

    def const(values: object, dtype: type = np.int64) -> str:
        name = f"c{len(weights)}"
        weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    length = op("Gather", op("Shape", "x"), const(1), axis=0)
    places = op("Range", const(0), length, const(1))
    away = op("Sub", op("Unsqueeze", places, const([1])), op("Unsqueeze", places, const([0])))
    seen = op("And", op("GreaterOrEqual", away, const(0)), op("Less", away, const(WIDTH)))
    x = "x"
    for _ in range(count):
        q, k, v = (
            op("Transpose", op("Reshape", op("MatMul", x, const(np.eye(32), np.float32)), const([0, 0, 4, 8])),
               perm=[0, 2, 1, 3])
            for _ in range(3)
        )  # fmt: skip
        scores = op("Mul", op("MatMul", q, op("Transpose", k, perm=[0, 1, 3, 2])), const(8**-0.5, np.float32))
        weight = op("Softmax", op("Where", seen, scores, "hidden"), axis=-1)
        x = op("Reshape", op("Transpose", op("MatMul", weight, v), perm=[0, 2, 1, 3]), const([0, 0, 32]))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "sequence", 32])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", "sequence", 32])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def peak(path: Path) -> int:
    tracemalloc.start()
    found = find(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {(site.causal, site.window) for site in found.sites} == {(True, WIDTH)}
    return most


def test_memory_does_not_grow_with_the_layers(tmp_path: Path) -> None:
    few, many = tmp_path / "few.onnx", tmp_path / "many.onnx"
    onnx.save(layers(2), few)
    onnx.save(layers(10), many)
    find(few)  # imports are not what is measured
    cells = 4 * (WIDTH + 3) ** 2 * 4
    small, large = peak(few), peak(many)
    assert large - small < 3 * cells, f"{small >> 10} kB for 2 layers, {large >> 10} kB for 10"
