"""Runs that share what lies before their first change give what runs of the whole model give."""

from __future__ import annotations

import random
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import attnx
from attnx.interventions import relay, running, sections, unedited
from attnx.interventions.changes import Changes
from attnx.interventions.plan import Edit, Intervention
from attnx.interventions.running import Intervening
from attnx.session import ort
from attnx.session.ort import Session
from tests.interventions import models

LAYERS = 4


def opened(name: str, folder: Path, layers: int = LAYERS) -> tuple[models.Kind, dict[str, np.ndarray], Intervening]:
    kind = replace(models.KINDS[name], layers=layers)
    w = models.weights(kind)
    feeds = dict(zip(("inputs", "other"), models.feeds(kind), strict=True))
    model = attnx.open(models.build(kind, w, folder), device="cpu")
    return kind, w, Intervening(model, feeds)


def heads(layers: int = LAYERS) -> list[Intervention]:
    return [
        Intervention(f"{layer}.{head}", (Edit("ablate", (layer,), (head,)),))
        for layer in range(layers)
        for head in range(models.HEADS)
    ]


def cut(all_: Intervening, steps: list[Intervention], tail: bool = False) -> list[sections.Section]:
    return sections.sections(all_, "inputs", Changes(all_, "inputs", steps), tail)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are shared even where that saves next to nothing."""
    monkeypatch.setattr(sections, "OPENING", 1.0)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch, eager: None) -> None:
    """No model is so small that several sessions may hold its weights: it is cut wherever that saves something."""
    monkeypatch.setattr(unedited, "SMALL", 0)


@pytest.mark.parametrize("name", models.KINDS)
def test_layers_shared_in_sections_change_nothing(name: str, tmp_path: Path, large: None) -> None:
    shared(name, tmp_path, [0] * LAYERS)


@pytest.mark.parametrize("name", models.KINDS)
def test_layers_shared_in_one_graph_change_nothing(name: str, tmp_path: Path, eager: None) -> None:
    shared(name, tmp_path, [LAYERS])


def shared(name: str, tmp_path: Path, entries: list[int]) -> None:
    """Hold every intervention to numpy, and to the same one run alone.

    Args:
        name: A kind of model.
        tmp_path: For it.
        entries: How many there are in each section; none where the rows of a batch are on no axis of their own.
    """
    kind, w, all_ = opened(name, tmp_path)
    steps = [*heads(), Intervention("both", (Edit("ablate", (1,), (0,)), Edit("knockout", (3,), (1,), (5,), (2,))))]
    steps.append(Intervention("mlp", (Edit("patch", (1,), None, (2, 3), quantity="mlp"),)))
    steps.append(Intervention("stream", (Edit("patch", (1,), None, (2,), quantity="residual"),)))
    found = [len(section.entries) for section in cut(all_, steps)]
    assert found == ([0] * LAYERS if name == "merged" else entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "Batches", None)  # nothing is run over in another way
        got = {effect.id: effect for effect in all_.run(steps)}
    assert list(got) == [step.id for step in steps]
    feed = all_.feed("inputs")
    mask = feed["attention_mask"]
    plain = models.run(kind, w, feed["input_ids"], mask, lambda _n, _l, a: a)
    for layer in range(LAYERS):
        for head in range(models.HEADS):
            hook = models.edited(kind, mask, "zero", (layer,), (head,))
            want = models.run(kind, w, feed["input_ids"], mask, hook)
            np.testing.assert_allclose(got[f"{layer}.{head}"].outputs["logits"], want, atol=3e-5)
    np.testing.assert_allclose(got["0.0"].base["logits"], plain, atol=3e-5)
    alone = {one.id: one for step in steps for one in all_.run([step])}
    for step in steps:
        np.testing.assert_allclose(got[step.id].outputs["logits"], alone[step.id].outputs["logits"], atol=2e-5)


def test_the_whole_model_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same operators on the same numbers, in batches of other sizes: rounding alone differs."""
    _, _, all_ = opened("pre", tmp_path)
    whole = {effect.id: effect.outputs["logits"] for effect in all_.run(heads())}
    monkeypatch.setattr(sections, "OPENING", 1.0)
    assert cut(all_, heads())
    for effect in all_.run(heads()):
        np.testing.assert_allclose(effect.outputs["logits"], whole[effect.id], rtol=0, atol=4e-6)


@pytest.mark.parametrize("name", models.KINDS)
def test_outputs_at_one_position_are_those_of_all(name: str, tmp_path: Path, eager: None) -> None:
    _, _, all_ = opened(name, tmp_path)
    whole = {effect.id: effect for effect in all_.run(heads())}
    position = 4
    for effect in all_.run(heads(), at={"logits": position}):
        every = whole[effect.id].outputs["logits"]
        at = min(position, every.shape[1] - 1)
        assert effect.outputs["logits"].shape == every[:, at : at + 1].shape
        np.testing.assert_allclose(effect.outputs["logits"], every[:, at : at + 1], atol=2e-5)
        np.testing.assert_allclose(effect.base["logits"], whole[effect.id].base["logits"][:, at : at + 1], atol=2e-5)


def test_without_savings_the_model_stays_whole(tmp_path: Path) -> None:
    _, _, all_ = opened("pre", tmp_path)
    assert not cut(all_, heads()), "a tiny model is opened once"


def test_what_a_change_reaches_another_way_is_not_cut_off(tmp_path: Path, eager: None) -> None:
    """A tensor of an early layer is an output: behind a cut it would be that of the unedited run."""
    kind, w, all_ = opened("pre", tmp_path)
    assert [len(s.entries) for s in cut(all_, heads())] == [LAYERS]
    proto = onnx.load(all_.model.path)
    early = all_.points.of(all_.points.components()["decoder"][1], "context")[0].place.value
    proto.graph.output.append(onnx.helper.make_empty_tensor_value_info(early))
    onnx.save(proto, tmp_path / "early.onnx")
    feeds = {"inputs": all_.feed("inputs")}
    other = Intervening(attnx.open(tmp_path / "early.onnx", device="cpu"), feeds)
    found = cut(other, heads())
    assert [len(s.interventions) for s in found] == [4, 12], "the first layer reaches no other way"
    assert not any(s.entries for s in found), "an output that is made before others enter"
    mask = feeds["inputs"]["attention_mask"]
    for effect in other.run(heads()):
        layer, head = map(int, effect.id.split("."))
        seen = Seen(models.edited(kind, mask, "zero", (layer,), (head,)))
        models.run(kind, w, feeds["inputs"]["input_ids"], mask, seen)
        np.testing.assert_allclose(np.sort(effect.outputs[early], None), np.sort(seen.contexts[1], None), atol=3e-5)


class Seen:
    """A hook that keeps the contexts that it gives back."""

    def __init__(self, hook: models.Hook) -> None:
        self.hook = hook
        self.contexts: dict[int, np.ndarray] = {}

    def __call__(self, name: str, layer: int, array: np.ndarray) -> np.ndarray:
        array = self.hook(name, layer, array)
        if name == "context":
            self.contexts[layer] = array
        return array


def test_sizes_that_are_read_off_an_input_grow_with_the_rows(
    tmp_path: Path, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exporter reads the number of rows off the ids, once, and shapes tensors by it everywhere."""
    _, _, all_ = opened("pre", tmp_path)
    want = {effect.id: effect.outputs["logits"] for effect in all_.run(heads())}
    proto = onnx.load(all_.model.path)
    size = proto.graph.output[0].type.tensor_type.shape.dim[-1].dim_value
    made = onnx.helper.make_node
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1, size]), "own rest"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "own nought"))
    proto.graph.node.extend(
        [
            made("Shape", ["input_ids"], ["own sizes"]),
            made("Gather", ["own sizes", "own nought"], ["own count"]),
            made("Concat", ["own count", "own rest"], ["own shape"], axis=0),
            made("Reshape", ["logits", "own shape"], ["shaped"]),
        ]
    )
    del proto.graph.output[:]
    proto.graph.output.append(onnx.helper.make_tensor_value_info("shaped", 1, ["batch", "tokens", size]))
    onnx.save(proto, tmp_path / "shaped.onnx")
    other = Intervening(attnx.open(tmp_path / "shaped.onnx", device="cpu"), {"inputs": all_.feed("inputs")})
    assert [len(section.entries) for section in cut(other, heads())] == [LAYERS]
    monkeypatch.setattr(running, "Batches", None)  # nothing is run over in another way
    for effect in other.run(heads()):
        np.testing.assert_allclose(effect.outputs["shaped"], want[effect.id], atol=2e-5)


def test_interventions_in_any_order_in_batches_of_any_size(
    tmp_path: Path, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch begins with the unchanged run; effects come in the order that was asked for."""
    _, _, all_ = opened("pre", tmp_path)
    want = {effect.id: effect.outputs["logits"] for effect in all_.run(heads())}
    monkeypatch.setattr(relay, "fitting", lambda *sizes: 3)
    steps = random.Random(0).sample(heads(), len(want))
    found = list(all_.run(steps))
    assert [effect.id for effect in found] == [step.id for step in steps]
    for effect in found:
        np.testing.assert_allclose(effect.outputs["logits"], want[effect.id], atol=2e-5)


@pytest.mark.parametrize("eager_too", [True, False])
def test_of_a_large_model_one_session_at_a_time_holds_the_weights(
    eager_too: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unedited, "SMALL", 0)
    if eager_too:
        monkeypatch.setattr(sections, "OPENING", 1.0)
    kind, _, all_ = opened("pre", tmp_path)
    alive: weakref.WeakSet[Session] = weakref.WeakSet()
    most: list[int] = []
    made = ort.Session.__init__

    def counted(self: Session, *args: Any) -> None:
        made(self, *args)
        alive.add(self)
        most.append(len(alive))

    monkeypatch.setattr(ort.Session, "__init__", counted)
    all_.model.trace(inputs=models.feeds(kind)[0])  # what a command has looked at before
    all_.base("inputs")
    all_.base("other")
    steps = [*heads(), Intervention("all", (Edit("ablate"),))]
    whole = {e.id: e.outputs["logits"] for e in all_.run(steps)}
    theirs = Intervention("theirs", (Edit("patch", (1,), (0,), quantity="context"),))
    assert [e.id for e in all_.run([theirs])] == ["theirs"]
    again = {e.id: e.outputs["logits"] for e in all_.run(steps[:3])}
    assert all(np.array_equal(again[name], whole[name]) for name in again)
    assert len(most) > 3
    assert max(most) == 1
