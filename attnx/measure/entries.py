"""One entry of a dataset, from JSON or a table, with each field checked for its type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from attnx.errors import InputError
from attnx.numerals import whole, whole_of

Spot = tuple[int, int]
"""First character and one past the last."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a file."""

    where: str
    """Its name in messages: "line 3"."""
    values: Mapping[str, Any]

    @classmethod
    def of(cls, value: object, where: str) -> Entry:
        """Make an entry from a JSON object."""
        if not isinstance(value, dict):
            raise InputError(f"{where} is not an object with fields")
        return cls(where, value)

    def get(self, name: str) -> Any:
        """The value of a required field."""
        if self.values.get(name) is None:
            there = ", ".join(str(key) for key, value in self.values.items() if value is not None) or "none"
            near = get_close_matches(name, [str(key) for key in self.values if key != name], 1)
            raise InputError(
                f"{self.where} has no field {name!r}; it has {there}", f"Did you mean {near[0]!r}?" if near else ""
            )
        return self.values[name]

    def text(self, name: str) -> str:
        """A field that is a text."""
        value = self.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def whole(self, name: str) -> int:
        """A field that is a whole number; in a table it is written as text."""
        value = self.get(name)
        number = whole(value) if isinstance(value, str) else whole_of(value)
        if number is None:
            raise self._wrong(name, "a whole number from 0")
        return number

    def items(self, name: str) -> list[Any]:
        """A field that is a list."""
        value = self.get(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def spot(self, name: str, value: object) -> Spot:
        """[start, end], from a field or from a list in it."""
        ends = [whole_of(end) for end in value] if isinstance(value, list) else []
        match ends:
            case [int(start), int(end)]:
                return start, end
        raise self._wrong(name, "[start, end], in characters,")

    def _wrong(self, name: str, expected: str) -> InputError:
        return InputError(f"{self.where}: {name} is {str(self.values[name])[:60]!r}, and {expected} was expected")
