"""Encoder-decoders in one file, two and three: all three attentions against the same model in plain numpy."""

from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.errors import InputError, ModelError, UsageError
from attnx.records import Attention, Trace
from attnx.tokens import from_ids
from tests import small_models as small
from tests.small_senses import letters

SOURCE = [4, 9, 9, 2, 15]
START = 5
W = small.weights(4)
FORMS = {
    "one file": {"model": small.one_file(W)},
    "two files": {"encoder_model": small.encoder(W), "decoder_model": small.cross_decoder(W, cached=False)},
    "three files": {
        "encoder_model": small.encoder(W),
        "decoder_model": small.cross_decoder(W, cached=False),
        "decoder_with_past_model": small.cross_decoder(W, cached=True),
    },
}


def opened(form: str, folder: Path, **config: object) -> attnx.Model:
    place = small.save(folder, config={"decoder_start_token_id": START, **config}, **FORMS[form])
    return attnx.open(place, device="cpu")


def hold(trace: Trace, target: list[int]) -> None:
    ran = small.encoder_decoder(W, SOURCE, target)
    sorts: dict[str, list[Attention]] = {}
    for attention in trace.attentions:
        sort = "cross" if attention.site.kind == "cross" else attention.site.component
        sorts.setdefault(sort, []).append(attention)
    assert {sort: len(found) for sort, found in sorts.items()} == dict.fromkeys(("encoder", "decoder", "cross"), 2)
    assert [a.site.index for a in trace.attentions] == list(range(6))
    for sort, want in (("encoder", ran.encoder), ("decoder", ran.decoder), ("cross", ran.cross)):
        for layer, (attention, arrays) in enumerate(zip(sorts[sort], want, strict=True)):
            assert attention.site.layer == layer
            assert attention.trusted
            assert attention.site.causal is (sort == "decoder")
            for name in ("query", "key", "value", "scores", "weights", "context"):
                np.testing.assert_allclose(attention.need(name), arrays[name], atol=3e-4, err_msg=f"{sort} {name}")  # type: ignore[arg-type]
            queries, keys = trace.queries_of(attention), trace.keys_of(attention)
            assert queries.ids.tolist() == (SOURCE if sort == "encoder" else target)
            assert keys.ids.tolist() == (target if sort == "decoder" else SOURCE)


@pytest.mark.parametrize("form", FORMS)
def test_generating_attends_as_numpy_does(form: str, tmp_path: Path) -> None:
    trace = opened(form, tmp_path).trace(tokens=from_ids(SOURCE), generate=7)
    want = small.greedy(lambda ids: small.encoder_decoder(W, SOURCE, ids).logits[0], [START], 7)
    assert trace.tokens.ids.tolist() == want
    assert trace.generated == 7
    assert len(set(want)) > 3
    hold(trace, want)
    assert any(("own cache" if form == "three files" else "recomputed") in note for note in trace.notes)


@pytest.mark.parametrize("form", FORMS)
def test_forced_first_tokens_and_stops(form: str, tmp_path: Path) -> None:
    first = 8
    free = small.greedy(lambda ids: small.encoder_decoder(W, SOURCE, ids).logits[0], [START, first], 5)
    stop = next(n for n in free[3:] if n not in free[:3])
    want = free[: free.index(stop) + 1]
    trace = opened(form, tmp_path, forced_bos_token_id=first, eos_token_id=stop).trace(
        tokens=from_ids(SOURCE), generate=9
    )
    assert trace.tokens.ids.tolist() == want
    hold(trace, want)


@pytest.mark.parametrize("form", ["one file", "two files"])
def test_a_target_is_shifted_as_in_training(form: str, tmp_path: Path) -> None:
    model = opened(form, tmp_path)
    letters(tmp_path)
    model = attnx.open(tmp_path, device="cpu")
    trace = model.trace("ejc", target="bd")
    assert trace.memory is not None
    assert trace.memory.pieces == ("<s>", "e", "j", "c", "</s>")
    assert trace.tokens.ids.tolist() == [START, 21, 1, 3]
    assert trace.tokens.pieces == ("f", "<s>", "b", "d")
    ran = small.encoder_decoder(W, [21, 4, 9, 2, 22], [START, 21, 1, 3])
    cross = [a for a in trace.attentions if a.site.kind == "cross"]
    for attention, want in zip(cross, ran.cross, strict=True):
        np.testing.assert_allclose(attention.need("weights"), want["weights"], atol=1e-4)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    model = opened("two files", tmp_path / "two")
    with pytest.raises(UsageError, match="what does the decoder say"):
        model.trace(tokens=from_ids(SOURCE))
    with pytest.raises(InputError, match="the model takes two texts"):
        opened("one file", tmp_path / "one").trace(tokens=from_ids(SOURCE))
    with pytest.raises(UsageError, match="no encoder and decoder"):
        attnx.open("minilm", device="cpu").trace("The animal.", target="Das Tier.")
    with pytest.raises(InputError, match="no input nonsense"):
        model.trace(tokens=from_ids(SOURCE), generate=2, inputs={"nonsense": np.zeros(1)})
    mixed = small.save(
        tmp_path / "mixed", encoder_model=small.plain_decoder(W), decoder_model=FORMS["two files"]["decoder_model"]
    )
    with pytest.raises(ModelError, match="none of which the decoder takes"):
        attnx.open(mixed, device="cpu").trace(tokens=from_ids(SOURCE), generate=2)


def test_the_decoder_alone_runs_on_arrays(tmp_path: Path) -> None:
    opened("two files", tmp_path)
    hidden = np.random.default_rng(0).standard_normal((1, 5, small.WIDTH)).astype(np.float32)
    feed = {
        "input_ids": np.array([[5, 1, 2]]),
        "encoder_attention_mask": np.ones((1, 5), np.int64),
        "encoder_hidden_states": hidden,
    }
    trace = attnx.open(tmp_path / "decoder_model.onnx", device="cpu").trace(inputs=feed)
    assert [a.site.kind for a in trace.attentions] == ["self", "cross"] * 2
    assert trace.memory is not None
    assert len(trace.memory) == 5
    key = hidden[0].astype(np.float64) @ W["c0k"]
    np.testing.assert_allclose(trace.attentions[1].need("key")[0].transpose(1, 0, 2).reshape(5, -1), key, atol=1e-4)
