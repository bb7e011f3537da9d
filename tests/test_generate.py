"""Decoders that write on: through a cache, a static one, and none; held to the same model in plain numpy."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import attnx
from attnx.catalog.models import bundled
from attnx.errors import InputError, UnsupportedError, UsageError
from attnx.feed.generation_config import Rules
from attnx.records import Trace
from attnx.run.generate import Decoded, Plan, choose, plan, with_new
from attnx.run.logits import next_logits
from attnx.tokens import from_ids, load_tokenizer
from attnx.tokens.spaced import spaced
from tests import small_models as small
from tests.tokens.conftest import write_bpe

PROMPT = [3, 7, 1, 12]
COUNT = 10
W = small.weights()
WANT = small.greedy(lambda ids: small.decoder(W, ids).logits[0], PROMPT, COUNT)
FORMS = {
    "plain": small.plain_decoder(W),
    "cached": small.cached_decoder(W),
    "merged": small.merged_decoder(W),
    "static": small.static_decoder(W),
}


def write(model: object, folder: Path, count: object = COUNT, prompt: list[int] = PROMPT, **config: object) -> Trace:
    place = small.save(folder, config=config, model=model)  # type: ignore[arg-type]
    return attnx.open(place, device="cpu").trace(tokens=from_ids(prompt), generate=count)  # type: ignore[arg-type]


def hold(trace: Trace, ids: list[int]) -> None:
    """Every array of a trace against numpy's, over the first `len(ids)` tokens."""
    ran, size = small.decoder(W, ids), len(ids)
    assert len(trace.attentions) == small.LAYERS
    for attention, want in zip(trace.attentions, ran.decoder, strict=True):
        assert attention.site.causal is True
        assert attention.site.heads == small.HEADS
        assert attention.trusted
        for name in ("query", "key", "value", "context"):
            np.testing.assert_allclose(attention.need(name)[:, :, :size], want[name], atol=2e-4)
        for name, array in want.items():
            if name in ("scores", "weights"):
                np.testing.assert_allclose(attention.need(name)[..., :size, :size], array, atol=2e-4)  # type: ignore[arg-type]
        np.testing.assert_allclose(attention.need("scaled")[..., :size, :size], want["scores"] / np.sqrt(8), atol=2e-4)
        later = np.triu(np.ones(attention.need("weights").shape[2:], bool), 1)
        assert not attention.need("weights")[..., later].any()


@pytest.mark.parametrize("form", FORMS)
def test_greedy_is_what_numpy_writes_and_attends(form: str, tmp_path: Path) -> None:
    trace = write(FORMS[form], tmp_path)
    assert trace.tokens.ids.tolist() == WANT
    assert len(set(WANT[len(PROMPT) :])) > 3  # a decoder that repeats itself would prove little
    assert trace.generated == COUNT
    assert trace.attentions[0].need("weights").shape == (1, small.HEADS, len(WANT), len(WANT))
    hold(trace, WANT)
    how = "recomputed" if form == "plain" else "through the model's own cache"
    assert any(how in note and "positions 4 to 13" in note for note in trace.notes)
    assert trace.sides == {}


def test_a_model_for_a_fixed_length_is_padded(tmp_path: Path) -> None:
    trace = write(small.plain_decoder(W, 20), tmp_path)
    assert trace.tokens.ids[: len(WANT)].tolist() == WANT
    assert trace.tokens.mask == (True,) * len(WANT) + (False,) * (20 - len(WANT))
    for attention, want in zip(trace.attentions, small.decoder(W, WANT).decoder, strict=True):
        np.testing.assert_allclose(attention.need("weights")[..., :14, :14], want["weights"], atol=1e-4)
        assert not attention.need("weights")[..., :14, 14:].any()


@pytest.mark.parametrize("form", FORMS)
def test_end_of_text_stops(form: str, tmp_path: Path) -> None:
    stop = WANT[len(PROMPT) + 2]
    trace = write(FORMS[form], tmp_path, eos_token_id=[999, stop])
    want = small.greedy(lambda ids: small.decoder(W, ids).logits[0], PROMPT, COUNT, stop)
    assert trace.tokens.ids.tolist() == want
    assert trace.generated == len(want) - len(PROMPT) < COUNT
    assert any("ended by" in note for note in trace.notes)
    hold(trace, want)


@pytest.mark.parametrize("form", ["plain", "cached"])
def test_sampling_is_the_same_for_the_same_seed_with_cache_and_without(form: str, tmp_path: Path) -> None:
    def draw(seed: int, temperature: float = 1.5) -> list[int]:
        rng, ids = np.random.default_rng(seed), list(PROMPT)
        for _ in range(8):
            logits = small.decoder(W, ids).logits[0, -1] / temperature
            logits[logits < np.sort(logits)[-5]] = -np.inf
            share = np.exp(logits - logits.max())
            ids.append(int(rng.choice(small.VOCABULARY, p=share / share.sum())))
        return ids

    got = {
        seed: write(FORMS[form], tmp_path / str(seed), Plan(8, temperature=1.5, top_k=5, seed=seed)).tokens.ids.tolist()
        for seed in (0, 1)
    }
    assert got == {0: draw(0), 1: draw(1)}
    assert got[0] != got[1]


def test_a_static_cache_stops_when_it_is_full(tmp_path: Path) -> None:
    trace = write(FORMS["static"], tmp_path, 100)
    assert len(trace.tokens) == small.LONGEST
    assert any(f"stopped at {small.LONGEST} tokens" in note for note in trace.notes)


def test_a_text_through_a_static_cache_shows_no_empty_room(tmp_path: Path) -> None:
    place = small.save(tmp_path, model=FORMS["static"])
    trace = attnx.open(place, device="cpu").trace(tokens=from_ids(WANT))
    assert trace.attentions[0].need("weights").shape == (1, small.HEADS, len(WANT), len(WANT))
    hold(trace, WANT)


def test_left_padding_moves_positions(tmp_path: Path) -> None:
    from attnx.tokens import pad

    place = small.save(tmp_path, model=FORMS["plain"])
    tokens = pad([from_ids(PROMPT), from_ids(range(1, 8))], side="left")[0]
    trace = attnx.open(place, device="cpu").trace(tokens=tokens)
    want = small.decoder(W, PROMPT).decoder
    for attention, arrays in zip(trace.attentions, want, strict=True):
        np.testing.assert_allclose(attention.need("weights")[:, :, 3:, 3:], arrays["weights"], atol=1e-4)
        assert not attention.need("weights")[:, :, 3:, :3].any()


@pytest.mark.parametrize("form", FORMS)
def test_padding_by_a_mask_of_ones_own_moves_positions_and_is_not_written_on(form: str, tmp_path: Path) -> None:
    """Two tokens of padding at the left: positions count from the first real one, what is written is the same."""
    place = small.save(tmp_path, model=FORMS[form])
    mask = np.array([[0, 0, *[1] * len(PROMPT)]])
    prompt = from_ids([9, 9, *PROMPT])
    model = attnx.open(place, device="cpu")
    trace = model.trace(tokens=prompt, inputs={"attention_mask": mask}, generate=4)
    assert trace.tokens.ids.tolist() == [9, 9, *WANT[: len(PROMPT) + 4]]
    assert trace.tokens.mask[:3] == (False, False, True)
    want = small.decoder(W, WANT[: len(PROMPT) + 4]).decoder
    for attention, arrays in zip(trace.attentions, want, strict=True):
        np.testing.assert_allclose(attention.need("weights")[:, :, 2:, 2:], arrays["weights"], atol=1e-4)
    if form != "static":  # whose mask has room for all that it holds
        alone = model.trace(tokens=prompt, inputs={"attention_mask": mask})
        np.testing.assert_allclose(
            alone.attentions[0].need("weights")[:, :, 2:, 2:], small.decoder(W, PROMPT).decoder[0]["weights"], atol=1e-4
        )
    with pytest.raises(InputError, match="attention_mask has shape"):
        model.trace(tokens=prompt, inputs={"attention_mask": mask[:, :3]}, generate=4)


def test_a_cache_that_nothing_fills_is_not_used(tmp_path: Path) -> None:
    model = small.cached_decoder(W)
    del model.graph.output[1:]
    trace = write(model, tmp_path)
    assert trace.tokens.ids.tolist() == WANT
    assert any("recomputed" in note for note in trace.notes)


def test_what_cannot_write_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none of its attention hides the future"):
        attnx.open("minilm", device="cpu").trace("The animal.", generate=3)
    with pytest.raises(UsageError, match="from 1"):
        write(FORMS["plain"], tmp_path, 0)
    model = small.plain_decoder(W)
    logits = next(n for n in model.graph.node if "logits" in n.output)
    model.graph.node.remove(logits)
    del model.graph.output[:]
    model.graph.output.append(small.info(logits.input[0], small.F, ["batch", "sequence", small.WIDTH]))
    for ids in ([20, 21], [1, 2]):  # also where every id is less than the width of what it gives
        with pytest.raises(UnsupportedError, match="predicts the next token: its vocabulary has"):
            write(model, tmp_path / f"headless{ids[0]}", 2, ids)


def row(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def test_logits_are_told_by_the_size_of_the_vocabulary() -> None:
    hidden, logits = row(1, 4, 64), row(1, 4, 30)
    for outputs in ({"a": hidden, "b": logits}, {"b": logits, "last_hidden_state": row(1, 4, 30)}):
        np.testing.assert_array_equal(next_logits(outputs, {30}, 3), logits[0, 3].astype(np.float64))
    several = {"x": row(1, 4, 30), "logits": logits, "y": row(1, 4, 30)}
    np.testing.assert_array_equal(next_logits(several, {30, 29}, 2), logits[0, 2].astype(np.float64))
    np.testing.assert_array_equal(next_logits({"y": row(1, 30)}, {30}, 5), row(1, 30)[0].astype(np.float64))
    wider = row(1, 4, 40)
    np.testing.assert_array_equal(next_logits({"logits": wider}, {30}, 3), wider[0, 3].astype(np.float64))
    none = ({"x": hidden}, {"last_hidden_state": row(1, 4, 30)}, {"logits": row(1, 2)}, {"x": row(4), "y": hidden})
    for outputs in none:
        with pytest.raises(UnsupportedError, match="vocabulary has 30 entries"):
            next_logits(outputs, {30}, 3)
    with pytest.raises(UnsupportedError, match="several outputs"):
        next_logits({"x": row(1, 4, 30), "y": row(1, 4, 30)}, {30}, 3)
    with pytest.raises(UnsupportedError, match="has 2 positions"):
        next_logits({"x": row(1, 2, 30)}, {30}, 3)


def test_outputs_with_the_sequence_first_and_shares_in_place_of_logits() -> None:
    first = row(4, 1, 30)
    np.testing.assert_array_equal(next_logits({"x": first}, {30}, 2), first[2, 0].astype(np.float64))
    logits = row(1, 4, 30).astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    got = next_logits({"probs": shares}, {30}, 1)
    np.testing.assert_allclose(got - got[0], logits[0, 1] - logits[0, 1, 0], atol=1e-9)


@pytest.mark.parametrize("temperature", [1e-308, 1e-30, 1e-6])
def test_temperatures_near_zero_take_the_likeliest(temperature: float) -> None:
    rng = np.random.default_rng(0)
    logits = np.array([0.0, 3.0, 1.0, -np.inf])
    assert {choose(logits, 0, Plan(1, temperature=temperature), rng) for _ in range(20)} == {1}
    level = {choose(np.array([3.0, 0.0, 3.0]), 0, Plan(1, temperature=temperature), rng) for _ in range(60)}
    assert level == {0, 2}


def test_logits_that_are_no_numbers_are_refused() -> None:
    rng = np.random.default_rng(0)
    for temperature in (0.0, 1.0):
        with pytest.raises(UnsupportedError, match="NaN among them"):
            choose(np.array([0.0, np.nan]), 3, Plan(1, temperature=temperature), rng)
        none = Rules(suppressed=frozenset({0, 1}))
        with pytest.raises(UnsupportedError, match="no finite number that its configuration allows"):
            choose(np.array([0.0, 1.0]), 3, Plan(1, temperature=temperature, rules=none), rng)


def test_seeds_and_temperatures_that_make_no_sense(tmp_path: Path) -> None:
    model = attnx.open(small.save(tmp_path / "m", model=small.plain_decoder(W)), device="cpu")
    for told in ({"seed": -1}, {"temperature": -0.5}, {"temperature": float("nan")}, {"top_k": 0}):
        with pytest.raises(UsageError, match=next(iter(told))):
            plan(model, 3, **told)  # type: ignore[arg-type]


def test_choosing() -> None:
    rng = np.random.default_rng(0)
    logits = np.array([0.0, 3.0, 3.0, 1.0])
    assert choose(logits, 5, Plan(1), rng) == 1
    assert choose(logits, 5, Plan(1, rules=Rules(suppressed=frozenset({1, 400}))), rng) == 2
    assert choose(logits, 5, Plan(1, rules=Rules({5: 3})), rng) == 3
    assert choose(logits, 5, Plan(1, rules=Rules(among={5: frozenset({0, 3, 9})})), rng) == 3
    first = Rules({1: 2}, at_first=frozenset({1, 2}))
    assert [choose(logits, at, Plan(1, rules=first), rng) for at in (1, 2, 3)] == [2, 3, 1]
    drawn = [choose(logits, 0, Plan(1, temperature=1.0), rng) for _ in range(4000)]
    share = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4000, share, atol=0.03)


@pytest.mark.skipif("tiny-gpt" not in bundled(), reason="not in this checkout")
def test_the_bundled_decoder_writes_with_its_cache_what_it_writes_without() -> None:
    import onnxruntime

    model = attnx.open("tiny-gpt", device="cpu")
    trace = model.trace("The animal", generate=12)
    session = onnxruntime.InferenceSession(str(model.path), providers=["CPUExecutionProvider"])

    def step(ids: list[int]) -> np.ndarray:
        """Logits over a whole sequence, with an empty cache."""
        feed = {}
        for slot in session.get_inputs():
            if slot.name.startswith("past"):
                feed[slot.name] = np.zeros(
                    [d if isinstance(d, int) else int("batch" in d) for d in slot.shape], np.float32
                )
            else:
                row = {"input_ids": ids, "position_ids": range(len(ids))}.get(slot.name, [1] * len(ids))
                feed[slot.name] = np.array([list(row)], np.int64)
        logits: np.ndarray = session.run(["logits"], feed)[0][0]
        return logits

    prompt = trace.tokens.ids[: len(trace.tokens) - trace.generated].tolist()
    want = small.greedy(step, prompt, 12)
    assert trace.tokens.ids.tolist() == want[: len(trace.tokens)]
    assert any("through the model's own cache" in note for note in trace.notes)
    written = [i for i in range(len(want) - 12, len(trace.tokens)) if not trace.tokens.special[i]]
    assert trace.tokens.text == "The animal" + "".join(trace.tokens.pieces[i] for i in written)
    for i in written:
        assert trace.tokens.text[slice(*trace.tokens.offsets[i])] == trace.tokens.pieces[i].lstrip(" ")
    for attention in trace.attentions:
        assert attention.trusted
        later = np.triu(np.ones(attention.need("weights").shape[2:], bool), 1)
        assert not attention.need("weights")[..., later].any()


@pytest.mark.parametrize(("blank", "shown"), [("Ġ", "␠"), ("Ċ", "␊"), ("ĊĊ", "␊␊")])
def test_spaces_that_are_tokens_are_spaces_of_the_text(blank: str, shown: str, tmp_path: Path) -> None:
    """Then its words, which stand between spaces, are those of the same text where it is given."""
    tokenizer = load_tokenizer(write_bpe(tmp_path))
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    model: Any = SimpleNamespace(tokenizer=tokenizer)
    written = (vocabulary["Ġcat"], vocabulary[blank], vocabulary["it"])
    run: Any = None
    begun = tokenizer.encode("the")
    made = with_new(model, begun, Decoded((*begun.ids.tolist(), *written), 3, run, False))
    given = tokenizer.encode("the cat" + {"Ġ": " ", "Ċ": "\n", "ĊĊ": "\n\n"}[blank] + "it")
    assert made.text == given.text
    assert [word for word, _ in spaced(made)] == ["the", "cat", "it"]
    assert made.pieces == ("the", " cat", shown, "it")
    assert [made.text[slice(*at)] for at in made.offsets] == ["the", "cat", made.text[7:-2], "it"]
