"""`attnx patch`: run a clean and a corrupt text, patch, and show the largest shares and a map."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.interventions.plan import Where
from attnx.numerals import counted
from attnx.study.patching import By
from attnx.study.path_patching import Into

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnx.cli.start import Start
    from attnx.interventions.feeds import Planned
    from attnx.interventions.running import Intervening
    from attnx.study.patch_metric import Meter
    from attnx.study.patching import Patching
    from attnx.study.two_texts import Difference

Heads = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Paths:
    """The options of path patching."""

    senders: Heads
    receivers: Heads
    into: Into
    freeze_mlps: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """By what the runs are compared."""

    metric: str | None
    answer: str | None
    foil: str | None
    at: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What is patched."""

    what: str
    by: By | None
    heads: Heads
    layers: tuple[int, ...] | None
    at: tuple[str, ...] | None
    noising: bool
    component: Where | None
    paths: Paths | None
    reading: Reading


@dataclass(frozen=True, slots=True)
class Shown:
    """How much is shown."""

    top: int
    """Patches that are listed."""
    every: bool
    """List them all, and give the map in numbers."""
    explain: bool


def show(clean: Start, corrupt: Start, asked: Asked, shown: Shown, *, save: Path | None, force: bool) -> None:
    """Run both, patch, and show it.

    Args:
        clean: The options of the clean text.
        corrupt: The options of the corrupt text.
        asked: What is patched.
        shown: How much is shown.
        save: A file to write the result to.
        force: Replace the file if it exists.
    """
    from attnx.cli import output, saving
    from attnx.interventions.feeds import named, plan_run
    from attnx.interventions.running import Intervening
    from attnx.study.patch_metric import meter
    from attnx.study.selection import position
    from attnx.study.two_texts import differences

    model = clean.opened
    (item,) = corrupt.items
    plans = plan_run(model, clean.prompt), plan_run(model, corrupt.prompt_of(item, model))
    differ = differences(*plans)
    running = Intervening(model, {"inputs": plans[0].feed, "other": plans[1].feed})
    reading, tokens = asked.reading, plans[0].tokens
    measured = meter(
        model, running.base("inputs"), running.base("other"), tokens,
        metric=reading.metric, answer=reading.answer, foil=reading.foil,
        at=None if reading.at is None else position(tokens, reading.at, argument="read"),
    )  # fmt: skip
    found = _patched(running, measured, plans[0], asked)
    notes = list(dict.fromkeys([*plans[0].trace.notes, *plans[1].trace.notes, *found.notes]))
    output.notes(notes)
    plans = named(model, clean.prompt, plans[0]), plans[1]
    body = _document(plans, differ, found, running.device, notes)
    views = [_screen(plans, differ, found, running.device, shown, output.lines_of(notes))]
    saving.give(views, found.columns(), body, json=clean.output.json, path=save, force=force)


def _patched(running: Intervening, meter: Meter, clean: Planned, asked: Asked) -> Patching:
    from attnx.cli import output
    from attnx.study.patch_places import tokens_of
    from attnx.study.patching import patch
    from attnx.study.path_patching import patch_paths
    from attnx.study.selection import each_position

    with output.progress(None, "patches") as tell:
        if (paths := asked.paths) is not None:
            return patch_paths(
                running, meter, from_=paths.senders, to=paths.receivers, into=paths.into,
                component=asked.component, freeze_mlps=paths.freeze_mlps, noising=asked.noising, tell=tell,
            )  # fmt: skip
        tokens, memory = clean.tokens, clean.trace.memory
        there = tokens_of(running, asked.component, asked.what, tokens, memory)
        return patch(
            running, meter, quantity=asked.what, by=asked.by, component=asked.component, heads=asked.heads,
            layers=asked.layers, at=None if asked.at is None else each_position(there, asked.at),
            tokens=tokens, memory=memory, noising=asked.noising, tell=tell,
        )  # fmt: skip


def _what(found: Patching) -> str:
    of, into = ("corrupt", "clean") if found.noising else ("clean", "corrupt")
    if found.path:
        return f"{of} heads on the path to {found.path}"
    return f"{of} {found.quantity} patched into the {into} run"


def _screen(
    plans: tuple[Planned, Planned], differ: Sequence[Difference], found: Patching, device: str, shown: Shown, said: int
) -> Any:
    """The texts and where they differ, the patches that restore most, and a map."""
    from attnx.view.headmap import headmap
    from attnx.view.page import line
    from attnx.view.reporting import opening
    from attnx.view.screen import choice, screen
    from attnx.view.table import table

    views: list[Any] = [*opening(plans[0].trace, what=_what(found), device=device)]
    views += [line(_differing(plans, differ)), "", _table(found, shown)]
    made = found.map()
    if made is not None:
        made = replace(made, formula="", source="")
        numbers = table(made, diverging=bool((made.values < -0.05).any()))
        views.append(choice(["", numbers], ["", headmap(made, decimals=2)], [], instead="the map in numbers: --all"))
    left = len(found.effects) - (len(found.effects) if shown.every else shown.top)
    hints = [f"{counted(left, 'more patch', 'more patches')}: --all" if left > 0 else ""]
    hints += [] if shown.explain else ["formulas: --explain"]
    return screen(*views, said=said, every=shown.every, hints=hints)


def _differing(plans: tuple[Planned, Planned], differ: Sequence[Difference]) -> str:
    """Where clean and corrupt text differ, in one line."""
    from attnx.study.two_texts import differing_inputs

    if not differ:
        names = differing_inputs(*plans)
        return f"clean and corrupt differ in {', '.join(names)}" if names else "the two texts have the same tokens"
    sided = any(one.side == "encoder" for one in differ)
    shown = [f"{f'{one.side} ' if sided else ''}{one.position} {one.clean} → {one.corrupt}" for one in differ[:8]]
    more = f", and {len(differ) - 8} more" if len(differ) > 8 else ""
    return f"clean → corrupt: {', '.join(shown)}{more}"


def _table(found: Patching, shown: Shown) -> Any:
    """The clean and the corrupt run, then the patches that move the patched run furthest."""
    from attnx.view.columns import column, columns

    ranked = found.ranked if shown.every else found.ranked[: shown.top]
    spots = [one.spot for one in ranked]
    labels = [
        s.label if s.position is None else replace(s, position=None).label + f" @{found.place(s.position)}"
        for s in spots
    ]
    names = ["clean", "corrupt", *labels]
    values = [found.clean, found.corrupt, *(one.value for one in ranked)]
    shares: list[float | None] = [None, None, *(one.share for one in ranked)]
    known = [share for share in shares if share is not None and share == share]
    bounds = (min([0.0, *known]), max([1.0, *known]))
    return columns(
        f"{found.meter.name}: share {found.heading}",
        [
            column("", names, whole=True),
            column(found.meter.name, values, decimals=3),
            column(found.heading, shares, decimals=3, bar=bounds),
        ],
        notes=[
            f"{found.heading}: (patched - corrupt) / (clean - corrupt) of {found.meter.formula} "
            "(Heimersheim and Nanda 2024)"
        ]
        if shown.explain
        else [],
    )


def _document(
    plans: tuple[Planned, Planned], differ: Sequence[Difference], found: Patching, device: str, notes: Sequence[str]
) -> dict[str, Any]:
    from attnx.view.json import document
    from attnx.view.reporting import base

    read = found.meter.readout
    body: dict[str, Any] = {
        **base(plans[0].trace),
        "device": device,
        "corrupt_tokens": plans[1].tokens,
        "differences": differ,
        "what": found.quantity,
        "by": found.by,
        "component": found.component,
        "noising": found.noising,
        "path": found.path or None,
        "reads": read.kind,
        "metric": found.meter.metric,
        "answer": None if read.answer is None else {"token": read.answer, "piece": read.name(read.answer)},
        "foil": None if read.foil is None else {"token": read.foil, "piece": read.name(read.foil)},
        "measure": found.meter.name,
        "formula": found.meter.formula,
        "clean": found.clean,
        "corrupt": found.corrupt,
        "effects": [
            {
                "label": one.spot.label, "layer": one.spot.layer, "head": one.spot.head, "position": one.spot.position,
                "value": one.value, "share": one.share,
            }
            for one in found.effects
        ],
        "map": found.map(),
        "notes": notes,
    }  # fmt: skip
    return document("attnx/patch", body)


__all__ = ["Asked", "Paths", "Reading", "Shown", "show"]
