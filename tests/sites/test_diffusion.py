"""What surrounds attention in diffusion models and has no CPU kernel: against plain numpy, and ONNX's own Conv."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.sites.replacing import Array, attention_node, close, model_of, replaced, run


def go(
    op: str, feed: dict[str, Array], outputs: tuple[str, ...] = ("y",), opset: int = 17, **attributes: Any
) -> dict[str, Array]:
    model = model_of(
        [attention_node(op, list(feed), list(outputs), **attributes)], feed, [o for o in outputs if o], opset
    )
    tapped, findings, misses = replaced(model)
    assert not findings
    assert not misses
    return run(tapped, feed)


def floats(dtype: Any = np.float32, **shapes: tuple[int, ...]) -> dict[str, Array]:
    r = np.random.default_rng(0)
    return {name: r.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bias_add(dtype: Any) -> None:
    feed = floats(dtype, x=(2, 3, 4), b=(4,), s=(2, 3, 4))
    got = go("BiasAdd", feed)["y"]
    assert got.dtype == dtype
    close(got, feed["x"].astype(np.float64) + feed["b"] + feed["s"], 1e-6 if dtype == np.float32 else 2e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bias_split_gelu(dtype: Any) -> None:
    feed = floats(dtype, x=(2, 3, 8), b=(8,))
    left, right = np.split(feed["x"].astype(np.float64) + feed["b"], 2, -1)
    want = left * right / 2 * (1 + np.vectorize(erf)(right / np.sqrt(2)))
    close(go("BiasSplitGelu", feed)["y"], want, 1e-6 if dtype == np.float32 else 2e-3)


@pytest.mark.parametrize("bias", [False, True])
def test_gemm_fast_gelu(bias: bool) -> None:
    feed = floats(x=(2, 3, 4), w=(4, 5), b=(5,))
    if not bias:
        del feed["b"]
    y = feed["x"].astype(np.float64) @ feed["w"] + feed.get("b", 0)
    want = y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    close(go("GemmFastGelu", feed)["y"], want, 1e-6)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("skip", ["", "whole", "pixel", "flat"])
@pytest.mark.parametrize("opset", [12, 18])
def test_group_norm(last: int, activation: int, skip: str, opset: int) -> None:
    groups, channels = 2, 6
    image = (2, 3, 4, channels) if last else (2, channels, 3, 4)
    feed = floats(x=image, gamma=(channels,), beta=(channels,))
    total = feed["x"].astype(np.float64)
    if skip:
        shape = {"whole": image, "pixel": (2, 1, 1, channels) if last else (2, channels, 1, 1), "flat": (2, channels)}[
            skip
        ]
        feed |= floats(skip=shape, bias=(channels,))
        wide = (
            feed["skip"]
            if skip != "flat"
            else feed["skip"].reshape((2, 1, 1, channels) if last else (2, channels, 1, 1))
        )
        total = total + wide + (feed["bias"] if last else feed["bias"][:, None, None])
    got = go(
        "SkipGroupNorm" if skip else "GroupNorm", feed, ("y", "sum") if skip else ("y",), opset,
        groups=groups, activation=activation, channels_last=last, epsilon=1e-3,
    )  # fmt: skip
    first = total.transpose(0, 3, 1, 2) if last else total
    want = np.empty_like(first)
    for n in range(2):
        for g in range(groups):
            part = first[n, g * 3 : g * 3 + 3]
            want[n, g * 3 : g * 3 + 3] = (part - part.mean()) / np.sqrt(part.var() + 1e-3)
    want = want * feed["gamma"][:, None, None] + feed["beta"][:, None, None]
    if activation:
        want = want / (1 + np.exp(-want))
    close(got["y"], want.transpose(0, 2, 3, 1) if last else want, 1e-5)
    if skip:
        close(got["sum"], total, 1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_nhwc_conv(bias: bool) -> None:
    feed = floats(x=(2, 5, 6, 4), w=(3, 3, 3, 4), b=(3,))
    if not bias:
        del feed["b"]
    attributes = {"pads": [1, 1, 1, 1], "strides": [2, 2], "kernel_shape": [3, 3]}
    plain = {"x": feed["x"].transpose(0, 3, 1, 2).copy(), "w": feed["w"].transpose(0, 3, 1, 2).copy()}
    plain |= {k: v for k, v in feed.items() if k == "b"}
    conv = helper.make_node("Conv", list(plain), ["y"], name="conv", **attributes)
    want = run(model_of([conv], plain, ["y"]), plain)["y"]
    close(go("NhwcConv", feed, **attributes)["y"], want.transpose(0, 2, 3, 1), 1e-6)
