"""Attention over channels (XCiT): queries and keys are features, what they are multiplied over are tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import attnx
from attnx.errors import UnsupportedError
from attnx.measure.rollout import rollout
from tests.graphs import D, G, H

S = 6
WIDE = D * H


def heads(g: G, x: str, packed: bool) -> list[str]:
    """Query, key and value of one projection, or of three, [b,h,tokens,features]."""
    if not packed:
        return [g.heads(g.linear(x, WIDE, WIDE)) for _ in range(3)]
    whole = g.op("Reshape", g.linear(x, 3 * WIDE, WIDE), g.const([0, -1, 3, H, D], np.int64))
    parts = g.op("Split", g.op("Transpose", whole, perm=[2, 0, 3, 1, 4]), outputs=3, axis=0)
    return [str(g.op("Squeeze", part, g.const([0], np.int64))) for part in parts]


def over_channels(g: G, x: str, packed: bool) -> tuple[str, str]:
    q, k, v = (str(g.op("Transpose", one, perm=[0, 1, 3, 2])) for one in heads(g, x, packed))  # b h features tokens
    q, k = (str(g.op("Div", one, g.op("ReduceL2", one, axes=[3], keepdims=1))) for one in (q, k))
    weights = g.softmax(g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2])), 2.0))
    merged = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 3, 1, 2])
    return g.linear(str(g.op("Reshape", merged, g.const([0, -1, WIDE], np.int64))), WIDE, WIDE), weights


def over_tokens(g: G, x: str, packed: bool) -> tuple[str, str]:
    q, k, v = heads(g, x, packed)
    weights = g.softmax(g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2]))))
    merged = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    return g.linear(str(g.op("Reshape", merged, g.const([0, -1, WIDE], np.int64))), WIDE, WIDE), weights


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("length", [S, D])
def test_channels_are_no_tokens(packed: bool, length: int, tmp_path: Path) -> None:
    """Nor where there are as many of one as of the other."""
    g = G()
    drawn = np.random.default_rng(4)
    g.weight = lambda *shape: g.const(drawn.standard_normal(shape).astype(np.float32) / 4)  # type: ignore[method-assign]
    x = g.input("x", ["b", "s", WIDE])
    names = []
    for layer in (over_channels, over_tokens):
        made, weights = layer(g, x, packed)
        x = str(g.op("Add", x, made))
        names.append(weights)
    path = g.save(tmp_path, x, *names)
    feed = {"x": np.random.default_rng(1).standard_normal((1, length, WIDE)).astype(np.float32)}
    opened = attnx.open(path, device="cpu")
    assert [site.over_channels for site in opened.sites] == [True, False]
    trace = opened.trace(inputs=feed)
    run = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(names, feed)
    for attention, want in zip(trace.attentions, run, strict=True):
        np.testing.assert_allclose(attention.need("weights"), want, atol=1e-6)
    channels, tokens = trace.attentions
    assert channels.need("weights").shape[2:] == (D, D)
    assert trace.queries_of(tokens) is trace.tokens
    assert trace.queries_of(channels) is not trace.tokens
    assert trace.queries_of(channels).pieces == tuple(str(i) for i in range(D))
    flowing = rollout(trace)
    np.testing.assert_allclose(flowing.values[-1], (run[1][0].mean(0) + np.eye(length)) / 2, atol=1e-6)
    assert "not followed: L0" in flowing.notes[0]
    with pytest.raises(UnsupportedError, match="attends from channels to channels"):
        rollout(trace, trace.queries_of(channels))
