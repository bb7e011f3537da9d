"""Graphs of which onnxruntime's optimiser makes something that onnxruntime does not load: they run as they are."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnx.errors import ModelError
from attnx.session.ort import open_session

WIDTH = 8
DRAWN = np.random.default_rng(2)
SCALE, SHIFT = DRAWN.standard_normal((2, WIDTH)).astype(np.float16)


def norm(last: str = "Add") -> bytes:
    """A norm in float32 between casts from and to float16, its scale and shift in float16."""
    steps = [
        ("Cast", ["x"], "wide", {"to": TensorProto.FLOAT}),
        ("ReduceMean", ["wide"], "mean", {"axes": [-1]}),
        ("Sub", ["wide", "mean"], "centred", {}),
        ("Pow", ["centred", "two"], "square", {}),
        ("ReduceMean", ["square"], "variance", {"axes": [-1]}),
        ("Add", ["variance", "epsilon"], "more", {}),
        ("Sqrt", ["more"], "root", {}),
        ("Div", ["centred", "root"], "normed", {}),
        ("Cast", ["normed"], "narrow", {"to": TensorProto.FLOAT16}),
        ("Mul", ["narrow", "scale"], "scaled", {}),
        (last, ["scaled", "shift"], "y", {}),
    ]
    held = {"two": np.float32(2), "epsilon": np.float32(1e-5), "scale": SCALE, "shift": SHIFT}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [out], name=out, **attributes) for op, inputs, out, attributes in steps],
        "g",
        [value("x", TensorProto.FLOAT16, [1, "t", WIDTH])],
        [value("y", TensorProto.FLOAT16, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("thorough", [True, False])
def test_a_norm_between_casts_is_run_as_it_is_written(thorough: bool) -> None:
    x = DRAWN.standard_normal((1, 3, WIDTH)).astype(np.float16)
    got = open_session(norm(), device="cpu", thorough=thorough).run({"x": x})["y"]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(norm(), options, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(got, session.run(None, {"x": x})[0])
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * SCALE + SHIFT
    np.testing.assert_allclose(got, want, atol=0.02)


def test_what_does_not_load_either_way_is_told() -> None:
    with pytest.raises(ModelError, match=r"cannot load the model: .*Nonesuch"):
        open_session(norm("Nonesuch"), device="cpu")
