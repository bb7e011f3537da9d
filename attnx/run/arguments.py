"""Checks of what a caller passes from Python, made before anything is run: wrong names and types are errors."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from operator import index
from pathlib import Path
from typing import Any

from attnx.errors import UsageError
from attnx.records import QUANTITIES, Tokens


def layers_of(layers: Any) -> Collection[int] | None:
    """Layers as whole numbers; None for all.

    Raises:
        UsageError: Anything but a collection of them.
    """
    return None if layers is None else _wholes(layers, "layers", "layers=[5]")


def positions_of(positions: Any) -> Sequence[int]:
    """Positions of tokens as whole numbers.

    Raises:
        UsageError: Anything but a sequence of them.
    """
    return _wholes(positions, "positions", "positions=[10]; attnx.tokens.find gives those of a word")


def _wholes(given: Any, what: str, example: str) -> list[int]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(f"{what} are whole numbers in a list, and this is {_kind(given)}", f"For example: {example}.")
    found = []
    for one in given:
        try:
            if isinstance(one, bool):
                raise TypeError
            found.append(index(one))
        except TypeError:
            raise UsageError(
                f"{what} are whole numbers, and one of these is {_kind(one)}", f"For example: {example}."
            ) from None
    return found


def quantities_of(quantities: Any) -> Collection[str]:
    """Names of quantities.

    Raises:
        UsageError: One that does not exist, or a single name in place of several.
    """
    if isinstance(quantities, str):
        raise UsageError(f"quantities are names in a list, and this is {quantities!r}", f"Give [{quantities!r}].")
    if not isinstance(quantities, Iterable):
        raise UsageError(f"quantities are names in a list, and this is {_kind(quantities)}", "Give ['weights'].")
    found = tuple(quantities)
    for name in found:
        if name not in QUANTITIES:
            near = get_close_matches(str(name), QUANTITIES, 1)
            guess = f"Did you mean {near[0]}? " if near else ""
            raise UsageError(f"there is no quantity {name!r}", f"{guess}Choose from {', '.join(QUANTITIES)}.")
    return found


def tokens_of(tokens: Any) -> Tokens | None:
    """Tokens, or None.

    Raises:
        UsageError: Anything else.
    """
    if tokens is None or isinstance(tokens, Tokens):
        return tokens
    raise UsageError(
        f"tokens are what attnx.tokens makes, and this is {_kind(tokens)}",
        "A text goes without a name: trace(text); ids: trace(tokens=attnx.tokens.from_ids([101, 2023, 102])).",
    )


def inputs_of(inputs: Any) -> Mapping[str, Any]:
    """Arrays by the names of the graph's inputs.

    Raises:
        UsageError: Anything but a mapping with names as keys.
    """
    if inputs is None:
        return {}
    if not isinstance(inputs, Mapping) or not all(isinstance(name, str) for name in inputs):
        raise UsageError(
            f"inputs are arrays by name, and this is {_kind(inputs)}", "Give {'input_ids': numpy.array([[101, 102]])}."
        )
    return inputs


def path_of(place: Any, what: str) -> Path | None:
    """The path of a file or folder, or None.

    Raises:
        UsageError: It is no path.
    """
    if place is None:
        return None
    if isinstance(place, str | os.PathLike) and not isinstance(place, bytes):
        return Path(place)
    raise UsageError(f"{what} is the path of a file, and this is {_kind(place)}", "Give a str or a pathlib.Path.")


def whole_of(number: Any, what: str, least: int = 1) -> int:
    """A whole number.

    Raises:
        UsageError: Anything else, or less than `least`.
    """
    try:
        found = None if isinstance(number, bool) else index(number)
    except TypeError:
        found = None
    if found is None or found < least:
        shown = number if found is not None else _kind(number)
        raise UsageError(f"{what} is a whole number from {least}, and this is {shown}", "Give such a number.")
    return found


def _kind(value: Any) -> str:
    return (
        f"{type(value).__name__} {str(value)[:40]!r}" if isinstance(value, str | int | float) else type(value).__name__
    )
