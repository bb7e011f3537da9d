"""Help in panels: which options and commands are grouped together, and the examples of a command."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

COMMANDS: dict[str, dict[str, str]] = {
    "Look": {
        "inspect": "what each token attends to",
        "coref": 'which noun "it" points at',
        "align": "words traced to a source",
        "qkv": "one weight taken apart",
        "explore": "heads under the arrow keys",
        "report": "every head on a web page",
    },
    "Measure": {
        "heads": "what each head does",
        "scale": "why divide by sqrt(d_k)",
        "mask": "who may look at whom",
        "word": "one word in two contexts",
        "flow": "attention over all layers",
        "contacts": "which residues touch",
        "diff": "two models compared",
    },
    "Intervene": {
        "ablate": "without a head or an edge",
        "patch": "where an answer comes from",
        "lens": "what each layer would say",
        "attribute": "which parts make an answer",
    },
    "Many texts, scripts": {
        "scan": "every head over a corpus",
        "trace": "every array of a run",
        "intervene": "many edits at once",
    },
    "Models": {
        "models": "models that are at hand",
        "pull": "a model from the Hub",
        "export": "ONNX from PyTorch",
        "sites": "the attention in a file",
        "cost": "what attention costs",
        "doctor": "what works on this machine",
    },
}
"""Panels of commands with a few words on each, in the order in which they are listed.

A command that is missing here comes last, in "Others"."""
BRIEF = 26
"""The most letters of the few words on a command, so that two commands fit on a line."""
FIRST = ("inspect", "coref", "heads", "qkv", "ablate", "lens", "sites")
"""The commands to begin with, which `attnx` alone names."""
OPTIONS: dict[str, tuple[str, ...]] = {
    "Text": (
        "pair", "file", "target", "targets", "chat", "ids", "inputs", "set", "dim", "image", "audio", "prompt",
        "other-text", "other-ids", "other-inputs", "contrast", "dataset", "gold", "gold-from", "field", "plan", "other",
    ),
    "Model": ("model", "tokenizer", "revision", "task", "opset"),
    "Select": (
        "layer", "head", "query", "key", "site", "from", "to", "edge", "at", "word", "other-word", "answer", "foil",
        "with", "reference", "what", "into", "freeze-mlps", "noising", "metric", "read", "only", "measure", "lengths",
        "longest", "side", "relative", "when", "spans", "back", "symmetrise", "probe", "similar", "tolerance", "causal",
        "effects", "apart",
    ),
    "Show": (
        "top", "all", "view", "stage", "scale", "words", "mute", "mean", "max", "sort", "map", "by", "sweep", "as-if",
        "similarity", "numbers", "divide", "theory", "places", "feed-template", "explain",
    ),
    "Output": ("json", "jsonl", "save", "output", "out", "force", "verbose", "verify", "fail-over"),
    "Generate": ("generate", "temperature", "top-k", "seed"),
    "Device": ("device", "batch", "part", "engine", "address", "workers", "clear-cache"),
}  # fmt: skip
"""Panels of options, and the options of each, in the help's order; an option's declaration may name another panel."""
REST = "Others"
"""The panel for options that no panel names: --help."""
EXAMPLES = "Examples:"
"""The heading in a command's docstring above its examples, one per line."""


def grouped(names: Sequence[str]) -> dict[str, list[str]]:
    """Commands by panel, in the order of help."""
    known = {name for panel in COMMANDS.values() for name in panel}
    out = {title: [name for name in panel if name in names] for title, panel in COMMANDS.items()}
    out[REST] = [name for name in names if name not in known]
    return {title: found for title, found in out.items() if found}


def write_commands(names: Sequence[str], formatter: Any) -> None:
    """Write all commands by panel, downwards, and in two columns where the width allows: on 80 they take one screen."""
    name_width = max(map(len, names))
    width = name_width + 2 + BRIEF + 2
    for title, panel in grouped(names).items():
        cells = [f"{name:<{name_width}}  {COMMANDS.get(title, {}).get(name, '')}" for name in panel]
        rows = -(-len(cells) // (2 if formatter.width >= 2 * width else 1))
        right = [*cells[rows:], *[""] * (2 * rows - len(cells))]
        lines = [f"  {one:<{width}}{two}".rstrip() for one, two in zip(cells[:rows], right, strict=False)]
        formatter.write("\n".join((title, *lines, "")))


def arrange(command: Any) -> Any:
    """Set the panel of each option of a command, and separate its examples from its description."""
    place = {name: (title, at) for title, panel in OPTIONS.items() for at, name in enumerate(panel)}
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.rich_help_panel:
            name = max(parameter.opts, key=len).lstrip("-")
            parameter.rich_help_panel = place.get(name, (REST, 0))[0]
    text, _, examples = cleandoc(command.help or "").partition(f"{EXAMPLES}\n")
    command.help, command.examples = text.rstrip(), [line.strip() for line in examples.splitlines() if line.strip()]
    return command


def write(command: Any, context: Any, formatter: Any) -> None:
    """Write arguments and options, one panel after another."""
    panels: dict[str, list[Any]] = {"Arguments": [], **{title: [] for title in OPTIONS}, REST: []}
    place = {name: at for panel in OPTIONS.values() for at, name in enumerate(panel)}
    found = command.get_params(context)
    for parameter in sorted(found, key=lambda p: place.get(max(p.opts, key=len).lstrip("-"), len(place))):
        record = parameter.get_help_record(context)
        if record is not None and parameter.param_type_name == "argument":
            panels["Arguments"].append(record)
        elif record is not None:
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or REST, []).append(record)
    for title, records in panels.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def write_examples(command: Any, formatter: Any) -> None:
    """Write a command's examples as they are typed: a shell must be able to read them, so none is wrapped."""
    if command.examples:
        with formatter.section(EXAMPLES.rstrip(":")):
            formatter.write("".join(f"  {line}\n" for line in command.examples))


__all__ = [
    "BRIEF",
    "COMMANDS",
    "EXAMPLES",
    "FIRST",
    "OPTIONS",
    "REST",
    "arrange",
    "grouped",
    "write",
    "write_commands",
    "write_examples",
]
