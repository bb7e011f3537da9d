"""`attnx lens TEXT`: what each layer would say: the logit lens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import ExplainOption, ForceOption, SaveOption, TopOption, starts
from attnx.cli.start import Start

if TYPE_CHECKING:
    from attnx.study.logit_lens import LogitLens

TOP = 3
"""How many tokens of each layer are listed without --top."""


@starts("json", "image", "audio")
def lens(
    run: Start,
    at: Annotated[
        list[str] | None,
        typer.Option("--at", metavar="TOKEN", help="Read at this token, else the last or the mask; several, or all."),
    ] = None,
    answer: Annotated[
        str | None, typer.Option("--answer", metavar="WORD", help="The token to watch; else the model's first choice.")
    ] = None,
    top: TopOption = None,
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Show what the model would say if it ended after each of its layers.

    The final norm and the unembedding are applied to the residual stream after every layer: its first choice, the
    rank and probability of the answer, the entropy of all that it would say.

    Examples:
        attnx lens "The cat sat on the mat. The cat" -m tiny-gpt
        attnx lens "The cat sat on the mat. The cat" -m tiny-gpt --at all
        attnx lens "The cat sat on the mat. The cat" -m tiny-gpt --answer sat
    """
    from attnx.cli import output, saving
    from attnx.interventions.feeds import named, plan_run
    from attnx.interventions.running import Intervening
    from attnx.study.logit_lens import logit_lens
    from attnx.study.selection import each_position

    saving.check(save, force=force)
    opened = run.opened
    planned = plan_run(opened, run.prompt)
    running = Intervening(opened, {"inputs": planned.feed})
    places = None if at is None else each_position(planned.tokens, at)
    with output.progress(len({site.layer for site in opened.sites}) + 1, "layers") as tell:
        found = logit_lens(opened, running, planned.tokens, at=places, answer=answer, top=top or TOP, tell=tell)
    notes = [*planned.trace.notes, *found.notes]
    output.notes(notes)
    from attnx.view.json import document
    from attnx.view.page import line
    from attnx.view.reporting import base, opening

    trace = named(opened, run.prompt, planned).trace

    body = document("attnx/lens", {**base(trace), "device": running.device, **_object(found), "notes": notes})
    views: list[Any] = [*opening(trace, what="logit lens", device=running.device)]
    views += ["", *(_one(found) if len(found.positions) == 1 else _several(found))]
    views += [line(_FORMULA if explain else "formula, source: --explain", "" if explain else "dim")]
    saving.give(views, found.columns(), body, json=run.output.json, path=save, force=force)


def _one(found: LogitLens) -> list[Any]:
    """One position: a line for each layer, the last first: what the model says is the answer."""
    from attnx.view.columns import column, columns

    answer = found.name(found.answers[0])
    order = range(len(found.layers) - 1, -1, -1)
    where = "" if found.kind == "label" else f" at {found.places[0]}@{found.positions[0]}"
    others = [
        "  ".join(f"{found.name(t)} {p:.2f}" for t, p in zip(found.top[n, 0][1:], found.shares[n, 0][1:], strict=True))
        for n in order
    ]
    first = [found.name(found.top[n, 0, 0]) for n in order]
    parts = [
        column("layer", [found.layers[n] for n in order], whole=True),
        column("first choice", first, whole=True),
        column("p", [found.shares[n, 0, 0] for n in order], decimals=3),
        column(f"rank of {answer}", [str(found.rank[n, 0]) for n in order], whole=True),
        column(f"p({answer})", [found.probability[n, 0] for n in order], decimals=4, bar=(0.0, 1.0)),
        column("entropy", [found.entropy[n, 0] for n in order], decimals=2),
    ]
    if found.top.shape[2] > 1:
        parts.append(column("next choices", others, spare=True))
    title = f"what each layer would say ({found.kind}){where}"
    return [columns(title, parts, notes=[_from(found)])]


def _several(found: LogitLens) -> list[Any]:
    """Several positions: the first choices as words, then how likely the answer is."""
    from dataclasses import replace

    import numpy as np

    from attnx.records import Axis
    from attnx.view.columns import column, columns
    from attnx.view.table import table

    order = range(len(found.layers) - 1, -1, -1)
    words = [column("layer", [found.layers[n] for n in order], whole=True)]
    for at, (position, place) in enumerate(zip(found.positions, found.places, strict=True)):
        words.append(column(f"{position} {place}", [found.name(found.top[n, at, 0]) for n in order]))
    title = f"what each layer would say ({found.kind})"
    made = found.map()
    upside = replace(
        made, axes=(Axis("layer", tuple(found.layers[n] for n in order)), made.axes[1]),
        values=np.ascontiguousarray(made.values[::-1]), formula="", source="",
    )  # fmt: skip
    return [columns(title, words, gap=1), "", table(upside)]


_FORMULA = "softmax(unembedding(final norm(residual stream))) after each layer (nostalgebraist 2020)"


def _from(found: LogitLens) -> str:
    """From which layer on the answer is the first choice."""
    from attnx.tokens.pieces import quoted

    answer = found.name(found.answers[0])
    last = len(found.layers) - 1
    if found.rank[last, 0] != 1:
        return f"{quoted(answer)} is not what the model says: rank {found.rank[last, 0]} at the end"
    begin = next((n + 1 for n in range(last, -1, -1) if found.rank[n, 0] != 1), 0)
    return f"{quoted(answer)} is the first choice from {found.layers[begin]} on; entropy in nats"


def _object(found: LogitLens) -> dict[str, Any]:
    return {
        "reads": found.kind,
        "output": found.output,
        "layers": found.layers,
        "positions": [
            {"position": position, "piece": place, "answer": {"token": answer, "piece": found.name(answer)}}
            for position, place, answer in zip(found.positions, found.places, found.answers, strict=True)
        ],
        "rank": found.rank,
        "probability": found.map(),
        "entropy": found.entropy,
        "top": [
            [
                [
                    {"token": int(token), "piece": found.name(token), "probability": float(share)}
                    for token, share in zip(found.top[layer, at], found.shares[layer, at], strict=True)
                ]
                for at in range(len(found.positions))
            ]
            for layer in range(len(found.layers))
        ],
    }
