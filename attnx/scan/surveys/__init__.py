"""What `attnx scan` can measure of a text: one file a survey, found by its name.

A survey is a module with

    ABOUT           what it measures, in a few words
    ARRAYS          the quantities that it needs of every site
    NEEDS, MAY      fields that a row of the corpus must have beside its text, and may have
    BATCHED         the names of its measures, that `attnx.study.batch_head_stats` gives for a whole batch, or ()
    survey(trace, fields)   the measurements of one text: [layer], [layer, head], or these by something of the text

so that a new one is one new file here. Surveys stand alone: they do not import one another. A single measure goes by
the name that `attnx heads` gives it: "mean distance" is what the survey "distance" says under that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any, Protocol

from attnx.errors import UsageError
from attnx.records import Measurement, Trace


class Survey(Protocol):
    """What every module here holds."""

    ABOUT: str
    ARRAYS: tuple[str, ...]
    NEEDS: tuple[str, ...]
    MAY: tuple[str, ...]
    BATCHED: tuple[str, ...]

    def survey(self, trace: Trace, fields: Mapping[str, Any]) -> Sequence[Measurement]:
        """The measurements of one text.

        Args:
            trace: With `ARRAYS`.
            fields: Those of `NEEDS`, and those of `MAY` that are there.

        Raises:
            InputError: The fields do not fit the text; it is left out of this survey, and that is said.
        """


def names() -> tuple[str, ...]:
    """The surveys that there are: "heads" first."""
    found = sorted(module.name for module in iter_modules(__path__))
    return tuple(sorted(found, key=lambda name: name != "heads"))


def about() -> str:
    """All surveys with what they measure, a line each."""
    return "\n".join(f"{name}: {load(name).ABOUT}" for name in names())


def measures() -> dict[str, str]:
    """The measures that go by their own names, each with the narrowest survey that takes it."""
    held = {name: load(name).BATCHED for name in names()}
    return {one: name for name in sorted(held, key=lambda name: -len(held[name])) for one in held[name]}


def canonical(name: str) -> str:
    """A survey or a measure as it is called: hyphens and underlines may stand for spaces, capitals for small letters.

    Raises:
        UsageError: There is none of that name.
    """
    said = " ".join(name.lower().replace("-", " ").replace("_", " ").split())
    single = measures()
    if said in names() or said in single:
        return said
    from difflib import get_close_matches

    near = get_close_matches(said, (*names(), *single), 1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"scan measures no {name!r}",
        f"{guess}Choose from {', '.join(names())}; or a single measure: {', '.join(load('heads').BATCHED)}.",
    )


def load(name: str) -> Survey:
    """A survey, or one measure of it, by its name (see `canonical`).

    Raises:
        UsageError: There is none of that name.
    """
    if name in names():
        module: Any = import_module(f"attnx.scan.surveys.{name}")
        survey: Survey = module
        return survey
    said = canonical(name)
    return load(said) if said in names() else _single(load(measures()[said]), said)


def _single(whole: Survey, name: str) -> Survey:
    """One measure of a survey, as a survey."""

    def survey(trace: Trace, fields: Mapping[str, Any]) -> Sequence[Measurement]:
        return [one for one in whole.survey(trace, fields) if one.name == name]

    made: Any = SimpleNamespace(
        ABOUT=name, ARRAYS=whole.ARRAYS, NEEDS=whole.NEEDS, MAY=whole.MAY, BATCHED=(name,), survey=survey
    )
    one: Survey = made
    return one
