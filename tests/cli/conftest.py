"""A command line run in this process, and the bundled model's numbers by onnxruntime alone, without attnx."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from tokenizers import Tokenizer

from attnx.cli import app as cli
from tests.schemas import validate

MINILM = Path(__file__).parents[2] / "models" / "minilm"
ANIMAL = "The animal didn't cross the street because it was too tired."
BANK = "The defenestrated bank refused."


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document, held to the schema that ships."""
        found: dict[str, Any] = json.loads(self.out)
        validate(found)
        return found


Run = Callable[..., Done]


@pytest.fixture
def attnx(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run `attnx ARGS` in an empty folder, 80 columns wide; the exit code must be 0 unless another is expected."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def run(*args: str, code: int = 0) -> Done:
        capsys.readouterr()
        got = cli.run([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert got == code, err
        assert "\x1b" not in out + err
        return Done(got, out, err)

    return run


@dataclass(frozen=True)
class Oracle:
    pieces: list[str]
    scores: np.ndarray
    """[layer,H,Q,K]."""
    weights: np.ndarray


@pytest.fixture(scope="session")
def oracle() -> Callable[[str], Oracle]:
    """Scores and weights of the bundled model, tapped by hand at nodes that its own build script names."""
    model = onnx.load(MINILM / "model.onnx")
    nodes = {node.name: node for node in model.graph.node}
    taps = [
        nodes[f"/encoder/layer.{layer}/attention/self/{op}"].output[0]
        for op in ("MatMul", "Softmax")
        for layer in range(6)
    ]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in taps)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def run(text: str) -> Oracle:
        encoded = tokenizer.encode(text)
        ids = np.array([encoded.ids], np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        values = np.stack(session.run(taps, feed))[:, 0]
        return Oracle(encoded.tokens, values[:6], values[6:])

    return run
