"""What sums of rows and columns say of a mask that the graph leaves open."""

import numpy as np
import pytest

import attnx
from attnx.records import Site
from attnx.study.coref_rows import _seen


def site() -> Site:
    from dataclasses import replace

    return replace(attnx.open("minilm", device="cpu").sites[0], causal=None)


@pytest.mark.parametrize(
    ("mask", "causal"),
    [
        (np.tri(5), True),
        (np.ones((5, 5)), False),
        (np.tri(5)[::-1], False),
        (np.tri(5) - np.tri(5, k=-3), False),
    ],
)
def test_a_triangle_is_known_by_its_sums(mask: np.ndarray, causal: bool) -> None:
    heads = np.stack([mask] * 2)
    stats = {"total": heads.sum(2), "visible": heads.sum(2), "seers": heads.sum(1)}
    found, seers = _seen(site(), stats, 5)
    assert found.causal is causal
    np.testing.assert_array_equal(seers, heads.sum(1))
