"""Queries, keys and values that go through a sequence, as unoptimised exports of torch's split, chunk and stack do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graphs import RNG, D, G, H, S, softmax, trace

WIDE = H * D
X = RNG.uniform(-0.3, 0.3, (2, S, 16)).astype(np.float32)


def at(g: G, sequence: str, place: int) -> str:
    return str(g.op("SequenceAt", sequence, g.const(place, np.int64)))


def by_sizes(g: G, y: str) -> list[str]:
    pieces = g.op("SplitToSequence", y, g.const([WIDE] * 3, np.int64), axis=2)
    return [at(g, pieces, i) for i in range(3)]


def by_one_size(g: G, y: str) -> list[str]:
    pieces = g.op("SplitToSequence", y, g.const(WIDE, np.int64), axis=2)
    return [at(g, pieces, i) for i in range(3)]


def unbound(g: G, y: str) -> list[str]:
    pieces = g.op("SplitToSequence", g.op("Reshape", y, g.const([0, 0, 3, WIDE], np.int64)), axis=2, keepdims=0)
    return [at(g, pieces, i) for i in range(3)]


def put_in(g: G, y: str) -> list[str]:
    parts = g.op("Split", y, g.const([WIDE] * 3, np.int64), outputs=3, axis=2)
    return [at(g, g.op("SequenceConstruct", *parts), i) for i in (0, 1, -1)]


def stacked(g: G, y: str) -> list[str]:
    parts = g.op("Split", y, g.const([WIDE] * 3, np.int64), outputs=3, axis=2)
    whole = g.op("ConcatFromSequence", g.op("SequenceConstruct", *parts), axis=0, new_axis=1)
    return [g.op("Gather", whole, g.const(i, np.int64), axis=0) for i in range(3)]


@pytest.mark.parametrize("parts", [by_sizes, by_one_size, unbound, put_in, stacked], ids=lambda f: f.__name__)
def test_what_goes_through_a_sequence_is_followed(parts: Any, tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", S, 16])
    projected = g.linear(x, 3 * WIDE)
    q, k, v = (g.heads(part) for part in parts(g, projected))
    kt = g.op("Transpose", k, perm=[0, 1, 3, 2])
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(g.scores(q, kt)), v))))
    (attention,) = trace(path, x=X).attentions
    assert attention.trusted
    assert (attention.site.kind, attention.site.heads, attention.site.head_size) == ("self", H, D)
    weight = next(w for w in g.weights.values() if w.shape == (16, 3 * WIDE))
    want = np.split((X @ weight).reshape(2, S, 3 * H, D).transpose(0, 2, 1, 3), 3, axis=1)
    for name, array in zip(("query", "key", "value"), want, strict=True):
        np.testing.assert_allclose(getattr(attention, name), array, atol=1e-5)
    np.testing.assert_allclose(attention.weights, softmax(want[0] @ want[1].swapaxes(2, 3) * D**-0.5), atol=1e-5)


def test_a_scale_that_is_cast_like_a_tensor_is_known(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    q, k, v = (g.heads(g.linear(x, WIDE)) for _ in range(3))
    size = g.op("Gather", g.op("Shape", q), g.const(-1, np.int64), axis=0)
    root = g.op("Sqrt", g.op("CastLike", size, q))
    scores = g.op("Div", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), root)
    (attention,) = trace(g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(scores), v)))), x=X).attentions
    assert attention.site.scale == pytest.approx(D**-0.5)
