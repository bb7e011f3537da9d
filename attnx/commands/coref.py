"""`attnx coref TEXT`: it -> animal: which candidate each head and layer points at, against baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.options import (
    MODEL,
    DeviceOption,
    DimOption,
    IdsOption,
    InputsOption,
    JsonOption,
    ModelOption,
    PairOption,
    SetOption,
    TargetOption,
    TextArgument,
    TokenizerOption,
    TopOption,
)

if TYPE_CHECKING:
    from attnx.measure.coref_accuracy import Accuracy
    from attnx.measure.coref_contrast import Contrast
    from attnx.measure.coreference import Coreference
    from attnx.view.columns import Columns

TOP = 8
"""Heads that are listed where --top does not say."""
MOST = 5
"""Candidates that get a column; of more, those with the most weight."""


def coref(
    text: TextArgument = None,
    model: ModelOption = MODEL,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="WORD", help="The word to look from; else every pronoun found.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="WORD,WORD", help="The candidates; else the content words it can see.")
    ] = None,
    contrast: Annotated[
        str | None, typer.Option("--contrast", metavar="TEXT", help="The other text of a minimal pair.")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            metavar="FILE",
            help="Accuracy over a dataset: .jsonl, Winograd .xml or .json, GAP .tsv, WinoBias; pairs: our own.",
        ),
    ] = None,
    top: TopOption = None,
    pair: PairOption = None,
    ids: IdsOption = None,
    inputs: InputsOption = None,
    values: SetOption = None,
    dims: DimOption = None,
    target: TargetOption = None,
    tokenizer: TokenizerOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Show which noun every head and layer points at from a pronoun, beside what pure chance and place would say."""
    from attnx import output, pipeline
    from attnx.errors import UsageError

    if dataset is not None:
        if text is not None or contrast is not None:
            raise UsageError("--dataset stands alone, without a text", "Leave the text out.")
        _dataset(pipeline.open(model, device=device, tokenizer=tokenizer), dataset, json)
        return

    from attnx.antecedents import ARRAYS, maps, resolve
    from attnx.beyond import beyond
    from attnx.chosen import trusted
    from attnx.intake import take
    from attnx.reporting import base, heading, text_of

    more = beyond(values, dims, target=target)
    (given,) = take(text, pair=pair, ids=ids, inputs=inputs, beyond=more)
    opened = pipeline.open(model, device=device, tokenizer=tokenizer)
    feed = given.feed(opened, needs_tokenizer=tokenizer is not None)
    trace, doubts = trusted(opened.trace(**feed, quantities=ARRAYS))
    made, about = maps(opened, trace, feed.get("inputs"))
    found, left = resolve(trace, from_, to, made)
    output.notes((*trace.notes, *doubts, *about, *left))
    pairs = None
    if contrast is not None:
        pairs = _contrasted(opened, contrast, found, target)
    if json:
        from attnx.view.json import document

        body: dict[str, Any] = {
            **base(trace),
            "pronouns": [_object(one) for one in found],
            "contrast": None if pairs is None else [_contrast_object(two, moved) for two, moved in pairs],
            "notes": [*trace.notes, *doubts, *about, *left],
        }
        output.emit_json(document("attnx/coref", body))
        return
    from attnx.view.line import line

    text_shown = text_of(trace.memory or trace.tokens)
    shown: list[Any] = [line(heading(trace)), *([line(text_shown)] if 0 < len(text_shown) < 400 else [])]
    for at, one in enumerate(found):
        # What it comes to stands last, where a terminal that scrolls still shows it.
        shown += ["", _heads(one, top or TOP), "", _layers(one)]
        if pairs is not None:
            two, moved = pairs[at]
            shown += ["", _contrast(one, two, moved, contrast or "", top or TOP)]
        shown += ["", _verdicts(one)]
    output.show(*shown)


def _name(one: Coreference, at: int | None) -> str:
    """A candidate by its word, with its place where the word occurs twice."""
    if at is None:
        return "(level)"
    mention = one.candidates[at]
    twice = [c.text.lower() for c in one.candidates].count(mention.text.lower()) > 1
    return f"{mention.text}@{mention.pieces[0]}" if twice else mention.text


def _verdicts(one: Coreference) -> Columns:
    """Each way of reading the attention, then what place and chance alone would say."""
    import numpy as np

    from attnx.view.columns import column, columns

    rows = [*one.verdicts, *one.baselines]
    shares = [np.nan if v.candidate is None else v.shares[v.candidate] for v in rows]
    others = len(one.candidates) - len(one.unseen)
    faint = range(len(one.verdicts), len(rows))
    chance = f"chance: 1 of {others} candidates, {1 / others:.2f}" if others else "no candidate can be seen"
    return columns(
        f"{one.pronoun.text}@{one.pronoun.pieces[0]} → ?",
        [
            column("read by", [v.method if n not in faint else f"baseline: {v.method}" for n, v in enumerate(rows)]),
            column("where", [v.where for v in rows]),
            column("points at", [_name(one, v.candidate) for v in rows]),
            column("share", shares, bar=(0.0, 1.0)),
            column("margin", [v.margin for v in rows]),
        ],
        faint=faint,
        said=["share among the candidates; margin: first share less second", chance, *one.notes],
    )


def _heads(one: Coreference, count: int) -> Columns:
    """The heads with the largest margin: each candidate's weight and share."""
    import numpy as np

    from attnx.reporting import largest, sourced
    from attnx.view.cells import number
    from attnx.view.columns import column, columns

    layers, heads = (axis.labels for axis in one.margin.axes)
    kept = one.ranked[:count]
    weights, shares = one.weights.values, one.shares.values
    totals = np.nan_to_num(weights).sum(axis=(0, 1))
    chosen = largest(totals, MOST)
    parts = [column("head", [f"{layers[s]} {heads[h]}" for s, h in kept], whole=True)]
    for at in chosen:
        cells = [f"{number(weights[s, h, at], 3)} {_percent(shares[s, h, at])}" for s, h in kept]
        parts.append(column(_name(one, at), cells, whole=True))
    parts.append(column("margin", [one.margin.values[s, h] for s, h in kept]))
    parts.append(column("set aside", [_set_aside(one, s, h) for s, h in kept], decimals=2))
    more = len(one.candidates) - len(chosen)
    said = [
        f"weight and share among the candidates; {sourced(one.weights)}",
        f"{more} more candidates have less weight" if more > 0 else "",
        "set aside: weight on special tokens, the pronoun itself and sinks",
    ]
    title = f"from {one.pronoun.text}@{one.pronoun.pieces[0]}: heads by margin"
    return columns(title, parts, said=said)


def _percent(share: float) -> str:
    return f"{100 * share:3.0f}%" if share == share else "  - "


def _set_aside(one: Coreference, site: int, head: int) -> float:
    from attnx.measure.coreference import PARTS

    line = one.aside.values[site, head]
    return float(sum(line[PARTS.index(name)] for name in ("special", "self", "sink")))


def _layers(one: Coreference) -> Columns:
    """Every layer: the mean of its heads, and its best head."""
    import numpy as np

    from attnx.choice import tops
    from attnx.view.columns import column, columns

    layers = one.margin.axes[0].labels
    best = list(enumerate(one.layer_best))
    names = [_name(one, int(tops(one.weights.values[s, h]))) if h >= 0 else "-" for s, h in best]
    means = one.layer_means
    shares = [np.nan if v.candidate is None else v.shares[v.candidate] for v in means]
    return columns(
        "by layer",
        [
            column("layer", layers),
            column("mean of heads", [_name(one, v.candidate) for v in means]),
            column("share", shares, decimals=2),
            column("margin", [v.margin for v in means], decimals=2),
            column("best head", [f"H{h} {name}" if h >= 0 else "-" for (_, h), name in zip(best, names, strict=True)]),
            column("weight", [np.nanmax(one.weights.values[s, h]) if h >= 0 else np.nan for s, h in best]),
            column("margin", [one.margin.values[s, h] if h >= 0 else np.nan for s, h in best]),
        ],
        said=[f"{one.margin.formula} ({one.margin.source})"],
    )


def _contrasted(opened: Any, text: str, found: list[Coreference], target: str | None) -> list[Any]:
    """The same pronouns and candidates in the other text, and how the heads changed."""
    from attnx.antecedents import ARRAYS, maps, same_mentions
    from attnx.antecedents import text_of as read_from
    from attnx.chosen import trusted
    from attnx.errors import InputError
    from attnx.measure.coref_contrast import contrast
    from attnx.measure.coreference import coreference

    told = {"target": target} if target is not None else {}
    trace, _ = trusted(opened.trace(text, **told, quantities=ARRAYS))
    made, _ = maps(opened, trace, None)
    tokens = read_from(trace)
    out = []
    for one in found:
        same = same_mentions(tokens, one)
        if same is None:
            words = ", ".join([one.pronoun.text, *(c.text for c in one.candidates)])
            raise InputError(
                f"the other text lacks one of: {words}", "Name candidates that are in both texts: --to animal,street."
            )
        two = coreference(trace, *same, maps=made, tokens=tokens)
        out.append((two, contrast(one.weights, two.weights)))
    return out


def _contrast(one: Coreference, two: Coreference, moved: Contrast, text: str, count: int) -> Columns:
    """Which heads move with the meaning, and which point at the same noun both times."""
    from attnx.choice import tops
    from attnx.view.columns import column, columns

    layers, heads = (axis.labels for axis in moved.change.axes)
    kept = moved.moved[:count]
    said = []
    for at in range(len(one.candidates)):
        fixed = sum(int(tops(one.weights.values[s, h])) == at for s, h in moved.fixed)
        if fixed:
            said.append(f"{fixed} at {_name(one, at)}")
    verdicts = "; ".join(
        f"{a.method}: {_name(one, a.candidate)} → {_name(two, b.candidate)}"
        for a, b in zip(one.verdicts[1:], two.verdicts[1:], strict=True)
    )
    return columns(
        f"against: {' '.join(text.split())}",
        [
            column("head", [f"{layers[s]} {heads[h]}" for s, h in kept], whole=True),
            column("here", [_name(one, int(tops(one.weights.values[s, h]))) for s, h in kept]),
            column("there", [_name(two, int(tops(two.weights.values[s, h]))) for s, h in kept]),
            column("change", [moved.change.values[s, h] for s, h in kept], bar=(0.0, 1.0)),
        ],
        said=[
            f"{len(moved.moved)} heads point elsewhere in the other text, {len(moved.fixed)} at the same noun in both"
            + (f" ({', '.join(said)})" if said else ""),
            verdicts,
            f"{moved.change.formula} ({moved.change.source})",
        ],
    )


def _object(one: Coreference) -> dict[str, Any]:
    return {
        "pronoun": one.pronoun,
        "candidates": one.candidates,
        "weights": one.weights,
        "shares": one.shares,
        "aside": one.aside,
        "margin": one.margin,
        "layer_means": one.layer_means,
        "layer_best": one.layer_best,
        "ranked": one.ranked,
        "verdicts": one.verdicts,
        "baselines": one.baselines,
        "unseen": one.unseen,
        "notes": one.notes,
    }


def _contrast_object(two: Coreference, moved: Contrast) -> dict[str, Any]:
    return {
        "other": _object(two),
        "change": moved.change,
        "moved": moved.moved,
        "fixed": moved.fixed,
    }


def _dataset(opened: Any, name: str, json: bool) -> None:
    """Accuracy of every head and method over a dataset."""
    from attnx import output
    from attnx.judging import judge
    from attnx.measure import coref_data

    data = coref_data.bundled() if name == "pairs" else coref_data.read(name)
    found, skipped = judge(opened, data.examples)
    notes = [*data.skipped, *skipped]
    output.notes(notes[:5])
    if len(notes) > 5:
        output.note(f"{len(notes) - 5} more examples were left out")
    if json:
        from attnx.view.json import document

        body: dict[str, Any] = {
            "model": opened.name,
            "dataset": data.name,
            "examples": found.examples,
            "groups": found.groups,
            "methods": found.methods,
            "heads": found.heads,
            "layers": found.layers,
            "chosen": found.chosen,
            "notes": [*found.notes, *notes],
        }
        output.emit_json(document("attnx/coref", body))
        return
    output.show(_accuracy(opened.name, data.name, found))


def _accuracy(model: str, name: str, found: Accuracy) -> Columns:
    """Accuracy by method with its interval."""
    import numpy as np

    from attnx.view.columns import column, columns

    values, layers = found.methods.values, found.heads.axes[0].labels
    best = divmod(int(np.nanargmax(found.heads.values)), found.heads.values.shape[1])
    chosen = ", ".join(f"{layers[s]} H{h}" for s, h in found.chosen)
    said = [
        f"{found.methods.formula} ({found.methods.source})",
        f"heads chosen on one half, tested on the other: {chosen}",
        f"after the fact the best head is {layers[best[0]]} H{best[1]}, {found.heads.values[best]:.3f}: no fair figure",
        *found.notes,
    ]
    return columns(
        f"{model} on {name}: {found.examples} examples in {found.groups} groups",
        [
            column("method", found.methods.axes[0].labels, whole=True),
            column("accuracy", values[:, 0], bar=(0.0, 1.0)),
            column("95% interval", [f"{low:.3f} to {high:.3f}" for _, low, high, _ in values], whole=True),
            column("groups all right", values[:, 3]),
        ],
        said=said,
    )
