"""`attnx scale`: both softmaxes from onnxruntime's own scores, and the arithmetic without a model."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.cli.analysed import bundled, causal, softmax, two_sided, values
from tests.cli.conftest import ANIMAL, Run
from tests.cli.layerwise import a_layer_at_a_time

IT = 10


def test_row_is_both_softmaxes_of_the_scores(attnx: Run) -> None:
    got = attnx("scale", ANIMAL, "--head", "5.11", "--query", "it", "--json").document
    scores = bundled(ANIMAL).scores[5, 11, IT]
    before, after = softmax(scores), softmax(scores / np.sqrt(32))
    want = np.stack([scores, scores / np.sqrt(32), before, after, after - before], axis=-1)
    np.testing.assert_allclose(values(got["row"]), want, atol=2e-5)
    assert got["head"] == {"label": "L5 H11", "index": 5, "layer": 5, "head": 11}
    assert got["query"] == {"position": IT, "piece": "it", "positions": [IT]}


def test_the_layers_beside_a_head_are_what_the_help_says(attnx: Run) -> None:
    whole = attnx("scale", ANIMAL, "--json").document["layers"]["values"]
    help_text = " ".join(attnx("scale", "--help").out.split())
    assert "then every layer; with --head L.H its layer alone, unless --layer names more." in help_text
    for options, want in (("", whole), ("-H 5.11", whole[5:]), ("-H 5.11 -l 3-5", whole[3:]), ("-l 0", whole[:1])):
        got = attnx("scale", ANIMAL, *options.split(), "--json").document["layers"]
        np.testing.assert_allclose(values(got), np.array(want, float), atol=1e-6)
    assert "which --layer leaves out" in attnx("scale", ANIMAL, "-H", "5.11", "-l", "4", code=2).err


def test_every_head_both_ways(attnx: Run) -> None:
    got = attnx("scale", ANIMAL, "--json").document
    spread, entropy, largest, saturated, gradient, kl = (values(m) for m in got["heads"])
    scores = bundled(ANIMAL).scores
    for way, x in enumerate((scores, scores / np.sqrt(32))):
        a = softmax(x)
        np.testing.assert_allclose(spread[..., way], x.std(axis=(2, 3)), rtol=1e-4)
        np.testing.assert_allclose(entropy[..., way], -(a * np.log(np.maximum(a, 1e-300))).sum(-1).mean(-1), atol=2e-5)
        np.testing.assert_allclose(largest[..., way], a.max(-1).mean(-1), atol=2e-5)
        np.testing.assert_allclose(saturated[..., way], (a.max(-1) > 0.99).mean(-1), atol=1e-9)
        np.testing.assert_allclose(gradient[..., way], (1 - (a * a).sum(-1)).mean(-1), atol=2e-5)
    one, two = softmax(scores / np.sqrt(32)), softmax(scores)
    np.testing.assert_allclose(
        kl, (one * (np.log(one) - np.log(np.maximum(two, 1e-300)))).sum(-1).mean(-1), rtol=1e-3, atol=1e-5
    )
    np.testing.assert_allclose(values(got["layers"])[:, -1], kl.mean(axis=1), atol=1e-9)
    assert values(got["size"]).tolist() == [32.0] * 6


def test_it_chooses_the_row_that_changes_most(attnx: Run) -> None:
    got = attnx("scale", ANIMAL, "--json").document
    scores = bundled(ANIMAL).scores
    change = np.abs(softmax(scores / np.sqrt(32)) - softmax(scores)).sum(-1)
    want = np.unravel_index(change.argmax(), change.shape)
    assert (got["head"]["layer"], got["head"]["head"], got["query"]["position"]) == tuple(int(n) for n in want)
    asked = attnx("scale", ANIMAL, "-q", "it", "--json").document
    layer, head = np.unravel_index(change[:, :, IT].argmax(), change.shape[:2])
    assert (asked["head"]["layer"], asked["head"]["head"]) == (layer, head)


def test_sweep_softens_as_the_divisor_grows(attnx: Run) -> None:
    got = attnx("scale", ANIMAL, "--sweep", "--json").document["sweep"]
    scores = bundled(ANIMAL).scores
    for at, label in enumerate(got["axes"][0]["labels"]):
        a = softmax(scores / float(label))
        entropy = -(a * np.log(np.maximum(a, 1e-300))).sum(-1).mean()
        assert values(got)[at, -1].tolist() == pytest.approx(
            [entropy, a.max(-1).mean(), (a.max(-1) > 0.99).mean()], abs=3e-5
        )


def test_cosine_in_place_of_the_dot_product(attnx: Run) -> None:
    got = attnx("scale", ANIMAL, "-H", "5.11", "-q", "it", "--similarity", "cosine", "--json").document
    b = bundled(ANIMAL)
    q, k = b.query[5, 11, IT], b.key[5, 11]
    cosine = k @ q / (np.linalg.norm(k, axis=1) * np.linalg.norm(q))
    np.testing.assert_allclose(values(got["row"])[:, 0], cosine, atol=1e-5)
    assert "cosine" in attnx("scale", ANIMAL, "-H", "5.11", "-q", "it", "--similarity", "cosine").out


def test_numbers_of_the_issue(attnx: Run) -> None:
    got = attnx("scale", "--numbers", "8.2,1.1,2.0", "--json").document
    np.testing.assert_allclose(values(got["numbers"])[:, 2], [0.997, 0.001, 0.002], atol=5e-4)
    text = attnx("scale", "--numbers", "8.2,1.1,2.0", "--divide", "8").out
    assert re.search(r"^1 +8\.200 +1\.025 +0\.997", text, re.MULTILINE)
    still = attnx("scale", "--numbers", "500,300,100", "--divide", "10", "--json").document
    np.testing.assert_allclose(values(still["numbers"])[:, 3], [1, 0, 0], atol=1e-8)


def test_theory_says_what_random_vectors_do(attnx: Run) -> None:
    got = attnx("scale", "--theory", "4,64", "--json").document["theory"]
    theory, measured = values(got)[:, 0], values(got)[:, 1]
    assert theory.tolist() == [4, 64]
    np.testing.assert_allclose(measured, theory, rtol=0.1)
    assert "unit-variance" in attnx("scale", "--theory", "4,64").out


def test_a_causal_model_and_an_encoder_decoder(attnx: Run, tmp_path: Path) -> None:
    case = causal(tmp_path / "causal")
    got = attnx("scale", *case.args, "-H", "1.0", "-q", "4", "--json").document
    scores = case.ran.decoder[1]["scores"][0, 0, 4]
    want = np.concatenate([softmax(scores[:5]), [0.0]])
    np.testing.assert_allclose(values(got["row"])[:, 2], want, atol=1e-5)
    assert any("1 of 6 keys are hidden" in note for note in got["row"]["notes"])
    both = two_sided(tmp_path / "both")
    got = attnx("scale", *both.args, "--site", "cross", "-H", "1.1", "-q", "2", "--json").document
    scores = both.ran.cross[1]["scores"][0, 1, 2]
    np.testing.assert_allclose(values(got["row"])[:, 3], softmax(scores / np.sqrt(8)), atol=1e-5)
    assert got["size"]["axes"][0]["labels"] == ["L1"]  # no other layer was run for a head of this one
    whole = attnx("scale", *both.args, "--json").document
    assert len(whole["size"]["axes"][0]["labels"]) == 6


def test_tables_state_formula_and_source(attnx: Run) -> None:
    text = attnx("scale", ANIMAL, "--sweep", "--all", "--explain").out
    assert " ".join(text.split()).count("Vaswani et al. 2017") == 4
    assert "unscaled → scaled, every head" in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("args", [
    (ANIMAL, "--as-if", "cube"), (ANIMAL, "--similarity", "taxi"), ("--numbers", "a,b"), ("--theory", "0"),
    (ANIMAL, "--numbers", "1,2"), (ANIMAL, "--head", "9.1"), (ANIMAL, "--head", "1.40"), (ANIMAL, "-q", "dog"),
    (ANIMAL, "--head", "3"), (ANIMAL, "--site", "cross"), (),
])  # fmt: skip
def test_misuse(attnx: Run, args: tuple[str, ...]) -> None:
    assert attnx("scale", *args, code=2).out == ""


@pytest.mark.parametrize(("text", "model"), [("\u200b", "minilm"), ("a", "minilm"), ("word " * 600, "tiny-gpt")])
def test_empty_short_and_long_texts(attnx: Run, text: str, model: str) -> None:
    assert "unscaled → scaled" in attnx("scale", text, "-l", "3", "-m", model).out


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("more", [["--sweep"], ["-q", "it"], ["-H", "3.2", "-l", "2-"]])
def test_a_long_text_is_read_a_layer_or_head_at_a_time(
    attnx: Run, more: list[str], heads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of all layers at once; the matrices of one layer are fetched by a run, and gone before the next."""
    model, layers = ("tiny-gpt", 4) if heads else ("minilm", 6)
    more = ["-m", model, *(f"2-{layers - 1}" if word == "2-" else word for word in more)]
    whole = attnx("scale", ANIMAL, *more, "--save", "whole.csv", "--json").document
    fetched = a_layer_at_a_time(monkeypatch, heads=heads)
    apart = attnx("scale", ANIMAL, *more, "--save", "apart.csv", "--json").document
    for one, two in zip(*(Path(f"{name}.csv").read_text().splitlines() for name in ("whole", "apart")), strict=True):
        assert one.split(",")[:3] == two.split(",")[:3]
    layers -= 2 if "-l" in more else 0
    if (
        heads
    ):  # each of six, that of the row again, and the stream behind all layers but the last, also what is in front
        assert len(fetched) == layers * 6 + 1 + layers - 1 + ("-l" in more)
        fetched = [count for count in fetched if count]
        assert len(fetched) == layers * 6 + 1
    else:
        assert len(fetched) == layers + 1  # each layer, and that of the row again
    assert max(fetched) == min(fetched) <= 4
    for name in ("head", "query", "notes", "model"):
        assert apart.get(name) == whole.get(name)
    for name in ("row", "size", "layers", "sweep"):
        if whole[name] is not None:
            np.testing.assert_allclose(values(apart[name]), values(whole[name]), rtol=1e-5, atol=1e-6)
            assert apart[name]["axes"] == whole[name]["axes"]
    for one, two in zip(apart["heads"], whole["heads"], strict=True):
        np.testing.assert_allclose(values(one), values(two), rtol=1e-5, atol=1e-6)
        assert one["axes"] == two["axes"]


@pytest.mark.parametrize("more", [["A text."], ["--pair", "B"], ["--ids", "1,2"], ["--target", "C"]])
def test_numbers_and_theory_take_no_text(attnx: Run, more: list[str]) -> None:
    for alone in (["--numbers", "1,2"], ["--theory", "2,4"]):
        assert "stand alone, without a text" in attnx("scale", *alone, *more, code=2).err
