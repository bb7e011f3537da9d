"""One attention that weighs several values, joined behind it, as DiffLlama is exported: heads are its heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import attnx
from attnx.interventions.plan import Edit, Intervention
from attnx.interventions.running import Intervening
from tests.graphs import D, G, H

S, W, LAMBDA = 6, D * H, 0.3
WAYS = ["one softmax", "a softmax for each", "Attention"]


def differential(way: str, folder: Path) -> tuple[Path, list[str]]:
    """(softmax(q1 k1) - lambda softmax(q2 k2)) [v1, v2], with the softmaxes of both halves as heads of one.

    Returns:
        The model, and the names of what its own softmax (the first) and the joined contexts are.
    """
    g = G()
    drawn = np.random.default_rng(4)
    g.weight = lambda *shape: g.const(drawn.standard_normal(shape).astype(np.float32) / 4)  # type: ignore[method-assign]
    x = g.input("x", [1, S, W])
    q, k, one, two = (g.heads(g.linear(x, W, W)) for _ in range(4))
    mask = g.const(np.triu(np.full((S, S), -1e9, np.float32), 1))
    weights: list[Any] = []
    contexts = []
    for value in (one, two):
        if way == "Attention":
            context = g.op("Attention", q, k, value, mask)
        else:
            if not weights or way == "a softmax for each":
                scores = g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2])))
                weights.append(g.softmax(str(g.op("Add", scores, mask))))
            context = g.op("MatMul", weights[-1], value)
        contexts.append(g.op("Transpose", context, perm=[0, 2, 1, 3]))
    joined = g.op("Concat", *contexts, axis=-1)
    half = g.const([H // 2, H // 2], np.int64)
    first, second = g.op("Split", joined, half, outputs=2, axis=2)
    less = g.op("Sub", first, g.op("Mul", second, g.const(LAMBDA, np.float32)))
    out = g.linear(str(g.op("Reshape", less, g.const([0, -1, W], np.int64))), W, W)
    path = g.save(folder, str(g.op("Add", x, out)), *weights[:1], str(joined))
    if way == "Attention":
        model = onnx.load(path)
        model.opset_import[0].version = 23
        onnx.save(model, path)
    return path, [*weights[:1], joined]


@pytest.mark.parametrize("way", WAYS)
def test_it_is_one_site_whose_value_is_all_of_them(way: str, tmp_path: Path) -> None:
    path, names = differential(way, tmp_path)
    x = np.random.default_rng(5).standard_normal((1, S, W)).astype(np.float32)
    *known, joined = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(names, {"x": x})
    if not known:
        other, others = differential("one softmax", tmp_path)  # the same numbers
        known = ort.InferenceSession(other, providers=["CPUExecutionProvider"]).run(others[:1], {"x": x})
        path, _ = differential(way, tmp_path)
    trace = attnx.open(path, device="cpu").trace(inputs={"x": x}, verify_outputs=True)
    (a,) = trace.attentions
    assert a.trusted
    assert (a.site.heads, a.site.kv_heads, a.site.head_size, a.site.causal) == (H, H, D, True)
    np.testing.assert_allclose(a.need("weights"), known[0], atol=1e-6)
    np.testing.assert_allclose(a.need("context"), joined.transpose(0, 2, 1, 3), atol=1e-6)
    assert a.need("value").shape == (1, H, S, 2 * D)
    np.testing.assert_allclose(a.need("weights") @ a.need("value"), a.need("context"), atol=1e-6)
    assert any("weigh 2 values, joined behind it" in note for note in a.site.notes)


@pytest.mark.parametrize("way", WAYS)
def test_a_head_is_ablated_in_all_of_its_values(way: str, tmp_path: Path) -> None:
    path, _ = differential(way, tmp_path)
    x = np.random.default_rng(5).standard_normal((1, S, W)).astype(np.float32)
    opened = Intervening(attnx.open(path, device="cpu"), {"inputs": {"x": x}})
    (effect,) = opened.run([Intervention("one", (Edit("ablate", heads=(1,)),))])
    (got,) = (values for name, values in effect.outputs.items() if values.shape == x.shape)
    np.testing.assert_allclose(got, zeroed(path, 1, x), atol=1e-5)


def zeroed(path: Path, head: int, x: np.ndarray) -> Any:
    """The model's output where the joined contexts of a head are zeros."""
    model = onnx.load(path)
    node = next(n for n in model.graph.node if n.op_type == "Concat")
    keep = np.ones((1, 1, H, 1), np.float32)
    keep[0, 0, head] = 0
    model.graph.initializer.append(numpy_helper.from_array(keep, "keep"))
    joined = node.output[0]
    node.output[0] = "before"
    at = list(model.graph.node).index(node)
    model.graph.node.insert(at + 1, helper.make_node("Mul", ["before", "keep"], [joined]))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]
