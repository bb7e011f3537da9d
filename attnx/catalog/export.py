"""A checkpoint -> a folder that attnx opens: optimum makes the graph, with the attention in plain operators."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnx.errors import ModelError, UsageError
from attnx.installed import pip

AUTO = "auto"
ENDS: Mapping[str, str] = {
    "ForCausalLM": "text-generation", "LMHeadModel": "text-generation", "ForMaskedLM": "fill-mask",
    "ForConditionalGeneration": "text2text-generation", "MTModel": "text2text-generation",
    "ForSequenceClassification": "text-classification", "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering", "ForImageClassification": "image-classification",
}  # fmt: skip
"""Suffix of a transformers class -> its task; all others are exported without a head."""
WRITES = ("text-generation", "text2text-generation")
"""Tasks of generating models, which are exported with their cache."""


def export(checkpoint: str, folder: Path | str, *, task: str = AUTO, opset: int | None = None) -> Path:
    """Export a checkpoint with optimum. The attention is "eager": products and a softmax, each of which can be read.

    Args:
        checkpoint: ORG/NAME on the Hub, or a folder with config.json and weights.
        folder: Where the model goes; must hold no model yet.
        task: What it is exported for ("text-generation", "fill-mask", ...); "auto" is what the checkpoint is.
        opset: The ONNX opset; optimum's own choice where None.

    Returns:
        The folder.

    Raises:
        UsageError: The folder holds a model already; optimum is not installed.
        ModelError: There is no such checkpoint, or optimum cannot export it.
    """
    out = Path(folder)
    if out.is_file() or (out.is_dir() and any(out.rglob("*.onnx"))):
        raise UsageError(f"{out} holds a model already", "Give another folder.")
    manager, exported, save_others = _optimum()
    try:
        found = _task(manager, checkpoint) if task == AUTO else task
        found = f"{found}-with-past" if found in WRITES else found
        library = manager.infer_library_from_model(checkpoint)
        model = manager.get_model_from_task(
            found.removesuffix("-with-past"), checkpoint, framework="pt", library_name=library,
            attn_implementation="eager",
        )  # fmt: skip
        exported(model, out, task=found, opset=opset)
        save_others(checkpoint, out)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # optimum and transformers raise all sorts of exceptions
        said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(
            f"{checkpoint} cannot be exported: {said[:300]}",
            "Check the name; where it is right, optimum does not know this kind of model: look for an ONNX version.",
        ) from error
    return out


def _optimum() -> tuple[Any, Any, Any]:
    try:
        from optimum.exporters.onnx import onnx_export_from_model
        from optimum.exporters.tasks import TasksManager
        from optimum.utils.save_utils import maybe_save_preprocessors
    except ImportError as missing:
        named = missing.name or "optimum"
        raise UsageError(
            f"an export needs optimum and PyTorch, and {named} cannot be imported", pip("export")
        ) from None
    return TasksManager, onnx_export_from_model, maybe_save_preprocessors


def _task(manager: Any, checkpoint: str) -> str:
    """The task of a checkpoint: optimum knows it for one on the Hub; for a folder, the configuration says it."""
    config = Path(checkpoint) / "config.json"
    if not config.is_file():
        return str(manager.infer_task_from_model(checkpoint))
    named = (json.loads(config.read_text(encoding="utf-8")).get("architectures") or [""])[0]
    return next((task for end, task in ENDS.items() if named.endswith(end)), "feature-extraction")


__all__ = ["AUTO", "export"]
