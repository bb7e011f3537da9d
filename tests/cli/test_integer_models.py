"""Experiments on models whose products are in int8 or 4 bits: numbers that hold, or a reason; never a traceback."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

from tests.cli.conftest import Run
from tests.interventions import models

IDS, OTHER = "3,1,4,1,5,9,2", "3,1,7,1,5,9,2"
COMMANDS = [
    ["lens"], ["attribute"], ["patch", "--other-ids", OTHER], ["patch", "--other-ids", OTHER, "--what", "residual"],
    ["patch", "--other-ids", OTHER, "--to", "1.2"], ["ablate"],
]  # fmt: skip


@pytest.fixture(scope="module", params=["int8", "4 bits"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("integers")
    kind = models.KINDS["pre"]
    plain, path = models.build(kind, models.weights(kind), folder), folder / "integers.onnx"
    if request.param == "int8":
        quantize_dynamic(plain, path)
        return path
    in_four_bits(plain, path)
    return path


def in_four_bits(source: Path, target: Path, block: int = 16) -> None:
    """Every product with a weight as MatMulNBits: a scale for each 16 rows of a column, 8 for zero."""
    model = onnx.load(source)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            continue
        w = weights[node.input[1]]
        rows, columns = w.shape
        blocks = -(-rows // block)
        padded = np.zeros((blocks * block, columns), np.float32)
        padded[:rows] = w
        parts = padded.T.reshape(columns, blocks, block)
        scales = np.abs(parts).max(-1) / 7
        whole = (np.round(parts / scales[..., None]) + 8).astype(np.uint8)
        arrays = {f"{node.name}/bytes": whole[..., ::2] | (whole[..., 1::2] << 4), f"{node.name}/scales": scales}
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
        made = helper.make_node(
            "MatMulNBits", [node.input[0], *arrays], list(node.output), name=node.name, domain="com.microsoft",
            K=rows, N=columns, bits=4, block_size=block,
        )  # fmt: skip
        node.CopyFrom(made)
    onnx.save(model, target)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_result_or_a_reason(command: list[str], file: Path, attnx: Run) -> None:
    got = attnx(*command, "-m", str(file), "--ids", IDS, "--json").document
    assert got["schema"] == f"attnx/{command[0]}"
    ids = np.array([[int(n) for n in IDS.split(",")]], np.int64)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    logits = session.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][0, -1].astype(float)
    shares = np.exp(logits) / np.exp(logits).sum()
    if command[0] == "lens":
        assert got["probability"]["values"][-1][0] == pytest.approx(shares.max(), abs=0.02)
    elif command[0] == "attribute":
        assert sum(part["added"] for part in got["parts"]) == pytest.approx(logits.max(), abs=0.1)
    elif "residual" in command:  # the stream behind the last layer is all that the answer is made of
        assert got["effects"][-1]["share"] == pytest.approx(1, abs=0.05)
    elif command[0] == "patch":
        assert all(one["share"] is not None for one in got["effects"])
    else:
        assert next(iter(got["unedited"]["scores"].values())) == pytest.approx(shares.max(), abs=0.02)
