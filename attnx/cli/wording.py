"""Put texts that name Python arguments and calls into the command line's terms: options and commands."""

from __future__ import annotations

import ast
import dataclasses
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from attnx.wording import Argument, Reader, Wording

COMMANDS = {
    "attnx.catalog.export.export": "export",
    "attnx.catalog.hub.pull": "pull",
    "attnx.catalog.models.bundled": "models",
    "attnx.measure.coref_data.read": "coref --help",
    "attnx.measure.induction.probe": "heads --probe induction",
    "attnx.measure.scaling_theory.numbers": "scale --numbers",
    "attnx.measure.scaling_theory.theory": "scale --theory",
    "attnx.measure.visibility.visibility": "mask",
    "attnx.run.example.example": "sites MODEL --feed-template",
    "attnx.study.ablation.ablate": "ablate TEXT --edge FROM:TO",
    "attnx.study.health.examine": "doctor",
    "attnx.study.inspection.inspect": "inspect",
    "attnx.study.output_weights.projections_of": "qkv",
    "model.find": "sites MODEL",
    "model.heads": "heads",
    "model.rows": "inspect --query TOKEN",
    "model.sites": "sites MODEL --places",
    "model.slots": "sites MODEL --feed-template",
    "model.trace": "trace MODEL TEXT",
}
"""Call in Python -> the command that shows the same."""
NAMES = {
    "heads": "head",
    "layers": "layer",
    "tokens": "ids",
    "divisors": "divide",
    "largest": "max",
    "values": "set",
}
"""Python arguments whose option has another name."""
FILL = {"--inputs": "FEED.npz", "--audio": "FILE.wav"}
"""Placeholders for values that say more than the option's metavar."""


def worded(text: str, command: Any = None) -> str:
    """A text in the command line's terms; unchanged if it names no argument.

    Args:
        text: A text from the core.
        command: Typer's command, whose options are used; None where the command is unknown.
    """
    return text.said(Options(() if command is None else command.params)) if isinstance(text, Wording) else text


def worded_all(texts: Iterable[str]) -> tuple[str, ...]:
    """See `worded`."""
    return tuple(map(worded, texts))


def worded_within(document: Any) -> Any:
    """A document with every text in the command line's terms."""
    if isinstance(document, dict):
        return {name: worded_within(one) for name, one in document.items()}
    if isinstance(document, list):
        return [worded_within(one) for one in document]
    return worded(document) if isinstance(document, str) else document


def worded_fields(view: Any) -> Any:
    """A view with its own texts, the lines under it, and the views that it is made of, in the command line's words."""
    from attnx.view.screen import Choice, Screen

    if not dataclasses.is_dataclass(view) or isinstance(view, type):
        return view
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(view):
        value = getattr(view, field.name)
        if isinstance(value, Wording):
            changed[field.name] = worded(value)
        elif isinstance(value, tuple) and any(isinstance(one, Wording) for one in value):
            changed[field.name] = worded_all(value)
        elif isinstance(view, Screen | Choice) and isinstance(value, tuple):
            changed[field.name] = tuple(_worded_part(one) for one in value)
    return dataclasses.replace(view, **changed) if changed else view


def _worded_part(part: Any) -> Any:
    """A part of a screen, or a way of showing it, which is several."""
    return tuple(map(_worded_part, part)) if isinstance(part, tuple) else worded_fields(part)


class Options(Reader):
    """Reads wordings as options, for someone at the command line.

    Args:
        params: Typer's parameters of the command; if there are none, every option is assumed to exist.
    """

    def __init__(self, params: Sequence[Any] = ()) -> None:
        found = [p for p in params if p.param_type_name == "option"]
        self._metavars = {max(p.opts, key=len): p.metavar or "" for p in found}
        self._options = {p.name: option for p, option in zip(found, self._metavars, strict=True)}

    def has(self, argument: str) -> bool:
        """Whether the command has an option for the argument."""
        return not self._options or self._option(argument) in self._metavars

    def argument(self, one: Argument) -> str:
        """The option with its value."""
        option = self._option(one.name)
        if one.value is None:
            return option
        value = FILL.get(option, self._metavar(option)) if one.value == "" else _value(one)
        return f"{option} {value}".rstrip()

    def call(self, name: str, arguments: str | None) -> str:
        """The command, in backticks."""
        tree = ast.parse(f"f({arguments or ''})", mode="eval").body
        return f"`{' '.join(['attnx', COMMANDS[name], *self._given(tree)])}`"

    def _given(self, tree: ast.expr) -> list[str]:
        """The arguments of a call, and of the calls among its arguments."""
        if not isinstance(tree, ast.Call):
            return [_typed(tree)]
        options = [self.argument(Argument(str(one.arg), ast.unparse(one.value))) for one in tree.keywords]
        return [*(said for one in tree.args for said in self._given(one)), *options]

    def _option(self, argument: str) -> str:
        name = NAMES.get(argument, argument)
        return self._options.get(argument) or self._options.get(name) or f"--{name.strip('_').replace('_', '-')}"

    def _metavar(self, option: str) -> str:
        return self._metavars[option] if option in self._metavars else _shared().get(option, "")


@cache
def _shared() -> dict[str, str]:
    """Option -> metavar, for the options that commands share."""
    from typer.models import OptionInfo

    from attnx.cli import options

    annotated = [one for name, one in vars(options).items() if name.endswith("Option")]
    found = [one for kind in annotated for one in getattr(kind, "__metadata__", ()) if isinstance(one, OptionInfo)]
    # In an annotation, the first name of an option stands in the place of its default.
    return {max((str(one.default), *(one.param_decls or ())), key=len): one.metavar or "" for one in found}


def _value(one: Argument) -> str:
    """A value as it is typed; empty for a switch."""
    assert one.value is not None
    return one.value if one.quoted else _typed(ast.parse(one.value, mode="eval").body)


def _typed(tree: ast.expr) -> str:
    """Python values as they are typed at a shell: lists with commas, a call as its arguments."""
    if isinstance(tree, ast.Call):
        return _typed(tree.args[0])
    found = ast.literal_eval(tree)
    if found is True:
        return ""
    return ",".join(map(str, found)) if isinstance(found, list | tuple) else shlex.quote(str(found))


__all__ = ["COMMANDS", "NAMES", "Options", "worded", "worded_all", "worded_fields", "worded_within"]
