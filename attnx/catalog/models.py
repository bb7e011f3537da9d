"""Models on this machine: the bundled ones, files, and which of several files in a folder is the model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

WRITES = "tiny-gpt"
"""The bundled model that gives logits of tokens."""
_WHOLE = ("model", "decoder_model_merged", "decoder_model")
"""Stems under which a folder's model is looked for, in this order."""
_TOKENIZER = ("tokenizer.json", "vocab.txt", "vocab.json")
_DECODER = r"(decoder_model_merged|decoder_model|decoder)(_[\w.-]+)?\.onnx"


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
    """The decoder that continues from a cache, if that is a file of its own."""


def bundled_root() -> Path:
    """The folder of the models that ship with attnx: inside an installed package, beside it in a checkout."""
    inside = Path(__file__).parents[1] / "bundled"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "models"


def bundled() -> list[str]:
    """Names of the bundled models."""
    root = bundled_root()
    return sorted(p.name for p in root.iterdir() if (p / "model.onnx").is_file()) if root.is_dir() else []


def own_name(bundled_name: str) -> str:
    """The name under which a bundled model's authors publish it, by its MODEL.md; "" where that has none."""
    try:
        text = (bundled_root() / bundled_name / "MODEL.md").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r"^- Model: ([\w.-]+/[\w.-]+)", text, re.MULTILINE | re.ASCII)
    return match[1] if match else ""


def of_file(path: Path, name: str | None = None) -> Location:
    """A model by its file; a decoder includes the encoder that lies beside it."""
    encoder, with_past = _companions(path)
    return Location(name or path.name, path, _tokenizer_near(path), encoder, with_past)


def companion_names(name: str) -> tuple[list[str], list[str]]:
    """Names under which the encoder and the decoder with past may lie beside a decoder, the likeliest first.

    Args:
        name: The decoder's file name; of any other model, the lists are empty. A variant ("_q4") looks for its own kind
            first.
    """
    match = re.fullmatch(_DECODER, name)
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
    """Which of several .onnx files, by their places in a folder, is the model; None where that is unclear.

    model.onnx comes first, then a decoder, at the top before onnx/; else the only one, or the only decoder.
    """
    files = sorted(names)
    for stem in _WHOLE:
        for place in (f"{stem}.onnx", f"onnx/{stem}.onnx"):
            if place in files:
                return place
    for near in ("", "onnx"):  # files deeper down are something else: parts, variants, other models
        files = [f for f in files if f.rpartition("/")[0] == near] or files
    if len(files) == 1:
        return files[0]
    decoders = [f for f in files if re.fullmatch(_DECODER, f.rpartition("/")[2]) and "with_past" not in f]
    decoders = [f for f in decoders if "merged" in f] or decoders
    if len(decoders) != 1:
        return None
    # Its encoder lies beside it; a folder with models elsewhere in it too is a collection, and none of them is meant.
    beside = decoders[0].rpartition("/")[0]
    return decoders[0] if all(f.rpartition("/")[0] == beside for f in files) else None


def _tokenizer_near(path: Path) -> Path | None:
    for folder in (path.parent, path.parent.parent):
        if any((folder / name).is_file() for name in _TOKENIZER):
            return folder
    return None
