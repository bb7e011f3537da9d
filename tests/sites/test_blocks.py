"""Softmaxes over blocks of queries, their contexts joined along the queries: one matrix over tokens (BigBird)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

import attnx
from attnx.errors import InputError
from attnx.measure.rollout import rollout
from tests.graphs import D, G, H, softmax

B, S, SIZE = 2, 8, 2
BLOCKS = S // SIZE
WIDE = D * H

OWN = [[i] for i in range(BLOCKS)]
"""Every block sees itself."""
DRAWN = [[0, 1, 2, 3], [0, 1, 2, 0], [0, 1, 2, 3, 3], [0, 1, 2, 3]]
"""The first and the last see all; the second has the first block drawn once more, the third the last."""


TWICE = [[i, i] for i in range(BLOCKS)]
"""Blocks of one size: stacked, they look like heads."""


def rounded(g: G, x: str) -> str:
    """x through eight bits: what tells places would be rounded on the way."""
    scale = (g.const(0.02, np.float32), g.const(0, np.int8))
    return str(g.op("DequantizeLinear", g.op("QuantizeLinear", x, *scale), *scale))


def attention(g: G, x: str, hidden: str, seen: Sequence[Sequence[int]], coarse: bool = False) -> tuple[str, list[str]]:
    """One layer in blocks, and its softmaxes."""
    q, k, v = (g.heads(g.linear(x, WIDE)) for _ in range(3))
    cut = g.const([0, H, BLOCKS, SIZE, D], np.int64)
    blocks = [str(g.op("Reshape", one, cut)) for one in (q, k, v)]

    def block(of: str, at: int) -> str:
        return str(g.op("Gather", of, g.const(at, np.int64), axis=2))

    contexts, weights = [], []
    for at, keys in enumerate(seen):
        key = g.op("Concat", *(block(blocks[1], i) for i in keys), axis=2)
        value = g.op("Concat", *(block(blocks[2], i) for i in keys), axis=2)
        columns = [i * SIZE + j for i in keys for j in range(SIZE)]
        mask = g.op("Gather", hidden, g.const(columns, np.int64), axis=3)
        scores = g.scores(block(blocks[0], at), str(g.op("Transpose", key, perm=[0, 1, 3, 2])))
        scores = rounded(g, scores) if coarse else scores
        weights.append(g.softmax(str(g.op("Add", scores, mask))))
        contexts.append(str(g.op("Unsqueeze", g.op("MatMul", weights[-1], value), g.const([2], np.int64))))
    joined = g.op("Concat", *contexts, axis=2)
    return g.out(str(g.op("Reshape", joined, g.const([0, H, S, D], np.int64)))), weights


def model(
    folder: Path, seen: Sequence[Sequence[int]], opset: int = 17, coarse: bool = False
) -> tuple[Path, list[list[str]]]:
    g = G()
    drawn = np.random.default_rng(4)
    g.weight = lambda *shape: g.const(drawn.standard_normal(shape).astype(np.float32) / 4)  # type: ignore[method-assign]
    g.weights["table"] = np.random.default_rng(5).standard_normal((40, 16)).astype(np.float32)
    x = str(g.op("Gather", "table", g.input("input_ids", ["b", S], TensorProto.INT64)))
    kept = g.op("Cast", g.input("attention_mask", ["b", S], TensorProto.INT64), to=TensorProto.FLOAT)
    hidden = g.op("Mul", g.op("Sub", g.const(1.0, np.float32), kept), g.const(-10000.0, np.float32))
    hidden = g.op("Unsqueeze", hidden, g.const([1, 2], np.int64))
    names = []
    for _ in range(2):
        made, weights = attention(g, x, hidden, seen, coarse)
        x = str(g.op("Add", x, made))
        names.append(weights)
    path = g.save(folder, x, *(n for layer in names for n in layer))
    if opset != 17:
        proto = onnx.load(path)
        proto.opset_import[0].version = opset
        onnx.save(proto, path)
    return path, names


def whole(parts: Sequence[np.ndarray], seen: Sequence[Sequence[int]]) -> np.ndarray:
    """[B,H,S,S] of the softmaxes' outputs."""
    out = np.zeros((*parts[0].shape[:2], S, S))
    for at, (weights, keys) in enumerate(zip(parts, seen, strict=True)):
        for n, i in enumerate(keys):
            cells = weights[..., n * SIZE : (n + 1) * SIZE]
            out[:, :, at * SIZE : (at + 1) * SIZE, i * SIZE : (i + 1) * SIZE] += cells
    return out


def feed(padding: int = 0) -> dict[str, np.ndarray]:
    mask = np.ones((B, S), np.int64)
    mask[1, S - padding :] = 0
    return {"input_ids": np.random.default_rng(6).integers(0, 40, (B, S)), "attention_mask": mask}


@pytest.mark.parametrize(("seen", "opset"), [(DRAWN, 17), (TWICE, 17), (OWN, 13), (DRAWN, 13)])
@pytest.mark.parametrize("padding", [0, 3])
def test_blocks_are_one_matrix_over_tokens(seen: list[list[int]], opset: int, padding: int, tmp_path: Path) -> None:
    path, names = model(tmp_path, seen, opset)
    given = feed(padding)
    trace = attnx.open(path, device="cpu").trace(
        inputs=given, quantities=("query", "key", "value", "masked", "weights", "context"), verify_outputs=True
    )
    assert [(a.site.layer, a.site.heads, a.site.head_size, a.site.causal) for a in trace.attentions] == [
        (0, H, D, False),
        (1, H, D, False),
    ]
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    for at, softmaxes in zip(trace.attentions, names, strict=True):
        want = whole(session.run(softmaxes, given), seen)
        np.testing.assert_allclose(at.need("weights"), want, atol=1e-6)
        computed = np.array([[any(j // SIZE == b for b in seen[i // SIZE]) for j in range(S)] for i in range(S)])
        assert np.isneginf(at.need("masked")[..., ~computed]).all()
        rows = at.need("masked").max(-1) > -9000  # in the others all that is computed is padding
        np.testing.assert_allclose(softmax(at.need("masked")[rows]), want[rows], atol=1e-6)
        shown = (
            (want > 0)
            & rows[..., None]
            & (
                np.array([keys.count(j // SIZE) for keys in seen for _ in range(SIZE) for j in range(S)]).reshape(S, S)
                == 1
            )
        )
        scaled = np.einsum("bhqd,bhkd->bhqk", at.need("query"), at.need("key")) * D**-0.5
        np.testing.assert_allclose(at.need("masked")[shown], scaled[shown], atol=2e-5)
        np.testing.assert_allclose(at.need("context"), want @ at.need("value"), atol=1e-5)
        assert at.site.scale == pytest.approx(D**-0.5)
        assert all(check.holds for check in at.checks)


def test_layers_of_blocks_are_followed(tmp_path: Path) -> None:
    path, names = model(tmp_path, DRAWN)
    given = {name: array[:1] for name, array in feed().items()}
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    below = np.eye(S)
    for softmaxes in names:
        below = (whole(session.run(softmaxes, given), DRAWN)[0].mean(0) + np.eye(S)) / 2 @ below
    trace = attnx.open(path, device="cpu").trace(inputs=given)
    np.testing.assert_allclose(rollout(trace).values[-1], below, atol=1e-6)


@pytest.mark.parametrize("seen", [DRAWN, TWICE])
def test_blocks_that_cannot_be_put_together_are_no_heads_and_not_the_text(
    seen: list[list[int]], tmp_path: Path
) -> None:
    """Places would be rounded on the way: the blocks stay apart, in one layer, their positions unnamed."""
    path, _ = model(tmp_path, seen, coarse=True)
    opened = attnx.open(path, device="cpu")
    assert [site.layer for site in opened.sites] == [0] * BLOCKS + [1] * BLOCKS
    given = {name: array[:1] for name, array in feed().items()}
    trace = opened.trace(inputs=given)
    for attention in trace.attentions:
        assert trace.queries_of(attention) is not trace.tokens
        assert trace.queries_of(attention).pieces == ("0", "1")
    with pytest.raises(InputError, match="the queries of this model are not the tokens of the text"):
        opened.rows(tokens=attnx.tokens.from_ids(given["input_ids"][0].tolist()), positions=[1])
