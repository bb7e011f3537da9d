"""The projections around a site, however they are written; W_O's numbers against the graph's own result."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

from attnx.graph.axes.dequantise import floats
from attnx.graph.axes.parameters import parameters
from attnx.graph.axes.projections import output_weights, projections
from attnx.sites.recognise import find
from tests import small_models as small
from tests.cli.analysed import MINILM

RNG = np.random.default_rng(3)
Q, H, D, E = 5, 3, 4, 6
"""Tokens, heads, head size, width: all different, so that no axis can be taken for another."""


def graph(tmp_path: Path, *, packed: bool = False, order: str = "hd", gemm: bool = False, bias: bool = True,
          cast: bool = False, norm: bool = False) -> tuple[Path, dict[str, np.ndarray]]:  # fmt: skip
    """One attention over x [1,Q,E], its pieces written as asked."""
    kind = np.float16 if cast else np.float32
    w = {n: RNG.standard_normal((E, H * D)).astype(kind) for n in "qkv"}
    w["o"] = RNG.standard_normal((H * D, E)).astype(kind)
    nodes, constants = [], {}

    def const(name: str, value: np.ndarray) -> str:
        constants[name] = numpy_helper.from_array(value, name)
        return name

    def op(kind_: str, *inputs: str, **attributes: object) -> str:
        out = f"{kind_}_{len(nodes)}"
        nodes.append(helper.make_node(kind_, list(inputs), [out], name=out, **attributes))
        return out

    def weight(name: str, value: np.ndarray) -> str:
        const(name, value)
        return op("Cast", name, to=1) if cast else name

    def heads(x: str) -> str:
        return op("Transpose", op("Reshape", x, const("split", np.array([0, 0, H, D]))), perm=[0, 2, 1, 3])

    if packed:
        whole = op("MatMul", "x", weight("w_qkv", np.concatenate([w[n] for n in "qkv"], 1)))
        parts = [f"part_{n}" for n in "qkv"]
        nodes.append(helper.make_node("Split", [whole, const("sizes", np.array([H * D] * 3))], parts, axis=-1))
    else:
        parts = [op("MatMul", "x", weight(f"w_{n}", w[n])) for n in "qkv"]
    if bias:
        parts = [
            op("Add", p, const(f"b{n}", RNG.standard_normal(H * D).astype(np.float32))) for n, p in enumerate(parts)
        ]
    q, k, v = (heads(p) for p in parts)
    if norm:
        q = op("LayerNormalization", q, const("scale", np.ones(D, np.float32)), axis=-1)
    scores = op("MatMul", q, op("Transpose", k, perm=[0, 1, 3, 2]))
    share = op("Softmax", op("Div", scores, const("root", np.array(2.0, np.float32))), axis=-1)
    context = op("MatMul", share, v)
    flat = op("Reshape", op("Transpose", context, perm=[0, 2, 1, 3] if order == "hd" else [0, 2, 3, 1]),
              const("merge", np.array([0, 0, H * D])))  # fmt: skip
    if gemm:
        flat = op("Reshape", flat, const("rows", np.array([-1, H * D])))
        out = op("Gemm", flat, weight("w_o", np.ascontiguousarray(w["o"].T)), transB=1)
    else:
        out = op("MatMul", flat, weight("w_o", w["o"]))
    nodes.append(helper.make_node("Identity", [out], ["y"]))
    nodes.append(helper.make_node("Identity", [context], ["z"]))
    made = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, Q, E])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yz"],
        list(constants.values()),
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path, w


@pytest.mark.parametrize("form", [
    {}, {"packed": True}, {"gemm": True}, {"bias": False}, {"cast": True}, {"norm": True},
    {"packed": True, "gemm": True, "cast": True},
], ids=str)  # fmt: skip
def test_shapes_and_what_the_output_projection_makes(tmp_path: Path, form: dict[str, bool]) -> None:
    path, _ = graph(tmp_path, **form)  # type: ignore[arg-type]
    found = find(path)
    (site,) = found.sites
    got = projections(found.opened, site)
    columns = H * D * (3 if form.get("packed") else 1)
    for one in (got.query, got.key, got.value):
        assert one is not None
        assert (one.rows, one.columns, one.packed) == (E, columns, bool(form.get("packed")))
        assert one.source == "x"
    assert got.output is not None
    assert (got.output.rows, got.output.columns, got.output.weight) == (H * D, E, "w_o")
    weights = output_weights(found.opened, site)
    assert weights is not None
    assert weights.shape == (H, D, E)
    x = RNG.standard_normal((1, Q, E)).astype(np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    y, z = session.run(["y", "z"], {"x": x})
    np.testing.assert_allclose(np.einsum("hqd,hde->qe", z[0], weights), y.reshape(Q, E), atol=1e-4)


def test_an_output_projection_that_reads_heads_in_another_order_is_not_sure(tmp_path: Path) -> None:
    path, _ = graph(tmp_path, order="dh")
    found = find(path)
    got = projections(found.opened, found.sites[0])
    assert got.output is None
    assert output_weights(found.opened, found.sites[0]) is None
    assert got.query is not None


def test_quantised_weights_have_a_shape_and_the_numbers_that_the_graph_makes_of_them(tmp_path: Path) -> None:
    path, w = graph(tmp_path)
    model = onnx.load(path)
    scale = float(np.abs(w["o"]).max() / 127)
    small_o = np.round(w["o"] / scale).astype(np.int8)
    tensors = [t for t in model.graph.initializer if t.name != "w_o"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(tensors)
    model.graph.initializer.extend([
        numpy_helper.from_array(small_o, "w_int"), numpy_helper.from_array(np.float32(scale), "w_scale"),
    ])  # fmt: skip
    model.graph.node.insert(0, helper.make_node("DequantizeLinear", ["w_int", "w_scale"], ["w_o"]))
    onnx.save(model, path)
    found = find(path)
    got = projections(found.opened, found.sites[0])
    assert got.output is not None
    assert (got.output.weight, got.output.rows) == ("w_int", H * D)
    weights = output_weights(found.opened, found.sites[0])
    assert weights is not None
    np.testing.assert_allclose(weights.reshape(H * D, E), small_o * np.float32(scale), rtol=1e-6)


def test_weights_brought_back_to_floats_by_arithmetic(tmp_path: Path) -> None:
    path, w = graph(tmp_path)
    model = onnx.load(path)
    scale = np.abs(w["o"]).max(0) / 100
    held = (np.round(w["o"] / scale) + 128).astype(np.uint8)
    tensors = [t for t in model.graph.initializer if t.name != "w_o"]
    del model.graph.initializer[:]
    parts = {"w_int": held, "w_zero": np.float32(128), "w_scale": scale.astype(np.float32)}
    model.graph.initializer.extend([*tensors, *(numpy_helper.from_array(np.asarray(a), n) for n, a in parts.items())])
    steps = [("Cast", ["w_int"], "w_f", {"to": 1}), ("Sub", ["w_f", "w_zero"], "w_c", {})]
    steps.append(("Mul", ["w_c", "w_scale"], "w_o", {}))
    for at, (kind, inputs, out, attributes) in enumerate(steps):
        model.graph.node.insert(at, helper.make_node(kind, inputs, [out], **attributes))
    onnx.save(model, path)
    found = find(path)
    output = projections(found.opened, found.sites[0]).output
    assert output is not None
    assert (output.weight, output.rows, output.columns) == ("w_int", H * D, E)
    weights = output_weights(found.opened, found.sites[0])
    assert weights is not None
    np.testing.assert_allclose(weights.reshape(H * D, E), (held - 128.0) * scale, rtol=1e-5)


@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_of_dynamic_quantisation(tmp_path: Path, per_channel: bool) -> None:
    path, w = graph(tmp_path)
    int8 = tmp_path / "int8.onnx"
    quantize_dynamic(path, int8, per_channel=per_channel)
    assert "MatMulInteger" in {node.op_type for node in onnx.load(int8).graph.node}
    found = find(int8)
    weights = output_weights(found.opened, found.sites[0])
    assert weights is not None
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(int8).graph.initializer}
    whole = held["w_o_quantized"].astype(np.float32) - held["w_o_zero_point"].astype(np.float32)
    np.testing.assert_allclose(weights.reshape(H * D, E), whole * held["w_o_scale"], rtol=1e-6)
    np.testing.assert_allclose(weights.reshape(H * D, E), w["o"], atol=0.02)


@pytest.mark.parametrize(
    ("scale", "zero", "axis", "block"),
    [
        (np.float32(0.5), None, 1, 0),
        (np.array([0.5], np.float32), np.array([3], np.uint8), 0, 0),
        (np.array([0.5, 2, 1], np.float32), None, 1, 0),
        (np.array([0.5, 2, 1, 4], np.float32), np.array([1, 2, 3, 4], np.uint8), 0, 0),
        (np.arange(1, 7, dtype=np.float32).reshape(2, 3), np.arange(6, dtype=np.uint8).reshape(2, 3), 0, 2),
    ],
)  # fmt: skip
def test_floats_are_those_of_dequantize_linear(scale: np.ndarray, zero: np.ndarray, axis: int, block: int) -> None:
    values = RNG.integers(0, 255, (4, 3), np.uint8)
    parts = {"x": values, "s": scale, **({} if zero is None else {"z": zero})}
    given = [numpy_helper.from_array(np.asarray(array), name) for name, array in parts.items()]
    attributes = {"axis": axis, "block_size": block} if block else {"axis": axis}
    node = helper.make_node("DequantizeLinear", [t.name for t in given], ["y"], **attributes)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "g", [], [out], given), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    (want,) = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {})
    np.testing.assert_array_equal(floats(values, np.asarray(scale), zero, axis, block), want)


def test_scales_that_do_not_fit_give_no_numbers() -> None:
    assert floats(np.zeros((4, 3), np.int8), np.ones(2, np.float32), None, 1) is None
    assert floats(np.zeros((4, 3), np.int8), np.ones((1, 3), np.float32), None, 0, 2) is None


def test_nothing_is_found_where_there_is_nothing(tmp_path: Path) -> None:
    path, _ = graph(tmp_path)
    found = find(path)
    bare = dataclasses.replace(found.sites[0], places={})
    got = projections(found.opened, bare)
    assert (got.query, got.key, got.value, got.output) == (None,) * 4


def test_parameters(tmp_path: Path) -> None:
    path, _ = graph(tmp_path)
    assert parameters(find(path).opened) == 4 * E * H * D
    assert parameters(find(MINILM / "model.onnx").opened) == 6 * (4 * 384 * 384 + 2 * 384 * 1536)
    w = small.weights()
    small.save(tmp_path / "d", model=small.plain_decoder(w))
    decoder = find(tmp_path / "d" / "model.onnx").opened
    assert parameters(decoder) == small.LAYERS * 4 * small.WIDTH**2  # neither embeddings nor the head


def test_every_site_of_the_bundled_model() -> None:
    found = find(MINILM / "model.onnx")
    for site in found.sites:
        got = projections(found.opened, site)
        at = f"encoder.layer.{site.layer}.attention"
        names = [one.weight if one else None for one in (got.query, got.key, got.value, got.output)]
        want = [f"{at}.self.{n}.weight" for n in ("query", "key", "value")]
        assert names == [*want, f"{at}.output.dense.weight"]
