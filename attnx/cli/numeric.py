"""Number options of a command line, read by `attnx.numerals` alone."""

from __future__ import annotations

from typing import Any

from attnx.numerals import LARGEST, beyond, real, whole


class Strict:
    """An option's type for the parser: what `attnx.numerals` does not read is refused, even if Python would read it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, value: Any, param: Any = None, ctx: Any = None) -> Any:
        """The value of an option; None stays None."""
        return None if value is None else self.convert(value, param, ctx)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The number that a text means, within the option's range."""
        if isinstance(value, str):
            is_whole = self.inner.name.startswith("int")
            number = whole(value, least=-LARGEST) if is_whole else real(value)
            if number is None:
                shown = value if len(value) <= 40 else f"{value[:39]}…"
                what = "not a whole number" if is_whole else "not a number"
                if is_whole and beyond(value, LARGEST):
                    what = "a whole number that is too large"
                self.inner.fail(f"{shown!r} is {what}.", param, ctx)
            value = number
        return self.inner.convert(value, param, ctx)


def strict(command: Any) -> Any:
    """A command whose number options are read strictly."""
    for parameter in command.params:
        if getattr(parameter.type, "name", "").split(" ")[0] in ("int", "integer", "float"):
            parameter.type = Strict(parameter.type)
    return command
