"""`attnx trace`: the arrays against onnxruntime alone, and the contract that scripts rely on."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attnx.study import stretches
from tests.cli.conftest import ANIMAL, Oracle, Run
from tests.cli.layerwise import a_layer_at_a_time

QUANTITIES = ("query", "key", "value", "scores", "scaled", "capped", "masked", "weights", "context")


def safetensors(path: Path) -> tuple[dict[str, np.ndarray], set[str]]:
    """The arrays of a file by name, and their types: header and arrays fill it, one array behind another."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    assert data[8:9] == b"{"
    header = json.loads(data[8 : 8 + length])
    arrays, at = {}, 0
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        assert start == at
        arrays[name] = np.frombuffer(data[8 + length + start : 8 + length + stop], "<f4").reshape(entry["shape"])
        at = stop
    assert 8 + length + at == len(data)
    return arrays, {entry["dtype"] for entry in header.values()}


def test_arrays_by_name(attnx: Run, tmp_path: Path, oracle: Callable[[str], Oracle]) -> None:
    document = attnx("trace", "minilm", ANIMAL, "--save", "out.npz", "--json").document
    want = oracle(ANIMAL)
    with np.load(tmp_path / "out.npz") as arrays:
        assert set(arrays.files) == {f"attention.{i}.{q}" for i in range(6) for q in QUANTITIES}
        for i in range(6):
            part = {q: arrays[f"attention.{i}.{q}"][0] for q in QUANTITIES}
            np.testing.assert_allclose(part["weights"], want.weights[i], atol=1e-5)
            np.testing.assert_allclose(part["scores"], want.scores[i], atol=1e-4)
            np.testing.assert_allclose(part["query"] @ part["key"].swapaxes(-1, -2), want.scores[i], atol=1e-3)
            np.testing.assert_allclose(part["scaled"], want.scores[i] / np.sqrt(32), atol=1e-4)
            np.testing.assert_allclose(part["weights"] @ part["value"], part["context"], atol=1e-4)
            for q, array in document["sites"][i]["arrays"].items():
                assert array["shape"] == [1, *part[q].shape]
    assert document["saved"] == "out.npz"
    for i, site in enumerate(document["sites"]):
        assert (site["index"], site["layer"], site["component"], site["kind"]) == (i, i, "encoder", "self")
        assert (site["causal"], site["heads"], site["kv_heads"], site["head_dim"]) == (False, 12, 12, 32)
        assert site["scale"] == pytest.approx(32**-0.5)
        assert site["op"] == "Softmax"
        assert site["trusted"] is True
        assert {check["name"] for check in site["checks"]} >= {"weights = softmax(masked)", "weights x value = context"}


def test_safetensors_are_the_same_arrays(attnx: Run, tmp_path: Path) -> None:
    attnx("trace", "minilm", "It was.", "--save", "a.npz")
    attnx("trace", "minilm", "It was.", "--save", "a.safetensors")
    arrays, kinds = safetensors(tmp_path / "a.safetensors")
    assert kinds == {"F32"}
    with np.load(tmp_path / "a.npz") as want:
        assert set(arrays) == set(want.files)
        for name, got in arrays.items():
            np.testing.assert_allclose(got, want[name], atol=1e-6)


def test_feed_in_arrays_out(attnx: Run, tmp_path: Path, oracle: Callable[[str], Oracle]) -> None:
    ids = np.array([[101, 2009, 2001, 5458, 1012, 102]])
    np.savez(tmp_path / "feed.npz", input_ids=ids, attention_mask=ids * 0 + 1, token_type_ids=ids * 0)
    attnx("trace", "minilm", "--inputs", "feed.npz", "--save", "out.npz", "--layer", "5", "--only", "weights,scores")
    with np.load(tmp_path / "out.npz") as arrays:
        assert set(arrays.files) == {"attention.5.weights", "attention.5.scores"}
        np.testing.assert_allclose(arrays["attention.5.weights"][0], oracle("It was tired.").weights[5], atol=1e-5)


def test_verify_says_by_how_much_outputs_differ(attnx: Run) -> None:
    assert "last_hidden_state" in attnx("trace", "minilm", "It.", "--verify").out


def test_summary(attnx: Run) -> None:
    out = attnx("trace", "minilm", "It was.", "--save", "out.npz").out
    assert "1x12x5x5" in out
    assert "wrote out.npz" in out


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("minilm",), 2, "no text"),
        (("minilm", "It.", "--save", "out.txt"), 2, ".safetensors"),
        (("minilm", "It.", "--save", "no/out.npz"), 2, "mkdir"),
        (("minilm", "It.", "--save", "there.npz"), 2, "--force"),
        (("minilm", "It.", "--only", "logits"), 2, "weights"),
        (("minilm", "It.", "--layer", "7"), 2, "0 to 5"),
        (("minilm", "--inputs", "there.npz"), 4, "there.npz"),
        (("nothing", "It."), 3, "minilm"),
    ],
)
def test_mistakes(attnx: Run, tmp_path: Path, args: tuple[str, ...], code: int, says: str) -> None:
    (tmp_path / "there.npz").write_text("mine")
    done = attnx("trace", *args, code=code)
    assert says in done.err
    assert "\n  " in done.err, "no hint"
    assert done.out == ""
    assert (tmp_path / "there.npz").read_text() == "mine"


def test_force_replaces(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "out.npz").write_text("old")
    attnx("trace", "minilm", "It.", "--save", "out.npz", "--force")
    assert np.load(tmp_path / "out.npz")["attention.0.weights"].shape == (1, 12, 4, 4)


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize(
    ("ending", "more"), [("npz", []), ("npz", ["--layer", "1-3", "--only", "weights,key"]), ("safetensors", [])]
)
def test_a_long_text_is_written_a_layer_or_head_at_a_time(
    attnx: Run, ending: str, more: list[str], heads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one run writes and says; matrices of a layer, or a head, are gone before the next is run."""
    model, layers, of_each = ("tiny-gpt", 4, 6) if heads else ("minilm", 6, 1)
    command = ("trace", model, ANIMAL, *more, "--json", "--save")
    whole = attnx(*command, "whole.npz").document
    fetched = a_layer_at_a_time(monkeypatch, heads=heads)
    apart = attnx(*command, f"apart.{ending}").document
    counts = [count for count in fetched if count]
    assert len(counts) == (3 if more else layers) * of_each
    assert max(counts) == min(counts) == (1 if more else 4)
    left_open = [file for file in tmp_path.iterdir() if file.name.startswith(".attnx")]
    assert left_open == []
    for document in (whole, apart):
        document["saved"] = None
        for site in document["sites"]:
            checks = {one.pop("name"): one for one in site.pop("checks")}
            site["checks"] = {name: one["holds"] for name, one in checks.items()}
            # Only a run of whole rows of every head at once would name the same largest difference.
            assert heads or checks
    assert apart == whole
    with np.load(tmp_path / "whole.npz") as one:
        two = np.load(tmp_path / "apart.npz") if ending == "npz" else safetensors(tmp_path / "apart.safetensors")[0]
        assert sorted(one.files) == sorted(two)
        assert len(one.files) == (3 * 2 if more else layers * 9)
        for name in one.files:
            np.testing.assert_array_equal(two[name].shape, one[name].shape)
            np.testing.assert_allclose(two[name], one[name], rtol=1e-5, atol=1e-5)
    assert "exists" in attnx(*command, f"apart.{ending}", code=2).err


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        ("trace", "minilm", "--save", "out.npz", "--force"),
        ("diff", "minilm", "minilm"),
        ("report", "-m", "minilm", "-o", "page.html", "--force"),
    ],
)
def test_what_is_said_of_all_layers_is_said_where_they_are_read_in_parts(
    attnx: Run, command: tuple[str, ...], heads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask that hides every key in every layer: one note, as of one run."""
    given = (*command, "A dog.", "--set", "attention_mask=0,0,0,0,0")

    def said() -> list[str]:
        done = attnx(*given)
        lines = "".join((done.err + done.out).split()).split("attnx:")
        return [line for line in lines if "everykeyishidden" in line]

    whole = said()
    assert len(whole) == 1
    assert "fromeveryqueryinL0and5more" in whole[0]
    monkeypatch.setattr(stretches, "ROOM", 1)
    if not heads:
        monkeypatch.setattr(stretches.Stretches, "split", lambda self, part: ())
    (apart,) = said()
    assert apart.count("everykeyishidden") == whole[0].count("everykeyishidden")
    assert "fromeveryqueryinL0and5more" in apart
