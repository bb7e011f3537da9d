"""Attention in integers throughout (QOperator): the scale in a QLinearMul, heads behind QLinearAdd, rounded weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import attnx
from attnx.errors import UnsupportedError
from attnx.records import Site
from attnx.run.check import check
from attnx.run.row_sums import sound
from tests.integers import own_tensors

RNG = np.random.default_rng(11)
B, S, H, D = 2, 5, 2, 4
W = H * D


def quantised(folder: Path, cached: bool = False, clipped: bool = False) -> Path:
    """One attention whose every tensor is uint8, with a scale of its own.

    With `cached`, one QGemm makes query, key and value, which are split, and the keys come after a past's.
    With `clipped`, the integers of the query are changed by an operator that gives them no scale.
    """
    nodes: list[onnx.NodeProto] = []
    held: dict[str, np.ndarray] = {}
    scale_of: dict[str, tuple[str, str]] = {}

    def const(name: str, value: object, dtype: object) -> str:
        held[name] = np.asarray(value, dtype)
        return name

    def steps(name: str, step: float, zero: int) -> tuple[str, str]:
        scale_of[name] = (const(f"{name}_scale", step, np.float32), const(f"{name}_zero", zero, np.uint8))
        return scale_of[name]

    def op(kind: str, out: str, inputs: list[str], step: float, zero: int, domain: str = "", **a: object) -> str:
        read = [part for name in inputs for part in (name, *scale_of[name])]
        nodes.append(helper.make_node(kind, [*read, *steps(out, step, zero)], [out], domain=domain, name=out, **a))
        return out

    def moved(kind: str, out: str, inputs: list[str], **a: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [out], name=out, **a))
        scale_of[out] = scale_of[inputs[0]]
        return out

    nodes.append(helper.make_node("QuantizeLinear", ["x", *steps("xq", 0.04, 128)], ["xq"]))
    shape = const("shape", [0, -1, H, D], np.int64)
    parts: dict[str, str] = {}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", W])]
    if cached:
        flat = moved("Reshape", "flat", ["xq", const("rows", [-1, W], np.int64)])
        held["w"] = RNG.integers(64, 192, (W, 3 * W)).astype(np.uint8)
        steps("w", 0.006, 128)
        held["b"] = RNG.integers(-50, 50, 3 * W).astype(np.int32)
        read = [flat, *scale_of[flat], "w", *scale_of["w"], "b", *steps("packed", 0.05, 128)]
        nodes.append(helper.make_node("QGemm", read, ["packed"], domain="com.microsoft", alpha=1.0))
        split = ["sq", "sk", "sv"]
        nodes.append(helper.make_node("Split", ["packed", const("three", [W] * 3, np.int64)], split, axis=1))
        shape = const("whole", [B, -1, H, D], np.int64)
        for name in "qkv":
            scale_of[f"s{name}"] = scale_of["packed"]
            parts[name] = moved(
                "Transpose", name, [moved("Reshape", f"r{name}", [f"s{name}", shape])], perm=[0, 2, 1, 3]
            )
        for name in "kv":
            inputs.append(helper.make_tensor_value_info(f"past_{name}", TensorProto.FLOAT, ["b", H, "p", D]))
            nodes.append(
                helper.make_node("QuantizeLinear", [f"past_{name}", *steps(f"p{name}", 0.03, 120)], [f"p{name}"])
            )
            out = f"all_{name}"
            read = [*steps(out, 0.06, 126), f"p{name}", *scale_of[f"p{name}"], name, *scale_of[name]]
            nodes.append(helper.make_node("QLinearConcat", read, [out], domain="com.microsoft", axis=2))
            parts[name] = out
        parts["k"] = moved("Transpose", "turned", [parts["k"]], perm=[0, 1, 3, 2])
    for name, perm in () if cached else (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        held[f"w{name}"] = RNG.integers(64, 192, (W, W)).astype(np.uint8)
        steps(f"w{name}", 0.006, 128)
        held[f"b{name}"] = RNG.integers(100, 156, W).astype(np.uint8)
        steps(f"b{name}", 0.02, 128)
        made = op("QLinearMatMul", f"m{name}", ["xq", f"w{name}"], 0.05, 128)
        biased = op("QLinearAdd", f"a{name}", [made, f"b{name}"], 0.05, 128, "com.microsoft")
        parts[name] = moved("Transpose", name, [moved("Reshape", f"r{name}", [biased, shape])], perm=perm)
    if clipped:
        low, high = const("low", 20, np.uint8), const("high", 235, np.uint8)
        nodes.append(helper.make_node("Clip", [parts["q"], low, high], ["clipped"]))
        scale_of["clipped"] = scale_of[parts["q"]]
        parts["q"] = "clipped"
    scores = op("QLinearMatMul", "scores", [parts["q"], parts["k"]], 0.2, 128)
    held["half"] = np.asarray(200, np.uint8)
    steps("half", 0.5 / 200, 0)
    scaled = op("QLinearMul", "scaled", [scores, "half"], 0.1, 128, "com.microsoft")
    weights = op("QLinearSoftmax", "weights", [scaled], 1 / 256, 0, "com.microsoft", axis=-1, opset=17)
    context = op("QLinearMatMul", "context", [weights, parts["v"]], 0.05, 128)
    nodes.append(helper.make_node("DequantizeLinear", [context, *scale_of[context]], ["y"]))
    graph = helper.make_graph(
        nodes, "g", inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, n) for n, v in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_a_scale_in_integers_is_found_and_rounded_weights_pass_as_such(tmp_path: Path) -> None:
    x = RNG.standard_normal((B, S, W)).astype(np.float32)
    (a,) = attnx.open(quantised(tmp_path), device="cpu").trace(inputs={"x": x}, verify_outputs=True).attentions
    assert (a.site.kind, a.site.heads, a.site.head_size) == ("self", H, D)
    assert a.site.scale == pytest.approx(0.5)
    assert a.trusted, [c for c in a.checks if not c.holds]
    assert a.query is not None
    assert a.key is not None
    assert a.weights is not None
    scores = np.einsum("bhqd,bhkd->bhqk", a.query, a.key) * 0.5
    e = np.exp(scores - scores.max(-1, keepdims=True))
    assert np.abs(a.weights - e / e.sum(-1, keepdims=True)).max() < 0.05, "what is rounded is near what is not"


def test_integers_that_are_joined_and_split_are_read_in_their_own_steps(tmp_path: Path) -> None:
    x = RNG.standard_normal((B, S, W)).astype(np.float32)
    past = {f"past_{n}": RNG.standard_normal((B, H, 3, D)).astype(np.float32) for n in "kv"}
    path = quantised(tmp_path, cached=True)
    (a,) = attnx.open(path, device="cpu").trace(inputs={"x": x, **past}, verify_outputs=True).attentions
    assert (a.site.kind, a.site.heads, a.site.head_size, a.site.scale) == ("self", H, D, pytest.approx(0.5))
    assert a.trusted, [c for c in a.checks if not c.holds]
    own = own_tensors(path, {"x": x, **past}, ["q", "all_k", "all_v", "weights"])
    for name, tensor, step, zero in (
        ("query", "q", 0.05, 128),
        ("key", "all_k", 0.06, 126),
        ("value", "all_v", 0.06, 126),
    ):
        array = getattr(a, name)
        np.testing.assert_allclose(array, (own[tensor].astype(np.float32) - zero) * np.float32(step), atol=1e-6)
    np.testing.assert_allclose(a.weights, own["weights"].astype(np.float32) / 256, atol=1e-6)


def test_integers_of_unknown_steps_are_not_shown_as_numbers(tmp_path: Path) -> None:
    x = RNG.standard_normal((B, S, W)).astype(np.float32)
    (a,) = attnx.open(quantised(tmp_path, clipped=True), device="cpu").trace(inputs={"x": x}).attentions
    assert a.query is None
    assert a.key is not None
    assert a.weights is not None
    assert a.trusted, [c for c in a.checks if not c.holds]


@pytest.mark.parametrize("keys", [120, 1024])
def test_what_many_rounded_weights_lose_does_not_cost_their_trust(keys: int, tmp_path: Path) -> None:
    x = RNG.standard_normal((1, keys, W)).astype(np.float32)
    (a,) = attnx.open(quantised(tmp_path), device="cpu").trace(inputs={"x": x}).attentions
    rows = next(c for c in a.checks if c.name == "rows sum to 1")
    assert rows.difference > 0.02, "the test needs rows that half a step per key takes away from 1"
    assert rows.difference < rows.tolerance < (keys / 2 + 1) / 256
    assert a.trusted, [c for c in a.checks if not c.holds]


def test_floats_get_no_allowance(tmp_path: Path) -> None:
    site = attnx.open(quantised(tmp_path), device="cpu").sites[0]
    weights = np.random.default_rng(1).dirichlet(np.ones(120), (1, H, 120)).astype(np.float32)
    (rows,) = check(site, {"weights": weights * np.float32(0.9)}, {"weights": "tapped"}, low=True)
    assert not rows.holds


def test_rows_of_a_thousand_keys_in_8_bits_are_held_to_their_own_rounding(tmp_path: Path) -> None:
    """Half a step for each of 1,024 keys is 2: as much as nothing of a row, or all of it twice."""
    site = attnx.open(quantised(tmp_path), device="cpu").sites[0]
    rng, far = np.random.default_rng(2), (1, H, 6, 1024)
    tapped = {"weights": "tapped", "masked": "tapped"}
    peaked, broad = rng.normal(0, 4, far), rng.normal(0, 1.5, far)
    broad[..., 600:] = -1e9  # hidden keys lose nothing
    even = np.full(far, -1e9)
    even[..., :500] = rng.normal(0, 1e-4, 500)  # 1/500 is just above half a step: all are rounded up
    none = np.zeros(far)  # 1/1024 is rounded to 0
    none[..., :2] = 4.0, 1.6
    sums = []
    for scores in (peaked, broad, even, none):
        share = np.exp(scores - scores.max(-1, keepdims=True))
        right = np.round(share / share.sum(-1, keepdims=True) * 256).astype(np.float32) / 256
        arrays = {"masked": scores.astype(np.float32), "weights": right}
        checks = check(site, arrays, tapped, low=True)
        assert all(one.holds for one in checks), checks
        sums.append(right.sum(-1))
        row = right[0, 1, 2]
        # A key with 64 steps too many; and every weight a quarter too small, of rows with some to lose.
        for change in (row + (np.arange(1024) == 700) / 4, np.floor(row * 192) / 256)[: 1 + (row.max() > 0.1)]:
            wrong = right.copy()
            wrong[0, 1, 2] = change
            rows = check(site, {**arrays, "weights": wrong}, tapped, low=True)[0]
            assert (rows.name, rows.holds) == ("rows sum to 1", False), rows
    assert sums[1].max() < 0.98, "the test needs right rows that are off 1"
    assert sums[2].min() > 1.9
    assert sums[3].max() < 0.1


def test_sums_alone_allow_no_more_up_than_weights_can_have_been_rounded_up(tmp_path: Path) -> None:
    """A row of 1,024 keys with forty steps on one key too many; nothing is known but the sums."""
    site = attnx.open(quantised(tmp_path), device="cpu").sites[0]
    right = np.zeros((1, 1, 1, 1024), np.float32)
    right[..., :4], right[..., 4:8] = 60 / 256, 4 / 256
    assert check(site, {"weights": right}, {"weights": "tapped"}, low=True)[0].holds
    right[..., 0] += 1.5
    assert not check(site, {"weights": right}, {"weights": "tapped"}, low=True)[0].holds
    marks = np.concatenate([np.eye(1024)[:, :30], np.ones((1024, 1))], axis=1)
    with pytest.raises(UnsupportedError, match="no site of this model can be trusted"):
        sound([right[0] @ marks], [site], 1024)


def test_sums_of_rounded_weights_are_trusted_as_far_as_rounding_goes() -> None:
    """Over 200 keys, weights rounded to 1/256 lose much of a row; no more is allowed, and nothing of float weights."""
    scores = np.random.default_rng(0).normal(0, 2, (2, 5, 200))
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    cut = np.round(weights * 256) / 256
    marks = np.concatenate([np.eye(200)[:, :30], np.ones((200, 1))], axis=1)
    assert 0.03 < np.abs((cut @ marks)[..., -1] - 1).max() < 101 / 256
    plain = Site(0, 0, "encoder", "self", "Softmax", "", 2, 2, None, None)
    whole = replace(plain, index=1, op="QLinearSoftmax")
    kept, sites, doubts = sound([cut @ marks, cut @ marks, weights @ marks], [plain, whole, plain], 200)
    assert [site.op for site in sites] == ["QLinearSoftmax", "Softmax"]
    np.testing.assert_array_equal(kept[0], cut @ marks)
    assert [note.startswith("left out, L0 NOT TRUSTED: rows sum to 1 is off by 0.") for note in doubts] == [True]
    with pytest.raises(UnsupportedError, match="no site of this model can be trusted"):
        sound([np.round(weights * 128) / 256 @ marks], [whole], 200)
