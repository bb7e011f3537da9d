"""Position biases without a CPU kernel: against a plain numpy (and, for the buckets, a plain loop)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.sites.replacing import attention_node, close, compare, model_of, replaced, run


def bucket(distance: int, buckets: int, farthest: float, both: bool) -> int:
    """T5's bucket of one distance (key - query); Raffel et al. 2020, as the original code has it."""
    first = 0
    if both:
        buckets //= 2
        first = buckets if distance > 0 else 0
        steps = abs(distance)
    else:
        steps = max(-distance, 0)
    exact = buckets // 2
    if steps < exact:
        return first + steps
    far = exact + int(math.log(steps / exact) / math.log(farthest / exact) * (buckets - exact))
    return first + min(far, buckets - 1)


@pytest.mark.parametrize("both", [0, 1])
@pytest.mark.parametrize("opset", [11, 13, 17, 23])
def test_thirty_two_buckets(both: int, opset: int) -> None:
    heads, queries, keys = 3, 200, 181
    values = np.random.default_rng(0).normal(size=(heads, 32)).astype(np.float32)
    node = attention_node(
        "RelativePositionBias", ["table", "queries", "keys"], ["bias"], max_distance=128, is_bidirectional=both
    )
    feed = {"queries": np.array([queries]), "keys": np.array([keys])}
    # The bytes of the table are [heads,buckets], though it is declared [buckets,heads].
    model = model_of([node], feed, ["bias"], opset, weights={"table": values.reshape(32, heads)})
    tapped, findings, misses = replaced(model)
    assert not findings
    assert not misses
    got = run(tapped, feed)["bias"]
    want = [[values[:, bucket(j - i, 32, 128, bool(both))] for j in range(keys)] for i in range(queries)]
    close(got, np.array(want).transpose(2, 0, 1)[None], 0)


@pytest.mark.parametrize("both", [0, 1])
def test_the_logarithm_of_other_tables_is_restored(both: int) -> None:
    """A model with 8 buckets and distance 16 is written with 64 by the optimizer: 16 / exact * 8 or 16."""
    exact = 2 if both else 4
    written = round(16 / exact * (8 if both else 16))
    values = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    node = attention_node(
        "RelativePositionBias", ["table", "n", "n"], ["bias"], max_distance=written, is_bidirectional=both
    )
    feed = {"n": np.array(40)}
    tapped, _, _ = replaced(model_of([node], feed, ["bias"], weights={"table": values.reshape(8, 2)}))
    want = [[values[:, bucket(j - i, 8, 16, bool(both))] for j in range(40)] for i in range(40)]
    close(run(tapped, feed)["bias"], np.array(want).transpose(2, 0, 1)[None], 0)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gated(packed: bool, dtype: Any) -> None:
    r = np.random.default_rng(1)
    b, s, n, d, gates = 2, 5, 3, 4, 8
    lengths = [5, 3]
    x = r.normal(size=(b, s, n * d))
    if packed:
        x[1, 3:] = 0
    arrays = {
        "x": x, "xb": r.normal(size=n * d), "rel": r.normal(size=(1, n, s, s)), "w": r.normal(size=(d, gates)),
        "b": r.normal(size=gates), "eco": r.normal(size=(1, n, 1, 1)),
    }  # fmt: skip
    arrays = {k: v.astype(dtype) for k, v in arrays.items()}
    wide = {k: v.astype(np.float64) for k, v in arrays.items()}
    y = (wide["x"] + wide["xb"]).reshape(b, s, n, d).transpose(0, 2, 1, 3) @ wide["w"] + wide["b"]
    u, g = (1 / (1 + np.exp(-half.sum(-1, keepdims=True))) for half in (y[..., :4], y[..., 4:]))
    want = (u * (g * wide["eco"] - 1) + 2) * wide["rel"]
    names = list(arrays)
    if packed:
        real = [i * s + j for i, count in enumerate(lengths) for j in range(count)]
        arrays["offset"] = np.array([*real, 8, 9], np.int32).reshape(b, s)
        arrays["x"] = arrays["x"].reshape(b * s, -1)[real]
        names.append("offset")
    node = attention_node("GatedRelativePositionBias", names, ["bias"], num_heads=n)
    tapped, _, misses = replaced(model_of([node], arrays, ["bias"]))
    assert not misses
    got = run(tapped, arrays)["bias"]
    assert got.dtype == dtype
    if packed:  # the bias of padding is added to them here, where the kernel leaves what nobody reads
        got, want = got[:, :, :3], want[:, :, :3]
    close(got, want, 1e-5 if dtype == np.float32 else 3e-3)


def test_a_bias_that_feeds_an_attention() -> None:
    r = np.random.default_rng(2)
    feed = {x: r.normal(size=(1, 6, 8)).astype(np.float32) for x in "qkv"} | {"n": np.array([6])}
    table = r.normal(size=(2, 32)).astype(np.float32)
    nodes = [
        attention_node("RelativePositionBias", ["table", "n", "n"], ["bias"], max_distance=128, is_bidirectional=1),
        attention_node("MultiHeadAttention", ["q", "k", "v", "", "", "bias"], ["y"], num_heads=2, scale=1.0),
    ]
    nodes[0].name = "position"
    model = model_of(nodes, feed, ["y"], weights={"table": table.reshape(32, 2)})
    position = model_of(nodes[:1], {"n": feed["n"]}, ["bias"], weights={"table": table.reshape(32, 2)})
    plain = {**feed, "bias": run(replaced(position)[0], feed)["bias"]}
    alone = model_of(nodes[1:], {k: v for k, v in plain.items() if k != "n"}, ["y"])
    finding, _ = compare(alone, plain)
    tapped, findings, _ = replaced(model)
    close(run(tapped, feed)["y"], run(alone, plain)["y"], 1e-6)
    assert findings[0].bias == "relative position"
    assert finding.bias == "attention_bias"
