"""What only axes tell: heads stacked one by one, latents that are asked again, padding masks in whole numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.graphs import RNG, D, G, H, S, qkv, softmax, trace

X = RNG.uniform(-0.3, 0.3, (2, S, 16)).astype(np.float32)


@pytest.mark.parametrize("apart", ["slice", "split", "gather"])
def test_heads_that_are_projected_and_joined_one_by_one_are_heads(apart: str, tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", S, 16])

    def stacked() -> str:
        return str(
            g.op("Concat", *[g.op("Unsqueeze", g.linear(x, D), g.const([1], np.int64)) for _ in range(H)], axis=1)
        )

    q, k, v = stacked(), stacked(), stacked()
    o = g.op("MatMul", g.softmax(g.scores(q, g.op("Transpose", k, perm=[0, 1, 3, 2]))), v)
    one = g.const([1], np.int64)
    if apart == "slice":
        cut = [g.op("Slice", o, *(g.const([n], np.int64) for n in (i, i + 1, 1))) for i in range(H)]
        parts = [g.op("Squeeze", part, one) for part in cut]
    elif apart == "split":
        parts = [g.op("Squeeze", t, one) for t in g.op("Split", o, g.const([1] * H, np.int64), outputs=H, axis=1)]
    else:
        parts = [g.op("Gather", o, g.const(i, np.int64), axis=1) for i in range(H)]
    path = g.save(tmp_path, g.linear(g.op("Concat", *parts, axis=2), 16, H * D))
    (attention,) = trace(path, x=X).attentions
    assert attention.trusted
    assert (attention.site.heads, attention.site.head_size) == (H, D)
    scores = np.einsum("bhqd,bhkd->bhqk", attention.query, attention.key)
    np.testing.assert_allclose(attention.weights, softmax(scores * D**-0.5), atol=1e-5)
    assert attention.weights.shape == (2, H, S, S)


def test_latents_that_are_asked_again_by_what_they_gave_are_attention(tmp_path: Path) -> None:
    """A poly-encoder: stored codes ask a text, and a candidate asks what they found."""
    g = G()
    x, y = g.input("x", ["b", "s", 16]), g.input("y", ["b", 1, 16])
    codes = g.op("Expand", g.weight(1, 3, 16), g.op("Concat", g.op("Gather", g.op("Shape", x), g.const([0], np.int64)),
                 g.const([3, 16], np.int64), axis=0))  # fmt: skip
    found = g.op("MatMul", g.softmax(str(g.op("MatMul", codes, g.op("Transpose", x, perm=[0, 2, 1])))), x)
    asked = g.softmax(str(g.op("MatMul", y, g.op("Transpose", found, perm=[0, 2, 1]))))
    path = g.save(tmp_path, g.op("MatMul", asked, found))
    attentions = trace(path, x=X, y=X[:, :1]).attentions
    assert [a.weights.shape for a in attentions if a.weights is not None] == [(2, 1, 3, S), (2, 1, 1, 3)]
    assert all(a.trusted for a in attentions)


@pytest.mark.parametrize("pads", [True, False])
def test_a_mask_in_whole_numbers_may_mean_padding_or_keep(pads: bool, tmp_path: Path) -> None:
    g = G()
    x, mask = g.input("x", ["b", "s", 16]), g.input("mask", ["b", "s"], 7)
    q, k, v = qkv(g, x)
    said = g.op("Cast", g.op("Unsqueeze", mask, g.const([1, 2], np.int64)), to=9)
    hidden = said if pads else g.op("Not", said)
    s = g.op("Where", hidden, g.const(-np.inf, np.float32), g.scores(q, k))
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(s)), v))))
    given = np.array([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]])
    (attention,) = trace(path, x=X, mask=given if pads else 1 - given).attentions
    assert attention.site.causal is False
    assert attention.site.notes == ()
    assert attention.trusted
    assert (attention.weights[0, :, :, 3:] == 0).all()
