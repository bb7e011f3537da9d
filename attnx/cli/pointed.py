"""`attnx coref TEXT`: where heads point from each pronoun, on one screen however many pronouns and candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from attnx.numerals import counted

if TYPE_CHECKING:
    from attnx.measure.coref_contrast import Contrast
    from attnx.measure.coreference import Coreference
    from attnx.measure.mattering import Mattering
    from attnx.records import Trace
    from attnx.view.screen import Choice

TOP = 4
"""How many heads are listed without --top and --all."""


@dataclass(frozen=True, slots=True)
class Pointed:
    """What is shown, the same number of entries in each of its lists."""

    found: Sequence[Coreference]
    matters: Sequence[Sequence[Mattering]]
    """For each pronoun the cuts to its candidates; none without --causal."""
    pairs: Sequence[tuple[Coreference, Contrast]] | None
    contrast: str
    """The other text."""
    opened: Sequence[tuple[str, str]]
    """The head worth opening, and what it makes of each pronoun; two empty texts where there is none."""
    trace: Trace


class _Form(NamedTuple):
    """How much of everything is shown."""

    heads: int
    moved: int = TOP
    """Heads of a contrast."""
    read: str = "whole"
    """The ways to read the attention: "whole", "short" (neither baselines nor notes) or "" for the answer alone."""
    opened: bool = True


_FORMS = (
    *(_Form(count) for count in range(TOP, 0, -1)),
    _Form(0),
    _Form(1, read="short"),
    *(_Form(0, moved, "short") for moved in (TOP, 2)),
    _Form(0, 2, "short", opened=False),
    _Form(0, TOP, "", opened=False),
    *(_Form(0, moved, "", opened=False) for moved in (2, 1, 0)),
)
"""The fullest first."""


def body(shown: Pointed, top: int | None, *, every: bool, explain: bool) -> Choice:
    """Everything below the heading, in its fullest form that fits; all pronouns in the same.

    Args:
        shown: What is shown.
        top: How many heads are listed, however long that is; None for as many as fit.
        every: List every head and layer.
        explain: With formulas.
    """
    from attnx.view.screen import choice

    most = max((one.margin.values.size for one in shown.found), default=TOP)
    count = most if every else top
    forms = _FORMS if count is None else (_Form(count, count),)
    return choice(
        *(_body(shown, form, every=every, explain=explain) for form in forms),
        instead=[_left_out(shown, form) for form in forms],
    )


def _left_out(shown: Pointed, form: _Form) -> str:
    """What a form leaves out, and how it is seen."""
    pointing = not all(shown.matters)
    parts = [
        "heads" if not form.heads else "",
        {"whole": "", "short": "baselines, notes", "": "each reading"}[form.read] if pointing else "",
        "contrast" if shown.pairs is not None and not form.moved else "",
    ]
    said = ", ".join(filter(None, parts))
    return f"{said}: --all" if said else ""


def _body(shown: Pointed, form: _Form, *, every: bool, explain: bool) -> list[Any]:
    from attnx.measure.coreference import ONE_SENTENCE
    from attnx.view import coref_tables as tables
    from attnx.view import mattering_tables
    from attnx.view.page import line

    out: list[Any] = []
    for at, one in enumerate(shown.found):
        for cut in shown.matters[at]:
            out += ["", line(mattering_tables.answer(cut))]
            out += ["", mattering_tables.heads(cut, form.heads, _more, explain=explain)] if form.heads else []
        if shown.matters[at]:
            continue
        if len(one.unseen) == len(one.candidates):
            out += ["", tables.unseen(one)]
            continue
        out += [*[""] * (bool(at) and bool(form.read)), line(tables.answer(one), "bold")]
        if form.read:
            out.append(tables.verdicts(one, explain=explain, short=form.read == "short"))
        if form.heads:
            out += ["", tables.heads(one, form.heads, _more, explain=explain)]
        head, seen = shown.opened[at]
        told = form.read == "whole" and any(f" {head} " in note for note in one.notes)  # as one set aside
        if seen and form.opened and not told:
            out.append(line(f"the head that is most on one token, {head}: {seen}", "dim"))
        if every:
            out += ["", tables.layers(one)]
        if shown.pairs is not None:
            two, moved = shown.pairs[at]
            out += [""] if form.read else []
            out.append(tables.contrast(one, two, moved, shown.contrast, form.moved, explain=explain))
    if form.read != "whole" and not all(shown.matters):
        out.append(line(ONE_SENTENCE, "dim"))
    return out


def _more(left: int) -> str:
    return f"{counted(left, 'more head')}: --all" if left else ""


__all__ = ["TOP", "Pointed", "body"]
