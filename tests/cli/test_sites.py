"""`attnx sites`: what is said of the bundled model, and of a graph without attention."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import small_models
from tests.cli.conftest import MINILM, Run


def test_document(attnx: Run) -> None:
    document = attnx("sites", "minilm", "--json").document
    model = onnx.load(MINILM / "model.onnx", load_external_data=False)
    softmaxes = [node.name for node in model.graph.node if node.op_type == "Softmax"]
    assert [site["node"] for site in document["sites"]] == softmaxes
    assert {(s["heads"], s["head_dim"], s["causal"]) for s in document["sites"]} == {(12, 32, False)}
    assert document["misses"] == []


def test_table(attnx: Run) -> None:
    lines = attnx("sites", "minilm").out.splitlines()
    assert lines[:2] == ["model.onnx · fp16 weights", "6 attention sites"]
    assert [line.split()[:6] for line in lines[3:9]] == [
        [str(i), f"L{i}", "encoder", "12", "32", "0.1768"] for i in range(6)
    ]
    assert "Softmax_output_0" in attnx("sites", "minilm", "--places").out


def test_feed_template_is_a_program_that_writes_a_feed(attnx: Run, tmp_path: Path) -> None:
    exec(attnx("sites", "minilm", "--feed-template").out, {})
    with np.load(tmp_path / "FEED.npz") as feed:
        found = {name: (feed[name].shape, feed[name].dtype.name) for name in feed.files}
        assert feed["attention_mask"].all()
    assert found == dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), ((1, 8), "int64"))
    attnx("trace", "minilm", "--inputs", "FEED.npz", "--only", "weights")


def test_a_folder_with_other_models_beside_a_decoder_is_no_model(attnx: Run, tmp_path: Path) -> None:
    """The one file that is called a decoder, somewhere below, is not taken for all of them."""
    for place in ("a/decoder_model.onnx", "b/one.onnx"):
        (tmp_path / "shelf" / place).parent.mkdir(parents=True)
        (tmp_path / "shelf" / place).touch()
    done = attnx("sites", tmp_path / "shelf", code=3)
    assert "several models" in done.err
    assert "a/decoder_model.onnx, b/one.onnx" in done.err


@pytest.mark.parametrize("form", ["plain", "cached", "merged", "static", "one file", "gru", "dinov2", "siglip"])
def test_a_feed_by_the_template_runs(attnx: Run, form: str, tmp_path: Path) -> None:
    """Masks are ones, positions count, caches are empty: what is printed runs as it is."""
    made = {
        "plain": small_models.plain_decoder, "cached": small_models.cached_decoder,
        "merged": small_models.merged_decoder, "static": small_models.static_decoder,
        "one file": small_models.one_file,
    }  # fmt: skip
    place = Path(__file__).parents[1] / "families" / form
    if form in made:
        place = small_models.save(tmp_path / "m", model=made[form](small_models.weights()))
    exec(attnx("sites", str(place), "--feed-template").out, {})
    done = attnx("trace", str(place), "--inputs", "FEED.npz", "--json")
    assert all(site["trusted"] for site in done.document["sites"])


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A Softmax that is not attention."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], name="class")], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "classifier.onnx")
    return tmp_path / "classifier.onnx"


def test_a_classifier_has_no_attention(attnx: Run, classifier: Path, tmp_path: Path) -> None:
    assert attnx("sites", str(classifier), "--json").document["sites"] == []
    np.savez(tmp_path / "feed.npz", x=np.zeros((2, 4), np.float32))
    assert attnx("trace", str(classifier), "--inputs", "feed.npz", "--json").document["sites"] == []
    done = attnx("inspect", "-m", str(classifier), "--inputs", "feed.npz", code=4)
    assert "no attention" in done.err
    assert "attnx sites" in done.err


def test_a_text_without_a_tokenizer_says_what_to_give(attnx: Run, tmp_path: Path) -> None:
    small_models.save(tmp_path, model=small_models.plain_decoder(small_models.weights()))
    done = attnx("inspect", "It.", "-m", tmp_path / "model.onnx", code=3)
    assert "--ids" in done.err
    assert "--tokenizer" in done.err


def test_a_model_without_ids_says_that_it_takes_no_text(attnx: Run, classifier: Path) -> None:
    """No tokenizer would help."""
    done = attnx("inspect", "It.", "-m", str(classifier), code=3)
    assert "takes no text: its inputs are x: tensor(float) [n, 4]" in done.err
    assert "--set" in done.err
    assert "--tokenizer" not in done.err


def test_both_files_of_an_encoder_decoder_numbered_as_in_a_trace(attnx: Run, tmp_path: Path) -> None:
    w = small_models.weights()
    place = small_models.save(
        tmp_path / "m", config={"decoder_start_token_id": 5}, encoder_model=small_models.encoder(w),
        decoder_model=small_models.cross_decoder(w, cached=False),
    )  # fmt: skip
    listed = attnx("sites", str(place), "--json").document["sites"]
    sorts = [(s["index"], s["component"], s["kind"], s["layer"]) for s in listed]
    own = [(2, "decoder", "self", 0), (3, "decoder", "cross", 0), (4, "decoder", "self", 1), (5, "decoder", "cross", 1)]
    assert sorts == [(0, "encoder", "self", 0), (1, "encoder", "self", 1), *own]
    ran = attnx("trace", str(place), "--ids", "4,9,2", "--generate", "3", "--json").document["sites"]
    assert [(s["index"], s["component"], s["kind"], s["layer"]) for s in ran] == sorts


def test_what_a_quantiser_left_is_counted(attnx: Run) -> None:
    there = Path(__file__).parents[1] / "zoo" / "int8-dynamic-ts17" / "model.onnx"
    kinds = Counter(node.op_type for node in onnx.load(there).graph.node)
    (file,) = attnx("sites", str(there), "--json").document["files"]
    assert (file["file"], file["weights"]) == ("model.onnx", "int8")
    names = ("MatMulInteger", "DynamicQuantizeLinear", "DequantizeLinear")
    assert file["quantised"] == {name: kinds[name] for name in names}
    said = ", ".join(f"{kinds[name]} {name}" for name in names)
    assert " ".join(attnx("sites", str(there)).out.split()).startswith(f"model.onnx · int8 weights · {said} ")
