"""`-m MODEL` on commands that take their models as arguments: nobody should have to remember which commands do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnx.errors import UsageError

_NAMES = ("-m", "--model")


def models_in_place(params: Sequence[Any], args: Sequence[str]) -> list[str]:
    """Put models that were named with -m where a command expects them among its arguments.

    Args:
        params: The command's options and arguments, no -m among them.
        args: The command line after the command's name.

    Returns:
        The command line without -m. Models keep the order in which they were named, with -m or without.

    Raises:
        UsageError: -m without a model, or more models than the command takes.
    """
    most = sum(p.param_type_name == "argument" and getattr(p, "metavar", None) == "MODEL" for p in params)
    options = [p for p in params if p.param_type_name == "option"]
    if not most:
        return list(args)
    valued = {name for p in options if not getattr(p, "is_flag", False) for name in p.opts}
    models, rest, left = list[str](), list[str](), iter(args)
    arguments, before, end = list[int](), 0, None  # places in `rest`: arguments, those before the first -m, of "--"
    for one in left:
        name, equals, value = one.partition("=")
        short = one.startswith("-m") and len(one) > 2
        if one in _NAMES or short or (name == "--model" and equals):
            before = before if models else len(arguments)
            models.append(one[2:] if short else value if equals else next(left, ""))
        elif one == "--":
            end = len(rest)
            rest += [one, *left]
        else:
            if one == "-" or not one.startswith("-"):
                arguments.append(len(rest))
            rest += [one, *([next(left, "")] if one in valued else [])]
    if not models:
        return list(args)
    if "" in models:
        raise UsageError("-m is given without a model", "Name one: -m minilm.")
    if most < len(models):
        taken = "one model" if most == 1 else f"{most} models"
        raise UsageError(f"-m is given {len(models)} times, and this command takes {taken}", "Name each once.")
    before = min(before, most - len(models))  # what comes after is no model, but a text
    at = 0 if not before else arguments[before] if before < len(arguments) else len(rest) if end is None else end
    return [*rest[:at], *models, *rest[at:]]


__all__ = ["models_in_place"]
