"""Graphs in bfloat16 on the CPU: computed in float32 on a copy, and held to the float32 graph of the same weights."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import attnx
from attnx.taps.widening import WIDENED
from tests.idioms import Form, build, code

BRAIN = TensorProto.BFLOAT16


def rounded(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(ml_dtypes.bfloat16).astype(np.float32)


def narrow(array: np.ndarray, name: str) -> TensorProto:
    held = np.asarray(array).astype(ml_dtypes.bfloat16)
    return helper.make_tensor(name, BRAIN, held.shape, held.tobytes(), raw=True)


def both(form: Form, constants: bool, body: bool) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A graph of float32 numbers that bfloat16 holds, and the same one in bfloat16."""
    whole = build(form)
    for tensor in whole.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(rounded(numpy_helper.to_array(tensor)), tensor.name))
    half = onnx.ModelProto()
    half.CopyFrom(whole)
    graph, nodes = half.graph, []
    kept = [t for t in graph.initializer if t.data_type != TensorProto.FLOAT]
    for tensor in [t for t in graph.initializer if t.data_type == TensorProto.FLOAT]:
        small = narrow(numpy_helper.to_array(tensor), tensor.name)
        if constants:
            nodes.append(helper.make_node("Constant", [], [tensor.name], name=f"c/{tensor.name}", value=small))
        else:
            kept.append(small)
    del graph.initializer[:]
    graph.initializer.extend(kept)
    nodes += [onnx.NodeProto.FromString(n.SerializeToString()) for n in graph.node]
    for node in nodes:
        for a in node.attribute:
            if node.op_type == "Cast" and a.name == "to" and a.i == TensorProto.FLOAT:
                a.i = BRAIN
    if body:  # the first product inside a branch that reads the weight from outside
        at = next(i for i, n in enumerate(nodes) if n.op_type == "MatMul")
        inner = nodes[at]
        out = inner.output[0]
        sides = []
        for name in ("then", "else"):
            copy = onnx.NodeProto.FromString(inner.SerializeToString())
            copy.output[0] = f"{out}/{name}"
            value = helper.make_tensor_value_info(copy.output[0], BRAIN, None)
            sides.append(helper.make_graph([copy], name, [], [value]))
        nodes[at] = helper.make_node("If", ["yes"], [out], name="branch", then_branch=sides[0], else_branch=sides[1])
        graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    del graph.node[:]
    graph.node.extend(nodes)
    for info in (*graph.input, *graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = BRAIN
    return whole, half


@pytest.mark.parametrize("constants", [False, True])
@pytest.mark.parametrize("body", [False, True])
@pytest.mark.parametrize("form", [Form(), Form(mask="causal_where"), Form(softcap=5.0, mask="causal_add")])
def test_bfloat16_is_computed_in_float32(form: Form, constants: bool, body: bool, tmp_path: Path) -> None:
    whole, half = both(form, constants, body)
    softmax = next(n for n in whole.graph.node if n.op_type == "Softmax").output[0]
    whole.graph.output.append(helper.make_empty_tensor_value_info(softmax))
    session = ort.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {"x": rounded(code(2, 7))}
    out, weights = session.run([whole.graph.output[0].name, softmax], feed)
    path = tmp_path / "model.onnx"
    onnx.save(half, path)
    before = path.read_bytes()
    trace = attnx.open(path, device="cpu").trace(inputs=feed, outputs=True, verify_outputs=True)
    np.testing.assert_allclose(trace.attentions[0].need("weights"), weights, atol=1e-6)
    np.testing.assert_allclose(trace.outputs[half.graph.output[0].name], out, atol=1e-5)
    assert WIDENED in trace.notes
    assert path.read_bytes() == before
    assert all(check.holds for a in trace.attentions for check in a.checks)


def test_what_is_float32_is_left_alone(tmp_path: Path) -> None:
    whole, _ = both(Form(), False, False)
    onnx.save(whole, tmp_path / "model.onnx")
    trace = attnx.open(tmp_path / "model.onnx", device="cpu").trace(inputs={"x": code(1, 5)})
    assert WIDENED not in trace.notes
