"""Constants that follow from constants, held to what onnxruntime computes of the same node."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from attnx.graph.shapes.evaluate import BOUNDED, evaluate, most

DRAWN = np.random.default_rng(11)
X = DRAWN.standard_normal((2, 3, 4)).astype(np.float32)


def by_onnxruntime(node: onnx.NodeProto, inputs: list[np.ndarray], opset: int) -> np.ndarray:
    tensors = [numpy_helper.from_array(v, n) for n, v in zip(node.input, inputs, strict=True)]
    graph = helper.make_graph([node], "g", [], [helper.make_empty_tensor_value_info(node.output[0])], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {})[0])


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1, -2])
@pytest.mark.parametrize("opset", [11, 12, 13, 17])
def test_a_softmax_runs_over_the_rest_before_opset_13(op: str, axis: int | None, opset: int) -> None:
    node = helper.make_node(op, ["x"], ["y"], **({} if axis is None else {"axis": axis}))
    (ours,) = evaluate(node, [X], opset)
    np.testing.assert_allclose(ours, by_onnxruntime(node, [X], opset), atol=1e-6)


EIGHT = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int32, *EIGHT])
@pytest.mark.parametrize("by", ["all", "channel"])
def test_what_is_quantised_keeps_its_fractions(kind: Any, by: str) -> None:
    held = np.array([[0.5, -1.5, 3.0, 0.125], [2.0, 0.25, -7.0, 96.0]], np.float32) * (1 if kind in EIGHT else 8)
    array = (np.abs(held) if kind is np.uint8 else held).astype(kind)
    scale = np.array(0.25 if by == "all" else [0.25, 0.5, 1.0, 2.0], np.float32)
    inputs = [array, scale]
    if kind is not np.int32:
        inputs.append(np.zeros(scale.shape, kind))
    node = helper.make_node("DequantizeLinear", [f"i{i}" for i in range(len(inputs))], ["y"], axis=1)
    (ours,) = evaluate(node, inputs, 19)
    np.testing.assert_array_equal(ours, by_onnxruntime(node, inputs, 19))
    if kind in EIGHT:
        np.testing.assert_array_equal(ours, array.astype(np.float32) * scale)


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_have_scales_of_their_own(axis: int) -> None:
    """Of four blocks and four channels: as many numbers, and not the same ones."""
    array = DRAWN.integers(-100, 100, (4, 4)).astype(np.int8)
    shape = (2, 4) if axis == 0 else (4, 2)
    scale, zero = DRAWN.random(shape).astype(np.float32), DRAWN.integers(-9, 9, shape).astype(np.int8)
    node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], axis=axis, block_size=2)
    (ours,) = evaluate(node, [array, scale, zero], 21)
    np.testing.assert_array_equal(ours, by_onnxruntime(node, [array, scale, zero], 21))


@pytest.mark.parametrize("kind", [onnx.TensorProto.INT8, onnx.TensorProto.UINT16])
def test_what_is_rounded_is_of_the_type_that_is_said(kind: int) -> None:
    node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=kind)
    inputs = [X * 300, np.array(0.5, np.float32)]
    (ours,) = evaluate(node, inputs, 21)
    theirs = by_onnxruntime(node, inputs, 21)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


INDEX = np.array([[0, 1, 0], [1, 1, 0]])
SMALL: dict[str, list[tuple[list[np.ndarray], dict[str, Any]]]] = {
    "Where": [([np.ones((3, 1), bool), np.ones((1, 4), np.float32), np.ones((2, 1, 1), np.float32)], {})],
    "Cast": [([X], {"to": 7})],
    "Unsqueeze": [([X, np.array([0, 2])], {})],
    "Squeeze": [([X[:1, :1], np.array([0, 1])], {})],
    "Reshape": [([X, np.array([4, -1])], {})],
    "Concat": [([np.ones(1, np.float32)] * 9, {"axis": 0}), ([X, X[:1]], {"axis": 0})],
    "Gather": [([X, INDEX], {"axis": 1}), ([np.zeros((2, 0), np.float32), INDEX], {"axis": 0})],
    "Slice": [([X, np.array([-9]), np.array([99]), np.array([2])], {})],
}
TRUTH = [np.ones((3, 1), bool), np.ones((1, 4), bool)]
WHOLE = [np.arange(1, 4)[:, None], np.arange(1, 5)[None]]


def cases_of(op: str) -> list[tuple[list[np.ndarray], dict[str, Any]]]:
    """Inputs that stretch one another as far as the operator allows, and some with nothing in them."""
    if op in SMALL:
        return SMALL[op]
    if op in ("Neg", "Abs", "Sign", "Identity", "Transpose"):
        return [([X], {}), ([X[:0]], {})]
    pair = TRUTH if op in ("And", "Or", "Xor", "Not") else WHOLE
    return [([pair[0]], {})] if op == "Not" else [(pair, {}), ([pair[0][:0], pair[1]], {})]


@pytest.mark.parametrize("op", sorted(BOUNDED))
def test_inputs_bound_the_result(op: str) -> None:
    """What is computed before its size is known is not larger than thought."""
    for inputs, attributes in cases_of(op):
        names = [f"i{at}" for at in range(len(inputs))]
        made = by_onnxruntime(helper.make_node(op, names, ["y"], **attributes), inputs, 17)
        (ours,) = evaluate(helper.make_node(op, names, ["y"], **attributes), inputs, 17)
        np.testing.assert_array_equal(ours, made)
        assert made.size <= most(inputs)
