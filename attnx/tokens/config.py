"""Fields of a model's configuration files, each read as the type it must have; an error names a wrong field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attnx.errors import ModelError
from attnx.numerals import LARGEST, real_of, whole_of

_SHOWN = 60


class Config(dict[str, Any]):
    """The object in a configuration file, or a part of it. A field that is null counts as missing.

    Attributes:
        where: What to call it in messages: the file, and the part of it.
    """

    def __init__(self, values: Mapping[str, Any] | None = None, where: str = "the configuration") -> None:
        super().__init__({name: value for name, value in (values or {}).items() if value is not None})
        self.where = where
        self._files: dict[str, str] = {}

    def over(self, other: Config) -> Config:
        """These fields, with those of another file as fallback."""
        made = Config({**other, **self}, self.where)
        made._files = {**{name: other._file(name) for name in other}, **{name: self._file(name) for name in self}}
        return made

    def whole(self, name: str, otherwise: int, least: int = 0, most: int = LARGEST) -> int:
        """A whole number; `otherwise` where the field is not there.

        Raises:
            ModelError: It is not a whole number from `least` to `most`.
        """
        found = self.maybe_whole(name, least, most)
        return otherwise if found is None else found

    def maybe_whole(self, name: str, least: int = 0, most: int = LARGEST) -> int | None:
        """A whole number; None where the field is not there.

        Raises:
            ModelError: It is not a whole number from `least` to `most`.
        """
        if name not in self:
            return None
        number = whole_of(self[name], least, most)
        if number is None:
            upto = "" if most == LARGEST else f" to {most}"
            raise self.wrong(name, f"a whole number from {least}{upto}")
        return number

    def real(self, name: str, otherwise: float, least: float = -math.inf, most: float = math.inf) -> float:
        """A finite number; `otherwise` where the field is not there.

        Raises:
            ModelError: It is not a number between `least` and `most`.
        """
        if name not in self:
            return otherwise
        number = real_of(self[name], least, most)
        if number is None:
            raise self.wrong(name, "a number" if least == -math.inf else f"a number from {least:g}")
        return number

    def flag(self, name: str, otherwise: bool) -> bool:
        """True or false; `otherwise` where the field is not there.

        Raises:
            ModelError: It is neither.
        """
        value = self.get(name, otherwise)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """A text; None where the field is not there.

        Raises:
            ModelError: It is not a text.
        """
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "a text")
        return value

    def part(self, name: str) -> Config | None:
        """An object inside this one; None where the field is not there.

        Raises:
            ModelError: It is not an object.
        """
        if name not in self:
            return None
        if not isinstance(self[name], dict):
            raise self.wrong(name, "an object")
        return Config(self[name], f"{self._file(name)}: {name}")

    def wrong(self, name: str, expected: str) -> ModelError:
        """The error for a field that is not what was expected."""
        shown = repr(self[name])
        shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"
        return ModelError(
            f"{self._file(name)}: {name} is {shown}, and {expected} was expected",
            "Correct the file, or fetch it again.",
        )

    def _file(self, name: str) -> str:
        return self._files.get(name, self.where)
