"""Options that commands share, so that each means and reads the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODEL = "minilm"
"""What runs where no model is named: the bundled one."""

ModelOption = Annotated[
    str,
    typer.Option("--model", "-m", help="An .onnx file, a folder as on the Hub, or the name of a bundled model."),
]
ModelArgument = Annotated[str, typer.Argument(help="An .onnx file, a folder, or the name of a bundled model.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
TokenizerOption = Annotated[
    Path | None,
    typer.Option("--tokenizer", help="Tokenizer file or folder, where it is not beside the model."),
]

TextArgument = Annotated[str | None, typer.Argument(metavar="[TEXT]", help="The text; - reads it from stdin.")]
PairOption = Annotated[str | None, typer.Option("--pair", help="A second text, for models that take two.")]
FileOption = Annotated[Path | None, typer.Option("--file", "-f", help="A file with one text a line.")]
IdsOption = Annotated[str | None, typer.Option("--ids", help="Token ids instead of a text: 101,2023,102.")]
InputsOption = Annotated[Path | None, typer.Option("--inputs", help="An .npz file with an array for each graph input.")]

LayerOption = Annotated[str | None, typer.Option("--layer", "-l", help="A layer from 0, a range 2-4, or a list 0,5.")]
HeadOption = Annotated[
    list[str] | None, typer.Option("--head", "-H", help="A head, H or L.H; may be given several times.")
]
QueryOption = Annotated[
    str | None, typer.Option("--query", "-q", help="The token that looks: by text, by position, or text@position.")
]
SiteOption = Annotated[
    str | None,
    typer.Option("--site", help="Which attention of an encoder-decoder: encoder, decoder, cross."),
]
StageOption = Annotated[str, typer.Option("--stage", help="scores, scaled, capped, masked or weights.")]
TopOption = Annotated[int | None, typer.Option("--top", "-k", help="Only the K largest.", min=1)]
WordsOption = Annotated[bool, typer.Option("--words", help="Merge pieces into words.")]
MuteOption = Annotated[
    bool, typer.Option("--mute", help="Leave special tokens out as keys; rows are scaled to sum to 1 again.")
]

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")]
JsonlOption = Annotated[bool, typer.Option("--jsonl", help="A JSON document on one line for each text.")]
SaveOption = Annotated[Path | None, typer.Option("--save", help="Write the result to this file.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
