"""JSON that people write: an object in which a name stands twice is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence


class TwiceError(ValueError):
    """A name that stands twice in an object, with different values; the message is the name, quoted."""


def unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """An object of JSON; Python would keep the last value of a name in silence. For `object_pairs_hook`.

    Raises:
        TwiceError: A name has two values.
    """
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found and found[name] != value:
            raise TwiceError(repr(name))
        found[name] = value
    return found


def read_json(text: str | bytes) -> object:
    """What a text of JSON says.

    Raises:
        TwiceError: An object gives two values to one name.
        ValueError: It is not JSON.
    """
    found: object = json.loads(text, object_pairs_hook=unique)
    return found


__all__ = ["TwiceError", "read_json", "unique"]
