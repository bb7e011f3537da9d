"""ai.onnx Attention: against onnxruntime's kernel where it runs the node, against numpy where it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.sites.replacing import (
    Array,
    attention_node,
    close,
    compare,
    hold,
    joined,
    model_of,
    numpy_attention,
    parted,
    replaced,
    run,
)

B, S, K, D = 2, 5, 7, 8


def feed_of(
    heads: int = 4, kv: int = 4, keys: int = S, flat: bool = False, past: int = 0, dv: int = D, dtype: Any = np.float32
) -> dict[str, Array]:
    r = np.random.default_rng(heads * 100 + kv * 10 + keys)
    feed = {
        "q": r.normal(size=(B, heads, S, D)),
        "k": r.normal(size=(B, kv, keys, D)),
        "v": r.normal(size=(B, kv, keys, dv)),
    }
    if flat:
        feed = {name: joined(x) for name, x in feed.items()}
    if past:
        feed |= {"pk": r.normal(size=(B, kv, past, D)), "pv": r.normal(size=(B, kv, past, dv))}
    return {name: (x * 1.5).astype(dtype) for name, x in feed.items()}


def model(feed: dict[str, Array], outs: int = 1, opset: int = 23, symbolic: bool = False, **attributes: Any) -> Any:
    order = ("q", "k", "v", "mask", "pk", "pv", "nonpad")
    inputs = [name if name in feed else "" for name in order]
    while not inputs[-1]:
        inputs.pop()
    outputs = ["y", "present_k", "present_v", "qk"][:outs]
    node = attention_node("Attention", inputs, outputs, domain="", **attributes)
    shapes = {name: [f"{name}{i}" for i in range(x.ndim)] for name, x in feed.items()} if symbolic else None
    return model_of([node], feed, outputs, opset, shapes=shapes)


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize(
    ("make", "attributes"),
    [
        ({}, {}),
        ({"keys": K, "dv": 6}, {}),
        ({"heads": 6, "kv": 2}, {"is_causal": 1}),
        ({"heads": 6, "kv": 2, "flat": True}, {"q_num_heads": 6, "kv_num_heads": 2}),
        ({"heads": 4, "kv": 1, "flat": True}, {"q_num_heads": 4, "kv_num_heads": 1, "softcap": 2.0}),
        ({"keys": K}, {"is_causal": 1, "scale": 0.7}),
        ({"keys": 3}, {"is_causal": 1}),
        ({"softcap": 0}, {"softcap": 1.5, "softmax_precision": TensorProto.FLOAT}),
    ],
)
def test_plain_forms_match_the_kernel(opset: int, make: dict[str, Any], attributes: dict[str, Any]) -> None:
    make = {k: v for k, v in make.items() if k != "softcap"}
    feed = feed_of(**make)
    finding, s = compare(model(feed, opset=opset, **attributes), feed)
    assert finding.causal is bool(attributes.get("is_causal"))
    assert finding.scale == pytest.approx(attributes.get("scale", 1 / np.sqrt(D)))
    assert finding.replacement is not None
    assert not finding.replacement.required
    if attributes.get("is_causal"):
        i, j = np.indices(s["weights"].shape[-2:])
        assert np.all(s["weights"][..., j > i] == 0)
        assert np.all(s["weights"][..., j <= i] > 0)


@pytest.mark.parametrize("shape", [(S, K), (4, S, K), (1, 1, S, K), (B, 1, S, K), (1, 4, S, K), (B, 4, S, K)])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("causal", [0, 1])
def test_masks_match_the_kernel(shape: tuple[int, ...], kind: str, causal: int) -> None:
    r = np.random.default_rng(len(shape))
    feed = feed_of(keys=K)
    feed["mask"] = r.random(shape) > 0.3 if kind == "bool" else r.normal(size=shape).astype(np.float32)
    feed["mask"][..., 0] = True
    finding, _ = compare(model(feed, is_causal=causal), feed)
    assert finding.causal is (True if causal else None)
    assert finding.replacement is not None
    assert not finding.replacement.required


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_its_own_score_output_is_kept(mode: int, kind: str) -> None:
    r = np.random.default_rng(mode)
    feed = feed_of()
    mask = r.random((S, S)) > 0.4
    mask[:, 0] = True
    feed["mask"] = mask if kind == "bool" else np.where(mask, 0, -np.inf).astype(np.float32)
    compare(model(feed, outs=4, softcap=2.0, is_causal=1, qk_matmul_output_mode=mode), feed)


@pytest.mark.parametrize("past", [1, 3])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("flat", [False, True])
def test_past_matches_the_kernel(past: int, causal: int, flat: bool) -> None:
    feed = feed_of(heads=4, kv=2, past=past, flat=flat)
    heads = {"q_num_heads": 4, "kv_num_heads": 2} if flat else {}
    finding, s = compare(model(feed, outs=3, is_causal=causal, **heads), feed)
    assert s["key"].shape == (B, 2, past + S, D)
    assert finding.kv_heads == 2


def test_empty_past_and_past_without_present() -> None:
    feed = feed_of()
    feed |= {"pk": np.zeros((B, 4, 0, D), np.float32), "pv": np.zeros((B, 4, 0, D), np.float32)}
    compare(model(feed, outs=3, is_causal=1), feed)
    tapped, findings, _ = replaced(model(feed, outs=1, is_causal=1))
    assert findings[0].replacement is not None
    assert findings[0].replacement.required
    hold(findings[0], run(tapped, feed))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_rows_that_see_nothing_are_zero(kind: str) -> None:
    feed = feed_of()
    mask = np.ones((S, S), bool)
    mask[2] = False
    feed["mask"] = mask if kind == "bool" else np.where(mask, 0, -np.inf).astype(np.float32)
    _, s = compare(model(feed), feed)
    assert np.all(s["weights"][:, :, 2] == 0)
    assert np.all(s["context"][:, :, 2] == 0)


@pytest.mark.parametrize("shape", [(K,), (1, K), (B, 1, 1, K), (1, 1, 1, K), (1, 4, 1, K)])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("causal", [0, 1])
def test_masks_over_queries_which_the_kernel_refuses(shape: tuple[int, ...], kind: str, causal: int) -> None:
    r = np.random.default_rng(len(shape))
    feed = feed_of(heads=4, kv=2, keys=K)
    mask = r.random(shape) > 0.3
    mask[..., 0] = True
    bias = r.normal(size=shape).astype(np.float32)
    feed["mask"] = mask if kind == "bool" else bias
    whole = model(feed, is_causal=causal)
    tapped, findings, _ = replaced(whole)
    assert findings[0].replacement is not None
    assert findings[0].replacement.required
    got = run(tapped, feed)
    hold(findings[0], got)
    i, j = np.indices((S, K))
    see = (j <= i) | (not causal)
    want = numpy_attention(
        feed["q"], feed["k"], feed["v"], scale=D**-0.5,
        add=bias if kind == "float" else 0, visible=see & mask if kind == "bool" else see,
    )  # fmt: skip
    close(got["y"], want["context"], 1e-5)
    close(got[findings[0].places["masked"].value], want["masked"], 1e-5)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("kind", ["", "bool", "float"])
@pytest.mark.parametrize("length", [K, K - 2])
def test_padded_caches_and_short_masks(causal: int, kind: str, length: int) -> None:
    r = np.random.default_rng(causal)
    feed = feed_of(keys=K)
    feed["nonpad"] = np.array([4, length], np.int64)
    see = (np.arange(K) < feed["nonpad"][:, None])[:, None, None, :]
    i, j = np.indices((S, K))
    if causal:
        see = see & (j <= i + (feed["nonpad"] - S)[:, None, None])[:, None]
    add: Any = 0
    if kind:
        short = length
        mask = r.random((S, short)) > 0.2
        bias = r.normal(size=(S, short)).astype(np.float32)
        feed["mask"] = mask if kind == "bool" else bias
        filled = np.zeros((S, K), bool)
        filled[:, :short] = mask if kind == "bool" else True
        see = see & filled
        add = np.pad(bias, ((0, 0), (0, K - short))) if kind == "float" else 0
    tapped, findings, _ = replaced(model(feed, opset=24, is_causal=causal))
    got = run(tapped, feed)
    hold(findings[0], got)
    want = numpy_attention(feed["q"], feed["k"], feed["v"], scale=D**-0.5, add=add, visible=see)
    close(got["y"], want["context"], 1e-5)
    close(got[findings[0].places["weights"].value], want["weights"], 1e-5)
    if not kind:
        close(run(model(feed, opset=24, is_causal=causal), feed)["y"], want["context"], 1e-5)


@pytest.mark.parametrize(
    ("left", "right", "causal"), [(2, 0, 0), (2, 1, 0), (1, -1, 0), (-1, 1, 0), (2, -1, 1), (0, 3, 1)]
)
@pytest.mark.parametrize("past", [0, 3])
def test_windows_of_opset_25(left: int, right: int, causal: int, past: int) -> None:
    feed = feed_of(past=past)
    attributes = {k: v for k, v in (("left_window_size", left), ("right_window_size", right)) if v >= 0}
    # The operator set of the model is kept at what onnxruntime loads: the node is replaced before it is run.
    whole = model(feed, outs=3 if past else 1, opset=25, is_causal=causal, **attributes)
    tapped, findings, _ = replaced(whole)
    finding = findings[0]
    assert finding.replacement is not None
    assert finding.replacement.required
    got = run(tapped, feed)
    s = hold(finding, got)
    key = np.concatenate([feed["pk"], feed["k"]], 2) if past else feed["k"]
    value = np.concatenate([feed["pv"], feed["v"]], 2) if past else feed["v"]
    i, j = np.indices((S, past + S))
    p = i + past
    see = ((j >= p - left) | (left < 0)) & ((j <= p + right) | (right < 0)) & ((j <= p) | (not causal))
    want = numpy_attention(feed["q"], key, value, scale=D**-0.5, visible=see)
    close(got["y"], want["context"], 1e-5)
    if finding.window is not None:
        assert (s["weights"] > 0).sum(-1).max() == min(finding.window, past + S)
    if finding.causal:
        assert np.all(s["weights"][..., j > p] == 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_precisions(dtype: Any) -> None:
    feed = feed_of(heads=4, kv=2, dtype=dtype, past=2)
    feed["mask"] = np.random.default_rng(0).normal(size=(S, S + 2)).astype(dtype)
    whole = model(feed, outs=3, is_causal=1)
    if dtype == np.float16:
        finding, s = compare(whole, feed, tolerance=5e-3)
    else:
        compare(model(feed, outs=3), feed, tolerance=1e-6)  # the kernel's scale is a float32
        tapped, (finding,), _ = replaced(whole)
        s = hold(finding, run(tapped, feed), tolerance=1e-12)
        assert finding.replacement is not None
        assert finding.replacement.required
    assert finding.head_size == D
    want = numpy_attention(
        feed["q"], np.concatenate([feed["pk"], feed["k"]], 2), np.concatenate([feed["pv"], feed["v"]], 2),
        scale=D**-0.5, add=feed["mask"], visible=np.tri(S, S + 2, 2, dtype=bool),
    )  # fmt: skip
    close(s["weights"], want["weights"], 1e-5)


def test_sizes_that_only_the_run_knows() -> None:
    feed = feed_of(heads=6, kv=2)
    finding, _ = compare(model(feed, symbolic=True, is_causal=1), feed)
    assert (finding.heads, finding.kv_heads, finding.head_size, finding.scale) == (None, None, None, None)


def test_an_integer_mask_is_added() -> None:
    feed = feed_of(keys=K)
    feed["mask"] = np.random.default_rng(0).integers(0, 2, (S, K))
    _, s = compare(model(feed), feed)
    want = numpy_attention(feed["q"], feed["k"], feed["v"], scale=D**-0.5, add=feed["mask"])
    close(s["weights"], want["weights"], 1e-5)


def test_heads_that_do_not_divide_are_refused_by_name() -> None:
    feed = feed_of(heads=6, kv=4)
    _, findings, misses = replaced(model(feed))
    assert not findings
    assert misses[0].op == "Attention"
    assert "6 query heads" in misses[0].reason


def test_it_reads_flat_inputs_as_the_kernel_does() -> None:
    feed = feed_of(heads=4, kv=2, flat=True)
    finding, s = compare(model(feed, q_num_heads=4, kv_num_heads=2), feed)
    close(s["query"], parted(feed["q"], 4), 1e-7)
    close(s["value"], parted(feed["v"], 2), 1e-7)
    assert (finding.query_from, finding.key_from, finding.value_from) == ("q", "k", "v")


def test_key_heads_that_are_repeated_before_the_node_count_once() -> None:
    feed = feed_of(heads=4, kv=2)
    shape = {"five": np.array([B, 2, 2, S, D]), "four": np.array([B, 4, S, D]), "at": np.array([2])}
    nodes = [
        step
        for name in "kv"
        for step in (
            helper.make_node("Unsqueeze", [name, "at"], [f"{name}1"]),
            helper.make_node("Expand", [f"{name}1", "five"], [f"{name}2"]),
            helper.make_node("Reshape", [f"{name}2", "four"], [f"{name}3"]),
        )
    ]
    node = helper.make_node("Attention", ["q", "k3", "v3"], ["y"])
    model = model_of([*nodes, node], feed, ["y"], 23, weights=shape)
    _, findings, _ = replaced(model)
    (finding,) = findings
    assert (finding.heads, finding.kv_heads) == (4, 2)
