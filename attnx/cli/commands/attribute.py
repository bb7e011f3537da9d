"""`attnx attribute TEXT`: which parts of a model make its answer: direct logit attribution."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import ExplainOption, ForceOption, SaveOption, TopOption, starts
from attnx.cli.start import Start
from attnx.numerals import counted

if TYPE_CHECKING:
    from attnx.study.attribution import Attribution

TOP = 6
"""How many parts are listed without --top."""


@starts("json", "image", "audio")
def attribute(
    run: Start,
    answer: Annotated[
        str | None, typer.Option("--answer", metavar="WORD", help="The token or label; else the model's first choice.")
    ] = None,
    foil: Annotated[str | None, typer.Option("--foil", metavar="WORD", help="Subtract the logit of this one.")] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TOKEN", help="Read at this token, else the last or the mask.")
    ] = None,
    top: TopOption = None,
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Take the logit of an answer apart: what the embedding, each head, each MLP and the biases add to it.

    The final norm is frozen as it was in the run, so that the parts sum to the logit. A part that adds nothing by
    itself may still matter through later ones: attnx ablate shows that.

    Examples:
        attnx attribute "The cat sat on the mat. The cat" -m tiny-gpt
        attnx attribute "The cat sat. The cat" -m tiny-gpt --answer sat --foil lay
        attnx attribute "The cat sat on the mat. The cat" -m tiny-gpt --top 5
    """
    from attnx.cli import output, saving
    from attnx.interventions.feeds import named, plan_run
    from attnx.interventions.running import Intervening
    from attnx.study.attribution import attribution
    from attnx.study.selection import position

    saving.check(save, force=force)
    opened = run.opened
    planned = plan_run(opened, run.prompt)
    running = Intervening(opened, {"inputs": planned.feed})
    here = None if at is None else position(planned.tokens, at, argument="at")
    found = attribution(opened, running, planned.tokens, answer=answer, foil=foil, at=here)
    notes = [*planned.trace.notes, *found.notes]
    output.notes(notes)
    from attnx.view.json import document
    from attnx.view.page import line
    from attnx.view.reporting import base, opening
    from attnx.view.table import table

    trace = named(opened, run.prompt, planned).trace

    body = document("attnx/attribute", {**base(trace), "device": running.device, **_object(found), "notes": notes})
    views: list[Any] = [*opening(trace, what="direct logit attribution", device=running.device)]
    place = "" if found.readout.kind == "label" else f"{planned.tokens.pieces[found.readout.position].strip()}@"
    where = f" at {place}{found.readout.position}" if place else ""
    views += [
        "",
        _ranking(found, where, top or TOP),
        "",
        table(found.map() if explain else replace(found.map(), formula="", source=""), diverging=True),
    ]
    views += [] if explain else [line("formula, source: --explain", "dim")]
    saving.give(views, found.columns(), body, json=run.output.json, path=save, force=force)


def _ranking(found: Attribution, where: str, top: int) -> Any:
    """The largest parts, all others together, and their sum."""
    from attnx.view.columns import column, columns

    ranked = found.ranked
    shown, rest = ranked[:top], ranked[top:]
    names = [part.label for part in shown]
    added: list[float | None] = [part.added for part in shown]
    if rest:
        names.append(f"{counted(len(rest), 'other')}")
        added.append(sum(part.added for part in rest))
    reach = max((abs(value) for value in added if value is not None), default=0.0) or 1.0
    model = f"the model's own is {found.own:.3f}"
    if found.capped:
        model = f"before the softcap; {model}"
    return columns(
        f"{found.what}{where}: {found.logit:.3f}",
        [column("", names, whole=True), column("adds", added, bar=(-reach, reach))],
        notes=[f"the parts sum to {found.logit - found.missed:.3f}, and {model}: {abs(found.missed):.4f} is missed"],
    )


def _object(found: Attribution) -> dict[str, Any]:
    read = found.readout
    return {
        "reads": read.kind,
        "output": read.output,
        "position": read.position,
        "answer": {"token": read.answer, "piece": read.name(read.answer or 0)},
        "foil": None if read.foil is None else {"token": read.foil, "piece": read.name(read.foil)},
        "what": found.what,
        "logit": found.logit,
        "own": found.own,
        "parts": found.parts,
        "missed": found.missed,
        "map": found.map(),
    }
