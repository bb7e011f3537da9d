"""A checkpoint -> a folder that attnx opens: optimum makes the graph, with the attention in plain operators."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnx.catalog.hub import parse_name
from attnx.catalog.locate import WEIGHTS
from attnx.catalog.models import bundled
from attnx.errors import ModelError, UsageError, lacks_memory, reason
from attnx.installed import pip
from attnx.tokens.pieces import shorten
from attnx.wording import Wording

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
        UsageError: The folder holds a model already, or is none; there is no such opset; optimum is not installed.
        ModelError: There is no such checkpoint, or optimum cannot export it.
    """
    out = Path(folder)
    _check_checkpoint(checkpoint)
    _check_folder(out)
    _check_options(task, opset)
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
    except Exception as error:  # optimum and transformers raise all sorts of exceptions
        if isinstance(error, ImportError) or lacks_memory(error):
            raise
        said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(
            f"{checkpoint} cannot be exported: {said[:300]}",
            "Check the name; where it is right, optimum does not know this kind of model: look for an ONNX version.",
        ) from error
    return out


def _check_checkpoint(checkpoint: str) -> None:
    """Refuse what can be no checkpoint, as far as this machine knows: a name is looked up on the Hub.

    Raises:
        ModelError: It is neither a folder with a configuration nor a name.
    """
    local, other = Path(checkpoint), "Give ORG/NAME on the Hub, or a folder with config.json and weights."
    if not checkpoint.strip():
        raise ModelError("the checkpoint has no name: it is empty", other)
    try:
        is_folder, is_file = local.is_dir(), local.is_file()
    except OSError as error:
        raise ModelError(f"{shorten(checkpoint, 60)} cannot be read: {reason(error)}", "Check the path.") from None
    if is_folder:
        weights = any(file.suffix in WEIGHTS for file in local.iterdir())
        if not weights or not (local / "config.json").is_file():
            lacks = "config.json" if weights else "weights"
            raise ModelError(f"{checkpoint} is no checkpoint: it holds no {lacks}", other)
    elif is_file:
        raise ModelError(f"{checkpoint} is a file, and a checkpoint is a folder", other)
    elif checkpoint in bundled():
        raise ModelError(f"{checkpoint} is a bundled model, which is ONNX already", other)
    elif (name := parse_name(checkpoint, alone=True)) is None or name.repo != checkpoint:
        raise ModelError(f"there is no folder {checkpoint!r}, and it is no name on the Hub", other)


def _check_folder(out: Path) -> None:
    """Refuse a folder that cannot be written, or must not be.

    Raises:
        UsageError: It holds a model already, or something else has its name.
    """
    above = next(folder for folder in (out, *out.parents, Path()) if os.path.lexists(folder))
    if not above.is_dir():
        raise UsageError(f"{above} is not a folder", "Give another folder.")
    if above == out and any(out.rglob("*.onnx")):
        raise UsageError(f"{out} holds a model already", "Give another folder.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"{above} cannot be written", "Give another folder.")


def _check_options(task: str, opset: int | None) -> None:
    """Refuse what no version of optimum takes; what else it takes it says itself.

    Raises:
        UsageError: The task is empty, or ONNX has no such opset.
    """
    if not task.strip():
        raise UsageError(Wording("<task=''> names no task"), "Give text-generation, fill-mask, feature-extraction, ...")
    if opset is None:
        return
    from onnx.defs import onnx_opset_version

    if not 1 <= opset <= onnx_opset_version():
        raise UsageError(
            Wording("<opset={opset}>: ONNX has the opsets 1 to {last}", opset=opset, last=onnx_opset_version()),
            Wording("Leave <opset> out for optimum's own choice."),
        )


def _optimum() -> tuple[Any, Any, Any]:
    try:
        from optimum.exporters.onnx import onnx_export_from_model
        from optimum.exporters.tasks import TasksManager
        from optimum.utils.save_utils import maybe_save_preprocessors
    except ImportError as missing:
        if lacks_memory(missing):
            raise
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
