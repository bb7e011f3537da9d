"""What is broken, wrong or hostile: model files, feeds and texts, for the tests that give them to attnx."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from attnx.cli import app as cli
from tests.idioms import Form, build, code

MINILM = Path(__file__).parents[1] / "models" / "minilm"
PROGRAM = [sys.executable, "-m", "attnx"]
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters (C0 but for tab and line feed, C1) and bidirectional overrides."""
EVIL = "\x1b[31m\x1b]0;owned\x07\x9b2J\u202eabc\r"


class Runner:
    """Runs command lines in an empty folder, and asserts what always holds."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.chdir(folder)
        self.capsys = capsys

    def __call__(self, *args: object) -> tuple[int, str, str]:
        """The exit code, stdout and stderr."""
        self.capsys.readouterr()
        code_ = cli.run([str(arg) for arg in args])
        out, err = self.capsys.readouterr()
        assert "Traceback" not in out + err
        assert not RAW.search(out), RAW.search(out)
        assert not RAW.search(err), RAW.search(err)
        if code_:
            assert "\nattnx: " in f"\n{err}", err
        return code_, out, err


def process(*args: str, **more: object) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"} | dict(more.pop("env", {}))  # type: ignore[call-overload]
    return subprocess.run(
        [*PROGRAM, *args], capture_output=True, text=True, encoding="utf-8", check=False, env=environment,
        stdin=subprocess.DEVNULL, **more,
    )  # type: ignore[call-overload,no-any-return]  # fmt: skip


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


def _enormous(model: onnx.ModelProto) -> None:
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for dim, size in zip(dims, (0, 1 << 40, 1 << 40), strict=True):
        dim.dim_value = size


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
    "input of no row and 2**80 columns": (planted(_enormous), 4, "shape"),
    "external gone": (planted(_external("gone.bin")), 3, "gone.bin is missing"),
    "external outside": (planted(_external("../../etc/passwd")), 3, "outside the model's folder"),
    "external absolute": (planted(_external("/etc/passwd")), 3, "outside the model's folder"),
    "external to a device": (planted(_external("/dev/zero")), 3, "outside the model's folder"),
    "no attention": (planted(_no_attention), 4, "no attention was found"),
    "thousands of inputs": (planted(_many_inputs), 4, "lacks more_0.*\\.\\.\\."),
    "name not UTF-8": (sound().SerializeToString().replace(b"n_Softmax", b"n_S\xff\xfetmax"), 3, "not valid text"),
}


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


def declared(shape: tuple[int, ...], dtype: str = "<f4", content: bytes = b"") -> Callable[[Path], None]:
    """An .npz whose array says that it has another shape than its bytes fill."""

    def write(path: Path) -> None:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": dtype, "fortran_order": False, "shape": shape})
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", head.getvalue() + content)

    return write


def _of_type(dtype: object) -> Callable[[Path], None]:
    return lambda path: np.savez(path, x=np.zeros((1, 4, code(1, 4).shape[2]), dtype))  # type: ignore[call-overload]


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
    "declared huge": (declared((1, 10**12, 64)), "declares the shape [1, 1000000000000, 64]"),
    "declared beyond 64 bits": (declared((2**40, 2**40, 2)), "declares the shape"),
    "declared negative": (declared((1, -5, 64)), ""),
    "records": (_of_type([("a", "<f4"), ("b", "<i4")]), "values"),
    "times": (_of_type("<M8[s]"), "values"),
    "complex": (_of_type("<c8"), "values"),
    "raw bytes": (_of_type("|V4"), "values"),
    "40 axes": (lambda p: declared((1,) * 40, content=bytes(4))(p), ""),
}  # fmt: skip

READS_ONLY = (
    "operator unknown",
    "custom library",
    "external gone",
    "no attention",
    "thousands of inputs",
    "opset 999",
    "input of no row and 2**80 columns",
)
"""Kinds of MODELS that can be looked at, though not run."""
