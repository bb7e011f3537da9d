"""`attnx diff`: a bundled model against itself, and against a copy in which one matrix was changed by hand."""

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx.utils
import pytest
from onnx import numpy_helper

from tests.cli.analysed import MINILM, bundled, causal, two_sided, values
from tests.cli.conftest import ANIMAL, BANK, Run
from tests.cli.layerwise import a_layer_at_a_time

WIDE = ANIMAL.replace("tired", "wide")


def js(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    m = (a + b) / 2

    def kl(x: np.ndarray) -> np.ndarray:
        return np.asarray((x * np.log(np.maximum(x, 1e-300) / np.maximum(m, 1e-300))).sum(-1))

    return (kl(a) + kl(b)) / 2


def named(document: dict) -> dict[str, np.ndarray]:
    return {m["name"]: values(m) for m in document["heads"]}


def test_a_model_is_the_same_as_itself(attnx: Run) -> None:
    got = attnx("diff", "minilm", "minilm", ANIMAL, "--json").document
    assert got["first"] is None
    assert values(got["stages"]).max() == 0
    text = attnx("diff", "minilm", "minilm", ANIMAL).out
    assert "the same within 0.001: no stage of any layer differs by more\n" in text
    assert "heads that moved most" not in text


def test_two_texts_head_by_head(attnx: Run) -> None:
    got = attnx("diff", "minilm", "minilm", ANIMAL, "--other-text", WIDE, "--json").document
    a, b = bundled(ANIMAL), bundled(WIDE)
    found = named(got)
    np.testing.assert_allclose(found["largest difference"], np.abs(a.weights - b.weights).max((2, 3)), atol=1e-5)
    np.testing.assert_allclose(found["mean difference"], np.abs(a.weights - b.weights).mean((2, 3)), atol=1e-6)
    np.testing.assert_allclose(found["divergence"], js(a.weights, b.weights).mean(-1), atol=1e-5)
    top = a.weights.argmax(-1)
    rank = (b.weights > np.take_along_axis(b.weights, top[..., None], -1)).sum(-1)
    np.testing.assert_allclose(found["rank of the first key"], rank.mean(-1), atol=1e-9)
    np.testing.assert_allclose(values(got["stages"])[:, 0], np.abs(a.scores - b.scores).max((1, 2, 3)), rtol=1e-4)
    assert got["first"] == {"site": "L0", "other": "L0", "stage": "scores"}
    assert any("two texts differ" in note for note in got["notes"])


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model with the query projection of layer 3 head 2 rounded to sixteenths; no tokenizer beside it."""
    model = onnx.load(MINILM / "model.onnx")
    name = "encoder.layer.3.attention.self.query.weight"
    tensor = next(t for t in model.graph.initializer if t.name == name)
    array = numpy_helper.to_array(tensor).copy()
    array[:, 64:96] = np.round(array[:, 64:96] * 16) / 16
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    path = tmp_path_factory.mktemp("changed") / "changed.onnx"
    onnx.save(model, path)
    return path


def test_it_finds_what_was_changed(attnx: Run, changed: Path) -> None:
    done = attnx("diff", "minilm", str(changed), ANIMAL, "--json")
    got = done.document
    assert got["first"] == {"site": "L3", "other": "L3", "stage": "scores"}
    found = named(got)
    assert found["largest difference"][:3].max() < 1e-6
    row = found["divergence"][3]
    assert row.argmax() == 2
    assert np.delete(row, 2).max() < 1e-9  # the other heads of that layer read the same
    assert found["divergence"][4:].min() > 0
    assert "has no tokenizer: it is given the tokens of minilm" in done.err
    text = attnx("diff", "minilm", str(changed), ANIMAL).out
    assert "they part at the scores of L3" in " ".join(text.split())
    assert "heads that moved most" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_causal_model_and_an_encoder_decoder(attnx: Run, tmp_path: Path) -> None:
    one, two = causal(tmp_path / "a"), causal(tmp_path / "b", ids=[[3, 5, 7, 2, 9, 6]])
    got = attnx("diff", str(one.model), str(one.model), "--inputs", str(one.feed), "--other-inputs", str(two.feed),
                "--json").document  # fmt: skip
    a, b = (np.stack([layer["weights"][0] for layer in case.ran.decoder]) for case in (one, two))
    np.testing.assert_allclose(named(got)["largest difference"], np.abs(a - b).max((2, 3)), atol=1e-5)
    np.testing.assert_allclose(named(got)["divergence"], js(a, b).mean(-1), atol=1e-5)
    both = two_sided(tmp_path / "c")
    got = attnx("diff", str(both.model), str(both.model), "--inputs", str(both.feed), "--json").document
    assert got["first"] is None
    assert len(got["parts"]) == 6


@pytest.mark.parametrize(("args", "code"), [
    ((ANIMAL, "--other-text", BANK), 4), ((), 2), ((ANIMAL, "--tolerance", "0"), 2), ((ANIMAL, "--site", "cross"), 2),
    ((ANIMAL, "--tolerance", "nan"), 2), ((ANIMAL, "--tolerance", "inf"), 2), ((ANIMAL, "--tolerance", "-1"), 2),
])  # fmt: skip
def test_misuse(attnx: Run, args: tuple[str, ...], code: int) -> None:
    attnx("diff", "minilm", "minilm", *args, code=code)


def test_layers_are_paired(attnx: Run) -> None:
    got = attnx("diff", "minilm", "minilm", ANIMAL, "--layer", "0-1=4-5,2=5", "-l", "3", "--json").document
    w = bundled(ANIMAL).weights
    pairs = [(0, 4), (1, 5), (2, 5), (3, 3)]
    found = named(got)
    np.testing.assert_allclose(
        found["largest difference"], [np.abs(w[a] - w[b]).max((1, 2)) for a, b in pairs], atol=1e-5
    )
    np.testing.assert_allclose(found["divergence"], [js(w[a], w[b]).mean(-1) for a, b in pairs], atol=1e-5)
    assert got["pairs"] == [{"site": f"L{a}", "other": f"L{b}"} for a, b in pairs]
    assert got["first"] == {"site": "L0", "other": "L4", "stage": "scores"}
    assert got["stages"]["axes"][0]["labels"] == ["L0=L4", "L1=L5", "L2=L5", "L3"]
    text = attnx("diff", "minilm", "minilm", ANIMAL, "--layer", "0=4,0=2").out
    assert "they part at the scores of L0=L2" in " ".join(text.split())
    assert re.search(r"^L0=L4 H\d", text, re.M)
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first three layers of the bundled model."""
    nodes = {node.name: node for node in onnx.load(MINILM / "model.onnx", load_external_data=False).graph.node}
    states = nodes["/encoder/layer.3/attention/self/query/MatMul"].input[0]
    folder = tmp_path_factory.mktemp("shallow")
    fed = ["input_ids", "attention_mask", "token_type_ids"]
    onnx.utils.extract_model(MINILM / "model.onnx", folder / "model.onnx", fed, [states], check_model=False)
    shutil.copy(MINILM / "tokenizer.json", folder)
    return folder


def test_models_with_different_numbers_of_layers(attnx: Run, shallow: Path) -> None:
    done = attnx("diff", str(shallow), "minilm", ANIMAL, code=2)
    assert "has layers 0 to 2, and minilm has layers 0 to 5: nothing says which are compared" in done.err
    assert "--layer 2=5, or a list: --layer 0=1,1=3,2=5." in done.err
    got = attnx("diff", str(shallow), "minilm", ANIMAL, "--layer", "0=1,1=3,2=5", "--json").document
    w = bundled(ANIMAL).weights
    np.testing.assert_allclose(
        named(got)["largest difference"], np.abs(w[[0, 1, 2]] - w[[1, 3, 5]]).max((2, 3)), atol=1e-5
    )
    assert attnx("diff", str(shallow), "minilm", ANIMAL, "--layer", "0-2", "--json").document["first"] is None
    done = attnx("diff", str(shallow), "minilm", ANIMAL, "--layer", "3", code=2)
    assert "shallow" in done.err
    assert "has no layer 3\n  It has layers 0 to 2." in done.err
    assert "minilm has no layer 9" in attnx("diff", str(shallow), "minilm", ANIMAL, "--layer", "2=9", code=2).err


def test_layers_of_an_encoder_decoder_are_paired_by_sort(attnx: Run, tmp_path: Path) -> None:
    both = two_sided(tmp_path / "c")
    args = (str(both.model), str(both.model), "--inputs", str(both.feed))
    got = attnx("diff", *args, "--layer", "0=1", "--json").document
    assert got["pairs"] == [{"site": f"{sort} L0", "other": f"{sort} L1"} for sort in ("encoder", "decoder", "cross")]
    assert got["stages"]["axes"][0]["labels"] == ["encoder L0=L1", "decoder L0=L1", "cross L0=L1"]
    crossed = [layer["weights"][0] for layer in both.ran.cross]
    np.testing.assert_allclose(
        named(got)["largest difference"][2], np.abs(crossed[0] - crossed[1]).max((1, 2)), atol=1e-5
    )
    done = attnx("diff", "minilm", str(both.model), "--ids", "3,5,7", code=2)
    assert "minilm has layers 0 to 5, and" in done.err
    assert "encoder layers 0 to 1, decoder layers 0 to 1, cross layers 0 to 1" in done.err
    assert "--site encoder --layer 5=1, or a list: --site encoder --layer 2=0,5=1." in done.err
    got = attnx("diff", *args, "--site", "cross", "--layer", "1=0", "--json").document
    assert got["pairs"] == [{"site": "L1", "other": "L0"}]


@pytest.mark.parametrize("layer", ["0-2=1", "=3", "3=", "x", "3=4=5", "0=0,,1", "9=1", "", "1=x"])
def test_pairs_that_cannot_be_read(attnx: Run, layer: str) -> None:
    said = attnx("diff", "minilm", "minilm", ANIMAL, "--layer", layer, code=2).err
    assert "\n  " in said


def test_different_models_cannot_be_compared_head_by_head(attnx: Run) -> None:
    said = attnx("diff", "minilm", "tiny-gpt", "the cat", "--layer", "0=0", code=4).err
    assert "L0 has 12 heads in the first model and 6 in the second" in said
    assert "--mean heads" in said


def test_means_over_heads_are_compared(attnx: Run, shallow: Path) -> None:
    args = ("diff", str(shallow), "minilm", ANIMAL, "--layer", "0=1,1=3,2=5", "--mean", "heads")
    got = attnx(*args, "--json").document
    w = bundled(ANIMAL).weights.mean(1)
    one, two = w[[0, 1, 2]], w[[1, 3, 5]]
    found = named(got)
    np.testing.assert_allclose(found["largest difference"][:, 0], np.abs(one - two).max((1, 2)), atol=1e-5)
    np.testing.assert_allclose(found["mean difference"][:, 0], np.abs(one - two).mean((1, 2)), atol=1e-6)
    np.testing.assert_allclose(found["divergence"][:, 0], js(one, two).mean(-1), atol=1e-5)
    np.testing.assert_allclose(values(got["stages"])[:, 4], np.abs(one - two).max((1, 2)), atol=1e-5)
    assert np.isnan(values(got["stages"])[:, :4]).all()
    assert got["heads"][0]["axes"][1]["labels"] == ["mean"]
    text = attnx(*args).out
    assert "scores" not in text  # a stage that a mean over heads does not have
    assert re.search(r"^L0=L1 mean ", text, re.M)


def test_models_with_different_numbers_of_heads(attnx: Run) -> None:
    args = ("diff", "minilm", "tiny-gpt", "the cat", "--layer", "5=3", "--mean", "heads")
    got = attnx(*args, "--json").document
    one, two = (
        np.array(attnx("inspect", "the cat", "-m", model, "--layer", layer, "--mean", "heads", "--json").document
                 ["heads"][0]["values"]) for model, layer in (("minilm", "5"), ("tiny-gpt", "3"))
    )  # fmt: skip
    np.testing.assert_allclose(named(got)["largest difference"], [[np.abs(one - two).max()]], atol=1e-5)
    assert any("cut the text into different tokens" in note for note in got["notes"])
    assert "Give --mean heads." in attnx(*args[:-1], "layers", code=2).err


@pytest.mark.parametrize(("text", "model"), [("\u200b", "minilm"), ("a", "minilm"), ("word " * 600, "tiny-gpt")])
def test_empty_short_and_long_texts(attnx: Run, text: str, model: str) -> None:
    assert "the same within 0.001" in attnx("diff", model, model, text, "-l", "0").out


@pytest.mark.parametrize("more", [[], ["--layer", "3=1,0=1"], ["--layer", "2=2"], ["--mean", "heads"]])
def test_a_long_text_is_compared_a_head_at_a_time(attnx: Run, more: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, of a head of both models at a time, but for means over heads, which take all heads of a layer."""
    command = ("diff", "tiny-gpt", "tiny-gpt", ANIMAL, "--other-text", WIDE, *more, "--json")
    whole = attnx(*command).document
    fetched = a_layer_at_a_time(monkeypatch, alive=4, heads="--mean" not in more)
    apart = attnx(*command).document
    count = sum(1 for one in fetched if one)
    assert count == 2 * ({"3=1,0=1": 2, "2=2": 1}.get((more or [""])[-1], 4) * 6 if "--mean" not in more else 4)
    alike(whole, apart)


@pytest.mark.parametrize("more", [["--mean", "heads"], ["--layer", "4=5,0=1,2=0"]])
def test_a_long_text_is_compared_a_layer_at_a_time(
    attnx: Run, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of all layers at once; a run begins where no matrices are held but those it is compared with."""
    command = ("diff", "minilm", "minilm", ANIMAL, "--other-text", WIDE, *more, "--json")
    whole = attnx(*command).document
    fetched = a_layer_at_a_time(monkeypatch, alive=4)
    apart = attnx(*command).document
    assert [count for count in fetched if count] == [4] * (6 if "--layer" in more else 12)
    alike(whole, apart)


def alike(whole: dict, apart: dict) -> None:
    """Two documents of one comparison."""
    for name, value in whole.items():
        if name == "heads":
            for one, two in zip(apart[name], value, strict=True):
                np.testing.assert_allclose(values(one), values(two), rtol=1e-5, atol=1e-6)
                assert one["axes"] == two["axes"]
        elif name == "stages":
            np.testing.assert_allclose(values(apart[name]), values(value), rtol=1e-5, atol=1e-6)
        elif name not in ("verdict", "outputs"):
            assert apart[name] == value, name
    assert apart["verdict"]["text"] == whole["verdict"]["text"]
    for one, two in zip(apart["outputs"], whole["outputs"], strict=True):
        for name, value in two.items():
            assert one[name] == (pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value)
    assert [sorted(one) for one in apart["outputs"]] == [sorted(one) for one in whole["outputs"]]
