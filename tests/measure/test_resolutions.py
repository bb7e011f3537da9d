"""Rollout over a decoder whose layers see a picture at several resolutions is refused."""

import numpy as np
import pytest

from attnx.errors import UnsupportedError
from attnx.measure.rollout import memory_rollout
from attnx.records import Attention, Site, Trace
from attnx.tokens.axes import numbered


def cross(index: int, queries: int) -> Attention:
    site = Site(
        index=index, layer=index, component="decoder", kind="cross", op="Softmax", node=f"n{index}", heads=1,
        kv_heads=1, head_size=4, scale=0.5,
    )  # fmt: skip
    return Attention(site, weights=np.full((1, 1, queries, 6), 1 / 6, np.float32))


def test_layers_of_one_size_are_followed_and_of_two_refused() -> None:
    def trace(*sizes: int) -> Trace:
        attentions = tuple(cross(i, n) for i, n in enumerate(sizes))
        return Trace("m", "cpu", numbered(sizes[0]), numbered(6), attentions)

    np.testing.assert_allclose(memory_rollout(trace(4, 4)).values[-1], 0.75 / 6, atol=1e-6)
    with pytest.raises(UnsupportedError, match="over 4, 16 positions"):
        memory_rollout(trace(16, 4))
