"""Options that commands share, so that each means and reads the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="An .onnx file, a folder as on the Hub, or the name of a bundled model.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
TokenizerOption = Annotated[
    Path | None, typer.Option("--tokenizer", help="Tokenizer file or folder, where it is not beside the model.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")]
InputsOption = Annotated[Path | None, typer.Option("--inputs", help="An .npz file with an array for each graph input.")]
SaveOption = Annotated[Path | None, typer.Option("--save", help="Write the result to this file.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
