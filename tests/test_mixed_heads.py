"""Talking heads: scores, or weights, of all heads that are mixed are a mix of heads, and no bias by position."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

import attnx
from attnx.errors import UnsupportedError
from attnx.measure.scaling import all_heads
from attnx.view.json import tidy
from tests.graphs import D, G, H, qkv, softmax

B, S = 2, 5
SCALE = D**-0.5


def einsum(g: G, scores: str, x: str) -> str:
    return str(g.op("Einsum", scores, g.weight(H, H), equation="bhij,hg->bgij"))


def linear(g: G, scores: str, x: str) -> str:
    """CaiT's and timm's: a linear layer over heads, moved to the end and back."""
    turned = g.op("Transpose", scores, perm=[0, 2, 3, 1])
    mixed = g.op("Add", g.op("MatMul", turned, g.weight(H, H)), g.weight(H))
    return str(g.op("Transpose", mixed, perm=[0, 3, 1, 2]))


def convolved(g: G, scores: str, x: str) -> str:
    return str(g.op("Conv", scores, g.weight(H, H, 1, 1), g.weight(H)))


def summed(g: G, scores: str, x: str) -> str:
    """A product and a sum over heads, written with broadcasting."""
    apart = g.op("Unsqueeze", scores, g.const([2], np.int64))
    product = g.op("Mul", apart, g.weight(1, H, H, 1, 1))
    return str(g.op("ReduceSum", product, g.const([1], np.int64), keepdims=0))


def made_of_the_text(g: G, scores: str, x: str) -> str:
    """Dynamically composed heads (DCFormer): each query has a mix of its own."""
    mix = g.op("Reshape", g.linear(x, H * H), g.const([0, -1, H, H], np.int64))
    return str(g.op("Einsum", scores, mix, equation="bhij,bihg->bgij"))


def added(g: G, scores: str, x: str) -> str:
    """The mix beside the scores themselves."""
    return str(g.op("Add", scores, made_of_the_text(g, scores, x)))


WAYS = [einsum, linear, convolved, summed, made_of_the_text, added]
Way = Callable[[G, str, str], str]


def model(folder: Path, mix: Way, after: bool = False, causal: bool = False) -> tuple[Path, list[str]]:
    """One layer, the scale before the mix or behind it; and the names of q, k, the softmax's input and output."""
    g = G()
    drawn = np.random.default_rng(4)
    g.weight = lambda *shape: g.const(drawn.standard_normal(shape).astype(np.float32) / 2)  # type: ignore[method-assign]
    x = g.input("x", ["b", S, 16])
    q, k, v = qkv(g, x)
    scores = mix(g, g.scores(q, k, None if after else SCALE), x)
    if after:
        scores = str(g.op("Mul", scores, g.const(SCALE, np.float32)))
    if causal:
        scores = str(g.op("Add", scores, g.const(np.triu(np.full((S, S), -1e9, np.float32), 1))))
    weights = g.softmax(scores)
    out = g.out(str(g.op("MatMul", weights, v)))
    names = [q, k, scores, weights]
    return g.save(folder, out, *names), names


@pytest.mark.parametrize("mix", WAYS)
@pytest.mark.parametrize("after", [False, True])
def test_scores_of_all_heads_that_are_mixed(mix: Way, after: bool, tmp_path: Path) -> None:
    path, names = model(tmp_path, mix, after, causal=mix is linear)
    x = np.random.default_rng(5).standard_normal((B, S, 16)).astype(np.float32)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    q, k, masked, weights = session.run(names, {"x": x})
    (a,) = attnx.open(path, device="cpu").trace(inputs={"x": x}, verify_outputs=True).attentions
    assert (a.site.kind, a.site.heads, a.site.head_size, a.site.causal) == ("self", H, D, mix is linear)
    assert a.site.heads_mixed
    assert a.site.bias is None
    assert a.site.scale == pytest.approx(SCALE)
    scaled = q @ k * SCALE
    wanted = {"query": q, "scores": q @ k, "scaled": scaled, "masked": masked, "weights": weights}
    for quantity, want in wanted.items():
        np.testing.assert_allclose(a.need(quantity), want, atol=2e-5, rtol=1e-5, err_msg=quantity)
    np.testing.assert_allclose(softmax(masked), weights, atol=1e-6)
    assert all(check.holds for check in a.checks)


def test_what_needs_the_scores_of_one_head_refuses(tmp_path: Path) -> None:
    path, _ = model(tmp_path, linear)
    opened = attnx.open(path, device="cpu")
    trace = opened.trace(inputs={"x": np.ones((1, S, 16), np.float32)})
    with pytest.raises(UnsupportedError, match="L0 has no bias that could be told: its heads are mixed"):
        trace.attentions[0].need("bias")
    with pytest.raises(UnsupportedError, match="L0 mixes the scores of all heads before its softmax"):
        all_heads(trace)
    assert tidy(opened.sites[0])["heads_mixed"] is True


def test_heads_that_are_not_mixed_are_not_called_so(tmp_path: Path) -> None:
    """A bias a head is added to the scores, and is one."""

    def biased(g: G, scores: str, x: str) -> str:
        return str(g.op("Add", scores, g.weight(1, H, S, S)))

    path, _ = model(tmp_path, biased)
    (site,) = attnx.open(path, device="cpu").sites
    assert not site.heads_mixed
    assert site.bias == "by position, one per head"


def test_a_bias_that_is_looked_up_for_each_cell_is_not_one_by_position(tmp_path: Path) -> None:
    """Distances between atoms are fed: which cell has which is not known of the graph."""
    g = G()
    x = g.input("x", ["b", "s", 16])
    distances = g.input("distances", ["b", "s", "s"], TensorProto.INT64)
    q, k, v = qkv(g, x)
    looked_up = g.op("Transpose", g.op("Gather", g.weight(8, H), distances), perm=[0, 3, 1, 2])
    weights = g.softmax(str(g.op("Add", g.scores(q, k), looked_up)))
    path = g.save(tmp_path, g.out(str(g.op("MatMul", weights, v))))
    assert [site.bias for site in attnx.open(path, device="cpu").sites] == ["bias, one per head"]
