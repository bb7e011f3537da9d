"""A text that names arguments and calls as data: a str worded for Python, which another reader can reword.

    Wording("Give what the decoder says: <target=>[, or <generate=>].")
    Wording("<layers={given!r}> is not a layer", given=text)

Marks in a template:

    {name}              a value, given by keyword; if it is a Wording, it is worded for the same reader
    <target>            an argument
    <target=>           an argument whose value the reader has to fill in
    <top={top}>         an argument with a value, written as in Python; with {top!r} it is quoted for every reader
    <model.find()>      a call, or a property (<model.sites>); with arguments, written as in Python: <pull({repo})>
    [a clause]          appears only if the reader has all the arguments that it names
    [this|or that|else] the first alternative that can be used

Pass values by keyword, never by f-string, so that what a user wrote is not read as a mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

PYTHON = frozenset({
    "model", "device", "tokenizer",
    "text", "pair", "target", "tokens", "inputs", "image", "audio", "generate", "layers", "quantities", "outputs",
    "verify", "verify_outputs", "required",
})  # fmt: skip
"""Arguments of `attnx.open` and `Model.trace`: those that a clause for Python may name."""

_MARK = re.compile(
    r"<(?P<name>[a-z_][\w.]*)(?:\((?P<call>[^<>]*)\)|=(?P<value>[^<>]*))?>"
    r"|\{(?P<field>[a-z_]\w*)(?:!(?P<quoted>r))?(?::(?P<spec>[^{}]*))?\}"
    r"|(?P<bracket>[\[\]|])"
)
_FIELD = re.compile(r"\{([a-z_]\w*)(?:!r)?\}")


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument as a text names it."""

    name: str
    value: str | None = None
    """The value as Python writes it; "" if the reader has to fill it in, None if only the argument is named."""
    quoted: bool = False
    """Whether the value is quoted for every reader."""


class Reader:
    """How arguments and calls are written for one kind of reader; this class writes Python."""

    def has(self, argument: str) -> bool:
        """Whether the reader can give an argument."""
        return argument in PYTHON

    def argument(self, one: Argument) -> str:
        """How the reader writes an argument."""
        value = "..." if one.value == "" else one.value
        return f"`{one.name}`" if value is None else f"`{one.name}={value}`"

    def call(self, name: str, arguments: str | None) -> str:
        """How the reader writes a call with its arguments in Python's form; a property if the arguments are None."""
        return f"`{name}`" if arguments is None else f"`{name}({arguments})`"


_Part = str | Argument | Callable[[Reader], str]
_Clause = list[_Part]


class Wording(str):
    """See the module.

    Args:
        template: A text with marks.
        values: The values of its fields.

    Raises:
        ValueError: An unmatched bracket.
        KeyError: A field without a value.
    """

    __slots__ = ("template", "values")
    template: str
    values: Mapping[str, Any]

    def __new__(cls, template: str, /, **values: Any) -> Wording:
        made = super().__new__(cls, _words(template, values, Reader()))
        made.template, made.values = template, values
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.template, dict(self.values))

    def said(self, reader: Reader) -> str:
        """The text as worded for a reader."""
        return _words(self.template, self.values, reader)


def _again(template: str, values: Mapping[str, Any]) -> Wording:
    return Wording(template, **values)


def _words(template: str, values: Mapping[str, Any], reader: Reader) -> str:
    return _joined(_clause(_parts(template, values), ""), reader)


def _joined(clause: _Clause, reader: Reader) -> str:
    def one(part: _Part) -> str:
        return part if isinstance(part, str) else reader.argument(part) if isinstance(part, Argument) else part(reader)

    return "".join(map(one, clause))


def _clause(parts: Iterator[_Part | re.Match[str]], closing: str) -> _Clause:
    """Parse up to a closing bracket; inner clauses are chosen once the reader is known."""
    alternatives: list[_Clause] = [[]]
    for part in parts:
        if not isinstance(part, re.Match):
            alternatives[-1].append(part)
        elif part[0] == "[":
            alternatives[-1] += _clause(parts, "]")
        elif part[0] == closing:
            return [_Choice(alternatives)]
        elif part[0] == "|" and closing:
            alternatives.append([])
        elif part[0] == "|":
            alternatives[-1].append("|")
        else:
            raise ValueError("a bracket closes what none has opened")
    if closing:
        raise ValueError("a bracket is not closed")
    return alternatives[0]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The first of several clauses whose arguments a reader has; nothing if there is none."""

    alternatives: list[_Clause]

    def __call__(self, reader: Reader) -> str:
        for clause in self.alternatives:
            if all(reader.has(part.name) for part in clause if isinstance(part, Argument)):
                return _joined(clause, reader)
        return ""


def _parts(template: str, values: Mapping[str, Any]) -> Iterator[_Part | re.Match[str]]:
    """Text, arguments, calls, values, and the brackets between them."""
    at = 0
    for mark in _MARK.finditer(template):
        if mark.start() > at:
            yield template[at : mark.start()]
        at = mark.end()
        if mark["bracket"]:
            yield mark
        elif mark["field"]:
            yield _value(values[mark["field"]], mark["quoted"], mark["spec"] or "")
        elif mark["call"] is None and "." not in mark["name"]:
            yield _argument(mark["name"], mark["value"], values)
        else:
            yield _call(mark["name"], mark["call"], values)
    if at < len(template):
        yield template[at:]


def _value(value: Any, quoted: str | None, spec: str) -> _Part:
    if isinstance(value, Wording):
        return value.said
    return repr(value) if quoted else format(value, spec)


def _argument(name: str, value: str | None, values: Mapping[str, Any]) -> Argument:
    quoted = value is not None and "!r}" in value
    return Argument(name, None if value is None else _filled(value, values), quoted)


def _call(name: str, arguments: str | None, values: Mapping[str, Any]) -> Callable[[Reader], str]:
    filled = None if arguments is None else _filled(arguments, values)
    return lambda reader: reader.call(name, filled)


def _filled(source: str, values: Mapping[str, Any]) -> str:
    """Python source with its fields replaced by their values."""
    return _FIELD.sub(lambda field: repr(values[field[1]]), source)


__all__ = ["PYTHON", "Argument", "Reader", "Wording"]
