"""`attnx export`, with stand-ins for optimum; and the line that files and folders of weights print."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.cli.conftest import Run


class Optimum:
    """What attnx calls of optimum, and with what."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.fails: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            self.calls.append((name, args, named))
            if self.fails is not None and name == "get_model_from_task":
                raise self.fails
            return {"infer_task_from_model": "fill-mask", "infer_library_from_model": "transformers"}.get(name, "model")

        return call


@pytest.fixture
def optimum(monkeypatch: pytest.MonkeyPatch) -> Optimum:
    made = Optimum()
    places = {
        "optimum.exporters.onnx": {"onnx_export_from_model": made.onnx_export_from_model},
        "optimum.exporters.tasks": {"TasksManager": made},
        "optimum.utils.save_utils": {"maybe_save_preprocessors": made.maybe_save_preprocessors},
    }
    for name in ("optimum", "optimum.exporters", "optimum.utils", *places):
        module = ModuleType(name)
        vars(module).update(places.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_a_name_on_the_hub(attnx: Run, optimum: Optimum) -> None:
    done = attnx("export", "org/name", "out")
    assert done.err == "attnx: wrote out: attnx inspect TEXT -m out\n"
    assert optimum.calls == [
        ("infer_task_from_model", ("org/name",), {}),
        ("infer_library_from_model", ("org/name",), {}),
        (
            "get_model_from_task",
            ("fill-mask", "org/name"),
            {"framework": "pt", "library_name": "transformers", "attn_implementation": "eager"},
        ),
        ("onnx_export_from_model", ("model", Path("out")), {"task": "fill-mask", "opset": None}),
        ("maybe_save_preprocessors", ("org/name", Path("out")), {}),
    ]


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("GPT2LMHeadModel", "text-generation"),
        ("BertModel", "feature-extraction"),
        ("MarianMTModel", "text2text-generation"),
    ],
)
def test_a_folder_is_what_its_configuration_says(
    architecture: str, task: str, attnx: Run, optimum: Optimum, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.safetensors").touch()
    (tmp_path / "mine" / "config.json").write_text(f'{{"architectures": ["{architecture}"]}}')
    attnx("export", "mine", "out", "--opset", "18")
    named = {name: (args, more) for name, args, more in optimum.calls}
    assert named["get_model_from_task"][0][0] == task
    cached = task if task == "feature-extraction" else f"{task}-with-past"
    assert named["onnx_export_from_model"][1] == {"task": cached, "opset": 18}


def test_what_cannot_be_exported(attnx: Run, optimum: Optimum, tmp_path: Path) -> None:
    optimum.fails = OSError("org/name is not a local folder\nand more")
    done = attnx("export", "org/name", "out", code=3)
    assert "org/name cannot be exported: org/name is not a local folder\n" in done.err
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.onnx").touch()
    assert "out holds a model already" in attnx("export", "org/name", "out", code=2).err


def test_without_optimum(attnx: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("optimum", "optimum.exporters", "optimum.exporters.onnx"):
        monkeypatch.setitem(sys.modules, name, None)
    said = attnx("export", "org/name", "out", code=2).err
    assert "an export needs optimum and PyTorch, and optimum" in said
    assert "[export]'" in said


@pytest.mark.parametrize(
    ("args", "code", "what"),
    [
        (("org/name", "out", "--opset", "0"), 2, "--opset 0: ONNX has the opsets 1 to "),
        (("org/name", "out", "--opset", "999"), 2, "--opset 999: ONNX has the opsets 1 to "),
        (("org/name", "out", "--task", " "), 2, "--task '' names no task"),
        (("org/name", "file.txt"), 2, "file.txt is not a folder"),
        (("org/name", "file.txt/out"), 2, "file.txt is not a folder"),
        (("org/name", "full"), 2, "full holds a model already"),
        (("file.txt", "out"), 3, "file.txt is a file, and a checkpoint is a folder"),
        (("full", "out"), 3, "full is no checkpoint: it holds no weights"),
        (("bare", "out"), 3, "bare is no checkpoint: it holds no config.json"),
        (("./none", "out"), 3, "there is no folder './none', and it is no name on the Hub"),
        (("org/name@v2", "out"), 3, "there is no folder 'org/name@v2', and it is no name on the Hub"),
        (("minilm", "out"), 3, "minilm is a bundled model, which is ONNX already"),
        (("", "out"), 3, "the checkpoint has no name: it is empty"),
    ],
)
def test_arguments_are_checked_before_optimum_is_asked_for(
    args: tuple[str, ...], code: int, what: str, attnx: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "optimum", None)
    (tmp_path / "file.txt").touch()
    for name in ("full/model.onnx", "bare/model.safetensors"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert what in attnx("export", *args, code=code).err


SAFETENSORS = (100).to_bytes(8, "little") + b'{"w":{}}' + b" " * 92


def test_a_folder_of_weights_prints_the_line(attnx: Run, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(SAFETENSORS)
    said = attnx("sites", "mine", code=3).err
    assert "mine holds no .onnx file, but weights without a graph: model.safetensors\n" in said
    assert "attnx export" not in said  # without config.json nothing knows what the weights are of
    (folder / "config.json").write_text("{}")
    said = attnx("sites", "mine", code=3).err
    assert "`attnx export mine mine-onnx` makes ONNX of it." in said
    assert "`attnx export mine mine-onnx` makes ONNX of it." in attnx("sites", "mine/model.safetensors", code=3).err


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.pt", b"PK\x03\x04" + bytes(60), "a zip archive (a PyTorch checkpoint"),
        ("a.gguf", b"GGUF" + bytes(60), "a GGUF file"),
        ("a.safetensors", SAFETENSORS, "a safetensors file: weights without a graph"),
    ],
)
def test_a_file_of_weights_prints_the_line(name: str, content: bytes, what: str, attnx: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    said = attnx("sites", name, code=3).err
    assert f"{name} is {what}" in said
    assert "`attnx export ORG/NAME OUT`" in said
