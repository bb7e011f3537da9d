"""`attnx align TEXT`: words to the words they translate, to seconds of sound; answers to their sources; contacts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attnx.cli.options import WRITING, HeadOption, JsonlOption, LayerOption, TopOption, starts
from attnx.cli.start import Start


@starts("file", *WRITING, "json")
def align(
    run: Start,
    head: HeadOption = None,
    layer: LayerOption = None,
    every: Annotated[bool, typer.Option("--all", help="The mean of all heads.")] = False,
    view: Annotated[
        str | None, typer.Option("--view", "-v", metavar="VIEW", help="table, lines, heatmap or pharaoh.")
    ] = None,
    when: Annotated[
        str | None,
        typer.Option("--when", metavar="WHEN", help="A target word's row: where it is read, or where it is written."),
    ] = None,
    targets: Annotated[
        Path | None, typer.Option("--targets", metavar="FILE", help="The translations of --file, a line each.")
    ] = None,
    back: Annotated[
        str | None, typer.Option("--back", metavar="MODEL", help="A second translator, of the other direction.")
    ] = None,
    symmetrise: Annotated[
        str | None, typer.Option("--symmetrise", metavar="HOW", help="Of both: intersection, union or grow-diag.")
    ] = None,
    gold: Annotated[
        Path | None,
        typer.Option("--gold", metavar="FILE", help="Gold links, 0-0 1-2 2p3, a line a sentence: the error rate."),
    ] = None,
    gold_from: Annotated[
        int | None, typer.Option("--gold-from", metavar="N", help="The number of the first word in --gold; else 0.")
    ] = None,
    top: TopOption = None,
    jsonl: JsonlOption = False,
) -> None:
    """Say what each written word goes back to.

    A translator's cross-attention links target words to source words: as a table, as lines, in Pharaoh's format. It
    writes the translation itself, or is told it (--target). --gold gives precision, recall and alignment error rate.
    """
    from attnx.errors import UsageError
    from attnx.study.crossing import is_two_sided

    model = run.opened
    if not is_two_sided(model):
        raise UsageError(
            f"{model.name} has no encoder and decoder, so there is nothing to align",
            "Choose a translator (Marian, M2M100, T5 ...): -m MODEL.",
        )
    from attnx.cli.aligned import Asked, against_gold, translate
    from attnx.cli.inputs import only
    from attnx.cli.unused_options import refuse
    from attnx.measure.links import HOWS
    from attnx.study.crossing import cross_sites
    from attnx.study.request import agree, parse_head, parse_layers
    from attnx.study.translation import WHENS

    asked = Asked(
        heads=tuple(parse_head(text) for text in head or ()),
        layers=None if layer is None else parse_layers(layer),
        every=every,
        when=_one_of("--when", when, WHENS, "read"),
        back=back,
        how=_one_of("--symmetrise", symmetrise, HOWS, "grow-diag"),
        view=_one_of("--view", view, ("table", "lines", "heatmap", "pharaoh"), "table"),
        between_spaces=view == "pharaoh",
        top=top,
    )
    agree(asked.heads, asked.layers)
    if every:
        refuse("with --all", {"--head": head, "--layer": layer})
    if back is None:
        refuse("without --back", {"--symmetrise": symmetrise})
    if targets is not None:
        refuse("with --targets", {"--target": run.target, "--generate": run.generate})
    cross_sites(model)
    if gold is not None:
        refuse("with --gold", {"--head": head, "--layer": layer, "--all": every, "--view": view, "--back": back})
        against_gold(run, model, targets, gold, 0 if gold_from is None else gold_from, asked)
        return
    refuse("without --gold", {"--gold-from": gold_from, "--top": top})
    if run.json:
        only(run.given, "--json", "use --jsonl")
    translate(run, model, targets, asked, jsonl=jsonl)


def _one_of(option: str, given: str | None, choices: Any, otherwise: str) -> Any:
    """The value of an option that takes one of a few words.

    Raises:
        UsageError: Another.
    """
    from attnx.errors import UsageError

    if given is not None and given not in choices:
        raise UsageError(f"{option} {given!r} is none of {', '.join(choices)}", f"Choose one: {option} {choices[0]}.")
    return otherwise if given is None else given
