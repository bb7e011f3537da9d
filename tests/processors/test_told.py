"""Saturation and layouts for another processor, as commands tell of them; and what saturation costs, against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnxruntime.quantization import quantize_dynamic

import attnx as package
from attnx.run.exact import variant
from tests import small_models
from tests.cli.conftest import Run, attnx
from tests.integers import can_saturate, exact, saturated, saturates
from tests.processors.made import NEW, OLD
from tests.processors.test_kernels import laid_out

__all__ = ["attnx"]
ZOO = Path(__file__).parents[1] / "zoo"
INT8, FLOAT = (ZOO / name / "model.onnx" for name in ("int8-dynamic-ts17", "eager-ts17"))
FEED = str(ZOO / "eager-ts17" / "inputs.npz")
SAID = "integer products that can saturate in 16 bits on this processor (uint8 x int8 without VNNI): 6 MatMulInteger"
COMMANDS = [
    ("sites", "{}"), ("trace", "{}", "--inputs", FEED), ("trace", "{}", "--inputs", FEED, "--json"),
    ("inspect", "-m", "{}", "--inputs", FEED), ("inspect", "-m", "{}", "--inputs", FEED, "--json"),
    ("diff", "{}", "{}", "--inputs", FEED), ("diff", "{}", str(FLOAT), "--inputs", FEED, "--json"),
]  # fmt: skip


def on(processor: object, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("attnx.session.processor.here", lambda: processor)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command[0]}{' --json' * ('--json' in command)}")
def test_commands_say_it_once(command: tuple[str, ...], attnx: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    on(OLD, monkeypatch)
    done = attnx(*(word.format(INT8) for word in command))
    said = done.err if "--json" in command else done.err + done.out
    assert " ".join(said.split()).count(SAID) == 1
    if "--json" in command and command[0] != "diff":
        assert sum(SAID in note for note in done.document["notes"]) == 1
    assert SAID not in " ".join(attnx(*(word.format(FLOAT) for word in command)).err.split()) or command[0] == "diff"
    on(NEW, monkeypatch)
    done = attnx(*(word.format(INT8) for word in command))
    assert "saturate" not in done.err + done.out


def test_both_files_of_an_encoder_decoder_are_told_of(
    attnx: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(OLD, monkeypatch)
    w = small_models.weights()
    files = {"encoder_model": small_models.encoder(w), "decoder_model": small_models.cross_decoder(w, cached=False)}
    place = small_models.save(tmp_path / "m", config={"decoder_start_token_id": 5}, **files)
    counts = []
    for name in files:
        (file,) = place.rglob(f"{name}.onnx")
        quantize_dynamic(file, file)
        graph = onnx.load(file).graph
        held = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        counts.append(sum(n.op_type == "MatMulInteger" and can_saturate(held[n.input[1]]) for n in graph.node))
    said = [SAID.replace("6 Mat", f"{count} Mat") for count in counts]
    for command in (("sites",), ("trace", "--ids", "4,9,2", "--generate", "2")):
        done = attnx(command[0], str(place), *command[1:], "--json")
        assert [" ".join(done.err.split()).count(one) for one in said] == [1, 1], done.err


@pytest.mark.parametrize("block", [8, 16])
def test_sites_say_it_of_layouts(block: int, attnx: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(laid_out(24, 20), tmp_path / "m.onnx")  # three blocks of 8; two of 16 would be 32
    on(type(OLD)("", (), saturates=False, block=block), monkeypatch)
    said = attnx("sites", str(tmp_path / "m.onnx")).err
    assert ("3 nodes hold weights that onnxruntime laid out in blocks of 8 channels" in said) is (block == 16)


def test_doctor_names_the_processor(attnx: Run) -> None:
    found = {f["name"]: f for f in attnx("doctor", "--json").document["findings"] if f["part"] == "processor"}
    assert list(found) == ["name", "instructions", "uint8 x int8", "own layouts"]
    assert found["uint8 x int8"]["said"].startswith("saturates" if saturates() else "exact")


class Kernel(OpRun):
    """MatMulInteger as a processor without VNNI multiplies."""

    op_domain = ""

    def _run(self, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> tuple[np.ndarray]:
        assert not np.any(b_zero)
        return (saturated(a, b) - np.int32(a_zero) * b.astype(np.int32).sum(0, dtype=np.int32),)


Kernel.__name__ = "MatMulInteger"


def by_numpy(product: object) -> list[np.ndarray]:
    """The output and the two weights of the int8 file, by ONNX's own evaluator with one kind of product."""
    model = onnx.load(INT8)
    model.opset_import[0].version = 19
    weights = [node.output[0] for node in model.graph.node if node.op_type == "Softmax"]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in weights)
    own = [] if product is exact else [Kernel]
    return ReferenceEvaluator(model, new_ops=own).run(None, dict(np.load(FEED)))


def test_what_saturation_costs(attnx: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor that saturates it is numpy's difference; on one that is only said to, there is none."""
    on(OLD, monkeypatch)
    got = attnx("diff", str(INT8), str(FLOAT), "--inputs", FEED, "--json").document["saturation"]
    (cost,) = got
    assert (cost["model"], cost["fused"]) == (str(INT8), False)
    output, *weights = by_numpy(exact)
    kernel, *theirs = by_numpy(saturated if saturates() else exact)
    ((name, off, size),) = [(o["name"], o["difference"], o["size"]) for o in cost["outputs"]]
    assert name == onnx.load(INT8).graph.output[0].name
    assert size == pytest.approx(np.abs(output).max(), rel=1e-5)
    assert off == pytest.approx(np.abs(kernel - output).max(), abs=1e-4)
    largest = next(m for m in cost["heads"] if m["name"] == "largest difference")
    want = [np.abs(a[0] - b[0]).max((1, 2)) for a, b in zip(theirs, weights, strict=True)]
    np.testing.assert_allclose(np.array(largest["values"]), want, atol=1e-4)
    text = " ".join(attnx("diff", str(INT8), str(FLOAT), "--inputs", FEED).out.split())
    assert "what saturation costs" in text
    assert f"own output {name}: " in text
    on(NEW, monkeypatch)
    assert attnx("diff", str(INT8), str(FLOAT), "--inputs", FEED, "--json").document["saturation"] == []


def test_numpys_saturation_moves_this_file() -> None:
    """Or the test above would show nothing where the processor saturates."""
    (exactly, *_), (saturating, *_) = by_numpy(exact), by_numpy(saturated)
    assert np.abs(exactly - saturating).max() > 0.5


def test_an_exact_model_is_exact_everywhere() -> None:
    feed = dict(np.load(FEED))
    model = variant(package.open(INT8, device="cpu"), exact=True)
    found = model.trace(inputs=feed, outputs=True, verify_outputs=True)
    output, *weights = by_numpy(exact)
    for attention, want in zip(found.attentions, weights, strict=True):
        np.testing.assert_allclose(attention.need("weights"), want, atol=1e-5)
    np.testing.assert_allclose(next(iter(found.outputs.values())), output, atol=1e-4)
