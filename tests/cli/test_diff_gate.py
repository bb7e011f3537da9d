"""`attnx diff` as a gate: the verdict in words, the models' own outputs, their files, a limit, many texts."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from tokenizers import Tokenizer

from attnx.errors import DIFFERENT
from attnx.study.file_difference import FileDifference, Held
from tests.cli.analysed import bundled
from tests.cli.conftest import ANIMAL, Run

MODELS = Path(__file__).parents[2] / "models"
CAT = "The cat sat on the mat. The cat"


def edited(folder: Path, name: str, tensor: str, change: float) -> Path:
    """A bundled model with noise on a tensor, and another producer, opset of a domain and an Identity behind it."""
    shutil.copytree(MODELS / name, folder)
    model = onnx.load(folder / "model.onnx")
    held = next(t for t in model.graph.initializer if tensor in t.name)
    array = numpy_helper.to_array(held)
    noise = np.random.default_rng(0).normal(0, change, array.shape)
    held.CopyFrom(numpy_helper.from_array((array + noise).astype(array.dtype), held.name))
    (last,) = (node for node in model.graph.node if model.graph.output[0].name in node.output)
    out = model.graph.output[0].name
    last.output[list(last.output).index(out)] = "inner"
    model.graph.node.append(helper.make_node("Identity", ["inner"], [out]))
    model.producer_name, model.producer_version = "by hand", "3"
    onnx.save(model, folder / "model.onnx")
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return edited(tmp_path_factory.mktemp("e") / "edited", "minilm", "layer.2.attention.self.query.weight", 0.05)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return edited(tmp_path_factory.mktemp("d") / "edited", "tiny-gpt", "ln_f", 0.3)


def outputs(folder: Path, text: str) -> np.ndarray:
    """What a model says, by onnxruntime alone."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = np.array([tokenizer.encode(text).ids], np.int64)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    feed = {
        "input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids),
        "position_ids": np.arange(ids.size)[None],
    }  # fmt: skip
    empty = np.zeros((1, 6, 0, 32), np.float32)  # a cache with nothing in it
    asked = {slot.name: feed.get(slot.name, empty) for slot in session.get_inputs()}
    return session.run(None, asked)[0][0].astype(np.float64)


def cosine(one: np.ndarray, two: np.ndarray) -> float:
    return float(one @ two / np.linalg.norm(one) / np.linalg.norm(two))


def test_the_verdict_comes_first(attnx: Run, encoder: Path) -> None:
    text = attnx("diff", "minilm", encoder, ANIMAL).out
    got = attnx("diff", "minilm", encoder, ANIMAL, "--json").document
    moved = next(m for m in got["heads"] if m["name"] == "divergence")["values"]
    layer, head = np.unravel_index(np.argmax(moved), np.shape(moved))
    assert got["verdict"]["most"]["site"] == f"L{layer}"
    assert got["verdict"]["most"]["head"] == head
    assert not got["verdict"]["same"]
    first = next(m for m in got["heads"] if m["name"] == "largest difference")["values"][layer][head]
    heading, *said = text.split("\n\n")[0].splitlines()
    assert heading == "minilm and edited · 16 tokens · cpu"
    assert " ".join(said).startswith(
        f"edited moves the attention of L{layer} H{head} most: by up to {first:.3f} of a row, and "
    )
    assert "they part at the scores of L2" in " ".join(said)
    assert "operators: Identity " in " ".join(said)
    assert len(text.splitlines()) <= 24
    assert all(len(line) <= 80 for line in text.splitlines())


def test_outputs_of_an_embedding_model(attnx: Run, encoder: Path) -> None:
    (got,) = attnx("diff", "minilm", encoder, ANIMAL, "--json").document["outputs"]
    one, two = bundled(ANIMAL).last, outputs(encoder, ANIMAL)
    assert got["kind"] == "embedding"
    assert got["cosine"] == pytest.approx(cosine(one.mean(0), two.mean(0)), abs=1e-5)
    assert (got["kl"], got["first"], got["kept"]) == (None, None, None)
    assert f"the text's vector: cosine {got['cosine']:.5f}" in attnx("diff", "minilm", encoder, ANIMAL).out


def test_outputs_of_a_language_model(attnx: Run, decoder: Path) -> None:
    (got,) = attnx("diff", "tiny-gpt", decoder, CAT, "--json").document["outputs"]
    one, two = (outputs(folder, CAT)[-1] for folder in (MODELS / "tiny-gpt", decoder))
    p, q = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (one, two))
    assert got["kind"] == "next token"
    assert got["cosine"] == pytest.approx(cosine(one, two), abs=1e-4)
    assert got["kl"] == pytest.approx(float((p * np.log(p / q)).sum()), rel=1e-2, abs=1e-5)
    assert got["kept"] == (one.argmax() == two.argmax())
    text = attnx("diff", "tiny-gpt", decoder, CAT).out
    assert "the same within 0.001: no stage of any layer differs by more\n" in text
    assert f"the next token: cosine {got['cosine']:.5f}, KL {got['kl']:.2g} nats, first choice" in " ".join(
        text.split()
    )


def test_what_differs_in_the_files(attnx: Run, encoder: Path) -> None:
    got = attnx("diff", "minilm", encoder, ANIMAL, "--json").document["files"]
    nodes = [node.op_type for node in onnx.load(encoder / "model.onnx", load_external_data=False).graph.node]
    assert got["other"]["operators"] == {name: nodes.count(name) for name in set(nodes)}
    was = got["model"]["operators"].get("Identity", 0)
    assert got["differ"][0] == f"operators: Identity {was} → {was + 1}"
    assert got["differ"][-1].endswith("→ by hand 3")
    assert got["model"]["attention"] == {"Softmax": 6}
    assert attnx("diff", "minilm", "minilm", ANIMAL, "--json").document["files"] is None


def test_every_kind_of_difference_between_files_is_said() -> None:
    one = Held({"MatMul": 36, "Softmax": 6, "Add": 9}, {"Softmax": 6}, "fp32", {"ai.onnx": 17}, "pytorch 2.3")
    two = Held(
        {"MatMulInteger": 36, "com.microsoft::MultiHeadAttention": 6, "Add": 9, "DynamicQuantizeLinear": 2,
         "com.microsoft::QAttention": 1, "Cast": 36},
        {"MultiHeadAttention": 6}, "int8", {"ai.onnx": 18, "com.microsoft": 1}, "onnxruntime",
    )  # fmt: skip
    assert FileDifference(one, two).said == (
        "operators: Cast 0 → 36, MatMul 36 → 0, MatMulInteger 0 → 36, Softmax 6 → 0 and 3 more",
        "attention is 6 Softmax → 6 MultiHeadAttention",
        "quantised: none → 36 MatMulInteger, 2 DynamicQuantizeLinear, 1 com.microsoft::QAttention",
        "weights fp32 → int8",
        "opset 17 → 18, com.microsoft 1",
        "exported by pytorch 2.3 → onnxruntime",
    )
    assert FileDifference(one, one).said == ()


@pytest.mark.parametrize(("limit", "code"), [("1", 0), ("0.001", DIFFERENT), ("0", DIFFERENT)])
def test_a_limit_has_its_own_exit_code(attnx: Run, encoder: Path, limit: str, code: int) -> None:
    done = attnx("diff", "minilm", encoder, ANIMAL, "--fail-over", limit, code=code)
    assert ("more than --fail-over" in done.err) == bool(code)
    got = attnx("diff", "minilm", encoder, ANIMAL, "--fail-over", limit, "--json", code=code).document
    largest = max(max(row) for m in got["heads"] if m["name"] == "largest difference" for row in m["values"])
    assert got["fail_over"] == {"limit": float(limit), "reached": pytest.approx(largest), "over": bool(code)}


def test_a_model_passes_its_own_gate(attnx: Run) -> None:
    attnx("diff", "minilm", "minilm", ANIMAL, "--fail-over", "0")
    assert "--fail-over -1 is not a limit" in attnx("diff", "minilm", "minilm", ANIMAL, "--fail-over", "-1", code=2).err
    assert DIFFERENT == 6


def test_many_texts(attnx: Run, encoder: Path, tmp_path: Path) -> None:
    texts = ["A short one.", "The bank refused it."]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    got = attnx("diff", "minilm", encoder, "--file", "texts.txt", "--json").document
    each = [attnx("diff", "minilm", encoder, text, "--json").document for text in texts]
    assert got["texts"] == 2
    for at, name in enumerate(m["name"] for m in got["heads"]):
        alone = np.array([one["heads"][at]["values"] for one in each])
        wanted = alone.max(0) if name == "largest difference" else alone.mean(0)
        np.testing.assert_allclose(got["heads"][at]["values"], wanted, atol=1e-5)
    np.testing.assert_allclose(got["stages"]["values"], np.nanmax([o["stages"]["values"] for o in each], 0), rtol=1e-4)
    alone = [one["outputs"][0]["cosine"] for one in each]
    assert [one["cosine"] for one in got["outputs"]] == pytest.approx(alone, abs=1e-6)
    text = attnx("diff", "minilm", encoder, "--file", "texts.txt").out
    assert text.startswith("minilm and edited · 2 texts · cpu\n")
    found = [one["cosine"] for one in got["outputs"]]
    assert f"the text's vector: cosine {np.mean(found):.5f}, least {min(found):.5f}" in text
    assert "--file gives both models the same texts" in attnx(
        "diff", "minilm", "minilm", "-f", "texts.txt", "--other-text", "x", code=2
    ).err  # fmt: skip


def test_it_says_which_model_cannot_be_loaded(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model at all")
    assert "the second model (broken.onnx): " in attnx("diff", "minilm", "broken.onnx", ANIMAL, code=3).err
    assert "the first model (broken.onnx): " in attnx("diff", "broken.onnx", "minilm", ANIMAL, code=3).err
    assert "the second model (nowhere.onnx): " in attnx("diff", "minilm", "nowhere.onnx", ANIMAL, code=3).err


def test_formulas_stand_behind_explain(attnx: Run, encoder: Path) -> None:
    assert "Lin 1991" not in attnx("diff", "minilm", encoder, ANIMAL).out
    assert "Lin 1991" in attnx("diff", "minilm", encoder, ANIMAL, "--explain").out
