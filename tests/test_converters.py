"""What tf2onnx makes of Keras, and paddle2onnx of a scale: what they write otherwise than other exporters."""

from __future__ import annotations

from math import erf
from pathlib import Path

import numpy as np
import pytest

import attnx
from tests.graphs import RNG, D, G, H, S, plain, qkv, softmax, trace

X = RNG.uniform(-0.3, 0.3, (2, S, 16)).astype(np.float32)


def chosen(g: G, keep: str, x: str, other: float) -> str:
    """TensorFlow's SelectV2 as tf2onnx writes it: x where `keep`, else another number."""
    there = g.op("Mul", g.op("Cast", keep, to=1), x)
    elsewhere = g.op("Mul", g.const(other, np.float32), g.op("Cast", g.op("Not", keep), to=1))
    return str(g.op("Add", there, elsewhere))


@pytest.mark.parametrize("causal", [True, False])
def test_weights_that_are_selected_by_arithmetic_are_those_of_one_softmax(causal: bool, tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", S, 16])
    q, k, v = qkv(g, x)
    if causal:
        keep = g.const(np.tril(np.ones((1, 1, S, S))), bool)
        see = np.broadcast_to(np.tril(np.ones((S, S), bool)), (2, 1, S, S))
        inputs = {"x": X}
    else:
        keep = g.op("Unsqueeze", g.input("mask", ["b", S, S], 9), g.const([1], np.int64))
        see = RNG.random((2, 1, S, S)) < 0.7
        see[..., 0] = True
        see[0, 0, 2] = False  # a query that sees nothing: all its weights are 0
        inputs = {"x": X, "mask": see[:, 0]}
    a = chosen(g, keep, g.softmax(chosen(g, keep, g.scores(q, k), -3e38)), 0.0)
    (attention,) = trace(g.save(tmp_path, g.out(str(g.op("MatMul", a, v)))), **inputs).attentions
    assert attention.site.causal is causal
    assert attention.site.absent == ()
    assert attention.trusted
    with np.errstate(invalid="ignore"):
        want = np.nan_to_num(softmax(np.where(see, attention.scaled, -np.inf)))
    np.testing.assert_allclose(attention.weights, want, atol=1e-6)
    np.testing.assert_allclose(attention.context, want @ attention.value, atol=1e-5)


def test_a_softmax_over_rows_and_columns_has_both_as_keys(tmp_path: Path) -> None:
    g, (high, wide) = G(), (2, 3)
    x = g.input("x", ["b", high, wide, 16])

    def project() -> str:
        return str(g.op("Reshape", g.linear(x, H * D), g.const([0, high, wide, H, D], np.int64)))

    q, k, v = project(), project(), project()
    s = g.op("Einsum", q, k, equation="bxyhd,buvhd->bhxyuv")
    s = g.op("Mul", s, g.const(D**-0.5, np.float32))
    top = g.op("ReduceMax", s, axes=[4, 5], keepdims=1)
    e = g.op("Exp", g.op("Sub", s, top))
    total = g.op("Add", g.op("Log", g.op("ReduceSum", e, g.const([4, 5], np.int64), keepdims=1)), top)
    a = g.op("Exp", g.op("Sub", s, total))
    o = g.op("Reshape", g.op("Einsum", a, v, equation="bhxyuv,buvhd->bxyhd"), g.const([0, high, wide, -1], np.int64))
    path = g.save(tmp_path, g.linear(o, 16, H * D))
    (attention,) = trace(path, x=RNG.uniform(-0.2, 0.2, (2, high, wide, 16)).astype(np.float32)).attentions
    assert (attention.site.kind, attention.site.heads, attention.site.causal) == ("self", H, False)
    assert attention.trusted
    assert attention.weights.shape == (2, H, high * wide, high * wide)
    scores = np.einsum("bhqd,bhkd->bhqk", attention.query, attention.key)
    np.testing.assert_allclose(attention.scores, scores, atol=1e-4)
    np.testing.assert_allclose(attention.weights, softmax(scores * D**-0.5), atol=1e-6)


def test_two_axes_of_a_batch_that_are_merged_with_heads_are_told_apart(tmp_path: Path) -> None:
    g, rows = G(), 3
    x = g.input("x", ["b", rows, "s", 16])

    def project(*perm: int) -> str:
        split = g.op("Reshape", g.linear(x, H * D), g.const([0, rows, -1, H, D], np.int64))
        turned = g.op("Transpose", split, perm=[0, 1, 3, 2, 4])
        size = g.op("Gather", g.op("Shape", turned), g.const([3], np.int64))
        flat = g.op("Reshape", turned, g.op("Concat", g.const([-1], np.int64), size, g.const([D], np.int64), axis=0))
        return str(g.op("Transpose", flat, perm=list(perm)))

    q, k, v = project(0, 1, 2), project(0, 2, 1), project(0, 1, 2)
    o = g.op("MatMul", g.softmax(g.scores(q, k)), v)
    size = g.op("Gather", g.op("Shape", o), g.const([1], np.int64))
    shape = g.op("Concat", g.const([-1, rows, H], np.int64), size, g.const([D], np.int64), axis=0)
    back = g.op("Transpose", g.op("Reshape", o, shape), perm=[0, 1, 3, 2, 4])
    path = g.save(tmp_path, g.linear(g.op("Reshape", back, g.const([0, rows, -1, H * D], np.int64)), 16, H * D))
    (attention,) = trace(path, x=RNG.uniform(-0.2, 0.2, (2, rows, 4, 16)).astype(np.float32)).attentions
    assert attention.trusted
    assert attention.site.heads == H
    assert attention.weights.shape == (2 * rows, H, 4, 4)
    scores = np.einsum("bhqd,bhkd->bhqk", attention.query, attention.key)
    np.testing.assert_allclose(attention.weights, softmax(scores * D**-0.5), atol=1e-6)


def test_erfc_that_no_runtime_knows_is_one_less_erf(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    inner = g.op("Mul", g.const(-(0.5**0.5), np.float32), x)
    y = g.op("Mul", g.op("Mul", g.const(0.5, np.float32), x), g.op("Erfc", inner))
    path = g.save(tmp_path, plain(g, str(y)), str(y))
    traced = attnx.open(path, device="cpu").trace(inputs={"x": X}, outputs=True)
    (attention,) = traced.attentions
    assert attention.trusted
    want = 0.5 * X * (1 + np.vectorize(erf)(X * 0.5**0.5))
    np.testing.assert_allclose(traced.outputs[str(y)], want, atol=1e-6)


@pytest.mark.parametrize("op", ["Add", "Sub"])
@pytest.mark.parametrize("on", ["query", "scores"])
def test_a_scale_behind_which_zero_is_added_is_the_scale(op: str, on: str, tmp_path: Path) -> None:
    """paddle2onnx writes a scale as x * factor + 0."""
    g = G()
    x = g.input("x", ["b", "s", 16])
    q, k, v = qkv(g, x)

    def scaled(y: str) -> str:
        return str(g.op(op, g.op("Mul", y, g.const([D**-0.5], np.float32)), g.const(0.0, np.float32)))

    s = g.op("MatMul", scaled(q), k) if on == "query" else scaled(str(g.op("MatMul", q, k)))
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(s)), v))))
    (attention,) = trace(path, x=X).attentions
    assert attention.trusted
    assert attention.site.scale == pytest.approx(D**-0.5)
    scores = np.einsum("bhqd,bhkd->bhqk", attention.query, attention.key)
    np.testing.assert_allclose(attention.scores, scores, atol=1e-4)
    np.testing.assert_allclose(attention.weights, softmax(scores * D**-0.5), atol=1e-6)
