"""Ids and positions beyond the model's tables are told before anything runs, with the token and its place."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import attnx
from attnx.cli import app as cli
from attnx.errors import InputError
from attnx.session.ort import Session

MODELS = Path(__file__).parents[1] / "models"
ROWS = 20


def model(nodes: list[NodeProto], tables: dict[str, np.ndarray], opset: int = 17) -> onnx.ModelProto:
    """Embedded ids (a value "x") that attend to one another."""
    nodes = [
        *nodes,
        helper.make_node("Transpose", ["x"], ["xt"], perm=[0, 2, 1], name="turn"),
        helper.make_node("MatMul", ["x", "xt"], ["scores"], name="qk"),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1, name="soft"),
        helper.make_node("MatMul", ["weights", "x"], ["y"], name="pv"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in tables.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


TABLE = np.random.default_rng(0).standard_normal((ROWS, 8)).astype(np.float32)
GATHER = helper.make_node("Gather", ["table", "input_ids"], ["x"], name="embed")
FORMS = {
    "plain": ([GATHER], {"table": TABLE}),
    "cast first": (
        [
            helper.make_node("Cast", ["input_ids"], ["small"], to=6, name="cast"),
            helper.make_node("Gather", ["table", "small"], ["x"], name="embed"),
        ],
        {"table": TABLE},
    ),
    "flat, then in shape again": (
        [
            helper.make_node("Shape", ["input_ids"], ["shape"], name="s"),
            helper.make_node("Concat", ["shape", "width"], ["target"], axis=0, name="c"),
            helper.make_node("Reshape", ["input_ids", "row"], ["flat"], name="r"),
            helper.make_node("Gather", ["table", "flat"], ["flatx"], name="embed"),
            helper.make_node("Reshape", ["flatx", "target"], ["x"], name="back"),
        ],
        {"table": TABLE, "row": np.array([-1]), "width": np.array([8])},
    ),
    "quantised table": (
        [
            helper.make_node("DequantizeLinear", ["q", "scale"], ["table"], name="dq"),
            GATHER,
        ],
        {"q": np.arange(ROWS * 8, dtype=np.uint8).reshape(ROWS, 8), "scale": np.float32(0.1)},
    ),
    "half table": (
        [helper.make_node("Cast", ["half"], ["table"], to=1, name="cast"), GATHER],
        {"half": TABLE.astype(np.float16)},
    ),
    "along the second axis": (
        [
            helper.make_node("Gather", ["turned", "input_ids"], ["wide"], axis=1, name="embed"),
            helper.make_node("Transpose", ["wide"], ["x"], perm=[1, 2, 0], name="t"),
        ],
        {"turned": np.ascontiguousarray(TABLE.T)},
    ),
    "fused": (
        [
            helper.make_node("Cast", ["input_ids"], ["small"], to=6, name="cast"),
            helper.make_node(
                "EmbedLayerNormalization", ["small", "", "table", "places", "", "gamma", "beta"], ["x", "mask"],
                domain="com.microsoft", name="embed", epsilon=1e-5,
            ),
        ],
        {"table": TABLE, "places": TABLE, "gamma": np.ones(8, np.float32), "beta": np.zeros(8, np.float32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_tables_size_is_read_off_the_graph(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(model(*FORMS[form]), tmp_path / "m.onnx")
    opened = attnx.open(tmp_path / "m.onnx", device="cpu")
    assert dict(opened.find().rows) == {"input_ids": ROWS}
    (attention,) = opened.trace(inputs={"input_ids": np.array([[0, ROWS - 1, 3]])}).attentions  # the last one is there
    assert attention.need("weights").shape[-1] == 3
    monkeypatch.setattr(Session, "run", lambda *_, **__: pytest.fail("it was run"))
    for number in (ROWS, 10**9, -ROWS - 1):
        with pytest.raises(InputError, match=re.escape(f"token id {number} at position 1 is beyond")):
            opened.trace(inputs={"input_ids": np.array([[0, number, 3]])})


def test_what_changes_numbers_is_not_followed(tmp_path: Path) -> None:
    """Numbers that are clipped before the table is asked are never beyond it."""
    nodes = [
        helper.make_node("Min", ["input_ids", "most"], ["inside"], name="min"),
        helper.make_node("Gather", ["table", "inside"], ["x"], name="embed"),
    ]
    onnx.save(model(nodes, {"table": TABLE, "most": np.array(ROWS - 1)}), tmp_path / "m.onnx")
    opened = attnx.open(tmp_path / "m.onnx", device="cpu")
    assert dict(opened.find().rows) == {}
    opened.trace(inputs={"input_ids": np.array([[0, 999, 3]])})


def test_the_smallest_table_counts(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["one"], name="embed"),
        helper.make_node("Gather", ["short", "input_ids"], ["other"], name="more"),
        helper.make_node("Add", ["one", "other"], ["x"], name="add"),
    ]
    onnx.save(model(nodes, {"table": TABLE, "short": TABLE[:7]}), tmp_path / "m.onnx")
    assert dict(attnx.open(tmp_path / "m.onnx").find().rows) == {"input_ids": 7}


@pytest.mark.parametrize(
    "line",
    [
        ["inspect", "{}"], ["inspect", "{}", "--layer", "0"], ["inspect", "{}", "-q", "cat"], ["heads", "{}"],
        ["scale", "{}"], ["qkv", "{}"], ["mask", "{}"], ["flow", "{}"], ["report", "{}"], ["coref", "{} it"],
        ["word", "{}", "{}", "--word", "cat"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_tokenizer_of_another_model(
    line: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = [part.format("the cat sat on the mat") for part in line]
    code = cli.run([*args, "-m", "tiny-gpt", "--tokenizer", str(MODELS / "minilm")])
    out, err = capsys.readouterr()
    assert code == 4, err
    assert "token id 4937 ('cat') at position 2 is beyond the model's vocabulary of 2048" in err
    assert "--tokenizer" in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_segments_and_positions(capsys: pytest.CaptureFixture[str]) -> None:
    opened = attnx.open("minilm")
    assert dict(opened.find().rows) == {"input_ids": 30522, "token_type_ids": 2}
    with pytest.raises(InputError, match=r"input token_type_ids holds 2 at \[0, 1\], and the model has 2 entries"):
        opened.trace("it was", inputs={"token_type_ids": np.array([[0, 2, 0, 0]])})
