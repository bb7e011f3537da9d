"""Attention without a softmax is named for what stands in its place, and what only looks like it is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attnx.graph.load.nodes import CURVES
from attnx.sites.recognise import find
from tests.graphs import D, G, plain


def operands(g: G, x: str) -> tuple[str, str, str]:
    return tuple(g.heads(g.linear(x, 32), perm) for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))  # type: ignore[return-value]


def scores(g: G, x: str) -> tuple[str, str]:
    q, kt, v = operands(g, x)
    return str(g.op("Mul", g.op("MatMul", q, kt), g.const(D**-0.5, np.float32))), v


def sigmoid(g: G, x: str) -> str:
    s, v = scores(g, x)
    return str(g.op("MatMul", g.op("Sigmoid", g.op("Sub", s, g.const(1.6, np.float32))), v))


def relu(g: G, x: str) -> str:
    s, v = scores(g, x)
    return str(g.op("MatMul", g.op("Relu", s), v))


def squared(g: G, x: str) -> str:
    s, v = scores(g, x)
    r = g.op("Relu", s)
    return str(g.op("MatMul", g.op("Mul", r, r), v))


def retention(g: G, x: str) -> str:
    s, v = scores(g, x)
    return str(g.op("MatMul", g.op("Mul", s, g.weight(4, 1, 1)), v))


def kernel(g: G, x: str) -> str:
    s, v = scores(g, x)
    r = g.op("Relu", s)
    total = g.op("ReduceSum", r, g.const([-1], np.int64), keepdims=1)
    return str(g.op("MatMul", g.op("Div", r, g.op("Add", total, g.const(1e-6, np.float32))), v))


def linear(g: G, x: str) -> str:
    q, kt, v = operands(g, x)
    q, kt = (g.op("Add", g.op("Elu", t), g.const(1.0, np.float32)) for t in (q, kt))
    return str(g.op("MatMul", q, g.op("MatMul", kt, v)))


def efficient(g: G, x: str) -> str:
    q, kt, v = operands(g, x)
    q, kt = g.op("Softmax", q, axis=-1), g.op("Softmax", kt, axis=-1)
    return str(g.op("MatMul", q, g.op("MatMul", kt, v)))


def late(g: G, x: str) -> str:
    s, v = scores(g, x)
    e = g.op("Exp", s)
    return str(g.op("Div", g.op("MatMul", e, v), g.op("ReduceSum", e, g.const([-1], np.int64), keepdims=1)))


def angles(g: G, x: str) -> str:
    q, kt, v = operands(g, x)
    q, kt = (str(g.op("Div", t, g.op("ReduceL2", t, axes=[axis], keepdims=1))) for t, axis in ((q, -1), (kt, -2)))
    turned = g.op("Div", g.op("Acos", g.op("MatMul", q, kt)), g.const(np.pi, np.float32))
    near = g.op("Pow", g.op("Sub", g.const(1.0, np.float32), turned), g.const(9.0, np.float32))
    return str(g.op("MatMul", near, v))


def gated(g: G, x: str) -> str:
    return g.linear(g.op("Mul", g.op("Sigmoid", g.linear(x, 32)), g.linear(x, 32)), 16, 32)


def gram(g: G, x: str) -> str:
    a = g.linear(x, 16)
    return str(g.op("MatMul", g.op("Transpose", g.op("Relu", a), perm=[0, 2, 1]), a))


NAMED = {
    sigmoid: "sigmoid attention:", relu: "ReLU attention:", squared: "squared ReLU attention:",
    retention: "attention without a softmax:", kernel: "ReLU attention, divided by its sums:",
    linear: "linear attention:", efficient: "linear attention:", late: "the exponentials of a product",
    angles: "attention by Acos:",
}  # fmt: skip


@pytest.mark.parametrize("make", NAMED, ids=lambda f: f.__name__)
def test_what_stands_in_the_place_of_the_softmax_is_named(make: Callable[[G, str], str], tmp_path: Path) -> None:
    g = G()
    out = make(g, g.input("x", ["b", "s", 16]))
    found = find(g.save(tmp_path, out))
    assert found.sites == ()
    (miss,) = found.misses
    assert miss.reason.startswith(NAMED[make])


@pytest.mark.parametrize("learned", [True, False])
def test_slots_that_compete_for_keys_are_named(learned: bool, tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    slots = g.weight(1, 3, 16) if learned else g.input("slots", ["b", 3, 16])
    q, k, v = g.linear(slots, 16), g.linear(x, 16), g.linear(x, 16)
    weights = g.softmax(g.scores(k, g.op("Transpose", q, perm=[0, 2, 1])))
    shares = g.op("Div", weights, g.op("ReduceSum", weights, g.const([1], np.int64), keepdims=1))
    found = find(g.save(tmp_path, g.op("MatMul", g.op("Transpose", shares, perm=[0, 2, 1]), v)))
    assert found.sites == ()
    (miss,) = found.misses
    assert miss.reason.startswith("a softmax over queries")


@pytest.mark.parametrize("make", [gated, gram, plain], ids=lambda f: f.__name__)
def test_gates_gram_matrices_and_attention_are_none_of_it(make: Callable[[G, str], str], tmp_path: Path) -> None:
    g = G()
    out = make(g, g.input("x", ["b", "s", 16]))
    assert find(g.save(tmp_path, out)).misses == ()


@pytest.mark.parametrize("curve", CURVES)
def test_every_function_of_one_number_is_followed(curve: str, tmp_path: Path) -> None:
    g = G()
    s, v = scores(g, g.input("x", ["b", "s", 16]))
    found = find(g.save(tmp_path, g.op("MatMul", g.op(curve, s), v)))
    (miss,) = found.misses
    assert miss.reason.startswith(f"attention by {curve}:")


def test_an_operator_that_alters_scores_before_the_softmax_is_named(tmp_path: Path) -> None:
    g = G()
    s, v = scores(g, g.input("x", ["b", "s", 16]))
    signed = g.op("Mul", g.softmax(g.op("Abs", s)), g.op("Sign", s))
    found = find(g.save(tmp_path, g.op("MatMul", signed, v)))
    assert found.sites == ()
    assert found.misses[0].reason.startswith("a product of two tensors reaches it only through Abs,")
