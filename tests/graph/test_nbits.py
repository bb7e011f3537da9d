"""Weights packed in a few bits: their numbers against onnxruntime's own product with the identity."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnx.graph.axes.nbits import packed_numbers
from attnx.graph.axes.projections import output_weights, projections
from attnx.sites.recognise import find
from tests.graph.test_projections import D, E, H, Q, graph

RNG = np.random.default_rng(6)


def packed(rows: int, columns: int, bits: int, block: int, zero: str) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Inputs and attributes of a MatMulNBits with random bytes."""
    blocks = -(-rows // block)
    held = RNG.integers(0, 256, (columns, blocks, block * bits // 8), np.uint8)
    arrays = {"bytes": held, "scales": RNG.uniform(0.5, 2, (columns, blocks)).astype(np.float32)}
    if zero == "packed":
        arrays["zeros"] = RNG.integers(0, 256, (columns, -(-blocks * bits // 8)), np.uint8)
    if zero == "float":
        arrays["zeros"] = RNG.uniform(0, 9, (columns, blocks)).astype(np.float32)
    return arrays, {"K": rows, "N": columns, "bits": bits, "block_size": block}


@pytest.mark.parametrize(
    ("rows", "bits", "zero"),
    [(32, 4, ""), (40, 4, "packed"), (64, 4, "float"), (32, 8, ""), (48, 8, "packed"), (16, 4, "packed")],
)
def test_numbers_are_those_that_onnxruntime_multiplies_with(tmp_path: Path, rows: int, bits: int, zero: str) -> None:
    arrays, attributes = packed(rows, 5, bits, 16, zero)
    node = helper.make_node("MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", **attributes)
    model = helper.make_model(
        helper.make_graph(
            [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, rows])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in arrays.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8,
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": np.eye(rows, dtype=np.float32)})
    got = packed_numbers(find(tmp_path / "m.onnx").opened, node)
    assert got is not None
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_projections_in_four_bits(tmp_path: Path) -> None:
    path, _ = graph(tmp_path)
    model = onnx.load(path)
    node: Any = next(n for n in model.graph.node if "w_o" in n.input)
    arrays, attributes = packed(H * D, E, 4, 16, "packed")
    made = helper.make_node(
        "MatMulNBits", [node.input[0], *arrays], list(node.output), domain="com.microsoft", **attributes
    )
    node.CopyFrom(made)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)
    found = find(path)
    output = projections(found.opened, found.sites[0]).output
    assert output is not None
    assert (output.weight, output.rows, output.columns) == ("bytes", H * D, E)
    weights = output_weights(found.opened, found.sites[0])
    assert weights is not None
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    y, z = session.run(["y", "z"], {"x": RNG.standard_normal((1, Q, E)).astype(np.float32)})
    np.testing.assert_allclose(np.einsum("hqd,hde->qe", z[0], weights), y.reshape(Q, E), atol=1e-3)
