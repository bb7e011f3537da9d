"""Activation and path patching, against numpy models that share nothing with attnx."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.errors import UsageError
from attnx.interventions.running import Intervening
from attnx.study.patch_metric import meter
from attnx.study.patching import Patching, patch
from attnx.study.path_patching import patch_paths
from attnx.tokens.axes import labelled
from tests import small_models
from tests.interventions import models
from tests.interventions.test_holds import cached_feed
from tests.study.said import Stub

Array = np.ndarray
TOKENS = labelled(list("abcdefg"))


class Case:
    """A model in both forms, and the first row of two feeds."""

    def __init__(self, name: str, folder: Path) -> None:
        self.kind = models.KINDS[name]
        self.w = models.weights(self.kind)
        pair = models.feeds(self.kind)
        self.feeds = {
            n: {key: array[:1] for key, array in feed.items()}
            for n, feed in zip(("inputs", "other"), pair, strict=True)
        }
        self.model = attnx.open(models.build(self.kind, self.w, folder), device="cpu")
        self.running = Intervening(self.model, self.feeds)
        self.mask = self.feeds["inputs"]["attention_mask"]
        self.known = {n: models.recorded(self.kind, self.w, f["input_ids"], self.mask) for n, f in self.feeds.items()}

    def meter(self, **asked):
        base = self.running.base
        return meter(self.model, base("inputs"), base("other"), TOKENS, **asked)

    def logits(self, run: str, hook: models.Hook) -> Array:
        """Of the last position."""
        return models.run(self.kind, self.w, self.feeds[run]["input_ids"], self.mask, hook)[0, -1]

    def patched(self, run: str, what: str, **where) -> Array:
        theirs = self.known["other" if run == "inputs" else "inputs"]
        return self.logits(run, models.edited(self.kind, self.mask, what, theirs=theirs, **where))


def shares(case: Case, run: str, rows: list[Array], answer: int, foil: int) -> list[float]:
    clean, corrupt = (case.known[n]["logits", 0][0, -1] for n in ("inputs", "other"))
    apart = (clean[answer] - clean[foil]) - (corrupt[answer] - corrupt[foil])
    return [float((row[answer] - row[foil] - (corrupt[answer] - corrupt[foil])) / apart) for row in rows]


def held(found: Patching, want: list[float]) -> None:
    np.testing.assert_allclose([one.share for one in found.effects], want, atol=2e-4)


@pytest.mark.parametrize("name", ["pre", "post", "gqa skip"])
@pytest.mark.parametrize("noising", [False, True])
def test_every_head_by_itself(name: str, noising: bool, tmp_path: Path) -> None:
    case = Case(name, tmp_path)
    run = "inputs" if noising else "other"
    found = patch(case.running, case.meter(answer="3", foil="5", at=6), tokens=TOKENS, noising=noising)
    spots = [(layer, head) for layer in range(2) for head in range(4)]
    assert [(one.spot.layer, one.spot.head) for one in found.effects] == spots
    rows = [case.patched(run, "context", layers=(layer,), heads=(head,)) for layer, head in spots]
    held(found, shares(case, run, rows, 3, 5))
    made = found.map()
    assert made is not None
    assert made.values.shape == (2, 4)
    assert made.values[1, 2] == found.effects[6].share
    assert found.heading == ("kept" if noising else "restored")


@pytest.mark.parametrize("what", ["residual", "attention", "mlp"])
def test_every_position_of_a_layer(what: str, tmp_path: Path) -> None:
    case = Case("pre", tmp_path)
    found = patch(case.running, case.meter(answer="3", foil="5"), quantity=what, tokens=TOKENS)
    spots = [(layer, at) for layer in range(2) for at in range(7)]
    assert [(one.spot.layer, one.spot.position) for one in found.effects] == spots
    rows = [case.patched("other", what, layers=(layer,), queries=(at,)) for layer, at in spots]
    held(found, shares(case, "other", rows, 3, 5))
    assert found.by == "position"
    assert found.map().axes[1].labels[2] == "2 c"


def test_key_heads_and_their_positions(tmp_path: Path) -> None:
    """Two key/value heads are shared by four query heads; positions are those of keys."""
    case = Case("grouped", tmp_path)
    reads = case.meter(answer="3", foil="5")
    found = patch(case.running, reads, quantity="key", tokens=TOKENS, at=[2, 3])
    rows = [case.patched("other", "key", layers=(layer,), heads=(h,), keys=(2, 3)) for layer in (0, 1) for h in (0, 1)]
    held(found, shares(case, "other", rows, 3, 5))
    one = patch(case.running, reads, quantity="value", by="position", heads=[(1, 1)], tokens=TOKENS)
    rows = [case.patched("other", "value", layers=(1,), heads=(1,), keys=(at,)) for at in range(7)]
    held(one, shares(case, "other", rows, 3, 5))
    with pytest.raises(UsageError, match="no key/value head 2"):
        patch(case.running, reads, quantity="key", heads=[(0, 2)], tokens=TOKENS)


def test_the_runs_own_first_choices_are_held_against_each_other(tmp_path: Path) -> None:
    model, tokens = Stub(tmp_path, vocabulary=4), labelled(["a", "b"])
    one, two, same = ({"logits": np.array([[[0.0] * 4, row]])} for row in ([0, 3, 1, 0], [2, 0, 0, 0], [0, 9, 1, 0]))
    found = meter(model, one, two, tokens)
    assert (found.metric, found.readout.answer, found.readout.foil) == ("difference", 1, 0)
    assert (found(one), found(two)) == (3.0, -2.0)
    assert meter(model, one, same, tokens).metric == "kl"
    assert meter(model, one, same, tokens, answer="2").metric == "difference"
    assert meter(model, one, same, tokens, answer="1").metric == "probability"
    with pytest.raises(UsageError, match="first choice is '#1' too"):
        meter(model, one, same, tokens, metric="difference")


def test_metrics(tmp_path: Path) -> None:
    case = Case("pre", tmp_path)
    clean, corrupt = (case.known[n]["logits", 0][0, -1] for n in ("inputs", "other"))
    p, q = (np.exp(row) / np.exp(row).sum() for row in (clean, corrupt))
    base = case.running.base("other")
    assert case.meter(metric="probability", answer="4")(base) == pytest.approx(q[4], abs=1e-5)
    assert case.meter(metric="kl")(base) == pytest.approx(-(p * np.log(p / q)).sum(), abs=1e-4)
    assert case.meter(metric="kl")(case.running.base("inputs")) == pytest.approx(0, abs=1e-9)


def path(
    case: Case, sender: tuple[int, int], receivers: list[tuple[int, int]], into: str, run: str, mlps: bool
) -> Array:
    """Path patching in numpy: all heads held but the sender; then the receivers' inputs alone patched."""
    own, theirs = case.known[run], case.known["other" if run == "inputs" else "inputs"]
    taken: dict[int, Array] = {}

    def first(name: str, layer: int, array: Array) -> Array:
        if name == into:
            taken[layer] = array
        if name == "mlp" and mlps:
            return own[name, layer]
        if name != "context":
            return array
        held = own[name, layer].copy()
        if layer == sender[0]:
            held[:, sender[1]] = theirs[name, layer][:, sender[1]]
        return held

    direct = case.logits(run, first)
    if not receivers:
        return direct

    def second(name: str, layer: int, array: Array) -> Array:
        if name != into:
            return array
        got = array.copy()
        for at, head in receivers:
            if at == layer > sender[0]:
                got[:, head] = taken[layer][:, head]
        return got

    return case.logits(run, second)


@pytest.mark.parametrize("name", ["pre", "grouped", "gqa"])
@pytest.mark.parametrize("into", ["query", "key", "value"])
def test_what_a_head_sends_to_later_heads(name: str, into, tmp_path: Path) -> None:
    case = Case(name, tmp_path)
    receivers = [(1, 0), (1, 1)]
    reads = case.meter(answer="3", foil="5")
    found = patch_paths(case.running, reads, to=receivers, into=into)
    senders = [(0, head) for head in range(4)]
    assert [(one.spot.layer, one.spot.head) for one in found.effects] == senders
    rows = [path(case, sender, receivers, into, "other", False) for sender in senders]
    held(found, shares(case, "other", rows, 3, 5))
    assert max(abs(one.share) for one in found.effects) > 1e-3
    assert found.path == f"the {into} of L1 H0, L1 H1"


@pytest.mark.parametrize("mlps", [False, True])
def test_what_a_head_tells_the_answer(mlps: bool, tmp_path: Path) -> None:
    case = Case("pre", tmp_path)
    reads = case.meter(answer="3", foil="5")
    found = patch_paths(case.running, reads, from_=[(0, 2), (1, 1)], freeze_mlps=mlps, noising=True)
    rows = [path(case, sender, [], "query", "inputs", mlps) for sender in ((0, 2), (1, 1))]
    held(found, shares(case, "inputs", rows, 3, 5))


def test_texts_that_barely_differ_are_said(tmp_path: Path) -> None:
    case = Case("one layer", tmp_path)
    running = Intervening(case.model, {"inputs": case.feeds["inputs"], "other": case.feeds["inputs"]})
    base = running.base("inputs")
    found = patch(running, meter(case.model, base, base, TOKENS, answer="3", foil="5"), tokens=TOKENS)
    assert np.isnan([one.share for one in found.effects]).all()
    assert "do not differ" in found.notes[-1]
    assert found.map() is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"quantity": "soul"}, "no quantity 'soul'"),
        ({"quantity": "mlp", "heads": [(0, 1)]}, "belongs to a layer"),
        ({"heads": [(0, 9)]}, "no head 9 in layer 0"),
        ({"heads": [(5, 0)]}, "no layer 5"),
        ({"layers": [7]}, "no layer 7"),
        ({"layers": [0], "heads": [(1, 0)]}, "that layer is not"),
        ({"at": [9]}, "no position 9"),
        ({"component": "cross"}, "no component 'cross'"),
        ({"by": "layer", "heads": [(0, 1)]}, "whole layers"),
    ],
)
def test_what_is_not_there(asked: dict, said: str, tmp_path: Path) -> None:
    case = Case("pre", tmp_path)
    with pytest.raises(UsageError, match=said):
        patch(case.running, case.meter(answer="3", foil="5"), tokens=TOKENS, **asked)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"from_": [(1, 0)], "to": [(1, 1)]}, "not before L1"),
        ({"from_": [(0, 9)]}, "no head 9"),
        ({"to": [(4, 0)]}, "no layer 4"),
        ({"to": [(1, 3)], "into": "key"}, "no key/value head 3"),
        ({"into": "weights"}, "no part 'weights'"),
    ],
)
def test_paths_that_are_not_there(asked: dict, said: str, tmp_path: Path) -> None:
    case = Case("grouped", tmp_path)
    with pytest.raises(UsageError, match=said):
        patch_paths(case.running, case.meter(answer="3", foil="5"), **asked)


def test_positions_of_a_cache_come_before_those_of_the_text(tmp_path: Path) -> None:
    """Two new tokens behind four that are cached: a token of the text is the same key as in a run of the whole."""
    path = small_models.save(tmp_path, model=small_models.cached_decoder(small_models.weights()))
    model = attnx.open(path, device="cpu")
    slots = {slot.name: slot for slot in model.slots()}
    one, two = np.array([[3, 5, 7, 2, 9, 4]]), np.array([[3, 5, 7, 2, 8, 4]])
    given = model.trace(inputs=cached_feed(slots, one[:, :4], None), outputs=True).outputs
    found = [
        model.patch(cached_feed(slots, one, past), cached_feed(slots, two, past), quantity="value", by="position", **at)
        for past, at in ((None, {}), (given, {}), (given, {"at": [0]}))
    ]
    assert found[1].places[:4] == ("past 0", "past 1", "past 2", "past 3")
    whole = [one.share for one in found[0].effects]
    assert [one.share for one in found[1].effects] == pytest.approx(whole, abs=1e-4)
    assert [one.spot.position for one in found[2].effects] == [4, 4]  # a line for each layer
    assert [one.share for one in found[2].effects] == pytest.approx([whole[4], whole[10]], abs=1e-4)
    assert abs(whole[4]) > 1e-3


def test_patches_of_a_picture_are_numbered(tmp_path: Path) -> None:
    folder = Path(__file__).parents[1] / "families" / "dinov2"
    model = attnx.open(folder, device="cpu")
    (slot,) = model.slots()
    clean = np.random.default_rng(0).normal(size=(1, 3, 28, 28)).astype(np.float32)
    corrupt = clean.copy()
    corrupt[..., :14, :14] += 1
    found = model.patch({slot.name: clean}, {slot.name: corrupt}, quantity="residual", layers=[0])
    assert found.places == tuple(map(str, range(len(found.effects))))
    assert len(found.effects) > 1
    assert found.place(1) == "1"


def test_the_two_sides_of_a_translator(tmp_path: Path) -> None:
    """The encoder's last stream is all that its decoder knows of the source; each side has its own positions."""
    model = attnx.open(small_models.save(tmp_path, model=small_models.one_file(small_models.weights())), device="cpu")
    one, two, target = np.array([[3, 5, 7, 2]]), np.array([[3, 5, 8, 2]]), np.array([[4, 9, 6]])
    clean, corrupt = (
        {"input_ids": ids, "attention_mask": np.ones_like(ids), "decoder_input_ids": target} for ids in (one, two)
    )
    ran = [small_models.encoder_decoder(small_models.weights(), ids, target).logits[0, -1] for ids in (one, two)]
    read = {"answer": "3", "foil": "5"}
    whole = model.patch(clean, corrupt, quantity="residual", component="encoder", by="layer", **read)
    assert (whole.clean, whole.corrupt) == pytest.approx([row[3] - row[5] for row in ran], abs=1e-4)
    assert [one.share for one in whole.effects] == pytest.approx([1, 1], abs=1e-4)
    keys = model.patch(clean, corrupt, quantity="key", component="cross", by="position", layers=[0], **read)
    assert [one.spot.position for one in keys.effects] == [0, 1, 2, 3]
    asked = model.patch(clean, corrupt, quantity="query", component="cross", by="position", layers=[0], **read)
    assert [one.share for one in asked.effects] == pytest.approx([0, 0, 0], abs=1e-4)  # nothing differs before
    assert max(abs(one.share) for one in keys.effects) > 1e-3
