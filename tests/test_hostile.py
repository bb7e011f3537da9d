"""Broken, wrong and hostile inputs on the command line: a clear error with the right exit code, never a traceback.

And no character from a text, a token, a model or a path that could move the cursor or recolour the screen.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnx import cli
from tests.idioms import Form, build, code

MINILM = Path(__file__).parents[1] / "models" / "minilm"
PROGRAM = [sys.executable, "-m", "attnx"]
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters (C0 but for tab and line feed, C1) and bidirectional overrides."""
EVIL = "\x1b[31m\x1b]0;owned\x07\x9b2J\u202eabc\r"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command line in an empty folder: exit code, stdout, stderr; what always holds is asserted here."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert not RAW.search(out), RAW.search(out)
        assert not RAW.search(err), RAW.search(err)
        if code:
            assert err.startswith("attnx: "), err
        return code, out, err

    return call


# Model files


def sound() -> onnx.ModelProto:
    return build(Form())


def planted(change: Callable[[onnx.ModelProto], None]) -> bytes:
    model = sound()
    change(model)
    return model.SerializeToString()


def _cycle(model: onnx.ModelProto) -> None:
    first = model.graph.node[0]
    first.input[0] = model.graph.node[-1].output[0]


def _external(location: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return change


def _set(path: str, value: object) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        at: object = model
        *way, last = path.split(".")
        for part in way:
            at = at[int(part)] if part.isdigit() else getattr(at, part)  # type: ignore[index]
        if last.isdigit():
            at[int(last)] = value  # type: ignore[index]
        else:
            setattr(at, last, value)

    return change


def _no_attention(model: onnx.ModelProto) -> None:
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Identity", ["x"], ["y"], name="only"))


def _many_inputs(model: onnx.ModelProto) -> None:
    model.graph.input.extend(helper.make_tensor_value_info(f"more_{i}", 1, [1]) for i in range(3000))


MODELS: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 3, "empty"),
    "random": (np.random.default_rng(0).bytes(4096), 3, "not .*ONNX model"),
    "truncated": (sound().SerializeToString()[:-700], 3, "not a whole ONNX model"),
    "zeros": (bytes(4096), 3, "not .*ONNX model"),
    "ort format": (b"\x1c\0\0\0ORTM" + bytes(60), 3, "ORT format"),
    "safetensors": ((100).to_bytes(8, "little") + b'{"w":{}}' + b" " * 92, 3, "safetensors"),
    "gguf": (b"GGUF" + bytes(60), 3, "GGUF"),
    "pytorch": (b"PK\x03\x04" + bytes(60), 3, "zip archive"),
    "pickle": (b"\x80\x02" + bytes(60), 3, "pickle"),
    "tokenizer": ((MINILM / "config.json").read_bytes(), 3, "JSON text"),
    "web page": (b"<!DOCTYPE html><html></html>", 3, "web page"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", 3, "LFS pointer"),
    "text": (b"The animal was tired.\n" * 40, 3, "not .*ONNX model"),
    "program": (b"\x7fELF" + bytes(60), 3, "program"),
    "no graph": (b"\x08\x08", 3, "no graph"),
    "no nodes": (planted(lambda m: m.graph.ClearField("node")), 3, "no nodes"),
    "cycle": (planted(_cycle), 3, "cycle"),
    "value of nobody": (planted(_set("graph.node.0.input.0", "nobody")), 3, "nothing in the graph makes"),
    "made twice": (planted(lambda m: m.graph.node.append(m.graph.node[0])), 3, "made by two nodes"),
    "no input": (planted(lambda m: m.graph.node[0].ClearField("input")), 3, "lacks its input 0"),
    "no output": (planted(lambda m: m.graph.node[3].ClearField("output")), 3, "no output"),
    "operator unknown": (planted(_set("graph.node.0.op_type", "Frobnicate")), 3, ""),
    "custom library": (planted(_set("graph.node.0.domain", "ai.custom.kernels")), 3, ""),
    "opset 999": (planted(_set("opset_import.0.version", 999)), 3, "opset"),
    "opset 0": (planted(_set("opset_import.0.version", 0)), 3, "opset below 1"),
    "type unknown": (planted(_set("graph.initializer.0.data_type", 99)), 3, "unknown data type 99"),
    "shape too large": (planted(_set("graph.initializer.0.dims.0", 1 << 40)), 3, "needs .* bytes"),
    "shape negative": (planted(_set("graph.initializer.0.dims.0", -16)), 3, "negative size"),
    "external gone": (planted(_external("gone.bin")), 3, "gone.bin is missing"),
    "external outside": (planted(_external("../../etc/passwd")), 3, "outside the model's folder"),
    "external absolute": (planted(_external("/etc/passwd")), 3, "outside the model's folder"),
    "external to a device": (planted(_external("/dev/zero")), 3, "outside the model's folder"),
    "no attention": (planted(_no_attention), 4, "no attention was found"),
    "thousands of inputs": (planted(_many_inputs), 4, "lacks more_0.*\\.\\.\\."),
    "name not UTF-8": (sound().SerializeToString().replace(b"n_Softmax", b"n_S\xff\xfetmax"), 3, "not valid text"),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("command", ["sites", "trace"])
def test_model_files(kind: str, command: str, run: Run, tmp_path: Path) -> None:
    content, code_, said = MODELS[kind]
    (tmp_path / "m.onnx").write_bytes(content)
    np.savez(tmp_path / "feed.npz", x=code(1, 4))
    args = ["m.onnx", "--inputs", "feed.npz", "--save", "out.npz"] if command == "trace" else ["m.onnx"]
    got, out, err = run(command, *args)
    reads_only = (
        "operator unknown",
        "custom library",
        "external gone",
        "no attention",
        "thousands of inputs",
        "opset 999",
    )
    if command == "sites" and kind in reads_only:
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
def test_every_command_refuses_what_is_no_model(command: str, kind: str, run: Run, tmp_path: Path) -> None:
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
def test_what_does_not_exist_is_named_with_what_does(args: list[str], code_: int, said: str, run: Run) -> None:
    got, out, err = run(*args)
    assert got == code_, err
    assert said in err, err
    assert out == ""


# Feeds


def _pickled(path: Path) -> None:
    np.savez(path, x=np.array([{"a": 1}], dtype=object), allow_pickle=True)


def _array_alone(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, code(1, 4))


def _no_archive(path: Path) -> None:
    path.write_bytes(b"x" * 99)


def _cut_short(path: Path) -> None:
    np.savez(path, x=code(1, 4))
    path.write_bytes(path.read_bytes()[:200])


FEEDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "wrong name": (lambda p: np.savez(p, z=code(1, 4)), "x: tensor"),
    "one too many": (lambda p: np.savez(p, x=code(1, 4), z=code(1, 4)), "no input z"),
    "wrong rank": (lambda p: np.savez(p, x=code(1, 4)[0]), "shape"),
    "wrong width": (lambda p: np.savez(p, x=code(1, 4)[..., :3]), "shape"),
    "text": (lambda p: np.savez(p, x=code(1, 4).astype(str)), "values"),
    "no row": (lambda p: np.savez(p, x=code(1, 4)[:0]), "no row to run on"),
    "NaN": (lambda p: np.savez(p, x=np.full_like(code(1, 4), np.nan)), "NaN"),
    "pickle": (_pickled, "plain arrays"),
    "nothing": (lambda p: np.savez(p), "nothing to run on"),
    "one array": (_array_alone, "without a name"),
    "no archive": (_no_archive, "not an .npz"),
    "cut short": (_cut_short, "not an .npz"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", FEEDS)
def test_feeds(kind: str, run: Run, tmp_path: Path) -> None:
    onnx.save(sound(), tmp_path / "m.onnx")
    write, said = FEEDS[kind]
    write(tmp_path / "feed.npz")
    got, out, err = run("trace", "m.onnx", "--inputs", "feed.npz", "--json")
    assert got == (2 if kind == "nothing" else 4), err
    assert said in err, err
    assert out == ""


def test_weights_that_are_not_finite_are_pointed_out(run: Run, tmp_path: Path) -> None:
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
def test_texts_that_are_hardly_texts(command: str, text: str, run: Run) -> None:
    got, out, err = run(command, text)
    assert got in (0, 2, 4), err
    assert out or err


@pytest.mark.parametrize("command", ON_TEXT)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_escape_from_a_text_reaches_the_terminal(command: str, form: list[str], run: Run, tmp_path: Path) -> None:
    if command == "report" and form:
        pytest.skip("writes a file")
    got, _, err = run(command, f"the animal {EVIL} it was tired", *form)
    assert got in (0, 4), err
    for file in tmp_path.iterdir():
        assert "\x1b" not in file.read_text(encoding="utf-8")


def test_no_escape_from_a_model_reaches_the_terminal(run: Run, tmp_path: Path) -> None:
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


def test_no_escape_from_a_token_reaches_the_terminal(run: Run, tmp_path: Path) -> None:
    shutil.copytree(MINILM, tmp_path / "m")
    path = tmp_path / "m" / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[EVIL] = vocabulary.pop("animal")
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    got, out, err = run("inspect", "--ids", f"101,{vocabulary[EVIL]},2009,102", "-m", "m")
    assert got == 0, err
    assert "owned" in out


def test_a_megabyte_of_text_is_cut_at_the_models_limit(run: Run, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("the animal was tired " * 50_000, encoding="utf-8")
    got, _, err = run("inspect", "--file", "long.txt", "--layer", "0")
    assert got in (0, 4)
    assert "512" in err


@pytest.mark.parametrize("content", [b"caf\xe9\n", b"\xff\xfe\x00", b"\x80"])
def test_files_that_are_not_utf8(content: bytes, run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    got, _, err = run("inspect", "--file", "t.txt")
    assert got == 4
    assert "not valid UTF-8" in err


def test_line_ends_of_windows_and_a_byte_order_mark_change_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "unix.txt").write_bytes(b"It was tired.\nIt slept.\n")
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfIt was tired.\r\nIt slept.\r\n")
    assert run("inspect", "--file", "unix.txt", "--jsonl") == run("inspect", "--file", "dos.txt", "--jsonl")


# Files


def test_a_file_is_replaced_with_force_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"mine")
    got, _, err = run("trace", "minilm", "it", "--save", "x.npz")
    assert (got, (tmp_path / "x.npz").read_bytes()) == (2, b"mine")
    assert "--force" in err
    assert run("trace", "minilm", "it", "--save", "x.npz", "--force")[0] == 0
    assert len(np.load(tmp_path / "x.npz").files) > 40


def process(*args: str, **more: object) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"} | dict(more.pop("env", {}))  # type: ignore[call-overload]
    return subprocess.run(
        [*PROGRAM, *args], capture_output=True, text=True, encoding="utf-8", check=False, env=environment,
        stdin=subprocess.DEVNULL, **more,
    )  # type: ignore[call-overload,no-any-return]  # fmt: skip


@pytest.mark.skipif(os.name == "nt", reason="resource limits")
@pytest.mark.parametrize("name", ["x.npz", "x.safetensors"])
def test_a_full_disk_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    code_ = (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from attnx.cli import run\nsys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code_, "trace", "minilm", "it was", "--save", name],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=dict(os.environ) | {"ATTNX_CACHE": "off"},
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="paths")
@pytest.mark.parametrize(
    "environment",
    [
        {"ATTNX_CACHE": "/dev/null/cache"},
        {"ATTNX_CACHE": "/proc/cache"},
        {"HOME": "/nonexistent", "XDG_CACHE_HOME": "", "ATTNX_CACHE": "/nonexistent/x/y"},
        {"TERM": "dumb"},
        {"COLUMNS": "20"},
        {"COLUMNS": "0"},
        {"COLUMNS": "wide"},
        {"LANG": "C", "LC_ALL": "C"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"NO_COLOR": "1", "TERM": ""},
    ],
    ids=str,
)
def test_odd_surroundings(environment: dict[str, str], tmp_path: Path) -> None:
    done = process("inspect", "The animal was tired. 日本", env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "animal" in done.stdout
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_two_at_once_on_a_cold_cache(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"ATTNX_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(
            [*PROGRAM, "inspect", "It was tired.", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        for _ in range(2)
    ]
    outs = [p.communicate(timeout=120) for p in both]
    assert [p.returncode for p in both] == [0, 0]
    assert outs[0] == outs[1]
    assert not list((tmp_path / "cache").glob("*.part"))


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_kill_in_the_middle_harms_no_later_run(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"ATTNX_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    command = [*PROGRAM, "trace", "minilm", "It was tired.", "--save", "x.npz"]
    for wait in (0.2, 0.5, 0.8, 1.1):
        one = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(wait)
        one.send_signal(signal.SIGKILL)
        one.wait(60)
        time.sleep(0.1)
        if (tmp_path / "x.npz").exists():
            assert len(np.load(tmp_path / "x.npz").files) > 40  # whole, or not there
            (tmp_path / "x.npz").unlink()
    cache = tmp_path / "cache"
    for i, entry in enumerate(sorted(cache.glob("*.attnx")) if cache.is_dir() else []):
        entry.write_bytes(entry.read_bytes()[: -1 - i])  # what a kill without an atomic rename would leave
    (cache / "left.part").parent.mkdir(exist_ok=True)
    (cache / "left.part").write_bytes(b"half")
    os.utime(cache / "left.part", (4e9, 4e9))  # and a clock that jumped
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(np.load(tmp_path / "x.npz").files) > 40


@pytest.mark.skipif(os.name == "nt", reason="pipes")
@pytest.mark.parametrize("args", [["inspect", "It was tired.", "--layer", "0"], ["heads", "It was tired.", "--json"]])
def test_a_reader_that_leaves_makes_no_noise(args: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run([*PROGRAM, *args], stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
