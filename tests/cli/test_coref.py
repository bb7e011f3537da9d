"""`attnx coref`: shares, sinks, verdicts, baselines from onnxruntime's own weights, and the truth about a sentence."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.analysed import bundled, causal, two_sided, values
from tests.cli.conftest import ANIMAL, Run

WIDE = ANIMAL.replace("tired", "wide")
IT, CANDIDATES = 10, {"animal": [2], "street": [8]}


def by_hand(text: str) -> np.ndarray:
    """[layer,H,2]: weight from "it" to animal and street; 0 where the key is a sink for the head."""
    a = bundled(text).weights
    others = [q for q in range(a.shape[2]) if q != IT]
    sink = a[:, :, others].mean(axis=2) > 0.3
    return np.stack([np.where(sink[..., at], 0.0, a[:, :, IT, at]).sum(-1) for at in CANDIDATES.values()], axis=-1)


def test_weights_and_shares_of_the_candidates(attnx: Run) -> None:
    (got,) = attnx("coref", ANIMAL, "--to", "animal,street", "--json").document["pronouns"]
    want = by_hand(ANIMAL)
    np.testing.assert_allclose(values(got["weights"]), want, atol=1e-5)
    np.testing.assert_allclose(values(got["shares"]), want / want.sum(-1, keepdims=True), atol=1e-4)
    np.testing.assert_allclose(values(got["margin"]), np.abs(want[..., 0] - want[..., 1]), atol=1e-5)
    best = np.argsort(-np.abs(want[..., 0] - want[..., 1]), axis=None)[:5]
    assert [tuple(at) for at in got["ranked"][:5]] == [divmod(int(at), 12) for at in best]
    assert got["pronoun"]["pieces"] == [IT]
    assert [c["pieces"] for c in got["candidates"]] == [[2], [8]]


def test_sinks_are_set_aside_and_named(attnx: Run) -> None:
    a = bundled(ANIMAL).weights[5, 11]
    others = [q for q in range(16) if q != IT]
    assert a[others, 2].mean() > 0.3  # the head gathers on "animal" from everywhere, so it says nothing of "it"
    assert a[IT, 2] == pytest.approx(0.67, abs=0.005)
    done = attnx("coref", ANIMAL, "--to", "animal,street")
    assert "in 1 head: L5 H11 0.67 on animal" in " ".join(done.out.split())
    (got,) = attnx("coref", ANIMAL, "--to", "animal,street", "--json").document["pronouns"]
    aside = dict(zip(got["aside"]["axes"][2]["labels"], values(got["aside"])[5, 11], strict=True))
    assert aside["hub"] == pytest.approx(a[IT, 2], abs=1e-5)
    assert aside["special"] == pytest.approx(a[IT, [0, 15]].sum(), abs=1e-5)
    assert aside["self"] == pytest.approx(a[IT, IT], abs=1e-5)
    assert sum(aside.values()) == pytest.approx(1, abs=1e-5)


def test_verdicts_and_baselines(attnx: Run) -> None:
    (got,) = attnx("coref", ANIMAL, "--to", "animal,street", "--json").document["pronouns"]
    want, verdicts = by_hand(ANIMAL), {v["method"]: v for v in got["verdicts"]}
    mean = want.mean(axis=(0, 1))
    assert verdicts["mean of all heads"]["shares"] == pytest.approx((mean / mean.sum()).tolist(), abs=1e-4)
    b = bundled(ANIMAL)
    rolled = np.eye(16)
    for layer in b.weights.mean(axis=1):
        rolled = (0.5 * layer + 0.5 * np.eye(16)) @ rolled
    pair = rolled[IT, [2, 8]]
    assert verdicts["rollout"]["shares"] == pytest.approx((pair / pair.sum()).tolist(), abs=1e-4)
    names = [v["method"] for v in got["baselines"]]
    assert names == ["uniform", "nearest", "first"]
    assert [v["candidate"] for v in got["baselines"]] == [None, 1, 0]
    for layer, verdict in enumerate(got["layer_means"]):
        shares = want[layer].mean(0)
        assert verdict["shares"] == pytest.approx((shares / shares.sum()).tolist(), abs=1e-4)


def test_value_norms_with_the_output_projection(attnx: Run) -> None:
    from tests.cli.analysed import _opened

    (got,) = attnx("coref", ANIMAL, "--to", "animal,street", "--json").document["pronouns"]
    verdict = next(v for v in got["verdicts"] if v["method"] == "value norms")
    b, stored = bundled(ANIMAL), _opened()[3]
    shares = []
    for layer in range(6):
        w = stored[f"encoder.layer.{layer}.attention.output.dense.weight"].astype(np.float64).reshape(12, 32, 384)
        sizes = np.linalg.norm(np.einsum("hkd,hde->hke", b.value[layer], w), axis=-1)
        carried = b.weights[layer, :, IT] * sizes
        shares.append((carried / carried.sum(-1, keepdims=True)).mean(0))
    pair = np.mean(shares, axis=0)[[2, 8]]
    assert verdict["shares"] == pytest.approx((pair / pair.sum()).tolist(), abs=1e-4)


def test_it_is_honest(attnx: Run) -> None:
    text = " ".join(attnx("coref", ANIMAL).out.split())
    assert "one sentence proves nothing" in text
    assert "(chance 0.25; nearest street, first animal)" in text
    assert "baseline: nearest" in text
    assert "Clark et al. 2019" not in text
    told = " ".join(attnx("coref", ANIMAL, "--explain").out.split())
    assert "Clark et al. 2019" in told
    assert "by layer" not in told
    assert "by layer" in attnx("coref", ANIMAL, "--all").out


def test_contrast_says_which_heads_move(attnx: Run) -> None:
    got = attnx("coref", ANIMAL, "--to", "animal,street", "--contrast", WIDE, "--json").document["contrast"][0]
    one, two = by_hand(ANIMAL), by_hand(WIDE)
    moved = one.argmax(-1) != two.argmax(-1)
    assert sorted(map(tuple, got["moved"])) == sorted(zip(*(at.tolist() for at in np.nonzero(moved)), strict=True))
    assert len(got["moved"]) + len(got["fixed"]) == 72
    gap = np.abs(two / two.sum(-1, keepdims=True) - one / one.sum(-1, keepdims=True)).sum(-1) / 2
    np.testing.assert_allclose(values(got["change"]), gap, atol=1e-4)
    text = attnx("coref", ANIMAL, "--to", "animal,street", "--contrast", WIDE).out
    assert f"{moved.sum()} heads point elsewhere" in text
    assert "lacks one of: it, animal" in attnx("coref", ANIMAL, "--contrast", "It was wide.", code=4).err


def test_our_own_pairs_are_at_chance_for_minilm(attnx: Run) -> None:
    got = attnx("coref", "--dataset", "pairs", "--json").document
    assert got["groups"] == 58
    methods = dict(zip(got["methods"]["axes"][0]["labels"], values(got["methods"]), strict=True))
    accuracy, low, high, _ = methods["best head, chosen on the other half"]
    assert (accuracy, low, high) == pytest.approx((0.517, 0.500, 0.543), abs=0.0006)
    assert methods["nearest"][0] == 0.5
    assert low <= 0.5 <= high  # not above chance
    best = got["heads"]["values"]
    assert 0.5 < np.max(best) < 0.56


def test_a_dataset_file(attnx: Run, tmp_path: Path) -> None:
    lines = []
    for text, answer in ((ANIMAL, 0), (WIDE, 1)):
        spots = [(text.index(word), text.index(word) + len(word)) for word in ("animal", "street")]
        it = text.index(" it ") + 1
        for pair in ("a", "b"):
            lines.append({"text": text, "pronoun": [it, it + 2], "candidates": spots, "answer": answer, "pair": pair})
    file = tmp_path / "two.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines))
    got = attnx("coref", "--dataset", str(file), "--json").document
    right = (by_hand(ANIMAL).argmax(-1) == 0).astype(float) + (by_hand(WIDE).argmax(-1) == 1)
    np.testing.assert_allclose(values(got["heads"]), right / 2)
    assert got["examples"] == 4
    assert "best head, chosen on the other half" in attnx("coref", "--dataset", str(file)).out


def test_repeated_pronouns_each_get_an_answer(attnx: Run) -> None:
    text = "The dog barked because it saw a cat and it ran."
    got = attnx("coref", text, "--json").document["pronouns"]
    assert [one["pronoun"]["pieces"] for one in got] == [[5], [10]]
    (one,) = attnx("coref", text, "--from", "it@10", "--json").document["pronouns"]
    assert one["pronoun"]["pieces"] == [10]


def test_subwords_sum_to_and_mean_from(attnx: Run) -> None:
    text = "The defenestrated bank said they refused."
    pieces = bundled(text).pieces
    start = pieces.index("def")
    word = [at for at in range(start, len(pieces)) if at == start or pieces[at].startswith("##")]
    word = word[: next((n for n in range(1, len(word)) if word[n] != word[n - 1] + 1), len(word))]
    (got,) = attnx("coref", text, "--from", "they", "--to", "defenestrated,bank", "--json").document["pronouns"]
    assert got["candidates"][0]["pieces"] == word
    assert len(word) > 1
    at = pieces.index("they")
    a = bundled(text).weights
    sink = a[:, :, [q for q in range(len(pieces)) if q != at]].mean(2) > 0.3
    want = np.where(sink[..., word], 0, a[:, :, at][..., word]).sum(-1)
    np.testing.assert_allclose(values(got["weights"])[..., 0], want, atol=1e-5)


def test_a_causal_model_sees_no_candidate_that_comes_after(attnx: Run, tmp_path: Path) -> None:
    case = causal(tmp_path / "causal")
    done = attnx("coref", *case.args, "--from", "3", "--to", "1,4", "--json")
    (got,) = done.document["pronouns"]
    assert got["unseen"] == [1]
    assert np.isnan(values(got["weights"])[..., 1]).all()
    assert any("comes after" in note for note in got["notes"])
    assert "comes after" in attnx("coref", *case.args, "--from", "3", "--to", "1,4").out


def test_a_pronoun_that_sees_no_candidate_gets_no_empty_tables(attnx: Run, tmp_path: Path) -> None:
    case = causal(tmp_path / "causal")
    shown = attnx("coref", *case.args, "--from", "2", "--to", "3,4").out
    assert "no candidate can be seen" in shown
    assert " come after " in shown
    assert "cannot see them" in " ".join(shown.split())
    assert "by margin" not in shown
    assert "by layer" not in shown


def test_an_encoder_decoder_is_read_on_its_encoders_side(attnx: Run, tmp_path: Path) -> None:
    case = two_sided(tmp_path / "both")
    (got,) = attnx("coref", *case.args, "--from", "4", "--to", "0,2", "--json").document["pronouns"]
    a = np.stack([layer["weights"][0] for layer in case.ran.encoder])
    sink = a[:, :, :4].mean(2) > 0.3
    want = np.where(sink, 0, a[:, :, 4])[..., [0, 2]]
    np.testing.assert_allclose(values(got["weights"]), want, atol=1e-5)


@pytest.mark.parametrize(("args", "code"), [
    ((ANIMAL, "--from", "unicorn"), 4), ((ANIMAL, "--to", "unicorn"), 4), (("It was it.",), 2),
    (("The animal slept.",), 4), (("",), 4), ((ANIMAL, "--to", "it"), 2), ((ANIMAL, "--dataset", "pairs"), 2),
    (("--dataset", "nowhere.jsonl"), 4), ((ANIMAL, "--from", "it@3"), 2), (("--ids", "101,102"), 4),
])  # fmt: skip
def test_what_is_absent(attnx: Run, args: tuple[str, ...], code: int) -> None:
    done = attnx("coref", *args, code=code)
    assert done.out == ""
    assert "Traceback" not in done.err


def test_a_long_text(attnx: Run) -> None:
    done = attnx("coref", f"{ANIMAL} " + "and then on " * 200, "--to", "animal,street")
    assert "it@10" in done.out
    assert "without W_O" not in done.err


def test_candidates_that_nobody_named_are_said(attnx: Run) -> None:
    """All content words, verbs among them: a head that finds the next verb would look like a finding."""
    done = attnx("coref", ANIMAL)
    assert "every content word is a candidate: animal, " in done.err
    assert "--to" in done.err
    assert "every content word" not in attnx("coref", ANIMAL, "--to", "animal,street").err


def test_a_single_candidate_is_said_to_prove_nothing(attnx: Run) -> None:
    done = attnx("coref", ANIMAL, "--to", "animal", "--contrast", ANIMAL)
    assert "animal is the only candidate, so every head points at it: --to takes two or more" in done.err
    assert "0 heads point elsewhere in the other text" in done.out
    assert "there" not in done.out.split("against:")[1].split("0 heads")[0].split()  # headings of no rows
    assert "only candidate" not in attnx("coref", ANIMAL, "--to", "animal,street").err
    assert "the text is empty" in attnx("coref", ANIMAL, "--contrast", "", code=4).err


def test_content_words_out_of_sight_are_counted_in_words(attnx: Run) -> None:
    said = attnx("coref", "The cat saw the dog and it slept.", "-m", "tiny-gpt").err
    assert "1 content word that 'it' cannot see is left out" in said
    said = attnx("coref", "The cat and it saw the dog.", "-m", "tiny-gpt").err
    assert "2 content words that 'it' cannot see are left out" in said


@pytest.mark.parametrize("width", ["30", "40", "60"])
def test_what_a_verdict_is_read_by_is_never_cut(attnx: Run, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    verdicts = attnx("coref", ANIMAL, "--json").document["pronouns"][0]["verdicts"]
    monkeypatch.setenv("COLUMNS", width)
    shown = attnx("coref", ANIMAL, "--all").out
    assert "…" not in shown
    for verdict in verdicts:
        assert f"\n{verdict['method']} " in shown


def test_cutting_where_a_head_points_says_whether_it_matters(attnx: Run, tmp_path: Path) -> None:
    path = tmp_path / "effects.csv"
    done = attnx("coref", ANIMAL, "--to", "animal", "--causal", "--save", str(path), "--json")
    ((one,),) = done.document["causal"]
    assert one["ranked"][0] == [5, 11]
    weights = bundled(ANIMAL).weights
    np.testing.assert_allclose(values(one["weights"]), weights[:, :, IT, 2], atol=1e-5)
    moved = values(one["moved"])
    edge = attnx("ablate", ANIMAL, "--edge", "it:animal", "--json").document
    np.testing.assert_allclose(moved, values(edge["map"]), atol=1e-6)
    assert moved[5, 11] == pytest.approx(0.114, abs=0.001)
    assert np.partition(moved.ravel(), -2)[-2] < 0.01
    others = weights[5, 11, IT].copy()
    others[[0, 2, IT, 15]] = 0  # special tokens, the word itself and where it points are no other words
    assert values(one["other_weights"])[5, 11] == pytest.approx(others.sum(), abs=1e-5), (
        "all others together weigh less"
    )
    assert values(one["other_moved"])[5, 11] < 0.1 * moved[5, 11]
    lines = path.read_text().splitlines()
    assert lines[0] == "word,word_at,to,to_at,layer,head,weight,effect,other_weight,other_effect,measure"
    assert len(lines) == 1 + 72
    row = dict(zip(lines[0].split(","), lines[1 + 5 * 12 + 11].split(",")[:10], strict=False))
    assert (row["layer"], row["head"]) == ("5", "11")
    assert float(row["effect"]) == pytest.approx(moved[5, 11])


def test_what_was_left_out_is_said_where_too_little_remains(attnx: Run, tmp_path: Path) -> None:
    good = {"text": "The cat saw a dog because it ran.", "pronoun": [26, 28], "candidates": [[4, 7], [14, 17]]}
    data = tmp_path / "two.jsonl"
    data.write_text(json.dumps(good | {"pronoun": [25, 26], "answer": 0}))
    for how in ((), ("--causal",)):
        assert "example 1 is left out: " in attnx("coref", "--dataset", str(data), "-m", "tiny-gpt", *how, code=4).err
    for change, why in (
        ({"pronoun": [90, 92]}, "entry 1: a span lies outside the text"),
        ({"pronoun": [25, 26]}, "example 1 is left out: "),  # the blank between two words: no token has it
    ):
        data.write_text("\n".join(json.dumps({**one, "answer": 0}) for one in (good | change, good)))
        done = attnx("coref", "--dataset", str(data), "-m", "tiny-gpt", code=4)
        assert why in done.err
        assert "1 group of examples cannot be cut in two halves" in done.err


def test_over_a_dataset_heads_that_point_are_held_against_controls(attnx: Run, tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    lines = [
        {"text": "The cat saw a dog because it ran.", "pronoun": [26, 28], "candidates": [[4, 7], [14, 17]]},
        {"text": "The cat saw a dog because it hid.", "pronoun": [26, 28], "candidates": [[4, 7], [14, 17]]},
        {"text": "The boy met a man when he was sad.", "pronoun": [23, 25], "candidates": [[4, 7], [14, 17]]},
    ]
    data.write_text("\n".join(json.dumps({**line, "answer": 0, "pair": str(at)}) for at, line in enumerate(lines)))
    got = attnx("coref", "--dataset", str(data), "--causal", "-m", "tiny-gpt", "--json").document
    rows = dict(zip(got["comparison"]["axes"][0]["labels"], values(got["comparison"]), strict=True))
    each = []
    for line in lines:
        word, to = ("he" if " he " in line["text"] else "it"), line["text"].split()[1]
        args = ["--from", word, "--to", to, "--causal", "-m", "tiny-gpt", "--json"]
        ((one,),) = attnx("coref", line["text"], *args).document["causal"]
        each.append((values(one["weights"]), values(one["moved"]), values(one["other_moved"])))
    tops = [np.unravel_index(int(w.argmax()), w.shape) for w, _, _ in each]
    pointing = [moved[at] for at, (_, moved, _) in zip(tops, each, strict=True)]
    assert rows["head that points most"][0] == pytest.approx(np.mean(pointing), rel=1e-3)
    others = [other[at] for at, (_, _, other) in zip(tops, each, strict=True)]
    assert rows["as much weight, other words"][0] == pytest.approx(np.mean(others), rel=1e-3)
    np.testing.assert_allclose(values(got["effects"]), np.mean([m for _, m, _ in each], axis=0), rtol=2e-3, atol=1e-6)
    said = attnx("coref", "--dataset", str(data), "--causal", "-m", "tiny-gpt").out
    assert said.startswith("The head that points most")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([ANIMAL, "--causal", "--contrast", WIDE], "--contrast would do nothing with --causal"),
        ([ANIMAL, "--save", "x.doc"], "is not a format that this can be saved in"),
        ([ANIMAL, "--force"], "--force would do nothing without --save"),
    ],
)
def test_causal_options_that_do_not_go_together(attnx: Run, args: list[str], said: str) -> None:
    done = attnx("coref", *args, code=2)
    assert said in done.err
