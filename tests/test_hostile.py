"""Broken, wrong and hostile inputs on the command line: a clear error with the right exit code, never a traceback.

And no character from a text, a token, a model or a path that could move the cursor or recolour the screen.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from attnx.cli.set_option import read_settings
from attnx.errors import InputError
from attnx.feed.arrays import load_feed
from attnx.feed.audio import read_wav
from attnx.feed.vision import load_picture
from attnx.session.ort import Slot
from tests.hostile import EVIL, FEEDS, MINILM, MODELS, READS_ONLY, Runner, sound
from tests.idioms import code


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    return Runner(capsys, monkeypatch, tmp_path)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("command", ["sites", "trace"])
def test_model_files(kind: str, command: str, run: Runner, tmp_path: Path) -> None:
    content, code_, said = MODELS[kind]
    (tmp_path / "m.onnx").write_bytes(content)
    np.savez(tmp_path / "feed.npz", x=code(1, 4))
    args = ["m.onnx", "--inputs", "feed.npz", "--save", "out.npz"] if command == "trace" else ["m.onnx"]
    got, out, err = run(command, *args)
    if command == "sites" and kind in READS_ONLY:
        assert got == 0, err
        return
    if command == "trace" and kind == "no attention":
        assert got == 0  # a script asked for what there is: nothing
        assert json.loads(run("trace", *args, "--force", "--json")[1])["sites"] == []
        return
    assert got == code_, err
    assert re.search(said, err), err
    assert out == ""
    assert not (tmp_path / "out.npz").exists()


ON_TEXT = ("inspect", "coref", "scale", "qkv", "mask", "heads", "flow", "report")


@pytest.mark.parametrize("kind", ["empty", "tokenizer", "truncated", "gone", "folder"])
@pytest.mark.parametrize("command", [*ON_TEXT, "word", "diff", "cost"])
def test_every_command_refuses_what_is_no_model(command: str, kind: str, run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    if kind == "folder":
        path.mkdir()
    elif kind != "gone":
        path.write_bytes(MODELS[kind][0])
    if command == "diff":
        args = ["minilm", str(path), "it was"]
    elif command == "cost":
        args = [str(path)]
    elif command == "word":
        args = ["a bank", "the bank", "--word", "bank", "-m", str(path)]
    else:
        args = ["The animal was tired.", "-m", str(path)]
    got, out, err = run(command, *args)
    assert got == 3, err
    assert out == ""
    assert not [p for p in tmp_path.iterdir() if p.name != "m.onnx"]


# What there is not


@pytest.mark.parametrize(
    ("args", "code_", "said"),
    [
        (["inspect", "it was", "--layer", "6"], 2, "layers 0 to 5"),
        (["inspect", "it was", "--layer", "x"], 2, "x"),
        (["inspect", "it was", "-H", "2.12"], 2, "heads 0 to 11"),
        (["inspect", "it was", "-q", "dog"], 2, "it@1"),
        (["inspect", "it was", "-m", "minilmm"], 3, "Did you mean minilm"),
        (["inspect", "it was", "--device", "tpu"], 2, "auto, cpu, cuda"),
        (["inspect", "it was", "--stage", "wieghts"], 2, "weights"),
        (["inspect", "it was", "--tokenizer", "nowhere"], 4, "nowhere"),
        (["inspect", "--file", "nowhere.txt"], 4, "nowhere.txt"),
        (["inspect", "--ids", "101,99999999,102"], 4, "30522"),
        (["inspect", "--ids", "101,-1,102"], 4, "-1"),
        (["inspect", "--ids", "a"], 4, "not a token id"),
        (["inspect", "--ids", ""], 4, ""),
        (["trace", "minilm", "it", "--save", "x.txt"], 2, ".npz or .safetensors"),
        (["trace", "minilm", "it", "--save", "no/x.npz"], 2, "mkdir -p no"),
        (["trace", "minilm", "it", "--only", "wieghts"], 2, "weights"),
        (["trace", "minilm", "--inputs", "nowhere.npz"], 4, "nowhere.npz"),
        (["trace", "minilm", "it", "--set", "nothing=1"], 2, "input_ids"),
        (["sites", "nowhere.onnx"], 3, "nowhere.onnx"),
        (["diff", "minilm", "nope", "it was"], 3, "nope"),
        (["mask", "it was", "--layer", "9"], 2, "layers 0 to 5"),
        (["qkv", "it was", "--head", "1.99"], 2, "heads 0 to 11"),
        (["pull", "../../x"], 2, ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_exist_is_named_with_what_does(args: list[str], code_: int, said: str, run: Runner) -> None:
    got, out, err = run(*args)
    assert got == code_, err
    assert said in err, err
    assert out == ""


# Feeds


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", FEEDS)
def test_feeds(kind: str, run: Runner, tmp_path: Path) -> None:
    onnx.save(sound(), tmp_path / "m.onnx")
    write, said = FEEDS[kind]
    write(tmp_path / "feed.npz")
    got, out, err = run("trace", "m.onnx", "--inputs", "feed.npz", "--json")
    assert got == (2 if kind == "nothing" else 4), err
    assert said in err, err
    assert out == ""


@pytest.mark.parametrize("newer", ["IR version", "opset"])
def test_a_model_of_tomorrow_is_told_as_that(newer: str, run: Runner, tmp_path: Path) -> None:
    model = sound()
    if newer == "opset":
        model.opset_import[0].version = 99
    else:
        model.ir_version = 99
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "feed.npz", x=code(1, 4))
    got, _, err = run("trace", "m.onnx", "--inputs", "feed.npz")
    assert got == 3
    assert re.search(rf"the model has {newer} 99, and this onnxruntime reads up to \d+\n  Update", err), err


@pytest.mark.parametrize("content", ["folder", "empty", "text"])
def test_a_file_that_cannot_be_read_is_told_of_in_words(content: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.mkdir() if content == "folder" else path.write_text("" if content == "empty" else "some words\n")
    slot = Slot("x", (None, 3), "tensor(float)")
    readers = [load_feed, load_picture, read_wav, lambda p: read_settings([f"x=@{p}"], [slot])]
    for reader in readers:
        with pytest.raises(InputError) as caught:
            reader(path)
        assert not re.search(r"Errno|allow_pickle|unsafe|: $", caught.value.message), caught.value.message


def test_weights_that_are_not_finite_are_pointed_out(run: Runner, tmp_path: Path) -> None:
    model = sound()
    weight = model.graph.initializer[0]
    array = numpy_helper.to_array(weight).copy()
    array[0, 0] = np.nan
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "feed.npz", x=code(1, 4))
    got, out, err = run("trace", "m.onnx", "--inputs", "feed.npz")
    assert got == 0
    assert re.search("not finite|does not hold|do not hold|NaN|nan|untrusted", out + err), out + err


# Texts


@pytest.mark.parametrize(
    "text", ["", "   ", "\n\n", "🦙🦙🦙", "\x00\x01\x02", EVIL, "\u200b\u200d\ufeff", "e\u0301" * 40]
)
@pytest.mark.parametrize("command", ["inspect", "scale", "mask", "heads", "flow", "qkv"])
def test_texts_that_are_hardly_texts(command: str, text: str, run: Runner) -> None:
    got, out, err = run(command, text)
    assert got in (0, 2, 4), err
    assert out or err


@pytest.mark.parametrize("command", ON_TEXT)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_escape_from_a_text_reaches_the_terminal(command: str, form: list[str], run: Runner, tmp_path: Path) -> None:
    if command == "report" and form:
        pytest.skip("writes a file")
    got, _, err = run(command, f"the animal {EVIL} it was tired", *form)
    assert got in (0, 4), err
    for file in tmp_path.iterdir():
        assert "\x1b" not in file.read_text(encoding="utf-8")


def test_no_escape_from_a_model_reaches_the_terminal(run: Runner, tmp_path: Path) -> None:
    """From the names of its nodes, its inputs, its folder, and the tokens of its tokenizer."""
    model = sound()
    for node in model.graph.node:
        node.name += EVIL
        for i, name in enumerate(node.input):
            node.input[i] = EVIL + name if name == "x" else name
    model.graph.input[0].name = EVIL + "x"
    folder = tmp_path / f"m{EVIL}"
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    np.savez(tmp_path / "feed.npz", **{EVIL + "x": code(1, 4)})
    assert run("sites", str(folder))[0] == 0
    assert run("sites", str(folder), "--places")[0] == 0
    assert run("sites", str(folder), "--feed-template")[0] == 0
    assert run("sites", str(folder), "--json")[0] == 0
    assert run("trace", str(folder), "--inputs", "feed.npz")[0] == 0
    assert run("trace", str(folder), "--inputs", f"{EVIL}.npz")[0] == 4
    assert run("inspect", "it", "-m", str(folder))[0] in (3, 4)


def test_no_escape_from_a_token_reaches_the_terminal(run: Runner, tmp_path: Path) -> None:
    shutil.copytree(MINILM, tmp_path / "m")
    path = tmp_path / "m" / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[EVIL] = vocabulary.pop("animal")
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    got, out, err = run("inspect", "--ids", f"101,{vocabulary[EVIL]},2009,102", "-m", "m")
    assert got == 0, err
    assert "owned" in out


def test_a_megabyte_of_text_is_cut_at_the_models_limit(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("the animal was tired " * 50_000, encoding="utf-8")
    got, _, err = run("inspect", "--file", "long.txt", "--layer", "0")
    assert got in (0, 4)
    assert "512" in err


@pytest.mark.parametrize("content", [b"caf\xe9\n", b"\xff\xfe\x00", b"\x80"])
def test_files_that_are_not_utf8(content: bytes, run: Runner, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    got, _, err = run("inspect", "--file", "t.txt")
    assert got == 4
    assert "not valid UTF-8" in err


def test_a_locale_without_utf8_is_told_of_where_the_text_is_utf8(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    as_read = "고양이".encode().decode("ascii", "surrogateescape")
    assert "the locale is ascii" in run("inspect", as_read, "-m", "tiny-gpt")[2]
    assert "not valid UTF-8: byte 0xff" in run("inspect", "\udcff", "-m", "tiny-gpt")[2]


def test_line_ends_of_windows_and_a_byte_order_mark_change_nothing(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "unix.txt").write_bytes(b"It was tired.\nIt slept.\n")
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfIt was tired.\r\nIt slept.\r\n")
    assert run("inspect", "--file", "unix.txt", "--jsonl") == run("inspect", "--file", "dos.txt", "--jsonl")
