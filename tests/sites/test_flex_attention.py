"""ai.onnx.preview FlexAttention, which no runtime knows yet: against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.sites.replacing import Array, attention_node, close, hold, model_of, numpy_attention, replaced, run, softmax

B, H, HKV, S, K, D = 2, 4, 2, 5, 7, 8
ANY = [None] * 4


def body(nodes: list[onnx.NodeProto], result: str, constants: dict[str, Array], kind: int) -> onnx.GraphProto:
    return helper.make_graph(
        nodes,
        "modifier",
        [helper.make_tensor_value_info("s", kind, ANY)],
        [helper.make_tensor_value_info(result, kind, ANY)],
        [onnx.numpy_helper.from_array(x, name) for name, x in constants.items()],
    )


def feed_of(dtype: Any = np.float32) -> dict[str, Array]:
    r = np.random.default_rng(0)
    feed = {"q": (B, H, S, D), "k": (B, HKV, K, D), "v": (B, HKV, K, 6)}
    return {name: r.normal(size=shape).astype(dtype) for name, shape in feed.items()}


def model(feed: dict[str, Array], opset: int = 23, **attributes: Any) -> onnx.ModelProto:
    node = attention_node("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview", **attributes)
    return model_of([node], feed, ["y"], opset, opsets={"ai.onnx.preview": 1})


def test_without_modifiers() -> None:
    feed = feed_of()
    tapped, (finding,), _ = replaced(model(feed, scale=0.4))
    assert finding.replacement is not None
    assert finding.replacement.required
    assert (finding.heads, finding.kv_heads, finding.head_size, finding.causal) == (H, HKV, D, False)
    got = run(tapped, feed)
    hold(finding, got)
    close(got["y"], numpy_attention(feed["q"], feed["k"], feed["v"], scale=0.4)["context"], 1e-5)


def test_a_causal_score_modifier_that_reads_a_value_of_the_model() -> None:
    feed = feed_of() | {"slope": np.array(0.3, np.float32)}
    nodes = [
        helper.make_node("Mul", ["far", "slope"], ["bias"]),
        helper.make_node("Add", ["s", "bias"], ["biased"]),
        helper.make_node("Where", ["see", "biased", "low"], ["r"]),
    ]
    i, j = np.indices((S, K))
    constants = {"far": -abs(i - j).astype(np.float32), "see": j <= i + 2, "low": np.array(-np.inf, np.float32)}
    node = attention_node(
        "FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview",
        score_mod=body(nodes, "r", constants, TensorProto.FLOAT),
    )  # fmt: skip
    whole = model_of([node], feed, ["y"], 23, opsets={"ai.onnx.preview": 1})
    tapped, (finding,), _ = replaced(whole)
    assert finding.causal is None
    got = run(tapped, feed)
    s = hold(finding, got)
    want = numpy_attention(feed["q"], feed["k"], feed["v"], scale=D**-0.5, add=-0.3 * abs(i - j), visible=j <= i + 2)
    close(s["masked"], want["masked"], 1e-5)
    close(got["y"], want["context"], 1e-5)


@pytest.mark.parametrize("precision", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_weight_modifier(precision: int) -> None:
    feed = feed_of()
    kind = np.float32 if precision == TensorProto.FLOAT else np.float16
    nodes = [helper.make_node("Mul", ["s", "half"], ["r"])]
    mod = body(nodes, "r", {"half": np.array(0.5, kind)}, precision)
    tapped, (finding,), _ = replaced(model(feed, prob_mod=mod, softmax_precision=precision))
    got = run(tapped, feed)
    want = numpy_attention(feed["q"], feed["k"], feed["v"], scale=D**-0.5)
    close(got["y"], want["context"] / 2, 1e-5 if precision == TensorProto.FLOAT else 2e-3)
    close(got[finding.places["weights"].value], softmax(want["masked"]) / 2, 1e-5 if kind == np.float32 else 2e-3)
    assert "prob_mod" in finding.notes[0]


def test_heads_that_do_not_divide() -> None:
    feed = feed_of() | {"k": np.zeros((B, 3, K, D), np.float32)}
    _, findings, (miss,) = replaced(model(feed))
    assert not findings
    assert miss.op == "ai.onnx.preview.FlexAttention"
