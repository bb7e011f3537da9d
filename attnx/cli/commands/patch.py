"""`attnx patch CLEAN CORRUPT`: where the answer comes from: patching between two texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from attnx.cli.options import (
    ExplainOption,
    ForceOption,
    HeadOption,
    LayerOption,
    SaveOption,
    SiteOption,
    TopOption,
    starts,
)
from attnx.cli.start import Start
from attnx.interventions.plan import COMPONENTS

Named = TypeVar("Named", bound=str)
TOP = 4
"""How many patches are listed without --top."""


@starts("json")
def patch(
    run: Start,
    corrupt: Annotated[
        str | None, typer.Argument(metavar="CORRUPT", help="The same text with other words, and as many tokens.")
    ] = None,
    what: Annotated[
        str,
        typer.Option(
            "--what", metavar="WHAT", help="context, value, query, key, weights; attention, mlp or residual of a layer."
        ),
    ] = "context",
    by: Annotated[
        str | None, typer.Option("--by", metavar="BY", help="Patch each head, position or layer by itself.")
    ] = None,
    head: HeadOption = None,
    layer: LayerOption = None,
    at: Annotated[
        list[str] | None, typer.Option("--at", metavar="TOKEN", help="Patch at this token alone; several times.")
    ] = None,
    noising: Annotated[
        bool, typer.Option("--noising", help="Corrupt activations into the clean run; else clean into corrupt.")
    ] = False,
    from_: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="L.H", help="Path patching: only what this head sends; every head without."),
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="L.H", help="Path patching: to this later head; several: 3.1,3.2."),
    ] = None,
    into: Annotated[
        str | None, typer.Option("--into", metavar="WHAT", help="With --to: its query, key or value; else the query.")
    ] = None,
    freeze_mlps: Annotated[
        bool, typer.Option("--freeze-mlps", help="Path patching: hold MLPs between the heads too.")
    ] = False,
    answer: Annotated[
        str | None, typer.Option("--answer", metavar="WORD", help="The token or label; else the clean first choice.")
    ] = None,
    foil: Annotated[
        str | None, typer.Option("--foil", metavar="WORD", help="Held against it; else the corrupt first choice.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", metavar="NAME", help="difference (of logits), probability or kl.")
    ] = None,
    read: Annotated[
        str | None, typer.Option("--read", metavar="TOKEN", help="Read the answer, or the vector, at this token.")
    ] = None,
    other_inputs: Annotated[
        Path | None, typer.Option("--other-inputs", metavar="FEED", help="Arrays for the corrupt text.")
    ] = None,
    other_ids: Annotated[
        str | None, typer.Option("--other-ids", metavar="IDS", help="Token ids instead of a corrupt text.")
    ] = None,
    site: SiteOption = None,
    top: TopOption = None,
    every: Annotated[bool, typer.Option("--all", help="List every patch, and the map in numbers.")] = False,
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Show which activations carry what makes two texts differ.

    The corrupt text is run with one activation of the clean run (of TEXT) in it, and how much of the clean answer that
    restores is shown: 0 as corrupt, 1 as clean.

    Examples:
        attnx patch "The cat sat. The cat" "The dog ran. The dog" -m tiny-gpt
        attnx patch "A cat sat. A" "A dog ran. A" -m tiny-gpt --what residual
        attnx patch "A cat sat. A" "A dog ran. A" -m tiny-gpt --from 0.3 --to 2.5
    """
    from attnx.cli import patched, saving
    from attnx.cli.unused_options import refuse
    from attnx.errors import UsageError
    from attnx.study.patching import BY
    from attnx.study.path_patching import INTO
    from attnx.study.request import parse_layers

    saving.check(save, force=force)
    if every:
        refuse("with --all", {"--top": top})
    if from_ is not None or to is not None:
        refuse("in path patching", {"--by": by, "--head": head, "--layer": layer, "--at": at})
        if what != "context":
            raise UsageError(f"--what {what} would do nothing in path patching", "--into says what takes the message.")
    else:
        refuse("without --from or --to", {"--freeze-mlps": freeze_mlps})
    if to is None:
        refuse("without --to", {"--into": into})
    if corrupt is None and other_inputs is None and other_ids is None:
        raise UsageError("there is no corrupt text", 'attnx patch "The cat sat. The cat" "The dog ran. The dog"')
    takes = _one_of("--into", into, INTO) or "query"
    paths = patched.Paths(_heads("--from", from_), _heads("--to", to), takes, freeze_mlps)
    asked = patched.Asked(
        what, _one_of("--by", by, BY), _heads("--head", head), None if layer is None else parse_layers(layer),
        tuple(at) if at is not None else None, noising, _one_of("--site", site, COMPONENTS),
        paths if from_ is not None or to is not None else None,
        patched.Reading(metric, answer, foil, read),
    )  # fmt: skip
    source = replace(
        run.source, text=corrupt, ids=other_ids, inputs=run.source.inputs if other_inputs is None else other_inputs
    )
    shown = patched.Shown(top or TOP, every, explain)
    patched.show(run, replace(run, source=source), asked, shown, save=save, force=force)


def _one_of(option: str, given: str | None, known: tuple[Named, ...]) -> Named | None:
    """The value of an option that takes one of a few words."""
    from attnx.errors import UsageError

    found = next((one for one in known if one == given), None)
    if given is not None and found is None:
        raise UsageError(f"there is no {option} {given!r}", f"Choose from {', '.join(known)}.")
    return found


def _heads(option: str, texts: list[str] | None) -> tuple[tuple[int, int], ...]:
    """Layer and head of each: "5.11", or several separated by commas."""
    from attnx.errors import UsageError
    from attnx.study.request import parse_head

    found = []
    for text in (part for given in texts or () for part in given.split(",")):
        one = parse_head(text, option.removeprefix("--"))
        if one.layer is None:
            raise UsageError(f"{option} {text} names no layer", f"Give layer and head: 0.{one.head}.")
        found.append((one.layer, one.head))
    return tuple(found)
