"""How many heads a site has, and what belongs to each of them: told from axes, not from sizes that happen to agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attnx
from tests.graphs import RNG, D, G, H, S, qkv, sites, softmax, trace


def test_keys_repeated_for_blocks_are_not_grouped_heads(tmp_path: Path) -> None:
    """LongT5's global keys: each block of queries gets a copy of the same keys, beside its own."""
    g = G()
    x, side = g.input("x", ["b", 8, 16]), g.input("side", ["b", 3, 16])

    def blocks(t: str) -> str:
        split = g.op("Reshape", g.linear(t, D * H), g.const([0, 2, 4, H, D], np.int64))
        return str(g.op("Transpose", split, perm=[0, 1, 3, 2, 4]))

    def copies(t: str) -> str:
        one = g.op("Unsqueeze", g.heads(g.linear(t, D * H)), g.const([1], np.int64))
        return str(g.op("Tile", one, g.const([1, 2, 1, 1, 1], np.int64)))

    q, k, v = blocks(x), *(g.op("Concat", blocks(x), copies(side), axis=3) for _ in range(2))
    scores = g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 2, 4, 3])))
    context = g.op("Transpose", g.op("MatMul", g.softmax(scores), v), perm=[0, 1, 3, 2, 4])
    merged = g.op("Reshape", context, g.const([0, -1, D * H], np.int64))
    (site,) = sites(g.save(tmp_path, g.linear(str(merged), 16, D * H)))
    assert (site.heads, site.kv_heads) == (H, H)


@pytest.mark.parametrize("op", ["Expand", "Tile"])
def test_keys_repeated_for_heads_are_grouped(op: str, tmp_path: Path) -> None:
    g = G()
    x = g.input("x", [2, S, 16])
    q = g.heads(g.linear(x, D * H))

    def group(t: str) -> str:
        own = g.op("Unsqueeze", g.heads(g.linear(t, D * 2), count=2), g.const([2], np.int64))
        shape = [2, 2, 2, S, D] if op == "Expand" else [1, 1, 2, 1, 1]
        return str(g.op("Reshape", g.op(op, own, g.const(shape, np.int64)), g.const([2, H, S, D], np.int64)))

    k, v = group(x), group(x)
    scores = g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2])))
    (site,) = sites(g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(scores), v)))))
    assert (site.heads, site.kv_heads) == (H, 2)


def test_a_mask_for_each_of_as_many_texts_as_heads_is_no_bias(tmp_path: Path) -> None:
    g = G()
    x, mask = g.input("x", [H, "s", 16]), g.input("mask", [H, 1, 1, "s"])
    q, k, v = qkv(g, x)
    masked = g.op("Add", g.scores(q, k), g.op("Log", mask))
    (site,) = sites(g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(masked)), v)))))
    assert site.bias is None


def test_a_scale_before_chunks_are_stacked_is_found(tmp_path: Path) -> None:
    """ProphetNet: the query is scaled, cut along its tokens, and its parts put together again."""
    g = G()
    x = g.input("x", ["b", 2 * S, 16])
    q, k, v = (g.heads(g.linear(x, D * H)) for _ in range(3))
    q = str(g.op("Div", q, g.const(D**0.5, np.float32)))
    first = g.op("Slice", q, g.const([0], np.int64), g.const([S], np.int64), g.const([2], np.int64))
    second = g.op("Slice", q, g.const([S], np.int64), g.const([2 * S], np.int64), g.const([2], np.int64))
    turned = g.op("Concat", second, first, axis=2)
    scores = g.op("MatMul", turned, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(scores)), v))))
    (a,) = trace(path, x=RNG.standard_normal((1, 2 * S, 16)).astype(np.float32)).attentions
    assert a.site.scale == pytest.approx(D**-0.5)
    assert a.trusted


def test_two_tensors_with_a_scale_each_keep_it(tmp_path: Path) -> None:
    """A query made of two projections, one of them scaled: the product as a whole has no scale."""
    g = G()
    x = g.input("x", ["b", S, 16])
    scaled = g.op("Div", g.heads(g.linear(x, D * H)), g.const(D**0.5, np.float32))
    q = g.op("Concat", scaled, g.heads(g.linear(x, D * H)), axis=2)
    _, k, v = qkv(g, x)
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(g.op("MatMul", q, k))), v))))
    (a,) = trace(path, x=RNG.standard_normal((1, S, 16)).astype(np.float32)).attentions
    assert a.site.scale == 1.0
    assert a.trusted


def test_scores_written_into_again_with_a_bias_are_followed(tmp_path: Path) -> None:
    """MViT v2: the class token's row and column stay as they are; the rest is cut out, biased by q R, and put back."""
    g = G()
    x = g.input("x", [2, 1 + S, 16])
    q, k, v = qkv(g, x)
    scores = g.scores(q, k)
    rest = scores
    for axis in (2, 3):
        rest = str(g.op("Slice", rest, g.const([1], np.int64), g.const([1 + S], np.int64), g.const([axis], np.int64)))
    patches = g.op("Slice", q, g.const([1], np.int64), g.const([1 + S], np.int64), g.const([2], np.int64))
    rest = str(g.op("Add", rest, g.op("MatMul", patches, g.weight(D, S))))
    at = np.stack(np.meshgrid(*map(np.arange, (2, H)), *[np.arange(1, 1 + S)] * 2, indexing="ij"), -1)
    written = g.op("ScatterND", scores, g.const(at, np.int64), rest)
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(written)), v))))
    (a,) = trace(path, x=RNG.standard_normal((2, 1 + S, 16)).astype(np.float32)).attentions
    assert a.trusted
    assert (a.site.kind, a.site.causal, a.site.heads, a.site.scale) == ("self", False, H, pytest.approx(D**-0.5))
    assert a.site.bias == "one per head"
    assert a.masked is not None
    assert a.scaled is not None
    assert np.allclose(a.masked[:, :, 0], a.scaled[:, :, 0], atol=1e-5)
    assert not np.allclose(a.masked[:, :, 1:, 1:], a.scaled[:, :, 1:, 1:], atol=1e-2)


def test_a_share_mixed_with_weights_by_position_is_no_mask(tmp_path: Path) -> None:
    """ConViT: (1 - g) softmax(q k) + g softmax(positions), normalised: the softmax's own weights are shown."""
    g = G()
    x = g.input("x", ["b", S, 16])
    q, k, v = qkv(g, x)
    gate = g.op("Sigmoid", g.weight(1, H, 1, 1))
    own = g.op("Mul", g.op("Sub", g.const(1.0, np.float32), gate), g.softmax(g.scores(q, k)))
    weights = g.op("Add", own, g.op("Mul", gate, g.softmax(g.weight(1, H, S, S))))
    weights = g.op("Div", weights, g.op("ReduceSum", weights, g.const([-1], np.int64)))
    path = g.save(tmp_path, g.out(str(g.op("MatMul", weights, v))))
    (a,) = trace(path, x=RNG.standard_normal((2, S, 16)).astype(np.float32)).attentions
    assert a.trusted
    assert a.weights is not None
    assert np.allclose(a.weights.sum(-1), 1, atol=1e-5)
    assert a.context is None
    assert any("combined" in note for note in a.site.notes)


def test_scores_written_into_other_places_are_followed(tmp_path: Path) -> None:
    """Longformer: scores of blocks are written into a tensor of zeros, one diagonal after another."""
    g = G()
    x = g.input("x", [2, S, 16])
    q, k, v = qkv(g, x)
    empty = g.op("ConstantOfShape", g.const([2, H, S, 3], np.int64))
    first = g.op("Slice", g.scores(q, k), g.const([0], np.int64), g.const([3], np.int64), g.const([3], np.int64))
    at = np.stack(np.meshgrid(*map(np.arange, (2, H, S, 3)), indexing="ij"), -1)
    band = g.softmax(str(g.op("ScatterND", empty, g.const(at, np.int64), first)))
    v = g.op("Slice", v, g.const([0], np.int64), g.const([3], np.int64), g.const([2], np.int64))
    model = attnx.open(g.save(tmp_path, g.out(str(g.op("MatMul", band, v)))), device="cpu")
    fed = np.random.default_rng(0).standard_normal((2, S, 16)).astype(np.float32)
    (a,) = model.trace(inputs={"x": fed}).attentions
    assert a.trusted
    assert (a.site.heads, a.site.scale_place) == (H, "after QK^T")
    scores = a.need("query") @ a.need("key").swapaxes(2, 3) * D**-0.5
    scores[..., 3:] = -np.inf
    assert np.allclose(a.need("weights"), softmax(scores), atol=1e-5)
    assert np.allclose(a.need("context"), a.need("weights") @ a.need("value"), atol=1e-5)


@pytest.mark.parametrize("count", [1, 2])
def test_windows_of_a_map_are_not_heads(count: int, tmp_path: Path) -> None:
    """Hiera's first blocks: the output projection acts on a map of windows, which later are merged with its features.

    Nothing before that sets the one head apart from the features.
    """
    g = G()
    width = 16
    x = g.input("x", [1, 4, 4, width])
    split = g.op("Reshape", x, g.const([1, 2, 2, 2, 2, width], np.int64))
    apart = g.op("Transpose", split, perm=[0, 1, 3, 2, 4, 5])
    windows = str(g.op("Reshape", apart, g.const([4, 2, 2, width], np.int64)))
    shape = g.const([4, 4, count, width // count], np.int64)
    q, k, v = (g.op("Transpose", g.op("Reshape", g.linear(windows, width), shape), perm=[0, 2, 1, 3]) for _ in range(3))
    weights = g.softmax(g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2]))))
    merged = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    made = g.linear(str(g.op("Reshape", merged, g.const([4, 2, 2, width], np.int64))), width)
    back = g.op("Transpose", g.op("Reshape", made, g.const([1, 2, 2, 2, 2, width], np.int64)), perm=[0, 1, 3, 2, 4, 5])
    stream = g.op("Add", x, g.op("Reshape", back, g.const([1, 4, 4, width], np.int64)))
    again = g.op(
        "Transpose", g.op("Reshape", stream, g.const([1, 2, 2, 2, 2, width], np.int64)), perm=[0, 1, 3, 2, 4, 5]
    )
    path = g.save(tmp_path, g.linear(str(g.op("Reshape", again, g.const([1, 4, 4 * width], np.int64))), 8, 4 * width))
    (site,) = sites(path)
    assert site.heads == count
    (attention,) = trace(path, x=RNG.standard_normal((1, 4, 4, width)).astype(np.float32)).attentions
    assert attention.need("weights").shape == (4, count, 4, 4)
    assert attention.trusted
