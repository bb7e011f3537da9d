"""`attnx word TEXT TEXT`: one word in two contexts, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.option_groups import MODEL
from attnx.cli.options import (
    DeviceOption,
    ExplainOption,
    ForceOption,
    InputsOption,
    JsonOption,
    ModelOption,
    SaveOption,
    TargetOption,
    TextArgument,
    TokenizerOption,
)
from attnx.numerals import counted

if TYPE_CHECKING:
    from attnx.records import Measurement
    from attnx.run.states import States
    from attnx.tokens.spans import Mention
    from attnx.view.columns import Columns


def word(
    text: TextArgument = None,
    other: Annotated[str | None, typer.Argument(metavar="TEXT", help="The other text with the same word.")] = None,
    word: Annotated[
        str | None, typer.Option("--word", "-w", metavar="WORD", help="The word; text, position or text@position.")
    ] = None,
    other_word: Annotated[
        str | None, typer.Option("--other-word", metavar="WORD", help="The word of the other text, if not the same.")
    ] = None,
    model: ModelOption = MODEL,
    inputs: InputsOption = None,
    other_inputs: Annotated[
        Path | None, typer.Option("--other-inputs", metavar="FEED", help="Arrays for the other text.")
    ] = None,
    target: TargetOption = None,
    tokenizer: TokenizerOption = None,
    device: DeviceOption = "auto",
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Compare one word's vectors in two texts at every layer, beside what any two words have in common there.

    Examples:
        attnx word "We sat on the river bank." "I went to the bank." --word bank
        attnx word "The bat flew." "He swung the bat." --word bat --json
        attnx word "A spring day." "The spring broke." --word spring
    """
    from attnx import model as pipeline
    from attnx.cli import output, saving
    from attnx.cli.inputs import take
    from attnx.cli.option_groups import Source
    from attnx.errors import UsageError
    from attnx.measure.vectors import contexts
    from attnx.run.states import states_of

    if word is None:
        raise UsageError("which word?", 'attnx word "A river bank." "A savings bank." --word bank')
    if (other is None) == (other_inputs is None):
        raise UsageError("there is no second text", 'attnx word "A river bank." "A savings bank." --word bank')
    saving.check(save, force=force)
    (one,) = take(Source(text, inputs=inputs, target=target))
    (two,) = take(Source(other, inputs=other_inputs, target=target))
    opened = pipeline.open(model, device=device, tokenizer=tokenizer)
    found = states_of(opened, [item.prompt(opened) for item in (one, two)])
    words = (word, other_word or word)
    mentions = [_mention(state, name) for state, name in zip(found, words, strict=True)]
    first, second = (state.vectors for state in found)
    both = [name for name in first if name in second]
    measure = contexts(
        {name: first[name] for name in both},
        {name: second[name] for name in both},
        (found[0].tokens, found[1].tokens),
        (mentions[0], mentions[1]),
    )
    notes = list(dict.fromkeys(note for state in found for note in state.notes))
    output.notes(notes)
    whole: dict[str, Any] = {}
    if json or save is not None:
        from attnx.view.json import document

        body: dict[str, Any] = {
            "model": opened.name,
            "texts": [
                {"tokens": state.tokens, "word": mention} for state, mention in zip(found, mentions, strict=True)
            ],
            "cosine": measure,
            "notes": notes,
        }
        whole = document("attnx/word", body)
    here, there = (f"{one.text}@{one.pieces[0]}" for one in mentions)
    rows = saving.rows_of(measure, {"word": here, "other_word": there})
    views = [_table(opened.name, found, mentions, measure, explain)]
    saving.give(views, saving.columns_of(rows), whole, json=json, path=save, force=force)


def _mention(state: States, word: str) -> Mention:
    """The one place of the word.

    Raises:
        UsageError: The word occurs more than once.
    """
    from attnx.errors import UsageError
    from attnx.study.mentioned import mentions

    found = mentions(state.tokens, word)
    if len(found) > 1:
        places = ", ".join(f"{one.text}@{one.pieces[0]}" for one in found)
        raise UsageError(f"{word!r} occurs {len(found)} times: {places}", "Name one, for example --word it@10.")
    return found[0]


def _table(model: str, found: list[States], mentions: list[Mention], measure: Measurement, explain: bool) -> Columns:
    """Cosine by layer: the word, other words that both texts have, different words."""
    from attnx.view.columns import column, columns
    from attnx.view.reporting import sourced

    values = measure.values
    places = [
        f"{one.text}@{one.pieces[0]} of {counted(len(state.tokens), 'token')}"
        for one, state in zip(mentions, found, strict=True)
    ]
    return columns(
        f"{model} · {' and '.join(places)}",
        [
            column("layer", measure.axes[0].labels),
            column("the word", values[:, 0], bar=(0.0, 1.0)),
            column("words in both", values[:, 1], bar=(0.0, 1.0)),
            column("different words", values[:, 2], bar=(0.0, 1.0)),
        ],
        notes=[
            f"cosine {sourced(measure)}" if explain else "",
            "L0 reads the embeddings; words in both: other words that both texts have, each with itself; "
            "different words: any two, the baseline",
            *measure.notes,
            "" if explain else "formula, source: --explain",
        ],
    )
