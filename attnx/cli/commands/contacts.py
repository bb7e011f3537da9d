"""`attnx contacts PROTEIN`: which residues of a protein touch, from its attention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import ExplainOption, ForceOption, HeadOption, LayerOption, SaveOption, TopOption, starts
from attnx.cli.start import Start
from attnx.numerals import counted

if TYPE_CHECKING:
    from attnx.study.contacts import Contacts

TOP = 10
"""How many pairs and heads are listed without --top."""


@starts("json")
def contacts(
    run: Start,
    head: HeadOption = None,
    layer: LayerOption = None,
    gold: Annotated[
        Path | None,
        typer.Option("--gold", metavar="FILE", help="Real contacts, two residues a line (12 57): precision by head."),
    ] = None,
    gold_from: Annotated[
        int | None,
        typer.Option("--gold-from", metavar="N", help="The number of the first residue in --gold (default 1).", min=0),
    ] = None,
    apart: Annotated[
        int, typer.Option("--apart", metavar="N", help="Count pairs that lie at least N residues apart.", min=1)
    ] = 6,
    top: TopOption = None,
    every: Annotated[bool, typer.Option("--all", help="The map too, however many lines it takes.")] = False,
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Predict which residues of a protein touch, from the attention of a protein model such as ESM.

    The attention of each head is made symmetric and corrected by the average product; the map is the mean over all
    heads, or over those of --head and --layer. Residues count from 1. With --gold: the share of real contacts among the
    strongest pairs, by head.

    Examples:
        attnx contacts MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ -m esm2/
        attnx contacts MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ -m esm2/ --layer last
        attnx contacts MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ -m esm2/ --gold gold.txt
    """
    from attnx.cli import output
    from attnx.cli.unused_options import refuse
    from attnx.study.contacts import contacts as find
    from attnx.study.request import agree, parse_head, parse_layers

    refuse("with a protein", {"--pair": run.source.pair, "--target": run.source.target})
    if gold is None:
        refuse("without --gold", {"--gold-from": gold_from})
    if save is None:
        refuse("without --save", {"--force": force})
    heads = tuple(parse_head(text) for text in head or ())
    layers = None if layer is None else parse_layers(layer)
    agree(heads, layers)
    start = 1 if gold_from is None else gold_from
    found = find(run.opened, run.prompt, heads, layers, gold=gold, start=start, apart=apart)
    notes = [*found.notes]
    if found.judged is not None and found.judged.near:
        some = counted(found.judged.near, "real contact")
        verbs = ("lies", "does") if found.judged.near == 1 else ("lie", "do")
        notes.append(f"{some} {verbs[0]} less than {apart} residues apart and {verbs[1]} not count")
    output.notes(notes)
    if save is not None:
        _save(found, top or TOP, notes, save, force=force)
        output.note(output.wrote(save))
        return
    if run.output.json:
        output.emit_json(_document(found, top or TOP, notes))
        return
    output.show(*_rendered(found, top or TOP, every=every, explain=explain, said=output.lines_of(notes)))


def _rendered(found: Contacts, top: int, *, every: bool, explain: bool, said: int = 0) -> list[Any]:
    """The strongest pairs, how many are real, and the map."""
    from attnx.view.contact_tables import contact_map, precision, strongest
    from attnx.view.heatmap import heatmap
    from attnx.view.page import line
    from attnx.view.reporting import sourced
    from attnx.view.screen import choice, screen

    pairs, judged, values = found.strongest(top), found.judged, found.map.values
    rows = [(found.named(i), found.named(j), j - i, float(values[i, j])) for i, j in pairs]
    real = None if judged is None else [bool(judged.real[i, j]) for i, j in pairs]
    head = f"{found.trace.model} · {counted(len(found.residues), 'residue')} · {found.where} · {found.trace.device}"
    title = f"strongest contacts, residues {found.apart} or more apart"
    shown: list[Any] = [line(head), "", strongest(rows, real, title, [sourced(found.map)] if explain else [])]
    if judged is not None:
        named = (f"{found.where} (the map)", judged.mean)
        shown += ["", precision(judged.heads, named, judged.chance, judged.contacts, top)]
    drawn = heatmap(contact_map(found.map, found.apart), bounds=(0.0, None))
    shown.append(choice(["", drawn], [], instead="the map: --all"))
    hints = [] if explain else ["formula, source: --explain"]
    return [screen(*shown, said=said, every=every, hints=hints)]


def _document(found: Contacts, top: int, notes: list[str]) -> dict[str, Any]:
    from attnx.view.json import document
    from attnx.view.reporting import base

    judged, values = found.judged, found.map.values
    body: dict[str, Any] = {
        **base(found.trace),
        "residues": [
            {"number": at, "letter": letter, "token": token}
            for at, (letter, token) in enumerate(zip(found.residues, found.places, strict=True), 1)
        ],
        "where": found.where,
        "apart": found.apart,
        "map": found.map,
        "strongest": [
            {"residues": [i + 1, j + 1], "score": float(values[i, j]),
             "real": None if judged is None else bool(judged.real[i, j])}
            for i, j in found.strongest(top)
        ],
        "precision": None
        if judged is None
        else {"map": judged.mean, "heads": judged.heads, "chance": judged.chance, "contacts": judged.contacts},
        "notes": notes,
    }  # fmt: skip
    return document("attnx/contacts", body)


def _save(found: Contacts, top: int, notes: list[str], path: Path, *, force: bool) -> None:
    """The map as a figure or as numbers, what a terminal shows, or JSON; the ending of the name says as what."""
    from rich.console import Group

    from attnx.view import save as saving
    from attnx.view.contact_tables import contact_map

    ending = path.suffix.lower()
    if ending == ".json":
        from attnx.view.json import dumps

        saving.write(path, dumps(_document(found, top, notes), indent=True), force=force)
    elif ending in (".png", ".pdf"):
        from attnx.view.figure import heatmap_figure

        saving.write(path, heatmap_figure(contact_map(found.map, found.apart), ending).data, force=force)
    else:
        saving.save(
            path,
            view=Group(*_rendered(found, top, every=True, explain=True)),
            numbers=found.map,
            force=force,
            more=(".json",),
        )
