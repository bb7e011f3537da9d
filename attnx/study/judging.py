"""Run a model on a coreference dataset, and score each head and method on every example."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attnx.errors import InputError
from attnx.measure import rows
from attnx.measure.coref_accuracy import Accuracy, Judged, accuracy
from attnx.measure.coref_data import Example
from attnx.measure.coreference import Choices, choices
from attnx.numerals import counted
from attnx.records import Array
from attnx.run.batch import traces_as_run
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.antecedents import ARRAYS, maps, text_of
from attnx.tokens.spans import mention
from attnx.wording import Wording


def judge(
    model: OpenModel, examples: Sequence[Example], tell: Callable[[int], None] = lambda _: None
) -> tuple[Accuracy, tuple[str, ...]]:
    """Run every example and score the heads.

    Args:
        model: With a tokenizer.
        examples: At least two groups.
        tell: Called with the number of finished examples after each.

    Returns:
        The accuracies; notes on the maps; and the reason for each example that was left out.

    Raises:
        InputError: No example is left.
    """
    judged: dict[int, Judged] = {}
    skipped: dict[int, str] = {}
    notes: dict[int, list[str]] = {}
    layers: tuple[str, ...] = ()
    texts = (example.text for example in examples)
    for done, (at, trace) in enumerate(traces_as_run(model, texts, Wanted(None, ARRAYS)), start=1):
        example, text = examples[at], text_of(trace)
        try:
            pronoun = mention(text, *example.pronoun)
            candidates = [mention(text, *spot) for spot in example.candidates]
        except InputError as error:
            skipped[at] = Wording("example {at} is left out: {why}", at=at + 1, why=error.message)
            continue
        finally:
            tell(done)
        read = {a.site.index: rows.read(trace, a) for a in trace.attentions if rows.is_over(trace, a, text)}
        by_name, notes[at] = maps(model, trace, None, read=read)
        found = choices(trace, pronoun, candidates, maps=by_name, tokens=text, known=read)
        layers = found.layers
        judged[at] = Judged(found.weights, example.answer, example.pair, _others(found))
    if not judged:
        raise InputError("no example of the dataset could be judged", skipped[min(skipped)] if skipped else "")
    about = dict.fromkeys(note for at in sorted(notes) for note in notes[at])
    left_out = [skipped[at] for at in sorted(skipped)]
    if left_out and len({one.group for one in judged.values()}) < 2:
        raise InputError(
            Wording(
                "{there} of examples cannot be cut in two halves, as {n} left out",
                there=counted(len({one.group for one in judged.values()}), "group"),
                n=counted(len(left_out), "example was", "examples were"),
            ),
            left_out[0],
        )
    return accuracy([judged[at] for at in sorted(judged)], layers), (*about, *left_out)


def _others(found: Choices) -> dict[str, Array]:
    """Maps and baselines as weights of the candidates, by name."""
    nothing = np.full(found.weights.shape[-1], np.nan)
    kept = ("rollout", "value norms", "nearest", "first")
    return {
        name: found.others.get(name, nothing) for name in kept if name in found.others or name in ("nearest", "first")
    }
