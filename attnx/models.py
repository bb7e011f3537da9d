"""Where a model is: a file, a folder laid out as on the Hub, or the name of a bundled one."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from attnx.errors import ModelError

_ONNX = ("model.onnx", "onnx/model.onnx", "decoder_model_merged.onnx", "onnx/decoder_model_merged.onnx")
_TOKENIZER = ("tokenizer.json", "vocab.txt", "vocab.json")


@dataclass(frozen=True, slots=True)
class Location:
    """A model on disk."""

    name: str
    """As it is shown."""
    path: Path
    """The .onnx file."""
    tokenizer: Path | None
    """The folder that holds its tokenizer; None where none was found."""


def bundled_root() -> Path:
    """The folder of the models that ship with attnx: inside an installed package, beside it in a checkout."""
    inside = Path(__file__).parent / "bundled"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "models"


def bundled() -> list[str]:
    """Names of the bundled models."""
    root = bundled_root()
    return sorted(p.name for p in root.iterdir() if (p / "model.onnx").is_file()) if root.is_dir() else []


def locate(model: str) -> Location:
    """Find a model.

    Raises:
        ModelError: Nothing of that name; says what there is.
    """
    path = Path(model).expanduser()
    if path.suffix == ".onnx" or path.is_file():
        return Location(path.name, path, _tokenizer_near(path))
    if path.is_dir():
        return _in_folder(path)
    if model in bundled():
        folder = bundled_root() / model
        return Location(model, folder / "model.onnx", folder)
    names = bundled()
    near = get_close_matches(model, names, 1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise ModelError(
        f"there is no model {model!r}: no such file or folder, and no bundled model of that name",
        f"{hint}Bundled: {', '.join(names) or 'none'}. -m takes an .onnx file, a folder, or a name.",
    )


def _in_folder(folder: Path) -> Location:
    for name in _ONNX:
        if (folder / name).is_file():
            return Location(folder.name or str(folder), folder / name, _tokenizer_near(folder / name))
    files = sorted(p.relative_to(folder) for p in folder.rglob("*.onnx"))[:8]
    if len(files) == 1:
        return Location(folder.name, folder / files[0], _tokenizer_near(folder / files[0]))
    if files:
        raise ModelError(
            f"{folder} holds several models and none is called model.onnx", f"Give one: {', '.join(map(str, files))}."
        )
    raise ModelError(f"{folder} holds no .onnx file", "A model folder has model.onnx or onnx/model.onnx in it.")


def _tokenizer_near(path: Path) -> Path | None:
    for folder in (path.parent, path.parent.parent):
        if any((folder / name).is_file() for name in _TOKENIZER):
            return folder
    return None
