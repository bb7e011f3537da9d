"""Reading masks holds one layer's cells at a time, however long the text a window needs, and no hidden states."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import attnx
from attnx.graph.masks import mask_values
from attnx.sites.recognise import find
from tests.graphs import D, G, S, qkv

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


@pytest.mark.parametrize("masked", [False, True])
def test_hidden_states_are_not_evaluated_as_if_they_were_masks(
    masked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions relative to a query make scores of hidden states, whose numbers hide nothing."""
    g = G()
    x = g.input("x", ["b", S, 16])
    q, k, v = qkv(g, x)
    scores = g.op("Add", g.scores(q, k), g.op("MatMul", q, g.weight(D, S)))
    if masked:
        mask = g.op("Unsqueeze", g.input("mask", ["b", S]), g.const([1, 2], np.int64))
        far = g.op("Mul", g.op("Sub", g.const(1, np.float32), mask), g.const(-1e9, np.float32))
        scores = g.op("Add", scores, far)
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(scores)), v))))
    looked: list[str] = []
    kept = mask_values._Probe.kept
    monkeypatch.setattr(mask_values._Probe, "kept", lambda self, name: (looked.append(name), kept(self, name))[1])
    found = {slot.name: slot.kept for slot in attnx.open(path, device="cpu").find().inputs}
    assert found == ({"x": None, "mask": 1.0} if masked else {"x": None})
    assert looked == (["mask"] if masked else [])
