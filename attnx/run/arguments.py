"""Checks of what a caller passes from Python, made before anything is run: wrong names and types are errors."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from attnx.errors import UsageError
from attnx.records import QUANTITIES, Tokens


def layers_of(layers: Any) -> list[int] | None:
    """Layers as whole numbers; None for all.

    Raises:
        UsageError: Anything but a collection of them, or none in it.
    """
    if layers is None:
        return None
    found = _wholes(layers, "layers", "layers=[5]")
    if not found:
        raise UsageError("no layer is named: layers is empty", "Name some: layers=[5]; all: layers=None.")
    return found


def heads_of(heads: Any, argument: str = "heads") -> list[tuple[int, int]]:
    """Heads as pairs of layer and head.

    Raises:
        UsageError: Anything but a collection of such pairs.
    """
    example = f"For example: {argument}=[(5, 11)]."
    if isinstance(heads, str | bytes) or not isinstance(heads, Iterable):
        raise UsageError(f"{argument} are pairs (layer, head) in a list, and this is {_kind(heads)}", example)
    found = []
    for one in heads:
        pair = None if isinstance(one, str | bytes) or not isinstance(one, Iterable) else tuple(map(_whole, one))
        layer, head = pair if pair is not None and len(pair) == 2 else (None, None)
        if layer is None or head is None:
            shown = repr(one) if isinstance(one, tuple) else _kind(one)
            raise UsageError(f"{argument} are pairs (layer, head), and one of these is {shown[:80]}", example)
        found.append((layer, head))
    return found


def flag_of(given: Any, argument: str) -> None:
    """Hold a switch to True or False (or numpy's): a list of names, say, would count as True.

    Raises:
        UsageError: Anything else.
    """
    if not isinstance(given, bool | np.bool_):
        raise UsageError(f"{argument} is True or False, and this is {_kind(given)}", f"For example: {argument}=True.")


def several_of(given: Any, argument: str, example: str) -> list[Any]:
    """The members of a list, tuple or the like.

    Raises:
        UsageError: A single thing, or a text, whose letters would be taken for members.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(f"{argument} takes several in a list, and this is {_kind(given)}", f"For example: {example}.")
    return list(given)


def choice_of(given: Any, known: Sequence[str], argument: str) -> None:
    """Hold one of a few words against those that there are.

    Raises:
        UsageError: Another.
    """
    if given not in known:
        raise UsageError(f"there is no {argument} {given!r}", f"Choose from {', '.join(known)}.")


def position_of(place: Any, length: int, argument: str) -> int:
    """The position of a token, as a whole number.

    Raises:
        UsageError: Anything else, or none that the text has.
    """
    found = _whole(place)
    if found is None:
        raise UsageError(
            f"{argument} takes positions or words, and this is {_kind(place)}", f"For example: {argument}=[3]."
        )
    if not 0 <= found < length:
        raise UsageError(f"there is no position {found}", f"There are {length}, counted from 0.")
    return found


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
        number = _whole(one)
        if number is None:
            raise UsageError(f"{what} are whole numbers, and one of these is {_kind(one)}", f"For example: {example}.")
        found.append(number)
    return found


def quantities_of(quantities: Any, outputs: bool = False) -> Collection[str]:
    """Names of quantities.

    Args:
        quantities: What was given.
        outputs: Whether the model's own outputs are wanted: there need be no quantity beside them.

    Raises:
        UsageError: One that does not exist, none at all, or a single name in place of several.
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
    if not found and not outputs:
        raise UsageError("no quantity is named: quantities is empty", "Name some: quantities=['weights'].")
    return found


def tokens_of(tokens: Any, text: object = None) -> Tokens | None:
    """Tokens, or None.

    Raises:
        UsageError: Anything else, or a text beside them.
    """
    if tokens is None or isinstance(tokens, Tokens):
        if tokens is not None and text is not None:
            raise UsageError("a text and tokens are both given", "Give one: tokens stand in place of a text.")
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
    found = _whole(number)
    if found is None or found < least:
        shown = number if found is not None else _kind(number)
        raise UsageError(f"{what} is a whole number from {least}, and this is {shown}", "Give such a number.")
    return found


def _whole(value: Any) -> int | None:
    """A whole number of Python or numpy; None where it is anything else, true and false included."""
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None


def _kind(value: Any) -> str:
    return (
        f"{type(value).__name__} {str(value)[:40]!r}" if isinstance(value, str | int | float) else type(value).__name__
    )
