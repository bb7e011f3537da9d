"""Numbers as people, files and the environment write them: ASCII, finite, within bounds; anything else is None."""

from __future__ import annotations

import math
import re

LARGEST = 2**63 - 1
"""The largest whole number that an array or a file of any kind can hold as a signed integer."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_REAL = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,6})?")


def whole(text: str, least: int = 0, most: int = LARGEST) -> int | None:
    r"""A whole number in ASCII digits.

    `int` also reads "1_000", "٣" and " 7\\n", `str.isdigit` accepts "²", and `int` refuses thousands of digits with an
    error of its own; this function returns None for all of them.

    Args:
        text: The text as written; surrounding spaces are ignored.
        least: The smallest allowed value.
        most: The largest allowed value.

    Returns:
        None if it is not such a number.
    """
    bare = text.strip(" \t\r\n")
    if not _WHOLE.fullmatch(bare):
        return None
    number = int(bare)
    return number if least <= number <= most else None


def beyond(text: str, most: int) -> bool:
    """Whether a text is a whole number, and larger than the largest allowed one."""
    bare, limit = text.strip(" \t\r\n").removeprefix("+"), str(most)
    digits = bare.lstrip("0")
    return bare.isascii() and bare.isdigit() and (len(digits), digits) > (len(limit), limit)


def real(text: str, least: float = -math.inf, most: float = math.inf, *, infinite: bool = False) -> float | None:
    """A finite number in ASCII: "3", "-0.5", "1e-3"; not "nan", "1_0" or what overflows.

    Args:
        text: The text as written; surrounding spaces are ignored.
        least: The smallest allowed value.
        most: The largest allowed value.
        infinite: Whether "inf" and "-inf" are numbers too (a mask that is added has them).

    Returns:
        None if it is not such a number.
    """
    bare = text.strip(" \t\r\n")
    if infinite and bare.lower().removeprefix("+") in ("inf", "-inf"):
        return float(bare)
    if not _REAL.fullmatch(bare):
        return None
    number = float(bare)
    return number if math.isfinite(number) and least <= number <= most else None


def whole_of(value: object, least: float = 0, most: float = LARGEST) -> int | None:
    """A whole number as JSON or a table holds it: 5 or 5.0; not true, not "5", not 5.5, not an infinity.

    Args:
        value: Anything.
        least: The smallest allowed value.
        most: The largest allowed value.

    Returns:
        None if it is not such a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not least <= value <= most or value != value // 1:
        return None
    return int(value)


def real_of(value: object, least: float = -math.inf, most: float = math.inf) -> float | None:
    """A finite number as JSON or a table holds it: 5, 5.5; not true, not "5", not NaN, not an infinity.

    Args:
        value: Anything.
        least: The smallest allowed value.
        most: The largest allowed value.

    Returns:
        None if it is not such a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number with hundreds of digits
        return None
    return number if math.isfinite(number) else None


def counted(count: int, noun: str, several: str = "") -> str:
    """A count with its noun: "1 token", "2 tokens"; `several` is the plural if it is not the noun with an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"
