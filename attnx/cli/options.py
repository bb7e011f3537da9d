"""Options that commands share, so that each has the same meaning and wording everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from attnx.cli.option_groups import MODEL
from attnx.cli.start import Start, start

_MODEL = "An .onnx file, a folder as on the Hub, or the name of a bundled model."
ModelOption = Annotated[str, Option("--model", "-m", metavar="MODEL", help=_MODEL)]
ModelArgument = Annotated[str, Argument(metavar="MODEL", help=_MODEL)]
DeviceOption = Annotated[
    str, Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:N; cuda:0,tf32,memory=8G.")
]
TokenizerOption = Annotated[
    Path | None,
    Option("--tokenizer", metavar="PATH", help="Tokenizer file or folder, where it is not beside the model."),
]

TextArgument = Annotated[str | None, Argument(metavar="TEXT", help="The text; - reads it from stdin.")]
PairOption = Annotated[str | None, Option("--pair", metavar="TEXT", help="A second text, for models that take two.")]
FileOption = Annotated[Path | None, Option("--file", "-f", metavar="FILE", help="A file with one text per line.")]
IdsOption = Annotated[str | None, Option("--ids", metavar="IDS", help="Token ids instead of a text: 101,2023,102.")]
InputsOption = Annotated[
    Path | None, Option("--inputs", metavar="FEED", help="An .npz file with an array for each graph input.")
]
SetOption = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="NAME=VALUE",
        help="A graph input: a number, a list, zeros, ones, arange, randn:SEED or @file.npy; several times.",
    ),
]
DimOption = Annotated[
    list[str] | None,
    Option("--dim", metavar="NAME=SIZE", help="Size of a dimension that --set leaves open; several times."),
]
TargetOption = Annotated[
    str | None, Option("--target", metavar="TEXT", help="What the decoder of an encoder-decoder says.")
]
GenerateOption = Annotated[
    int | None, Option("--generate", "-g", metavar="N", help="Let the decoder write up to N tokens, and show them too.")
]
TemperatureOption = Annotated[
    float, Option("--temperature", metavar="T", help="Sampling temperature; 0 always takes the likeliest token.")
]
TopKOption = Annotated[
    int | None, Option("--top-k", metavar="K", help="With --temperature: sample from the K likeliest tokens.")
]
SeedOption = Annotated[
    int | None,
    Option("--seed", metavar="N", help="With --temperature: the same seed gives the same text (default 0)."),
]
ChatOption = Annotated[bool, Option("--chat", help="Put the text into the tokenizer's chat template.")]
ImageOption = Annotated[Path | None, Option("--image", metavar="FILE", help="A picture, for models that take one.")]
AudioOption = Annotated[Path | None, Option("--audio", metavar="FILE", help="A WAV file, for models that take sound.")]

LayerOption = Annotated[
    str | None, Option("--layer", "-l", metavar="L", help="A layer from 0, last or -1, a range 2-4, or a list 0,5.")
]
HeadOption = Annotated[
    list[str] | None,
    Option("--head", "-H", metavar="L.H", help="A head, L.H, last.H or H; may be given several times."),
]
QueryOption = Annotated[
    str | None,
    Option(
        "--query",
        "-q",
        metavar="TOKEN",
        help="The query token: text, position or text@position; it..tired and it,he take several.",
    ),
]
OneQueryOption = Annotated[
    str | None, Option("--query", "-q", metavar="TOKEN", help="The query token: text, position or text@position.")
]
SiteOption = Annotated[
    str | None,
    Option("--site", metavar="SORT", help="Which attention of an encoder-decoder: encoder, decoder or cross."),
]
StageOption = Annotated[
    str, Option("--stage", metavar="STAGE", help="scores, scaled, capped, bias, masked or weights.")
]
ScaleOption = Annotated[
    str, Option("--scale", metavar="SCALE", help="Colours: linear, log, or row (each row to its own largest).")
]
TopOption = Annotated[int | None, Option("--top", "-k", metavar="K", help="Only the K largest.", min=1)]
WordsOption = Annotated[bool, Option("--words", help="Merge pieces into words.")]
MuteOption = Annotated[
    bool, Option("--mute", help="Leave special tokens out as keys; rows are scaled to sum to 1 again.")
]

ExplainOption = Annotated[bool, Option("--explain", help="Say how each number is computed, and whose measure it is.")]

JsonOption = Annotated[bool, Option("--json", help="One JSON document instead of tables.")]
JsonlOption = Annotated[bool, Option("--jsonl", help="A JSON document on one line for each text.")]
SaveOption = Annotated[Path | None, Option("--save", "-o", metavar="FILE", help="Write the result to this file.")]
ForceOption = Annotated[bool, Option("--force", help="Replace an existing file.")]

_BY_NAME: dict[str, tuple[Any, Any]] = {
    "text": (TextArgument, None),
    "model": (ModelOption, MODEL),
    "pair": (PairOption, None),
    "file": (FileOption, None),
    "ids": (IdsOption, None),
    "inputs": (InputsOption, None),
    "values": (SetOption, None),
    "dims": (DimOption, None),
    "target": (TargetOption, None),
    "generate": (GenerateOption, None),
    "temperature": (TemperatureOption, 0.0),
    "top_k": (TopKOption, None),
    "seed": (SeedOption, None),
    "chat": (ChatOption, False),
    "image": (ImageOption, None),
    "audio": (AudioOption, None),
    "tokenizer": (TokenizerOption, None),
    "device": (DeviceOption, "auto"),
    "json": (JsonOption, False),
}
"""Options that say what to run, on what and where, in the help's order: parameter, typer's declaration, default."""
_ALWAYS = ("pair", "ids", "inputs", "values", "dims", "target", "tokenizer", "device")
WRITING = ("generate", "temperature", "top_k", "seed", "chat")
"""Options of commands that let a decoder write."""
SENSES = ("image", "audio")
"""Options of commands that take a picture or a sound."""


LAYERS = ("layer", "head", "similar")
"""Options of commands that name a layer, which may be counted from the end."""


def starts(
    *more: str, first: Sequence[str] = ("text", "model")
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that say what to run, so that each has the same meaning and wording everywhere.

    The command takes a `Start` in their place. The options in `first` stand where that parameter stands, the others
    after the command's own.

    Args:
        more: Options beyond those that every such command has.
        first: Options that come first; a model before the text is a required argument.
    """
    behind = [name for name in _BY_NAME if name in (*_ALWAYS, *more) and name not in first]

    def parameters(names: Sequence[str]) -> list[Parameter]:
        out = []
        for name in names:
            annotation, default = _BY_NAME[name]
            if name == "model" and first[0] == name:
                annotation, default = ModelArgument, Parameter.empty
            out.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
        return out

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(signature(function, eval_str=True).parameters.values())
        at = next(i for i, parameter in enumerate(own) if parameter.annotation is Start)
        own = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own]

        def command(**values: Any) -> None:
            shared = {name: values.pop(name) for name in (*first, *behind)}
            run = start(**shared)
            if "model" in shared:  # else the command takes several models, and layers belong to one of them
                sort = values.get("site")
                named = [name for name in LAYERS if name in values]
                values |= {name: run.numbered(values[name], sort, head=name != "layer") for name in named}
            function(**values, **{own[at].name: run})

        command.__name__, command.__doc__, command.__module__ = (
            function.__name__, function.__doc__, function.__module__,
        )  # fmt: skip
        command.__signature__ = Signature(  # type: ignore[attr-defined]
            [*own[:at], *parameters(first), *own[at + 1 :], *parameters(behind)]
        )
        return command

    return decorate
