"""A translation aligned: words, rows and heads against the same model in numpy, in one file, two and three."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnx
from attnx.errors import InputError, UsageError
from attnx.measure import alignment_error, links
from attnx.model import Model
from attnx.run.prompt import Prompt
from attnx.session.ort import Session
from attnx.study import translation
from attnx.study.crossing import cross, cross_sites
from attnx.study.request import Head
from attnx.tokens.spaced import readers, spaced
from tests import small_models as small
from tests.small_senses import letters

W = small.weights(4)
START = 5
SOURCE, TARGET = "ab c, dd", "ba ce"
# <s> 21 a 0 b 1 space 23 c 2 comma 23 space 23 d 3 d 3 </s> 22; the target without the end that it predicts.
SOURCE_IDS = [21, 0, 1, 23, 2, 23, 23, 3, 3, 22]
TARGET_IDS = [START, 21, 1, 0, 23, 2, 4]
FORMS = {
    "one file": {"model": small.one_file(W)},
    "two files": {"encoder_model": small.encoder(W), "decoder_model": small.cross_decoder(W, cached=False)},
    "three files": {
        "encoder_model": small.encoder(W),
        "decoder_model": small.cross_decoder(W, cached=False),
        "decoder_with_past_model": small.cross_decoder(W, cached=True),
    },
}
SPACED = {"ab": [1, 2], "c,": [4, 5], "dd": [7, 8]}
READ = {"ab": [1, 2], "c": [4], ",": [5], "dd": [7, 8]}
TARGETS = {"ba": [2, 3], "ce": [5, 6]}


def opened(folder: Path, form: str = "two files") -> Model:
    small.save(folder, config={"decoder_start_token_id": START, "eos_token_id": 20}, **FORMS[form])
    letters(folder)
    return attnx.open(folder, device="cpu")


def by_hand(columns: dict[str, list[int]], back: int = 0, ids: list[int] = TARGET_IDS) -> np.ndarray:
    """[L,H,T,S] from the model in numpy."""
    ran = small.encoder_decoder(W, SOURCE_IDS, ids)
    out = np.zeros((2, 2, len(TARGETS), len(columns)))
    for layer in range(2):
        a = ran.cross[layer]["weights"][0]
        for t, rows in enumerate(TARGETS.values()):
            for s, keys in enumerate(columns.values()):
                out[layer, :, t, s] = a[:, [at - back for at in rows]][..., keys].sum(-1).mean(-1)
    return out


@pytest.mark.parametrize("form", FORMS)
def test_words_of_a_translation_that_is_told(tmp_path: Path, form: str) -> None:
    model = opened(tmp_path, form)
    assert model.encode(SOURCE).ids.tolist() == SOURCE_IDS
    for cut, columns in ((spaced, SPACED), (readers, READ)):
        for when, back in (("read", 0), ("written", 1)):
            got = translation.pair(model, Prompt(SOURCE, target=TARGET), cut, when)  # type: ignore[arg-type]
            assert [w for w, _ in got.source] == list(columns)
            assert [w for w, _ in got.target] == list(TARGETS)
            assert got.trace.tokens.ids.tolist() == TARGET_IDS
            np.testing.assert_allclose(got.weights.values, by_hand(columns, back), atol=1e-5)
            assert all(a.site.kind == "cross" for a in got.trace.attentions)


def test_heads_layers_and_the_layer_that_agrees_best(tmp_path: Path) -> None:
    one = translation.pair(opened(tmp_path), Prompt(SOURCE, target=TARGET))
    want = by_hand(READ)
    for heads, layers, every, mean in (
        ((Head(1, 0),), None, False, want[1, 0]),
        ((Head(1, 0), Head(0, 1)), None, False, (want[1, 0] + want[0, 1]) / 2),
        ((Head(None, 1),), None, False, want[:, 1].mean(0)),
        ((), (0,), False, want[0].mean(0)),
        ((), None, True, want.mean((0, 1))),
    ):
        np.testing.assert_allclose(translation.choose(one, heads, layers, every).weights, mean, atol=1e-5)
    agreed = []
    for layer in want.mean(1):
        rows = {(t, int(layer[t].argmax())) for t in range(layer.shape[0])}
        columns = {(int(layer[:, s].argmax()), s) for s in range(layer.shape[1])}
        agreed.append(2 * len(rows & columns) / (len(rows) + len(columns)))
    chosen = translation.choose(one)
    assert chosen.where == f"L{int(np.argmax(agreed))}"
    np.testing.assert_allclose(chosen.weights, want.mean(1)[int(np.argmax(agreed))], atol=1e-5)
    with pytest.raises(UsageError, match="no head 2"):
        translation.choose(one, (Head(0, 2),))
    with pytest.raises(UsageError, match="no layer 7"):
        translation.choose(one, (), (7,))


@pytest.mark.parametrize("form", FORMS)
def test_what_it_writes_itself(tmp_path: Path, form: str) -> None:
    model = opened(tmp_path, form)
    got = translation.pair(model, Prompt(SOURCE, generate=6))
    ids = small.greedy(lambda now: small.encoder_decoder(W, SOURCE_IDS, now).logits[0], [START], 6)
    assert got.trace.tokens.ids.tolist() == ids
    ran = small.encoder_decoder(W, SOURCE_IDS, ids)
    for layer in range(2):
        a = ran.cross[layer]["weights"][0]
        for t, (_, rows) in enumerate(got.target):
            for s, (_, keys) in enumerate(got.source):
                want = a[:, list(rows)][..., list(keys)].sum(-1).mean(-1)
                np.testing.assert_allclose(got.weights.values[layer, :, t, s], want, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_of_a_long_text_no_matrix_leaves_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Rows are summed over source words in the graph: the same numbers, told and written, of all layers and of one."""
    monkeypatch.setattr(translation, "LARGE", 0)
    model = opened(tmp_path, form)
    shapes: list[tuple[int, ...]] = []
    whole = Session.run

    def run(self: Session, feed: Any, *more: Any) -> dict[str, np.ndarray]:
        values = whole(self, feed, *more)
        shapes.extend(v.shape[1:] for v in values.values() if v.ndim == 4 and v.shape[-1] != small.SIZE)
        return values

    monkeypatch.setattr(Session, "run", run)
    told = Prompt(SOURCE, target=TARGET)
    for cut, columns in ((spaced, SPACED), (readers, READ)):
        for when, back in (("read", 0), ("written", 1)):
            got = translation.pair(model, told, cut, when)  # type: ignore[arg-type]
            np.testing.assert_allclose(got.weights.values, by_hand(columns, back), atol=1e-5)
            assert set(shapes) == {(2, len(TARGET_IDS), len(columns) + 1)}
            shapes.clear()
    one = translation.pair(model, told, readers, "read", (1,))
    assert one.weights.axes[0].labels == ("L1",)
    np.testing.assert_allclose(one.weights.values, by_hand(READ)[1:], atol=1e-5)
    np.testing.assert_allclose(translation.choose(one, (Head(1, 1),)).weights, by_hand(READ)[1, 1], atol=1e-5)
    with pytest.raises(UsageError, match="no head 2"):
        translation.choose(one, (Head(1, 2),))
    monkeypatch.setattr(Session, "run", whole)
    test_what_it_writes_itself(tmp_path / "writes", form)


@pytest.mark.parametrize("form", FORMS)
def test_where_rows_cannot_be_summed_the_matrices_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(translation, "LARGE", 0)
    monkeypatch.setattr("attnx.run.row_sums.fits", lambda site, stat: False)
    test_what_it_writes_itself(tmp_path, form)


@pytest.mark.parametrize("form", FORMS)
def test_heads_are_picked_in_the_graph(tmp_path: Path, form: str) -> None:
    model = opened(tmp_path, form)
    told = Prompt(SOURCE, target=TARGET)
    whole, _ = cross(model, told)
    some, _ = cross(model, told, (1,), {1: (1,)})
    (only,) = some.attentions
    assert only.need("weights").shape[:2] == (1, 1)
    np.testing.assert_array_equal(only.need("weights")[0, 0], whole.attentions[1].need("weights")[0, 1])
    both, _ = cross(model, Prompt(SOURCE, generate=4), None, {0: (1, 0)})
    again, _ = cross(model, Prompt(SOURCE, generate=4))
    np.testing.assert_array_equal(both.attentions[0].need("weights"), again.attentions[0].need("weights")[:, [1, 0]])
    np.testing.assert_array_equal(both.attentions[1].need("weights"), again.attentions[1].need("weights"))


def test_two_directions(tmp_path: Path) -> None:
    model = opened(tmp_path)
    there = translation.choose(translation.pair(model, Prompt(SOURCE, target=TARGET)), every=True).weights
    back = translation.choose(translation.pair(model, Prompt(TARGET, target=SOURCE)), every=True).weights
    one, two = links.strongest(there), links.strongest(back).T
    np.testing.assert_array_equal(translation.both_ways(there, back, "union"), one | two)
    with pytest.raises(InputError, match="different texts"):
        translation.both_ways(there, back[:-1], "union")


def test_judged_against_gold(tmp_path: Path) -> None:
    model = opened(tmp_path)
    (tmp_path / "gold").write_text("0-0 2-1\n1-0 0p1\n0-0\n", encoding="utf-8")
    gold = alignment_error.read_gold(tmp_path / "gold")
    told = Prompt(SOURCE, target=TARGET)
    found, _ = translation.judge((translation.pair(model, told, spaced) for _ in gold), gold)
    weights, aer = by_hand(SPACED), np.zeros((2, 2))
    for layer in range(2):
        for head in range(2):
            made = {(int(weights[layer, head, t].argmax()), t) for t in range(2)}
            hit = sum(len(made & one.sure) + len(made & one.possible) for one in gold)
            aer[layer, head] = 1 - hit / (3 * len(made) + sum(len(one.sure) for one in gold))
    np.testing.assert_allclose(found.heads.values, aer)
    diagonal = {(0, 0), (2, 1)}  # of 3 source words and 2 target words
    hit = sum(len(diagonal & one.sure) + len(diagonal & one.possible) for one in gold)
    row = found.methods.axes[0].labels.index("baseline: diagonal")
    assert found.methods.values[row, 0] == pytest.approx(1 - hit / (6 + sum(len(one.sure) for one in gold)))


def test_a_decoder_has_nothing_that_joins_two_sides(tmp_path: Path) -> None:
    small.save(tmp_path, model=small.plain_decoder(W))
    with pytest.raises(UsageError, match="no cross-attention"):
        cross_sites(attnx.open(tmp_path, device="cpu"))
