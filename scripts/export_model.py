"""Turn a Hugging Face checkpoint into a folder that attnx opens: model.onnx, tokenizer, configuration.

    pip install 'attnx[export]'
    python scripts/export_model.py bert-base-uncased out/bert
    python scripts/export_model.py ./my-checkpoint out/mine --task text-generation
    attnx inspect "The animal was tired." -m out/bert

Where optimum is installed it does the export, for it knows every architecture, merges decoders and keeps their
caches. Without it torch.onnx exports the model itself: encoders, decoders without a cache, models that take pictures;
of an encoder-decoder, one graph with both. Attention is exported "eager", written out as products and a softmax, so
that every stage of it can be tapped. The graph is then run once, and its output held against the checkpoint's.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from attnx.catalog.export import ENDS

TASKS = {
    "auto": "AutoModel",
    "feature-extraction": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "text-generation": "AutoModelForCausalLM",
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "image-classification": "AutoModelForImageClassification",
}
TOLERANCE = 1e-3


def main() -> int:
    """Export, check, and say how to use it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a name on the Hub, or a folder with config.json and weights")
    parser.add_argument("folder", type=Path, help="where the model goes; must not hold one yet")
    parser.add_argument(
        "--task", choices=TASKS, default="auto", help="the head to export; auto: what the checkpoint is"
    )
    parser.add_argument("--opset", type=int, default=18)
    parser.add_argument("--plain", action="store_true", help="torch.onnx even where optimum is installed")
    given = parser.parse_args()
    if (given.folder / "model.onnx").exists():
        parser.error(f"{given.folder / 'model.onnx'} exists")
    if not given.plain and with_optimum(given):
        print(f"exported with optimum: attnx inspect TEXT -m {given.folder}")
        return 0
    try:
        import torch
        import transformers
    except ImportError as missing:
        parser.exit(2, f"{missing.name} is not installed: pip install 'attnx[export]'\n")
    gap = with_torch(given, torch, transformers)
    print(f"exported with torch.onnx; onnxruntime and the checkpoint differ by {gap:.2g}")
    if not gap < TOLERANCE:
        print(f"that is more than {TOLERANCE:g}: do not trust this export", file=sys.stderr)
        return 1
    print(f"attnx inspect TEXT -m {given.folder}")
    return 0


def with_optimum(given: argparse.Namespace) -> bool:
    """Export with optimum; False where it is not installed."""
    try:
        from optimum.exporters.onnx import main_export
    except ImportError:
        return False
    main_export(given.checkpoint, given.folder, task=task_of(given.checkpoint, given.task), opset=given.opset)
    return True


def task_of(checkpoint: str, task: str) -> str:
    """What optimum is to export: it knows by itself what a checkpoint of the Hub is, and not what one in a folder is.

    Models that write are exported with their cache.
    """
    config = Path(checkpoint) / "config.json"
    if task == "auto" and config.is_file():
        named = (json.loads(config.read_text(encoding="utf-8")).get("architectures") or [""])[0]
        task = next((task for end, task in ENDS.items() if named.endswith(end)), "feature-extraction")
    return f"{task}-with-past" if task in ("text-generation", "text2text-generation") else task


def with_torch(given: argparse.Namespace, torch: Any, transformers: Any) -> float:
    """Export with torch.onnx, and run the graph once.

    Returns:
        The largest difference between the graph's outputs and the checkpoint's, relative to the larger of 1 and their
        own size.
    """
    config = transformers.AutoConfig.from_pretrained(given.checkpoint)
    name = TASKS[given.task]
    if given.task == "auto" and config.architectures and hasattr(transformers, config.architectures[0]):
        kind = getattr(transformers, config.architectures[0])
    else:
        kind = getattr(transformers, name)
    model = kind.from_pretrained(given.checkpoint, attn_implementation="eager").eval()
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    given.folder.mkdir(parents=True, exist_ok=True)
    inputs, sizes = examples(model, torch)
    wrapped = only_tensors(model, list(inputs), torch)
    with torch.no_grad():
        torch.onnx.export(
            wrapped,
            tuple(inputs.values()),
            str(given.folder / "model.onnx"),
            input_names=list(inputs),
            output_names=["logits" if "For" in type(model).__name__ else "last_hidden_state"],
            dynamic_axes=sizes,
            opset_version=given.opset,
            dynamo=False,
        )
        want = wrapped(*inputs.values()).numpy()
    model.config.save_pretrained(given.folder)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(given.folder)
    for part in ("AutoTokenizer", "AutoImageProcessor"):
        try:
            getattr(transformers, part).from_pretrained(given.checkpoint).save_pretrained(given.folder)
        except (OSError, ValueError, KeyError, TypeError, ImportError):
            continue  # a checkpoint has a tokenizer, or a picture's preprocessing, or neither
    return compare(given.folder / "model.onnx", {k: v.numpy() for k, v in inputs.items()}, want)


def examples(model: Any, torch: Any) -> tuple[dict[str, Any], dict[str, dict[int, str]]]:
    """Inputs to trace the model with, and which of their axes may vary."""
    config = model.config
    if model.main_input_name == "pixel_values":
        vision = getattr(config, "vision_config", config)
        side = getattr(vision, "image_size", 224)
        height, width = (side, side) if isinstance(side, int) else side
        pixels = torch.randn(1, getattr(vision, "num_channels", 3), height, width)
        return {"pixel_values": pixels}, {"pixel_values": {0: "batch"}}
    ids = torch.arange(5, 13)[None] % config.vocab_size
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    sizes = {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "sequence"}}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, :5].clone()
        sizes["decoder_input_ids"] = {0: "batch", 1: "decoder_sequence"}
    return inputs, sizes


def only_tensors(model: Any, names: list[str], torch: Any) -> Any:
    """The model with inputs by place and its first output alone, as torch.onnx wants it."""

    class Wrapped(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *arrays: Any) -> Any:
            return self.model(**dict(zip(names, arrays, strict=True)), return_dict=True)[0]

    return Wrapped().eval()


def compare(path: Path, feed: dict[str, Any], want: Any) -> float:
    """Run the graph on what it was traced with."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    taken = {i.name for i in session.get_inputs()}
    got = session.run(None, {k: v for k, v in feed.items() if k in taken})[0]
    return float(np.abs(got - want).max() / max(1.0, float(np.abs(want).max())))


if __name__ == "__main__":
    sys.exit(main())
