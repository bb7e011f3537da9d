"""Find a measure of heads by the names that `attnx heads` and `attnx scan` share, however they were typed."""

from __future__ import annotations

from difflib import get_close_matches

from attnx.errors import UsageError
from attnx.measure.heads import KINDS
from attnx.scan import surveys

LEAST = 4
"""The fewest letters to which a name may be shortened."""


def measure_of(option: str, name: str) -> str:
    """The full name of a measure of heads; part of the name is enough where no other measure has it.

    Args:
        option: Where it was given: "--sort", "--map".
        name: As it was given.

    Raises:
        UsageError: There is no such measure, or several match; for a name that belongs elsewhere, the hint says where.
    """
    there = surveys.load("heads").batched
    said = " ".join(name.lower().replace("-", " ").replace("_", " ").rstrip(".").split())
    if said in there:
        return said
    part = [one for one in there if any(word.startswith(said) for word in one.split())] if len(said) >= LEAST else []
    if len(part) == 1:
        return part[0]
    raise UsageError(
        f"{option} {name!r} is not a measure of heads", f"{_elsewhere(said, part)}Choose from {', '.join(there)}."
    )


def _elsewhere(said: str, part: list[str]) -> str:
    """What else has this name or nearly this name, as a sentence; "" where nothing comes close."""
    there = surveys.load("heads").batched
    kinds = {kind.replace("-", " "): measure for kind, (measure, _, _) in KINDS.items()}
    if said in kinds:
        return f"It is a kind of head, found by the measure {kinds[said]!r}. "
    if said in surveys.names():
        held = surveys.load(said).batched
        holds = f", for {', '.join(held)}" if held and said != "heads" else ""
        return f"It is what `attnx scan --measure {said}` takes{holds}. "
    if said in surveys.measures():
        return f"`attnx scan --measure {said.replace(' ', '-')}` has it. "
    near = part or get_close_matches(said, there, 1)
    return f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
