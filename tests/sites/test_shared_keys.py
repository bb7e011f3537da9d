"""Rows over the keys of a block and, beside them, keys that all queries see: one matrix over both (Pegasus-X)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

import attnx
from attnx.errors import UnsupportedError
from attnx.measure.rollout import rollout
from tests.graphs import D, G, H, softmax

B, S, SIZE, GLOBAL, SHIFT = 2, 8, 4, 3, 2
WIDE = D * H
LOWEST = float(np.finfo(np.float32).min)


def attention(
    g: G, x: str, shared: str, hidden: str, staggered: bool, count: str = "", coarse: bool = False, mixed: bool = False
) -> tuple[str, str]:
    """One layer, blocks shifted by half a block where staggered; and its softmax.

    Args:
        g: The graph.
        x: The text, [b,s,16].
        shared: Global tokens, [b,GLOBAL,16].
        hidden: What is added to hide padding, [b,s].
        staggered: Whether blocks are shifted.
        count: How many blocks there are, where the graph computes that.
        coarse: Whether scores are rounded to eight bits, so that no place can be followed through them.
        mixed: Whether what weighs the value is a mix of each row's weights.
    """
    if staggered:
        x = str(g.op("Pad", x, g.const([0, SHIFT, 0, 0, SHIFT, 0], np.int64)))
        hidden = str(g.op("Pad", hidden, g.const([0, SHIFT, 0, SHIFT], np.int64), g.const(LOWEST, np.float32)))
    projections = [g.weight(16, WIDE) for _ in range(3)]

    def heads(value: str, at: int) -> str:
        made = g.op("MatMul", value, projections[at])
        return g.heads(str(made if at else g.op("Mul", made, g.const(D**-0.5, np.float32))))

    cut = g.const([0, H, -1, SIZE, D], np.int64)
    if count:
        ends = (g.const(n, np.int64) for n in ([0, H], [SIZE, D]))
        cut = g.op("Concat", next(ends), count, next(ends), axis=0)
    q = g.op("Reshape", heads(x, 0), cut)
    k, v = (g.op("Reshape", heads(x, at), cut) for at in (1, 2))
    to_all = g.op("Einsum", q, heads(shared, 1), equation="bhnqd,bhgd->bhnqg")
    to_block = g.op("Einsum", q, k, equation="bhnqd,bhnkd->bhnqk")
    mask = g.op("Reshape", hidden, g.const([0, -1, SIZE], np.int64))
    mask = g.op("Pad", mask, g.const([0, 0, GLOBAL, 0, 0, 0], np.int64), g.const(0.0, np.float32))
    mask = g.op("Unsqueeze", mask, g.const([1, 3], np.int64))
    scores = g.op("Concat", to_all, to_block, axis=-1)
    if coarse:
        scale = (g.const(0.02, np.float32), g.const(0, np.int8))
        scores = g.op("DequantizeLinear", g.op("QuantizeLinear", scores, *scale), *scale)
    weights = g.softmax(str(g.op("Add", scores, mask)))
    ends = [g.const([n], np.int64) for n in (0, GLOBAL, 1000)]
    weighing = g.op("MatMul", weights, g.weight(GLOBAL + SIZE, GLOBAL + SIZE)) if mixed else weights
    one, two = (g.op("Slice", weighing, ends[i], ends[i + 1], g.const([4], np.int64)) for i in range(2))
    context = g.op(
        "Add",
        g.op("Einsum", one, heads(shared, 2), equation="bhnqg,bhgd->bhnqd"),
        g.op("Einsum", two, v, equation="bhnqk,bhnkd->bhnqd"),
    )
    context = g.op("Transpose", context, perm=[0, 2, 3, 1, 4])
    merged = g.op("Reshape", context, g.op("Concat", g.op("Shape", x, end=2), g.const([WIDE], np.int64), axis=0))
    out = g.linear(str(merged), 16, WIDE)
    if staggered:
        out = str(g.op("Slice", out, g.const([SHIFT], np.int64), g.const([-SHIFT], np.int64), g.const([1], np.int64)))
    return out, weights


def model(folder: Path, coarse: bool = False, mixed: bool = False) -> tuple[Path, list[str]]:
    """Two layers, the second staggered; global tokens are learned, and then gather from the text."""
    g = G()
    drawn = np.random.default_rng(4)
    g.weight = lambda *shape: g.const(drawn.standard_normal(shape).astype(np.float32) / 3)  # type: ignore[method-assign]
    g.weights["table"] = np.random.default_rng(5).standard_normal((40, 16)).astype(np.float32)
    x = str(g.op("Gather", "table", g.input("input_ids", ["b", "s"], TensorProto.INT64)))
    kept = g.op("Cast", g.input("attention_mask", ["b", "s"], TensorProto.INT64), to=TensorProto.FLOAT)
    hidden = g.op("Mul", g.op("Sub", g.const(1.0, np.float32), kept), g.const(LOWEST, np.float32))
    count = g.op("Concat", g.op("Shape", x, end=1), g.const([GLOBAL, 16], np.int64), axis=0)
    shared = str(g.op("Expand", g.weight(1, GLOBAL, 16), count))
    names = []
    length = g.op("Gather", g.op("Shape", x), g.const([1], np.int64))
    for layer in range(2):
        blocks = g.op("Div", g.op("Add", length, g.const([2 * SHIFT * layer], np.int64)), g.const([SIZE], np.int64))
        made, weights = attention(g, x, shared, str(hidden), layer == 1, str(blocks), coarse, mixed)
        x = str(g.op("Add", x, made))
        shared = str(g.op("Add", shared, g.op("ReduceMean", x, axes=[1])))
        names.append(weights)
    return g.save(folder, x, *names), names


def whole(weights: np.ndarray, staggered: bool) -> np.ndarray:
    """[B,H,S,G + S] of a softmax's output [B,H,blocks,SIZE,G + SIZE]."""
    count = weights.shape[2] * SIZE
    out = np.zeros((*weights.shape[:2], count, GLOBAL + count))
    for n in range(weights.shape[2]):
        rows = slice(n * SIZE, (n + 1) * SIZE)
        out[:, :, rows, :GLOBAL] = weights[:, :, n, :, :GLOBAL]
        out[:, :, rows, GLOBAL + n * SIZE : GLOBAL + (n + 1) * SIZE] = weights[:, :, n, :, GLOBAL:]
    if not staggered:
        return out
    assert not out[..., GLOBAL : GLOBAL + SHIFT].any()
    assert not out[..., -SHIFT:].any()
    keys = [*range(GLOBAL), *range(GLOBAL + SHIFT, GLOBAL + count - SHIFT)]
    return np.asarray(out[:, :, SHIFT:-SHIFT, keys])


def feed(length: int = S, batch: int = B) -> dict[str, np.ndarray]:
    mask = np.ones((batch, length), np.int64)
    mask[-1, -3:] = 0
    return {"input_ids": np.random.default_rng(6).integers(0, 40, (batch, length)), "attention_mask": mask}


@pytest.mark.parametrize("length", [S, 3 * S])
def test_keys_of_a_block_and_keys_that_all_see_are_one_matrix(length: int, tmp_path: Path) -> None:
    path, names = model(tmp_path)
    given = feed(length)
    trace = attnx.open(path, device="cpu").trace(
        inputs=given, quantities=("query", "key", "value", "masked", "weights", "context"), verify_outputs=True
    )
    sites = [a.site for a in trace.attentions]
    assert [(s.layer, s.kind, s.component, s.heads, s.head_size) for s in sites] == [
        (0, "self", "encoder", H, D),
        (1, "self", "encoder", H, D),
    ]
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    for layer, (at, softmaxes) in enumerate(zip(trace.attentions, session.run(names, given), strict=True)):
        want = whole(softmaxes, layer == 1)
        np.testing.assert_allclose(at.need("weights"), want, atol=1e-6)
        np.testing.assert_allclose(softmax(at.need("masked")), want, atol=1e-6)
        scaled = np.einsum("bhqd,bhkd->bhqk", at.need("query"), at.need("key")) * D**-0.5
        np.testing.assert_allclose(at.need("masked")[want > 0], scaled[want > 0], atol=2e-5)
        np.testing.assert_allclose(at.need("context"), want @ at.need("value"), atol=1e-5)
        assert at.site.scale == pytest.approx(D**-0.5)
        assert all(check.holds for check in at.checks)
        assert trace.queries_of(at) is trace.tokens
        assert trace.keys_of(at).pieces == (*(f"global{i}" for i in range(GLOBAL)), *trace.tokens.pieces)


def test_what_global_keys_carry_on_is_not_followed(tmp_path: Path) -> None:
    path, _ = model(tmp_path)
    with pytest.raises(UnsupportedError, match="L0 attends from 8 to 11 positions"):
        rollout(attnx.open(path, device="cpu").trace(inputs=feed(batch=1)))


def test_blocks_are_no_heads_though_nothing_else_is_known_of_them(tmp_path: Path) -> None:
    """As many as the text fills: 252 of the size that stands for any length, which is no multiple of theirs."""
    path, _ = model(tmp_path, coarse=True)
    opened = attnx.open(path, device="cpu")
    assert all(site.heads in (None, H) for site in opened.sites)
    trace = opened.trace(inputs=feed(3 * S))
    for attention in trace.attentions:
        assert trace.queries_of(attention) is not trace.tokens


def test_what_weighs_a_value_in_a_way_that_is_not_followed_is_said_to(tmp_path: Path) -> None:
    """Not that nothing is weighed."""
    path, _ = model(tmp_path, mixed=True)
    ids = np.arange(B * S).reshape(B, S)
    with pytest.raises(
        UnsupportedError, match=r"no context to change: .* moved to weigh the value could not be followed"
    ):
        attnx.open(path, device="cpu").ablate({"input_ids": ids, "attention_mask": np.ones_like(ids)})
