"""A long text's layers and heads, held some at a time, are those of one run; what cannot be split is not."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnx
from attnx.records import QUANTITIES, STAGES, Trace
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.ort import Session
from attnx.session.protocol import OpenModel, Wanted
from attnx.study import onward, stretches
from attnx.study.saved_trace import run_and_save
from attnx.study.stretches import Piece, Stretches
from tests import small_models
from tests.interventions import models
from tests.interventions.test_cuts import rounded

ARRAYS = ("query", "key", *STAGES)
LAYERS = 3


def opened(name: str, folder: Path, *, integers: bool = False) -> tuple[OpenModel, Prompt]:
    kind = replace(models.KINDS[name], layers=LAYERS)
    path = models.build(kind, models.weights(kind), folder)
    feed = {slot: array[:1] for slot, array in models.feeds(kind)[0].items()}
    return attnx.open(rounded(path) if integers else path, device="cpu"), Prompt(inputs=feed)


def pieces(model: OpenModel, prompt: Prompt) -> list[list[Piece]]:
    return list(Stretches(model, prompt, ARRAYS).each(lambda piece: piece))


def compared(found: list[list[Piece]], whole: Trace) -> None:
    """Every array of every head, joined, is that of one run, bit for bit."""
    attentions = [a for part in found for a in part[0].trace.attentions]
    assert [a.site.index for a in attentions] == [a.site.index for a in whole.attentions]
    at = 0
    for part in found:
        for place, first in enumerate(part[0].trace.attentions):
            one = whole.attentions[at]
            at += 1
            heads = [head for piece in part for head in piece.heads or range(first.site.heads or 0)]
            assert heads == list(range(one.site.heads or 0))
            for name in ARRAYS:
                want = getattr(one, name)
                parts = [getattr(piece.trace.attentions[place], name) for piece in part]
                if want is None:
                    assert parts == [None] * len(parts)
                    continue
                if part[0].heads is not None:  # each query head with the key that it reads
                    want = np.repeat(want, len(heads) // want.shape[1], axis=1)
                np.testing.assert_array_equal(np.concatenate(parts, axis=1), want)


@pytest.mark.parametrize("name", ["pre", "post", "parallel", "grouped", "sink", "stacked", "places", "gqa"])
@pytest.mark.parametrize("room", [1, 3])
def test_heads_joined_are_those_of_one_run(
    name: str, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One head at a time, and as many as there is room for: a fourth of them is left over for the last piece."""
    model, prompt = opened(name, tmp_path)
    whole = execute(model, prompt, Wanted(None, ARRAYS))
    (one,) = {a.need("weights").nbytes * len(STAGES) for a in whole.attentions}
    monkeypatch.setattr(stretches, "ROOM", 1 if room == 1 else one * 3 // 4)
    found = pieces(attnx.open(tmp_path / "model.onnx", device="cpu"), prompt)
    sizes = [[len(piece.heads or ()) for piece in part] for part in found]
    assert sizes == [[1, 1, 1, 1] if room == 1 else [3, 1]] * LAYERS
    compared(found, whole)


def test_where_no_run_can_begin_in_front_of_a_layer_it_is_held_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Integers whose scales depend on the data: the first layer begins at the model's inputs anyway."""
    model, prompt = opened("pre", tmp_path, integers=True)
    whole = execute(model, prompt, Wanted(None, ARRAYS))
    monkeypatch.setattr(stretches, "ROOM", 1)
    found = pieces(attnx.open(tmp_path / "model.onnx", device="cpu"), prompt)
    assert [len(part) for part in found] == [models.HEADS, 1, 1]
    compared(found, whole)


def test_heads_that_share_an_axis_with_the_batch_are_not_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = opened("merged", tmp_path)
    whole = execute(model, prompt, Wanted(None, ARRAYS))
    monkeypatch.setattr(stretches, "ROOM", 1)
    found = pieces(attnx.open(tmp_path / "model.onnx", device="cpu"), prompt)
    assert [len(part) for part in found] == [1] * LAYERS
    compared(found, whole)


def test_what_only_all_heads_show_is_not_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a site is causal, if only a run shows it."""
    model, prompt = opened("pre", tmp_path)
    monkeypatch.setattr(stretches, "ROOM", 1)
    read = Stretches(model, prompt, ARRAYS)
    assert all(len(read.split(part)) == models.HEADS for part in read.parts)
    read._of_model = [replace(site, causal=None) for site in read._of_model]
    assert all(read.split(part) == () for part in read.parts)


def test_layers_with_two_attentions_are_not_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder's own attention and that over another text; and what takes several runs is run as it was."""
    w = small_models.weights()
    folder = small_models.save(tmp_path, model=small_models.one_file(w))
    model = attnx.open(folder / "model.onnx", device="cpu")
    feed = {slot.name: np.array([[3, 5, 7, 2]]) for slot in model.slots() if "ids" in slot.name}
    feed |= {slot.name: np.ones((1, 4), np.int64) for slot in model.slots() if "mask" in slot.name}
    whole = execute(model, Prompt(inputs=feed), Wanted(None, ARRAYS))
    monkeypatch.setattr(stretches, "ROOM", 1)
    found = pieces(model, Prompt(inputs=feed))
    assert all(piece.heads is None for part in found for piece in part)
    compared(found, whole)


def test_a_decoder_that_reads_another_text_goes_on_from_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own attention and that over the other text belong to one layer; the second layer begins at the stream."""
    w = small_models.weights()
    folder = small_models.save(tmp_path, model=small_models.cross_decoder(w, cached=False))
    model = attnx.open(folder / "model.onnx", device="cpu")
    states = np.random.default_rng(0).normal(size=(1, 6, small_models.WIDTH)).astype(np.float32)
    feed = {"input_ids": np.array([[3, 5, 7, 2]]), "encoder_hidden_states": states}
    feed["encoder_attention_mask"] = np.ones((1, 6), np.int64)
    whole = execute(model, Prompt(inputs=feed), Wanted(None, ARRAYS))
    monkeypatch.setattr(stretches, "ROOM", 1)
    begun: list[set[str]] = []
    own = Session.run

    def noted(self: Session, given: Any, *rest: Any, **more: Any) -> Any:
        begun.append(given.keys() - feed.keys())
        return own(self, given, *rest, **more)

    monkeypatch.setattr(Session, "run", noted)
    found = pieces(model, Prompt(inputs=feed))
    assert [len(names) for names in begun] == [0, 1]
    assert [[a.site.kind for a in part[0].trace.attentions] for part in found] == [["self", "cross"]] * 2
    compared(found, whole)


@pytest.mark.parametrize("saved", [False, True])
def test_heads_of_a_later_layer_begin_in_front_of_it(
    saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the layers ahead are not looked at either, they are run once, not once for each head."""
    model, prompt = opened("pre", tmp_path)
    begins: list[tuple[bool, bool]] = []

    def noted(model: OpenModel, prompt: Prompt, wanted: Wanted) -> Trace:
        begins.append((wanted.heads is not None and bool(wanted.heads), wanted.section.begin is not None))
        return execute(model, prompt, wanted)

    monkeypatch.setattr(onward, "execute", noted)
    whole = execute(model, prompt, Wanted((LAYERS - 1,), ARRAYS))
    monkeypatch.setattr(stretches, "ROOM", 1)
    if saved:
        run_and_save(model, prompt, Wanted((LAYERS - 1,), ARRAYS), tmp_path / "run.npz")
        with np.load(tmp_path / "run.npz") as file:
            (site,) = (a.site.index for a in whole.attentions)
            np.testing.assert_array_equal(file[f"attention.{site}.weights"], whole.attentions[0].weights)
    else:
        compared([list(one) for one in Stretches(model, prompt, ARRAYS, [LAYERS - 1]).each(lambda piece: piece)], whole)
    of_heads = [begun for some, begun in begins if some]
    assert of_heads == [True] * 4
    assert [begun for some, begun in begins].count(False) == 1


def test_nothing_that_a_session_gave_is_held_while_the_next_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array that a session gave keeps all of the session's working memory."""
    model, prompt = opened("pre", tmp_path)
    held: list[weakref.ref[np.ndarray]] = []
    alive: list[int] = []

    def noted(model: OpenModel, prompt: Prompt, wanted: Wanted) -> Trace:
        gc.collect()
        alive.append(sum(ref() is not None for ref in held))
        trace = execute(model, prompt, wanted)
        arrays = [getattr(a, name) for a in trace.attentions for name in QUANTITIES]
        held.extend(weakref.ref(array) for array in (*arrays, *trace.outputs.values()) if array is not None)
        return trace

    monkeypatch.setattr(onward, "execute", noted)
    monkeypatch.setattr(stretches, "ROOM", 1)
    run_and_save(model, prompt, Wanted(None, QUANTITIES), tmp_path / "run.npz")
    assert len(held) > len(alive) > LAYERS * 4
    assert not any(alive)


def test_each_run_of_a_layer_that_is_split_has_the_only_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open session keeps the memory of its runs: none is open when another layer or piece is run."""
    model, prompt = opened("pre", tmp_path)
    sessions: list[weakref.ref[Session]] = []
    alive: list[int] = []
    own = Session.run

    def noted(self: Session, *rest: Any, **more: Any) -> Any:
        gc.collect()
        alive.append(sum((one := ref()) is not None and one is not self for ref in sessions))
        sessions.append(weakref.ref(self))
        return own(self, *rest, **more)

    monkeypatch.setattr(Session, "run", noted)
    monkeypatch.setattr(stretches, "ROOM", 1)
    found = Stretches(model, prompt, ARRAYS, [LAYERS - 2, LAYERS - 1]).each(lambda piece: len(piece.heads or ()))
    assert list(found) == [[1] * 4] * 2
    assert not any(alive)
