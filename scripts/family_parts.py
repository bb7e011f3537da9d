"""What every family of scripts/make_families.py needs: a tokenizer, sharp weights, optimum's export, and the truth.

The truth is the framework's own: a checkpoint's eager attentions, its own tokenizer's ids, its own preprocessing of the
same picture or sound, and greedy decoding without a cache by the model that the file was exported from.
"""

from __future__ import annotations

import json
import tempfile
import wave
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

TEXT = "the cat sat on the mat and the dog sat on the cat"
TARGET = "the dog sat on the mat"
COUNT = 6
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ROWS = 40
"""Rows of a truth that has more are thinned to these."""
Sites = Sequence[tuple[str, str, bool, Any]]
"""For each site: kind, component, whether it hides the future, and weights [B,H,Q,K]."""


def tokenizer(special: Sequence[str], around: str, **roles: str) -> Any:
    """A small tokenizer in the form in which a checkpoint keeps it.

    Args:
        special: Special tokens; their ids are their places.
        around: Template of a single text, "<s> $A </s>".
        roles: Which is which, bos_token="<s>".
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    words = [TEXT, TARGET, "a man sees a bird", "two men see the bird", LETTERS, "a photo of a cat"]
    trainer = trainers.BpeTrainer(vocab_size=80, special_tokens=[*special], show_progress=False)
    raw.train_from_iterator(words * 3, trainer)
    used = [part for part in around.split() if part != "$A"]
    if used:
        places = [(part, raw.token_to_id(part)) for part in dict.fromkeys(used)]
        raw.post_processor = processors.TemplateProcessing(single=around, special_tokens=places)
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", model_max_length=64, **roles)


def sharpen(model: torch.nn.Module, seed: int = 0, gain: float = 1.4) -> Any:
    """Draw every matrix anew, so that attention is far from uniform and greedy decoding does not repeat one token."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2:
                p.normal_(std=gain / p.shape[1] ** 0.5 * (3 if "embed_positions" in name else 1))
            elif p.ndim > 2:
                p.normal_(std=gain / p[0].numel() ** 0.5)
            elif "bias" in name:
                p.normal_(std=0.1)
    return model.eval()


def export(model: Any, folder: Path, task: str, *beside: Any, **more: Any) -> Any:
    """Export with optimum, as the Hub's ONNX models are; give the checkpoint back with eager attention."""
    from optimum.exporters.onnx import main_export

    with tempfile.TemporaryDirectory() as source:
        model.save_pretrained(source)
        for part in beside:
            part.save_pretrained(source)
        main_export(source, folder, task=task, do_validation=False, library_name="transformers", **more)
        return type(model).from_pretrained(source, attn_implementation="eager").eval()


def slim(folder: Path) -> None:
    """Leave out what exporters note for debugging: stack traces name folders of the machine."""
    for path in folder.rglob("*.onnx"):
        model = onnx.load(path)
        pending = [model.graph]
        del model.metadata_props[:]
        while pending:
            graph = pending.pop()
            for node in graph.node:
                del node.metadata_props[:]
                node.doc_string = ""
                pending += [a.g for a in node.attribute if a.HasField("g")]
            del graph.metadata_props[:]
            del graph.value_info[:]
        onnx.save(model, path)
    for path in folder.rglob("*.json"):
        told = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(told, dict) and "_name_or_path" in told:
            told["_name_or_path"] = ""
            path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def record(folder: Path, given: dict[str, Any], sites: Sites, **about: Any) -> None:
    """Write down what a model was given, and what its attention then is.

    Args:
        folder: The family's.
        given: What `Model.trace` is given; files by their names.
        sites: See `Sites`, in execution order.
        about: ids of the decoder, and the like.
    """
    arrays: dict[str, Any] = {}
    for i, (_, _, _, weights) in enumerate(sites):
        array = weights.detach().numpy().astype(np.float32)
        step = max(1, array.shape[-2] // ROWS)
        arrays[f"weights.{i}"] = array[..., ::step, :]
        arrays[f"rows.{i}"] = np.arange(0, array.shape[-2], step)
    np.savez_compressed(folder / "truth.npz", **arrays)
    told = {
        "given": given,
        "sites": [{"kind": kind, "component": component, "causal": causal} for kind, component, causal, _ in sites],
        **about,
    }
    (folder / "about.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def picture(path: Path) -> Path:
    """A picture with a sky, a field and a sun: no two patches are alike."""
    from PIL import Image

    height, width = 96, 120
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([40 + x, 90 + y / 2, 200 - y], -1).astype(np.float64)
    pixels[y > 60] = np.stack([60 + x / 3, 130 - x / 4, 40 + y / 4], -1)[y > 60]
    pixels[(y - 25) ** 2 + (x - 85) ** 2 < 180] = (250, 220, 60)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    return path


def sound(path: Path, seconds: float = 3.0) -> Path:
    """Three tones, one after the other, with silence between them; 16 bits, 16,000 samples a second."""
    at = np.arange(int(seconds * 16_000)) / 16_000
    loud = (at % 1.0 > 0.2) & (at % 1.0 < 0.7)
    samples = np.where(loud, 0.4 * np.sin(2 * np.pi * (300 + 400 * np.floor(at)) * at), 0.0)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def alike(weights: Iterable[Any], component: str, causal: bool, kind: str = "self") -> list[tuple[str, str, bool, Any]]:
    """Sites of one sort."""
    return [(kind, component, causal, w) for w in weights]


def in_turn(own: Sequence[Any], cross: Sequence[Any]) -> list[tuple[str, str, bool, Any]]:
    """A decoder's sites: self and cross by turns."""
    out: list[tuple[str, str, bool, Any]] = []
    for a, b in zip(own, cross, strict=True):
        out += [("self", "decoder", True, a), ("cross", "decoder", False, b)]
    return out
