"""Layers that go on from a stored residual stream give what a run from the model's inputs gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import attnx
from attnx.interventions.cuts import cuts
from attnx.records import QUANTITIES, Trace
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.ort import Session
from attnx.session.protocol import OpenModel, Wanted
from attnx.study import onward, stretches
from attnx.study.stretches import Stretches
from tests.interventions import models

LAYERS = 4


def built(name: str, folder: Path) -> tuple[models.Kind, dict[str, np.ndarray], Path]:
    kind = replace(models.KINDS[name], layers=LAYERS)
    w = models.weights(kind)
    return kind, w, models.build(kind, w, folder)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every layer is a stretch of its own; what each run is fed beside the model's inputs."""
    monkeypatch.setattr(stretches, "ROOM", 1)
    fed: list[dict[str, Any]] = []
    own = Session.run

    def noted(self: Session, feed: Any, *rest: Any, **more: Any) -> Any:
        fed.append({name: np.copy(a) for name, a in feed.items() if name not in ("input_ids", "attention_mask")})
        return own(self, feed, *rest, **more)

    monkeypatch.setattr(Session, "run", noted)
    return fed


def apart(model: OpenModel, prompt: Prompt) -> list[Trace]:
    return list(Stretches(model, prompt, QUANTITIES).traces())


def off(one: Trace, parts: list[Trace]) -> float:
    """The largest difference of any array of any site; the same arrays must be there."""
    attentions = [a for part in parts for a in part.attentions]
    assert [a.site for a in attentions] == [a.site for a in one.attentions]
    largest = 0.0
    for a, b in zip(one.attentions, attentions, strict=True):
        assert a.origin == b.origin
        for quantity in QUANTITIES:
            left, right = getattr(a, quantity), getattr(b, quantity)
            assert (left is None) == (right is None)
            if left is not None:
                assert np.array_equal(np.isfinite(left), np.isfinite(right))
                there = np.isfinite(left)  # minus infinity less itself is no number
                largest = max(largest, float(np.abs(left[there] - right[there]).max(initial=0.0)))
    return largest


@pytest.mark.parametrize("name", models.KINDS)
def test_layers_from_a_stream_are_those_from_the_beginning(
    name: str, tmp_path: Path, begun: list[dict[str, Any]]
) -> None:
    """Bit for bit; onnxruntime's fused operators, and norms that it fuses otherwise in a part, to a last bit.

    The stream that is fed is what numpy computes there. Where a fused skip norm adds to the stream and norms it, no
    part begins between the two: today's way stays.
    """
    kind, w, path = built(name, tmp_path)
    feed = models.feeds(kind)[0]
    prompt = Prompt(inputs=feed)
    whole = execute(attnx.open(path, device="cpu"), prompt, Wanted(None, QUANTITIES))
    del begun[:]
    parts = apart(attnx.open(path, device="cpu"), prompt)
    assert off(whole, parts) <= (5e-6 if kind.fused or kind.written else 0.0)
    cut = "skip" not in kind.fused or kind.norm == "post"
    assert [len(fed) for fed in begun] == [0, *[int(cut)] * (LAYERS - 1)]
    record = models.recorded(kind, w, feed["input_ids"], feed["attention_mask"])
    for layer, fed in enumerate(begun[1:], 1):
        for stream in fed.values():
            np.testing.assert_allclose(stream, record["residual", layer - 1], atol=2e-4)
    for layer, part in enumerate(parts):
        assert all(check.holds for check in part.attentions[0].checks)
        np.testing.assert_allclose(part.attentions[0].need("weights"), record["weights", layer], atol=1e-4)


def test_streams_that_are_held_are_thinned_out(
    tmp_path: Path, begun: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for two, a layer that is run again goes on from the nearest in front of it; the newest is there."""
    _, _, path = built("pre", tmp_path)
    feed = models.feeds(models.KINDS["pre"])[0]
    monkeypatch.setattr(onward, "HELD", 2 * feed["input_ids"].size * models.WIDTH * 4)
    read = Stretches(attnx.open(path, device="cpu"), Prompt(inputs=feed), QUANTITIES)
    parts = [read.trace(part) for part in read.parts]
    assert [len(fed) for fed in begun] == [0, 1, 1, 1]
    again = [read.trace(part) for part in reversed(read.parts)]
    names = [next(iter(fed), None) for fed in begun]
    assert names[4:] == [names[3], names[1], names[1], None]
    for one, two in zip(parts, reversed(again), strict=True):
        assert off(one, [two]) == 0


def rounded(path: Path) -> Path:
    """The model with its first product of each layer in integers, whose scales depend on the data."""
    proto = onnx.load(path)
    nodes = list(proto.graph.node)
    weights = {t.name: t for t in proto.graph.initializer}
    for at, node in reversed(list(enumerate(nodes))):
        if node.op_type != "MatMul" or node.input[1] not in weights:
            continue
        array = onnx.numpy_helper.to_array(weights[node.input[1]])
        step = np.float32(np.abs(array).max() / 127)
        name = node.output[0]
        for tensor, end in ((np.rint(array / step).astype(np.int8), "w"), (step, "s"), (np.int8(0), "z")):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(tensor), f"{name}_{end}"))
        nodes[at : at + 1] = [
            helper.make_node("DynamicQuantizeLinear", [node.input[0]], [f"{name}_{end}" for end in ("x", "xs", "xz")]),
            helper.make_node("MatMulInteger", [f"{name}_x", f"{name}_w", f"{name}_xz", f"{name}_z"], [f"{name}_p"]),
            helper.make_node("Cast", [f"{name}_p"], [f"{name}_f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}_xs", f"{name}_s"], [f"{name}_both"]),
            helper.make_node("Mul", [f"{name}_f", f"{name}_both"], [name]),
        ]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    onnx.save(proto, path)
    return path


def test_what_rounds_is_not_cut(tmp_path: Path, begun: list[dict[str, Any]]) -> None:
    """Of integers whose scales depend on the data, layers run from the beginning, and are those of a single run."""
    path = rounded(built("pre", tmp_path)[2])
    model, prompt = attnx.open(path, device="cpu"), Prompt(inputs=models.feeds(models.KINDS["pre"])[0])
    assert cuts(model, None) == {}
    whole = execute(model, prompt, Wanted(None, QUANTITIES))
    del begun[:]
    parts = apart(attnx.open(path, device="cpu"), prompt)
    assert off(whole, parts) == 0
    assert begun == [{}] * LAYERS


def test_a_layer_that_reads_an_earlier_one_besides_the_stream(tmp_path: Path, begun: list[dict[str, Any]]) -> None:
    """Values that the last layer shares with the first are computed once more, and are the same."""
    path = built("pre", tmp_path)[2]
    proto = onnx.load(path)
    softmaxes = [n.output[0] for n in proto.graph.node if n.op_type == "Softmax"]
    weighings = [n for n in proto.graph.node if n.op_type == "MatMul" and n.input[0] in softmaxes]
    weighings[-1].input[1] = weighings[0].input[1]
    onnx.save(proto, path)
    prompt = Prompt(inputs=models.feeds(models.KINDS["pre"])[0])
    whole = execute(attnx.open(path, device="cpu"), prompt, Wanted(None, QUANTITIES))
    del begun[:]
    assert off(whole, apart(attnx.open(path, device="cpu"), prompt)) == 0
    assert [len(fed) for fed in begun] == [0, 1, 1, 1]
