"""Loops over layers, unrolled: each step's attention is a site, and the model gives what it gave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import attnx
from attnx.sites.recognise import find
from attnx.taps.tap import tap

RNG = np.random.default_rng(5)
STEPS, B, S, D = 3, 2, 4, 6
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
WEIGHTS = (RNG.standard_normal((STEPS, 3, D, D)) / 2).astype(np.float32)


def layer(names: tuple[str, str, str]) -> list[onnx.NodeProto]:
    """A residual layer of one head: "h" and three weights -> "out", "weights"."""
    nodes = [helper.make_node("MatMul", ["h", w], [f"{w}h"]) for w in names]
    q, k, v = (f"{w}h" for w in names)
    return [
        *nodes,
        helper.make_node("Transpose", [k], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", [q, "kt"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["weights"], name="Softmax", axis=-1),
        helper.make_node("MatMul", ["weights", v], ["context"]),
        helper.make_node("Add", ["h", "context"], ["out"]),
    ]


def info(name: str, kind: int = FLOAT, shape: list[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], **tensors: np.ndarray) -> onnx.ModelProto:
    held = [numpy_helper.from_array(np.asarray(v), n) for n, v in tensors.items()]
    outputs = [info("y", FLOAT, [B, S, D]), info("all", FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = info("x", FLOAT, [B, S, D])
SCALE = np.float32(D**-0.5)


def scanned(backward: bool) -> onnx.ModelProto:
    """Scan: a slice of stacked weights a step."""
    names = ("wq", "wk", "wv")
    body = helper.make_graph(
        layer(names), "body", [info("h"), *(info(n) for n in names)], [info("out"), info("weights")]
    )
    node = helper.make_node(
        "Scan", ["x", "Wq", "Wk", "Wv"], ["y", "all"], name="layers", body=body, num_scan_inputs=3,
        scan_input_directions=[int(backward)] * 3, scan_output_directions=[int(backward)],
    )  # fmt: skip
    stacked = {n: np.ascontiguousarray(WEIGHTS[:, i]) for i, n in enumerate(("Wq", "Wk", "Wv"))}
    return model([node], [X], scale=SCALE, **stacked)


def looped(steps: str | None) -> onnx.ModelProto:
    """Loop: the iteration picks the weights; `steps` is where the number of steps comes from."""
    picked = [
        helper.make_node("Gather", ["W", "i"], ["w"], axis=0),
        helper.make_node("Split", ["w"], ["a", "b", "c"], axis=0),
        *(helper.make_node("Squeeze", [s, "zero"], [w]) for s, w in (("a", "wq"), ("b", "wk"), ("c", "wv"))),
        *layer(("wq", "wk", "wv")),
        helper.make_node("Identity", ["go"], ["goes"]),
    ]
    inner = [numpy_helper.from_array(np.array([0], np.int64), "zero")]
    body = helper.make_graph(
        picked, "body", [info("i", INT, []), info("go", BOOL, []), info("h")],
        [info("goes", BOOL, []), info("out"), info("weights")], inner,
    )  # fmt: skip
    node = helper.make_node("Loop", [steps or "count", "", "x"], ["y", "all"], name="layers", body=body)
    inputs = [X] if steps is None else [X, info(steps, INT, [])]
    return model([node], inputs, scale=SCALE, W=WEIGHTS, count=np.array(STEPS, np.int64))


def oracle(x: np.ndarray, order: range) -> list[np.ndarray]:
    found = []
    for step in order:
        q, k, v = (x @ w for w in WEIGHTS[step])
        e = np.exp(q @ k.swapaxes(1, 2) * SCALE)
        found.append(e / e.sum(-1, keepdims=True))
        x = x + found[-1] @ v
    return found


@pytest.mark.parametrize(
    ("made", "order"),
    [(scanned(False), range(STEPS)), (scanned(True), range(STEPS - 1, -1, -1)), (looped(None), range(STEPS))],
    ids=["scan", "scan backward", "loop"],
)
def test_each_step_is_a_layer(made: onnx.ModelProto, order: range, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    x = RNG.standard_normal((B, S, D)).astype(np.float32)
    run = attnx.open(path, device="cpu").trace(inputs={"x": x}, verify_outputs=True)
    assert [(a.site.layer, a.site.kind, a.site.component) for a in run.attentions] == [
        (i, "self", "encoder") for i in range(STEPS)
    ]
    assert not run.misses
    for attention, want in zip(run.attentions, oracle(x, order), strict=True):
        assert attention.trusted
        assert attention.weights is not None
        assert np.allclose(attention.weights[:, 0], want, atol=1e-5)
        assert attention.site.scale == pytest.approx(float(SCALE))
    cpu = ["CPUExecutionProvider"]
    own = onnxruntime.InferenceSession(path, providers=cpu).run(None, {"x": x})
    tapped = tap(find(path), {})
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tapped.folder))
    unrolled = onnxruntime.InferenceSession(tapped.model, options, providers=cpu).run(["y", "all"], {"x": x})
    for got, array in zip(unrolled, own, strict=True):
        assert np.allclose(got, array, atol=1e-5)


def test_a_loop_of_unknown_length_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(looped("steps"), path)
    found = attnx.open(path, device="cpu").find()
    assert not found.sites
    (miss,) = found.misses
    assert (miss.op, miss.node) == ("Loop", "layers")
    assert "as often as Loop says" in miss.reason


def test_a_loop_of_too_many_steps_stays_a_loop(tmp_path: Path) -> None:
    made = looped(None)
    next(t for t in made.graph.initializer if t.name == "count").CopyFrom(
        numpy_helper.from_array(np.array(10**9, np.int64), "count")
    )
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    found = attnx.open(path, device="cpu").find()
    assert not found.sites
    assert [m.op for m in found.misses] == ["Loop"]
