"""`attnx export ORG/NAME OUT/`: make ONNX of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def export(
    checkpoint: Annotated[
        str, Argument(metavar="CHECKPOINT", help="ORG/NAME on the Hub, or a folder with config.json and weights.")
    ],
    folder: Annotated[Path, Argument(metavar="OUT", help="The folder that the model is written to.")],
    task: Annotated[
        str, Option("--task", metavar="TASK", help="text-generation, fill-mask, feature-extraction, ...")
    ] = "auto",
    opset: Annotated[int | None, Option("--opset", metavar="N", help="The ONNX opset; else optimum's choice.")] = None,
) -> None:
    """Make ONNX of a PyTorch checkpoint with optimum, its attention written out so that every stage can be read.

    Needs the extra `export` (optimum and PyTorch), which attnx itself does not.

    Examples:
        attnx export google-bert/bert-base-uncased bert/
        attnx export openai-community/gpt2 gpt2/ --task text-generation
        attnx export my-checkpoint/ my-model/ --opset 18
    """
    from attnx.catalog.export import export as make
    from attnx.cli import output
    from attnx.paths import expand

    local = expand(checkpoint)
    made = make(str(local) if checkpoint and local.is_dir() else checkpoint, folder, task=task, opset=opset)
    output.note(f"{output.wrote(made)}: attnx inspect TEXT -m {made}")
