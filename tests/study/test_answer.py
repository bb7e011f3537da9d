"""An answer traced to its prompt: sums of rows, spans, sinks, own words and lookback, by numpy over small decoders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnx
from attnx.errors import InputError, UsageError
from attnx.model import Model
from attnx.run.generate import Plan, plan
from attnx.run.prompt import Prompt
from attnx.session.ort import Session
from attnx.study import answer as study
from attnx.study.answer import Answer, answer
from attnx.study.prompts import cut, read_spans
from attnx.study.request import Head
from attnx.tokens import from_ids
from tests import small_models as small
from tests.small_senses import letters

W = small.weights(4)
PROMPT = [21, 3, 7, 1, 12, 7, 3, 9]  # <s> first
SPANS = ((1, 2, 3), (4, 5))  # tokens; 6 and 7 are in none
FORMS: dict[str, dict[str, Any]] = {
    "cached": {"model": small.cached_decoder(W)},
    "merged": {"model": small.merged_decoder(W)},
    "static": {"model": small.static_decoder(W)},
    "plain": {"model": small.plain_decoder(W)},
    "fixed": {"model": small.plain_decoder(W, 16)},
}


def opened(folder: Path, form: str) -> Model:
    small.save(folder, config={"eos_token_id": 20, "max_position_embeddings": 32}, **FORMS[form])
    letters(folder)
    return attnx.open(folder, device="cpu")


def spans_file(folder: Path, model: Model) -> str:
    """Spans in characters of the text that the prompt's pieces make: one letter a token, <s> without one."""
    (folder / "spans.csv").write_text("start,end,name\n0,3,first\n3,5,second\n", encoding="utf-8")
    return str(folder / "spans.csv")


def by_hand(ids: list[int], count: int) -> tuple[np.ndarray, np.ndarray]:
    """[L,H,T,5] and the lookback ratio [L,H,T] from the model in numpy."""
    ran, size = small.decoder(W, ids), len(ids) - count
    parts, ratios = np.zeros((2, 2, count, 5)), np.zeros((2, 2, count))
    for layer in range(2):
        a = ran.decoder[layer]["weights"][0]
        for step in range(count):
            row = a[:, size - 1 + step]
            for at, tokens in enumerate((*SPANS, (6, 7), (0,), tuple(range(size, size + step)))):
                parts[layer, :, step, at] = row[:, list(tokens)].sum(-1)
            context = row[:, :size].mean(-1)
            new = row[:, size : size + step].mean(-1) if step else np.full(2, np.nan)
            ratios[layer, :, step] = context / (context + new)
    return parts, ratios


def held(got: Answer, ids: list[int], count: int) -> None:
    parts, ratios = by_hand(ids, count)
    assert got.tokens.ids.tolist() == ids
    assert (got.prompt, got.written) == (len(ids) - count, count)
    np.testing.assert_allclose(got.weights.values, parts, atol=1e-5)
    np.testing.assert_allclose(got.lookback.values, ratios, atol=1e-5)
    assert np.isnan(got.lookback.values[..., 0]).all()
    np.testing.assert_allclose(got.weights.values.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_what_it_writes_itself(tmp_path: Path, form: str) -> None:
    model = opened(tmp_path, form)
    ids = small.greedy(lambda now: small.decoder(W, now).logits[0], PROMPT, 5)
    got = answer(model, Prompt(tokens=from_ids(PROMPT, model.tokenizer)), plan(model, 5), spans_file(tmp_path, model))
    held(got, ids, 5)
    assert got.weights.axes[-1].labels == ("first", "second", "rest of the prompt", "sinks", "own words")


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_that_is_told(tmp_path: Path, form: str) -> None:
    model = opened(tmp_path, form)
    told = Prompt(tokens=from_ids(PROMPT, model.tokenizer), target="cab")
    held(answer(model, told, None, spans_file(tmp_path, model)), [*PROMPT, 2, 0, 1], 3)


def test_where_the_graph_cannot_be_reduced_the_matrices_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnx.run.row_sums.fits", lambda site, stat: False)
    test_what_it_writes_itself(tmp_path, "cached")
    test_an_answer_that_is_told(tmp_path / "told", "plain")


def test_no_row_leaves_the_session_and_a_long_prompt_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24 tokens, read six at once: the same numbers, and nothing as large as a row of them comes out."""
    monkeypatch.setattr(study, "PIECE", 6)
    model = opened(tmp_path, "cached")
    prompt = [21, *np.random.default_rng(2).integers(0, 19, 23).tolist()]
    ids = small.greedy(lambda now: small.decoder(W, now).logits[0], prompt, 4)
    read: list[int] = []
    sizes: list[tuple[int, ...]] = []
    whole = Session.run

    def run(self: Session, feed: Any, *more: Any) -> dict[str, np.ndarray]:
        values = whole(self, feed, *more)
        read.append(feed["input_ids"].shape[1])
        sizes.extend(v.shape for name, v in values.items() if not name.startswith(("present", "logits")))
        return values

    monkeypatch.setattr(Session, "run", run)
    got = answer(model, Prompt(tokens=from_ids(prompt, model.tokenizer)), plan(model, 4), "paragraph")
    assert got.tokens.ids.tolist() == ids
    assert read[3:] == [6, 6, 6, 6, 1, 1, 1, 1]  # before: eight at once, and four and four, held against one another
    marks = 1 + 3 + 24 + 1
    assert set(sizes) == {(1, 2, 1, marks)}
    ran = small.decoder(W, ids)
    for layer in range(2):
        a = ran.decoder[layer]["weights"][0, :, 23:27]
        np.testing.assert_allclose(got.weights.values[layer, ..., 0], a[..., 1:24].sum(-1), atol=1e-5)
        np.testing.assert_allclose(got.blocks.values[layer][..., 1:], a[..., 1:24], atol=1e-5)
        assert (got.blocks.values[layer][..., 0] == 0).all()  # the sink


def test_a_decoder_that_reads_pieces_wrong_is_given_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose mask behind a cache lets a token see the ones after it, as exports for single tokens have it."""
    import onnx

    monkeypatch.setattr(study, "PIECE", 3)
    model = small.cached_decoder(W)
    for node in model.graph.node:
        if node.op_type == "And":  # seen = real: right for one token at a time
            node.input[0] = node.input[1]
    small.save(tmp_path, config={"eos_token_id": 20, "max_position_embeddings": 32}, model=model)
    letters(tmp_path)
    opened = attnx.open(tmp_path, device="cpu")
    from attnx.run.row_sums import reads_in_pieces

    assert not reads_in_pieces(opened, PROMPT)
    good = tmp_path / "good"
    small.save(good, config={"eos_token_id": 20}, model=small.merged_decoder(W))
    letters(good)
    assert reads_in_pieces(attnx.open(good, device="cpu"), PROMPT)
    onnx.checker.check_model(model)


def test_heads_layers_and_units(tmp_path: Path) -> None:
    model = opened(tmp_path, "cached")
    told = Prompt(tokens=from_ids(PROMPT, model.tokenizer), target="ab. cd")
    got = answer(model, told, None)
    values = got.weights.values
    np.testing.assert_allclose(got.mean(got.weights, (), None), values.mean((0, 1)))
    np.testing.assert_allclose(got.mean(got.weights, (Head(1, 0),), None), values[1, 0])
    np.testing.assert_allclose(got.mean(got.weights, (Head(None, 1),), None), values[:, 1].mean(0))
    np.testing.assert_allclose(got.mean(got.weights, (), (1,)), values[1].mean(0))
    with pytest.raises(UsageError, match="no head 9"):
        got.mean(got.weights, (Head(0, 9),), None)
    with pytest.raises(UsageError, match="no layer 9"):
        got.mean(got.weights, (Head(9, 0),), None)
    assert [unit.text for unit in got.units("whole")] == ["ab. cd"]
    assert [(unit.text, unit.steps) for unit in got.units("sentence")] == [("ab. cd", (0, 1, 2, 3, 4, 5))]
    assert [(unit.text, unit.steps) for unit in got.units("word")][-1] == ("cd", (4, 5))


def test_prompt_and_answer_are_cut_as_one(tmp_path: Path) -> None:
    model = attnx.open("tiny-gpt", device="cpu")
    got = answer(model, Prompt("The cat sat on the mat.", target="The cat was tired."), None, "sentence")
    whole = model.encode("The cat sat on the mat. The cat was tired.").ids.tolist()
    kept = [n for at, n in enumerate(whole) if not (at == len(whole) - 1 and model.tokenizer.is_special(n))]
    assert got.tokens.ids.tolist() == kept
    assert "".join(got.tokens.pieces[got.prompt :]).strip() == "The cat was tired."
    assert [span.text for span in got.spans] == ["The cat sat on the mat."]
    trace = model.trace(tokens=from_ids(kept, model.tokenizer))
    for layer, a in enumerate(trace.attentions):
        rows = a.need("weights")[0, :, got.prompt - 1 : len(kept) - 1]
        np.testing.assert_allclose(got.weights.values[layer][..., -1], rows[..., got.prompt :].sum(-1), atol=1e-5)


def test_what_cannot_be_traced(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="writes no text"):
        answer(attnx.open("minilm", device="cpu"), Prompt("a"), Plan(3))
    model = opened(tmp_path, "cached")
    with pytest.raises(UsageError, match="no text to go on from"):
        answer(model, Prompt(inputs={"input_ids": np.array([[1, 2]])}), Plan(3))
    with pytest.raises(InputError, match="nothing of the answer is left"):
        answer(model, Prompt("abcdefgh" * 8, target="abc"), None)


def test_spans_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "spans"
    for text in (
        "start,end,name\n0,2,one\n3,5,\n",
        "0\t2\tone\n3\t5\n",
        '{"start":0,"end":2,"name":"one"}\n{"start":3,"end":5}',
    ):
        path.write_text(text, encoding="utf-8")
        assert read_spans(path) == [(0, 2, "one"), (3, 5, "2")]
    model = opened(tmp_path, "cached")
    tokens = model.encode("abcdefgh")
    for text, said in (
        ("0,2\n1,4\n", "overlap"), ("0,99\n", "is not of the prompt"), ("4,4\n", "is not of the prompt"),
        ("a\nb\n", "is not a span"), ("-3,5,x\n6,9,y\n", "line 1 .* is not a span"),
        ('{"start": 0.5, "end": 3}\n', "line 1 .* is not a span"), ("0,5,one, two\n", "line 1 .* is not a span"),
        ('0,5,"one\n', "line 1 .* is not a span"),
        ('{"start": 0, "start": 2, "end": 3}\n', "line 1 .* is not a span"),
        ("", "no spans in it"), ("0,2\n{x}\n", "is not a span"), ("start,end\n", "no spans in it"),
    ):  # fmt: skip
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=said):
            cut(tokens, len(tokens), str(path))
    with pytest.raises(InputError, match="cannot be read"):
        cut(tokens, len(tokens), "nowhere.csv")
