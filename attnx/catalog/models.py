"""Where a model is: a file, a folder laid out as on the Hub, a bundled name, or a name in the Hub's cache."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from attnx.errors import ModelError
from attnx.paths import expand

_WHOLE = ("model", "decoder_model_merged", "decoder_model")
"""Stems under which a folder's model is looked for, in this order."""
_TOKENIZER = ("tokenizer.json", "vocab.txt", "vocab.json")
_DECODER = re.compile(r"(decoder_model_merged|decoder_model|decoder)(_[\w.-]+)?\.onnx")


@dataclass(frozen=True, slots=True)
class Location:
    """A model on disk."""

    name: str
    """As it is shown."""
    path: Path
    """The .onnx file; of an encoder-decoder in two files, the decoder's."""
    tokenizer: Path | None
    """The folder that holds its tokenizer; None where none was found."""
    encoder: Path | None = None
    """The encoder's file, of an encoder-decoder in two files."""
    with_past: Path | None = None
    """The decoder that continues from a cache, where that is a file of its own."""


def bundled_root() -> Path:
    """The folder of the models that ship with attnx: inside an installed package, beside it in a checkout."""
    inside = Path(__file__).parents[1] / "bundled"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "models"


def bundled() -> list[str]:
    """Names of the bundled models."""
    root = bundled_root()
    return sorted(p.name for p in root.iterdir() if (p / "model.onnx").is_file()) if root.is_dir() else []


def own_name(bundled_name: str) -> str:
    """The name under which those who made a bundled model publish it, as its MODEL.md says; "" where it says none."""
    try:
        said = (bundled_root() / bundled_name / "MODEL.md").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r"^- Model: ([\w.-]+/[\w.-]+)", said, re.MULTILINE | re.ASCII)
    return match[1] if match else ""


def locate(model: str) -> Location:
    """Find a model.

    Args:
        model: A path, a bundled name, or the Hub's ORG/NAME, with @REVISION and :FILE where these are not the usual.

    Raises:
        ModelError: Nothing of that name; says what there is, or how to pull it.
    """
    if not model.strip():
        raise ModelError("the model has no name: it is empty", f"Bundled: {', '.join(bundled()) or 'none'}.")
    if model in bundled():  # before a folder of that name: the default must not depend on where one stands
        folder = bundled_root() / model
        return Location(model, folder / "model.onnx", folder)
    path = expand(model)
    if path.is_dir():
        return _in_folder(path)
    if (path.suffix == ".onnx" and (path.is_file() or ":" not in model)) or path.is_file():
        return of_file(path)
    from attnx.catalog.hub import cached, parse_name, snapshot

    if (name := parse_name(model)) is not None:
        found = cached(name)
        if name.file is not None:
            return of_file(found / name.file, model)
        return _in_folder(found, model)
    if (alone := parse_name(model, alone=True)) is not None and snapshot(alone) is not None:
        return _in_folder(cached(alone), model)
    names = bundled()
    for short in names:
        if own_name(short).rpartition("/")[2].lower() == model.lower():
            return Location(short, bundled_root() / short / "model.onnx", bundled_root() / short)
    near = get_close_matches(model, names, 1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise ModelError(
        f"there is no model {model!r}: no such file or folder, and no bundled model of that name",
        f"{hint}Bundled: {', '.join(names) or 'none'}. -m takes an .onnx file, a folder, or a name.",
    )


def of_file(path: Path, name: str | None = None) -> Location:
    """A model by its file; of a decoder, the encoder that lies beside it belongs to it."""
    encoder, with_past = _companions(path)
    return Location(name or path.name, path, _tokenizer_near(path), encoder, with_past)


def companion_names(name: str) -> tuple[list[str], list[str]]:
    """Names under which the encoder and the decoder with past may lie beside a decoder, the likeliest first.

    Args:
        name: The decoder's file name; of any other model, the lists are empty. A variant ("_q4") looks for its own kind
            first.
    """
    match = _DECODER.fullmatch(name)
    if match is None:
        return [], []
    variants = dict.fromkeys((match[2] or "", ""))
    encoders = [f"{stem}{v}.onnx" for v in variants for stem in ("encoder_model", "encoder")]
    return encoders, [] if "merged" in match[1] else [f"decoder_with_past_model{match[2] or ''}.onnx"]


def _companions(path: Path) -> tuple[Path | None, Path | None]:
    encoders, pasts = companion_names(path.name)
    return _first([path.with_name(n) for n in encoders]), _first([path.with_name(n) for n in pasts])


def _first(paths: list[Path]) -> Path | None:
    return next((p for p in paths if p.is_file()), None)


def pick(names: Iterable[str]) -> str | None:
    """Which of several .onnx files, by their places in a folder, is the model; None where that cannot be told.

    model.onnx comes first, then a decoder, at the top before onnx/; else the only one, or the only decoder.
    """
    files = sorted(names)
    for stem in _WHOLE:
        for place in (f"{stem}.onnx", f"onnx/{stem}.onnx"):
            if place in files:
                return place
    for near in ("", "onnx"):  # what lies deeper is something else: parts, variants, other models
        files = [f for f in files if f.rpartition("/")[0] == near] or files
    if len(files) == 1:
        return files[0]
    decoders = [f for f in files if _DECODER.fullmatch(f.rpartition("/")[2]) and "with_past" not in f]
    decoders = [f for f in decoders if "merged" in f] or decoders
    if len(decoders) != 1:
        return None
    # Its encoder lies beside it; a folder with models elsewhere in it as well is a shelf, and no one of them is meant.
    beside = decoders[0].rpartition("/")[0]
    return decoders[0] if all(f.rpartition("/")[0] == beside for f in files) else None


def _in_folder(folder: Path, name: str | None = None) -> Location:
    shown = name or folder.name or str(folder)
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.onnx"))
    chosen = pick(files)
    if chosen is not None:
        return of_file(folder / chosen, shown)
    if files:
        more = f" and {len(files) - 8} more" if len(files) > 8 else ""
        raise ModelError(
            f"{shown} holds several models and none is called model.onnx",
            f"Give one: {', '.join(files[:8])}{more}.",
        )
    raise ModelError(f"{shown} holds no .onnx file", "A model folder has model.onnx or onnx/model.onnx in it.")


def _tokenizer_near(path: Path) -> Path | None:
    for folder in (path.parent, path.parent.parent):
        if any((folder / name).is_file() for name in _TOKENIZER):
            return folder
    return None
