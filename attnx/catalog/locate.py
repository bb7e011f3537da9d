"""Where a model is: a file, a folder laid out as on the Hub, a bundled name, or a name in the Hub's cache."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from attnx.catalog import models
from attnx.errors import ModelError, reason
from attnx.paths import expand
from attnx.tokens.pieces import shorten
from attnx.wording import Wording

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
"""Endings of files with weights and no graph."""


def locate(model: str) -> models.Location:
    """Find a model.

    Args:
        model: A path, a bundled name, or the Hub's ORG/NAME, with @REVISION and :FILE where these are not the usual.

    Raises:
        ModelError: Nothing has that name; the hint says what there is, or how to pull it.
    """
    if not model.strip():
        raise ModelError("the model has no name: it is empty", f"Bundled: {', '.join(models.bundled()) or 'none'}.")
    if model in models.bundled():  # before a folder of that name: the default must not depend on the current folder
        folder = models.bundled_root() / model
        return models.Location(model, folder / "model.onnx", folder)
    path = expand(model)
    try:
        is_folder = path.is_dir()
    except OSError as error:  # a name longer than a file can have, a folder that may not be entered
        raise ModelError(f"{shorten(model, 60)} cannot be read: {reason(error)}", "Check the path.") from None
    if is_folder:
        return _in_folder(path)
    if (path.suffix == ".onnx" and (path.is_file() or ":" not in model)) or path.is_file():
        return models.of_file(path)
    from attnx.catalog.hub import cached, parse_name, snapshot

    if (name := parse_name(model)) is not None:
        found = cached(name)
        if name.file is not None:
            return models.of_file(found / name.file, model)
        return _in_folder(found, model)
    if (alone := parse_name(model, alone=True)) is not None and snapshot(alone) is not None:
        return _in_folder(cached(alone), model)
    names = models.bundled()
    for short in names:
        if models.own_name(short).rpartition("/")[2].lower() == model.lower():
            folder = models.bundled_root() / short
            return models.Location(short, folder / "model.onnx", folder)
    near = get_close_matches(model, names, 1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise ModelError(
        f"there is no model {model!r}: no such file or folder, and no bundled model of that name",
        f"{hint}Bundled: {', '.join(names) or 'none'}. -m takes an .onnx file, a folder, or a name.",
    )


def _in_folder(folder: Path, name: str | None = None) -> models.Location:
    shown = name or folder.name or str(folder)
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.onnx"))
    chosen = models.pick(files)
    if chosen is not None:
        return models.of_file(folder / chosen, shown)
    if files:
        more = f" and {len(files) - 8} more" if len(files) > 8 else ""
        raise ModelError(
            f"{shown} holds several models and none is called model.onnx",
            f"Give one: {', '.join(files[:8])}{more}.",
        )
    raise ModelError(*_without_graph(folder, shown))


def _without_graph(folder: Path, shown: str) -> tuple[str, str]:
    """What a folder without an .onnx file holds instead, and how to convert it to ONNX."""
    held = sorted(p.name for p in folder.iterdir() if p.suffix in WEIGHTS) if folder.is_dir() else []
    if not held:
        return f"{shown} holds no .onnx file", "A model folder has model.onnx or onnx/model.onnx in it."
    said = f"{shown} holds no .onnx file, but weights without a graph: {', '.join(held[:3])}"
    if not (folder / "config.json").is_file():
        return said, "Export the checkpoint that they are from; a folder with config.json and weights can be exported."
    makes = "<attnx.catalog.export.export({name!r}, {out!r})> makes ONNX of it."
    return said, Wording(makes, name=str(folder), out=f"{folder.name}-onnx")
