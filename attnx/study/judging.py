"""Run a model on a coreference dataset, and score each head and method on every example."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attnx.errors import InputError
from attnx.measure import rows
from attnx.measure.coref_accuracy import Accuracy, Judged, accuracy
from attnx.measure.coref_data import Example
from attnx.measure.coreference import Choices, choices
from attnx.records import Array
from attnx.run.batch import trace_many
from attnx.session.protocol import OpenModel
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
    judged: list[Judged] = []
    skipped: list[str] = []
    notes: dict[str, None] = {}
    layers: tuple[str, ...] = ()
    traces = trace_many(model, (example.text for example in examples), ARRAYS)
    for at, (example, trace) in enumerate(zip(examples, traces, strict=True), start=1):
        text = text_of(trace)
        try:
            pronoun = mention(text, *example.pronoun)
            candidates = [mention(text, *spot) for spot in example.candidates]
        except InputError as error:
            skipped.append(Wording("example {at} is left out: {why}", at=at, why=error.message))
            continue
        finally:
            tell(at)
        read = {a.site.index: rows.read(trace, a) for a in trace.attentions if rows.is_over(trace, a, text)}
        by_name, about = maps(model, trace, None, read=read)
        notes |= dict.fromkeys(about)
        found = choices(trace, pronoun, candidates, maps=by_name, tokens=text, known=read)
        layers = found.layers
        judged.append(Judged(found.weights, example.answer, example.pair, _others(found)))
    if not judged:
        raise InputError("no example of the dataset could be judged", skipped[0] if skipped else "")
    return accuracy(judged, layers), (*notes, *skipped)


def _others(found: Choices) -> dict[str, Array]:
    """Maps and baselines as weights of the candidates, by name."""
    nothing = np.full(found.weights.shape[-1], np.nan)
    kept = ("rollout", "value norms", "nearest", "first")
    return {
        name: found.others.get(name, nothing) for name in kept if name in found.others or name in ("nearest", "first")
    }
