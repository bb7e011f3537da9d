"""`attnx heads`: measures of every head against onnxruntime's own weights."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.cli.analysed import bundled, causal, two_sided, values
from tests.cli.conftest import ANIMAL, BANK, Run


def measures(document: dict) -> dict[str, np.ndarray]:
    return {m["name"]: values(m) for m in document["measures"]}


def test_measures_of_every_head(attnx: Run) -> None:
    got = attnx("heads", ANIMAL, "--json").document
    a = bundled(ANIMAL).weights
    found, at = measures(got), np.arange(16)
    entropy = -(a * np.log(np.maximum(a, 1e-300))).sum(-1).mean(-1)
    np.testing.assert_allclose(found["entropy"], entropy, atol=1e-5)
    np.testing.assert_allclose(found["entropy share"], entropy / np.log(16), atol=1e-5)
    away = np.abs(at[:, None] - at[None, :])
    np.testing.assert_allclose(found["mean distance"], (a * away).sum((2, 3)) / a.sum((2, 3)), atol=1e-5)
    np.testing.assert_allclose(found["largest weight"], a.max(-1).mean(-1), atol=1e-6)
    np.testing.assert_allclose(found["previous"], a[:, :, at[1:], at[:-1]].mean(-1), atol=1e-6)
    np.testing.assert_allclose(found["next"], a[:, :, at[:-1], at[1:]].mean(-1), atol=1e-6)
    np.testing.assert_allclose(found["self"], a[:, :, at, at].mean(-1), atol=1e-6)
    np.testing.assert_allclose(found["sink"], a[..., 0].mean(-1), atol=1e-6)
    np.testing.assert_allclose(found["special"], a[..., [0, 15]].sum(-1).mean(-1), atol=1e-6)
    plain = a[:, :, 1:15, 1:15].max(-1).mean(-1)
    np.testing.assert_allclose(found["confidence"], plain, atol=1e-6)
    assert got["kinds"][0][2] == "previous-token"
    assert got["kinds"][1][8] == "next-token"
    assert got["texts"] == 1
    assert got["spread"] == []


def test_table_lists_the_largest_first(attnx: Run) -> None:
    text = attnx("heads", ANIMAL, "--top", "3").out
    a = bundled(ANIMAL).weights.max(-1).mean(-1)
    order = np.argsort(-a, axis=None)[:3]
    lines = [line for line in text.splitlines() if line.startswith("L") and " H" in line[:4]]
    assert [line.split()[:2] for line in lines] == [[f"L{i // 12}", f"H{i % 12}"] for i in order.tolist()]
    assert "what each head does" in text
    assert "69 more heads" in text
    assert "Clark et al. 2019" not in text
    assert text.splitlines()[1].startswith("72 heads: 56 sink, 9 broad, 5 mixed, 1 previous (L0 H2), 1 next (L1 H8)")
    assert "Clark et al. 2019" in attnx("heads", ANIMAL, "--explain").out
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "induction" in attnx("heads", ANIMAL).err


def test_over_a_file_means_and_spread(attnx: Run, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text(f"{ANIMAL}\n\n{BANK}\n")
    got = attnx("heads", "--file", str(file), "-m", "tiny-gpt", "--json").document
    both = [attnx("heads", text, "-m", "tiny-gpt", "--json").document for text in (ANIMAL, BANK)]
    parts = np.stack([measures(one)["entropy"] for one in both])
    np.testing.assert_allclose(measures(got)["entropy"], parts.mean(0), atol=1e-6)
    spread = dict(zip([m["name"] for m in got["measures"]], got["spread"], strict=True))
    np.testing.assert_allclose(values(spread["entropy"]), parts.std(0, ddof=1), atol=1e-6)
    assert got["texts"] == 2
    shown = attnx("heads", "--file", str(file), "-m", "tiny-gpt", "-k", "2").out
    assert "±: standard deviation over the texts" in shown


def test_similar_heads(attnx: Run) -> None:
    got = attnx("heads", ANIMAL, "--similar", "5.11", "--json").document["similar"]
    a = bundled(ANIMAL).weights
    middle = (a + a[5, 11]) / 2

    def kl(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray((x * np.log(np.maximum(x, 1e-300) / np.maximum(y, 1e-300))).sum(-1))

    want = ((kl(a, middle) + kl(np.broadcast_to(a[5, 11], a.shape), middle)) / 2).mean(-1)
    np.testing.assert_allclose(values(got), want, atol=1e-5)
    lines = attnx("heads", ANIMAL, "--similar", "5.11", "-k", "2").out.splitlines()
    assert "L5 H11" in lines[3]
    assert f"{np.sort(want, axis=None)[1]:.3f}" in lines[4]


def test_induction_needs_the_probe(attnx: Run) -> None:
    plain = attnx("heads", ANIMAL, "--json")
    assert np.isnan(measures(plain.document)["induction"]).all()
    got = attnx("heads", ANIMAL, "--probe", "induction", "--json").document
    found = measures(got)["induction"]
    assert not np.isnan(found).any()
    assert found.max() < 0.1  # MiniLM has no induction head
    assert any("25 random tokens, 4 times" in note for note in got["notes"])


def test_a_map_of_one_measure(attnx: Run) -> None:
    assert "from layer to layer: --all" in attnx("heads", ANIMAL, "--map", "previous").out
    text = attnx("heads", ANIMAL, "--map", "previous", "--all", "--explain").out
    bands = [line for line in text.splitlines() if line.startswith("L0 ")]
    shown = [float(n.strip("█▓▒░")) for row in bands for n in row.split()[1:] if n.strip("█▓▒░")]
    want = bundled(ANIMAL).weights[0][:, np.arange(1, 16), np.arange(15)].mean(-1)
    assert len(bands) == 2  # 80 columns do not take twelve beside one another
    np.testing.assert_allclose(shown, want, atol=0.006)
    assert "Source:" in text
    # Below it every head along the layers, all on one scale: L0 H2 is the previous-token head.
    by_layer = bundled(ANIMAL).weights[:, :, np.arange(1, 16), np.arange(15)].mean(-1)
    drawn = next(line for line in text.splitlines() if line.startswith(" H2 "))
    assert f"{by_layer[:, 2].min():.2f}–{by_layer[:, 2].max():.2f}, most at L0" in drawn
    assert drawn.split()[1] == "▇▇▇" + "".join("▁▂▃▄▅▆▇"[int(value * 7)] * 3 for value in by_layer[1:, 2])


def test_a_causal_model_and_an_encoder_decoder(attnx: Run, tmp_path: Path) -> None:
    case = causal(tmp_path / "causal")
    got = attnx("heads", *case.args, "--json").document
    a = np.stack([layer["weights"][0] for layer in case.ran.decoder])
    at = np.arange(6)
    np.testing.assert_allclose(measures(got)["previous"], a[:, :, at[1:], at[:-1]].mean(-1), atol=1e-5)
    first = np.stack([a[:, :, i, 0] for i in range(6)]).mean(0)
    np.testing.assert_allclose(measures(got)["sink"], first, atol=1e-5)
    both = two_sided(tmp_path / "both")
    got = attnx("heads", *both.args, "--site", "cross", "--json").document
    cross = np.stack([layer["weights"][0] for layer in both.ran.cross])
    np.testing.assert_allclose(measures(got)["largest weight"], cross.max(-1).mean(-1), atol=1e-5)
    assert np.isnan(measures(got)["mean distance"]).all()
    text = attnx("heads", *both.args).out
    assert "encoder L0" in text
    assert "cross L1" in text


@pytest.mark.parametrize("args", [
    (ANIMAL, "--sort", "beauty"), (ANIMAL, "--map", "beauty"), (ANIMAL, "--probe", "x"), (ANIMAL, "--similar", "9.9"),
    (), (ANIMAL, "-l", "17"),
])  # fmt: skip
def test_misuse(attnx: Run, args: tuple[str, ...]) -> None:
    attnx("heads", *args, code=2)


def test_the_probe_alone_needs_no_text(attnx: Run) -> None:
    alone = attnx("heads", "--probe", "induction", "--json").document
    beside = attnx("heads", ANIMAL, "--probe", "induction", "--json").document
    np.testing.assert_array_equal(measures(alone)["induction"], measures(beside)["induction"])
    assert len(alone["tokens"]["ids"]) == 102  # [CLS], four blocks of 25, [SEP]
    assert alone["notes"][0] == "measured on a block of 25 random tokens, 4 times, seed 0"
    assert "by induction" in attnx("heads", "--probe", "induction").out
    assert "there is no text" in attnx("heads", "--probe", "induction", "--pair", "x", code=2).err


def test_the_probe_needs_a_tokenizer(attnx: Run, tmp_path: Path) -> None:
    assert "tokenizer" in attnx("heads", *causal(tmp_path / "m").args, "--probe", "induction", code=3).err


@pytest.mark.parametrize(("text", "model"), [("\u200b", "minilm"), ("a", "minilm"), ("word " * 600, "tiny-gpt")])
def test_empty_short_and_long_texts(attnx: Run, text: str, model: str) -> None:
    assert "what each head does" in attnx("heads", text, "-m", model).out


def test_a_measure_may_be_named_in_part(attnx: Run) -> None:
    args = ("heads", ANIMAL, "-m", "tiny-gpt")
    whole = attnx(*args, "--map", "mean distance").out
    for name in ("distance", "Mean-Distance", "mean_distance", "dist"):
        assert attnx(*args, "--map", name).out == whole
    assert "by largest weight ·" in attnx(*args, "--sort", "largest").out
    assert "by punctuation ·" in attnx(*args, "--sort", "punct.").out  # as the table heads it


@pytest.mark.parametrize(("name", "said"), [
    ("entropi", "Did you mean 'entropy'? Choose from entropy, entropy share, mean distance,"),
    ("entr", "Did you mean 'entropy' or 'entropy share'? "),
    ("sinks", "It is what `attnx scan --measure sinks` takes, for sink, strongest key, strongest key position. "),
    ("strongest key", "`attnx scan --measure strongest-key` has it. "),
    ("previous-token", "It is a kind of head, found by the measure 'previous'. "),
    ("broad", "It is a kind of head, found by the measure 'entropy share'. "),
    ("coref", "It is what `attnx scan --measure coref` takes. "),
    ("x", "Choose from entropy, "),
])  # fmt: skip
@pytest.mark.parametrize("option", ["--sort", "--map"])
def test_a_name_that_is_no_measure(attnx: Run, option: str, name: str, said: str) -> None:
    done = attnx("heads", ANIMAL, option, name, code=2)
    assert done.err.startswith(f"attnx: {option} {name!r} is not a measure of heads\n  {said}")


def test_a_map_says_of_its_own_measure_alone_and_once(attnx: Run) -> None:
    done = attnx("heads", ANIMAL, "--map", "induction")
    assert (done.out + done.err).count("no induction score") == 1
    assert "no values" not in done.out  # a line of nothing for each head
    assert "induction" not in attnx("heads", ANIMAL, "--map", "entropy").err
    assert "induction" not in attnx("heads", ANIMAL, "--similar", "5.11").err


def test_help_names_every_measure(attnx: Run) -> None:
    told = " ".join(attnx("heads", "--help").out.split())
    assert all(re.search(rf"\b{m['name']}\b", told) for m in attnx("heads", ANIMAL, "--json").document["measures"])


def test_what_each_text_lacks_is_said_of_each(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat\nthe dog and the bird\n", encoding="utf-8")
    done = attnx("heads", "-f", "a.txt")
    assert "attnx: in each text, no induction score: only 1 token repeats (8 are needed)" in done.err
    assert "`attnx heads --probe induction` measures it" in done.err
    (tmp_path / "b.txt").write_text(f"the dog\n{'a b c ' * 4}\n", encoding="utf-8")
    said = attnx("heads", "-f", "b.txt").err
    assert (
        "induction: no value in 1 of 2 texts; in 1 of them, no induction score: no token repeats (8 are needed)" in said
    )


def test_one_text_where_several_are_no_use(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    assert attnx("heads", "-f", "a.txt", "--similar", "0.0", code=2).err.endswith("there are 2\n  Give one text.\n")
    assert "or use --jsonl." in attnx("inspect", "-f", "a.txt", "--json", code=2).err


@pytest.mark.parametrize("head", ["5", "x"])
def test_a_head_is_missed_under_the_option_that_named_it(attnx: Run, head: str) -> None:
    done = attnx("heads", ANIMAL, "--similar", head, code=2)
    assert f"--similar {head!r}" in done.err
    assert "--head" not in done.err


@pytest.mark.parametrize(("model", "text"), [("tiny-gpt", "The cat sat on the mat. The cat"), ("minilm", ANIMAL)])
def test_effects_are_those_of_ablate(attnx: Run, model: str, text: str) -> None:
    got = attnx("heads", text, "-m", model, "--causal", "--json").document
    effect = next(measure for measure in got["measures"] if measure["name"] == "effect")
    want = attnx("ablate", text, "-m", model, "--json").document["map"]
    np.testing.assert_allclose(np.array(effect["values"]), np.array(want["values"]), atol=2e-6)
    best = np.unravel_index(int(np.array(want["values"]).argmax()), np.array(want["values"]).shape)
    out = attnx("heads", text, "-m", model, "--causal", "--top", "1").out
    assert f"L{best[0]} H{best[1]} " in out
    assert "by effect" in out


def test_effects_are_of_one_text(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("A cat slept.\nA dog ran.\n")
    assert "--causal" in attnx("heads", "--file", str(tmp_path / "two.txt"), "--causal", code=2).err
    assert "not a measure of heads" in attnx("heads", ANIMAL, "--sort", "effect", code=2).err
    assert "--causal would do nothing" in attnx("heads", ANIMAL, "--similar", "5.11", "--causal", code=2).err


def test_a_mask_that_hides_everything_leaves_no_value(attnx: Run) -> None:
    done = attnx("heads", "The animal was tired.", "--set", "attention_mask=0,0,0,0,0,0,0")
    assert "no head has a value: no token sees a key\n" in done.out
    assert "L0    -     -     -" in done.out
    assert "no such head, or no value: -" in done.out
    assert "every key is hidden from every query in L0 and 5 more" in done.err
    shown = attnx("inspect", "The animal was tired.", "--set", "attention_mask=0,0,0,0,0,0,0").out
    assert "[CLS] -" in shown.partition("where the weight goes")[2]
