"""Learned queries: where they are stored as they are multiplied, part of the scale may be folded into them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.graphs import RNG, D, G, H, trace

FOLDED = "factors of the scale into them"


@pytest.mark.parametrize("stored", [True, False])
def test_stored_queries_say_that_factors_may_be_folded_into_them(tmp_path: Path, stored: bool) -> None:
    """An exporter that folds constants leaves sqrt(scale) on the key, and puts the other root into the queries."""
    root = D**-0.25
    latents = RNG.standard_normal((1, 3, 16)).astype(np.float32)
    weight = RNG.standard_normal((16, H * D)).astype(np.float32)
    projected = (latents @ weight).reshape(1, 3, H, D).transpose(0, 2, 1, 3)
    g = G()
    x = g.input("x", [1, "n", 16])
    if stored:
        query = g.const(projected * np.float32(root))
    else:
        query = g.op("Mul", g.heads(str(g.op("MatMul", g.const(latents), g.const(weight)))), g.const(root, np.float32))
    key = g.op("Mul", g.heads(g.linear(x, H * D), (0, 2, 3, 1)), g.const(root, np.float32))
    value = g.heads(g.linear(x, H * D))
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(g.op("MatMul", query, key))), value))))
    (found,) = trace(path, x=RNG.standard_normal((1, 5, 16)).astype(np.float32)).attentions
    assert found.site.scale == pytest.approx(root if stored else D**-0.5, rel=1e-6)
    np.testing.assert_allclose(found.query, projected * (root if stored else 1), rtol=1e-5, atol=1e-5)
    assert any(FOLDED in note for note in found.site.notes) is stored
    assert found.trusted
