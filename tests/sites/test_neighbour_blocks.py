"""Rows over the keys of their own block and of those beside it (LongT5): one matrix over tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

import attnx
from tests.graphs import D, G, H, softmax

SIZE, RADIUS = 4, 3
WIDE = D * H


def neighbours(g: G, blocks: str) -> str:
    """Blocks [b,n,SIZE,h,d], each with the one before it and the one behind it, zeros round all: [b,n,3 SIZE,h,d]."""
    padded = g.op("Pad", blocks, g.const([0, 1, 0, 0, 0, 0, 1, 0, 0, 0], np.int64))
    axis, last = g.const([1], np.int64), g.const([2**31 - 1], np.int64)
    ends = [g.const([n], np.int64) for n in (0, -2, 1, -1, 2)]
    parts = [
        g.op("Slice", padded, *bounds, axis) for bounds in ((ends[0], ends[1]), (ends[2], ends[3]), (ends[4], last))
    ]
    return str(g.op("Concat", *parts, axis=2))


def layer(g: G, x: str, shared: str = "", coarse: bool = False) -> tuple[str, str]:
    """What tokens take of those within the radius, and of one key a block that all see where `shared` makes them.

    Args:
        g: The graph.
        x: The text, [b,s,16].
        shared: What the keys that all see are made of, [b,n,16].
        coarse: Whether scores are rounded to eight bits, so that no place can be followed through them.
    """
    cut = g.const([0, -1, SIZE, H, D], np.int64)
    projections = [g.weight(16, WIDE) for _ in range(3)]
    length = g.op("Gather", g.op("Shape", x), g.const([1], np.int64))
    number = g.op("Div", g.op("Add", length, g.const(SIZE - 1, np.int64)), g.const([SIZE], np.int64))
    missing = g.op("Sub", g.op("Mul", number, g.const(SIZE, np.int64)), length)
    pads = g.op("Concat", g.const([0, 0, 0, 0], np.int64), missing, g.const([0], np.int64), axis=0)
    q, k, v = (g.op("Reshape", g.op("Pad", g.op("MatMul", x, w), pads), cut) for w in projections)
    k, v = neighbours(g, str(k)), neighbours(g, str(v))
    away = np.abs(np.arange(3 * SIZE)[None] - np.arange(SIZE)[:, None] - SIZE)
    place = g.op("Add", g.op("Mul", g.op("Range", g.const(0, np.int64), g.op("Squeeze", number), g.const(1, np.int64)),
                 g.const(SIZE, np.int64)), g.const(-SIZE, np.int64))  # fmt: skip
    at = g.op("Add", g.op("Unsqueeze", place, g.const([1], np.int64)), g.const(np.arange(3 * SIZE), np.int64))
    outside = g.op("Or", g.op("Less", at, g.const(0, np.int64)), g.op("GreaterOrEqual", at, length))
    outside = g.op("Unsqueeze", outside, g.const([1, 2], np.int64))  # n 1 1 3SIZE
    hidden = g.op("Or", outside, g.const((away > RADIUS)[None, None]))
    mask = g.op("Where", hidden, g.const(-1e10, np.float32), g.const(0.0, np.float32))
    if shared:
        count = g.op("Concat", g.const([1], np.int64), number, g.const([1, 1, 1], np.int64), axis=0)
        own = [
            g.op("Tile", g.op("Unsqueeze", g.op("Reshape", g.op("MatMul", shared, w), g.const([0, -1, H, D], np.int64)),
                              g.const([1], np.int64)), count)
            for w in projections[1:]
        ]  # fmt: skip
        k, v = (str(g.op("Concat", *pair, axis=2)) for pair in zip((k, v), own, strict=True))
        shape = g.op("Concat", number, g.const([1, SIZE], np.int64), number, axis=0)
        mask = g.op("Concat", mask, g.op("Expand", g.const(0.0, np.float32), shape), axis=3)
    query, key, value = (g.op("Transpose", one, perm=perm) for one, perm in
                         ((q, [0, 1, 3, 2, 4]), (k, [0, 1, 3, 4, 2]), (v, [0, 1, 3, 2, 4])))  # fmt: skip
    scores = g.op("MatMul", query, key)
    if coarse:
        scale = (g.const(0.05, np.float32), g.const(0, np.int8))
        scores = g.op("DequantizeLinear", g.op("QuantizeLinear", scores, *scale), *scale)
    weights = g.softmax(str(g.op("Add", scores, mask)))
    context = g.op("Transpose", g.op("MatMul", weights, value), perm=[0, 1, 3, 2, 4])
    merged = g.op("Reshape", context, g.const([0, -1, WIDE], np.int64))
    text = g.op("Slice", merged, g.const([0], np.int64), length, g.const([1], np.int64))
    return g.linear(str(text), 16, WIDE), weights


def by_block(g: G, x: str) -> str:
    """The mean of a text, and another number for each of its blocks: [b,n,16]."""
    length = g.op("Gather", g.op("Shape", x), g.const([1], np.int64))
    number = g.op("Div", g.op("Add", length, g.const(SIZE - 1, np.int64)), g.const([SIZE], np.int64))
    ranks = g.op("Range", g.const(0, np.int64), g.op("Squeeze", number), g.const(1, np.int64))
    ranks = g.op("Unsqueeze", g.op("Cast", ranks, to=TensorProto.FLOAT), g.const([1], np.int64))
    return str(g.op("Add", g.op("ReduceMean", x, axes=[1]), g.op("Mul", ranks, g.weight(1, 16))))


def model(folder: Path, shared: bool, coarse: bool = False) -> tuple[Path, str]:
    g = G()
    drawn = np.random.default_rng(4)
    g.weight = lambda *shape: g.const(drawn.standard_normal(shape).astype(np.float32) / 3)  # type: ignore[method-assign]
    g.weights["table"] = np.random.default_rng(5).standard_normal((40, 16)).astype(np.float32)
    x = str(g.op("Gather", "table", g.input("input_ids", ["b", "s"], TensorProto.INT64)))
    means = by_block(g, x) if shared else ""
    made, weights = layer(g, x, means, coarse)
    return g.save(folder, str(g.op("Add", x, made)), weights), weights


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("length", [8, 19])
def test_blocks_and_those_beside_them_are_one_matrix(shared: bool, length: int, tmp_path: Path) -> None:
    """The last block is full, or padding fills it."""
    path, name = model(tmp_path, shared)
    count = -(-length // SIZE)
    feed = {"input_ids": np.random.default_rng(6).integers(0, 40, (2, length))}
    opened = attnx.open(path, device="cpu")
    trace = opened.trace(
        inputs=feed, quantities=("query", "key", "value", "masked", "weights", "context"), verify_outputs=True
    )
    (attention,) = trace.attentions
    (parts,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run([name], feed)  # b n h SIZE keys
    want = np.zeros((2, H, length, length + (count if shared else 0)))
    for query in range(length):
        n, i = divmod(query, SIZE)
        for j in range(3 * SIZE):
            if 0 <= (key := (n - 1) * SIZE + j) < length:
                want[:, :, query, key] += parts[:, n, :, i, j]
        want[:, :, query, length:] = parts[:, n, :, i, 3 * SIZE :]
    np.testing.assert_allclose(attention.need("weights"), want, atol=1e-6)
    np.testing.assert_allclose(softmax(attention.need("masked")), want, atol=1e-6)
    np.testing.assert_allclose(attention.need("context"), want @ attention.need("value"), atol=1e-5)
    scores = np.einsum("bhqd,bhkd->bhqk", attention.need("query"), attention.need("key"))
    np.testing.assert_allclose(attention.need("masked")[want > 1e-7], scores[want > 1e-7], atol=1e-4)
    assert (attention.site.heads, attention.site.head_size, attention.site.causal) == (H, D, False)
    assert attention.trusted
    assert trace.queries_of(attention) is trace.tokens
    if not shared:
        assert attention.site.window == 2 * RADIUS + 1


def test_keys_of_blocks_that_stay_apart_are_not_named_for_their_number(tmp_path: Path) -> None:
    """As many keys as the text has tokens, by chance."""
    path, _ = model(tmp_path, shared=False, coarse=True)
    feed = {"input_ids": np.random.default_rng(6).integers(0, 40, (1, 3 * SIZE))}
    trace = attnx.open(path, device="cpu").trace(inputs=feed)
    (attention,) = trace.attentions
    assert attention.need("weights").shape == (3, H, SIZE, 3 * SIZE)
    assert len(trace.tokens) == 3 * SIZE
    assert trace.keys_of(attention).pieces == tuple(str(i) for i in range(3 * SIZE))
