"""What a model would predict after each layer: first choice, probability, rank and entropy, position by position.

Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnx.errors import UnsupportedError, UsageError
from attnx.interventions.lens import said_by_layer
from attnx.interventions.running import Intervening
from attnx.records import Array, Axis, Measurement, Tokens
from attnx.run.logits import logits_at
from attnx.session.protocol import OpenModel
from attnx.study.readout import Kind, choice, masks_of, output_of, softmax
from attnx.wording import Wording

TOP = 5
"""How many tokens are kept per layer."""


@dataclass(frozen=True, slots=True, eq=False)
class LogitLens:
    """Each layer's prediction at each position: L layers and the embeddings before them, P positions, K tokens."""

    kind: Kind
    output: str
    """The model's output that is read."""
    layers: tuple[str, ...]
    """L+1: "embeddings", "L0", ..."""
    positions: tuple[int, ...]
    places: tuple[str, ...]
    """The tokens at the positions."""
    names: Mapping[int, str]
    """Token -> its name."""
    answers: tuple[int, ...]
    """[P]: the watched token at each position."""
    rank: Array
    """int [L+1,P]: rank of the answer; 1 is the first choice."""
    probability: Array
    """float [L+1,P]: probability of the answer."""
    entropy: Array
    """float [L+1,P]: entropy of the layer's whole prediction, nats."""
    top: Array
    """int [L+1,P,K]: the most likely tokens."""
    shares: Array
    """float [L+1,P,K]: their probabilities."""
    notes: tuple[str, ...] = ()

    def name(self, token: int) -> str:
        """The name of a token."""
        return self.names.get(int(token), f"#{int(token)}")

    def map(self) -> Measurement:
        """The answer's probability, layers by positions."""
        at = tuple(f"{position} {place}" for position, place in zip(self.positions, self.places, strict=True))
        same = len(set(self.answers)) == 1
        what = f"p({self.name(self.answers[0])})" if same else "p(the last layer's first choice)"
        return Measurement(
            what, "", (Axis("layer", self.layers), Axis("position", at)), self.probability, (0.0, 1.0),
            source="nostalgebraist 2020", formula="softmax(unembedding(final norm(residual stream)))",
        )  # fmt: skip

    def columns(self) -> dict[str, list[Any]]:
        """One row per layer and position, as written to files."""
        cells = [(layer, at) for layer in range(len(self.layers)) for at in range(len(self.positions))]
        return {
            "layer": [self.layers[layer] for layer, _ in cells],
            "position": [self.positions[at] for _, at in cells],
            "token": [self.places[at] for _, at in cells],
            "first": [self.name(self.top[layer, at, 0]) for layer, at in cells],
            "first_probability": [float(self.shares[layer, at, 0]) for layer, at in cells],
            "answer": [self.name(self.answers[at]) for _, at in cells],
            "rank": [int(self.rank[layer, at]) for layer, at in cells],
            "probability": [float(self.probability[layer, at]) for layer, at in cells],
            "entropy": [float(self.entropy[layer, at]) for layer, at in cells],
        }


def logit_lens(
    model: OpenModel,
    running: Intervening,
    tokens: Tokens,
    *,
    at: Sequence[int] | None = None,
    answer: str | None = None,
    top: int = TOP,
    tell: Callable[[int], None] | None = None,
) -> LogitLens:
    """Read what each layer of a model would predict.

    Args:
        model: The model.
        running: The model with its feed, a batch of one.
        tokens: The tokens at the query positions.
        at: Positions; None for a decoder's last one or a masked model's masks.
        answer: The token or label to watch; None for the model's own first choice at each position.
        top: How many tokens to keep per layer.
        tell: Called with the number of layers read so far.

    Raises:
        UnsupportedError: The model predicts nothing (no logits, no unembedding), or its residual stream was not found.
        UsageError: A masked model without a mask or a position; an answer that is not a token; a position that does not
            exist.
    """
    base = running.base("inputs")
    floats = {name: array for name, array in base.items() if array.dtype.kind == "f" and array.size}
    chosen = _positions(model, floats, tokens, at)
    read = choice(model, base, tokens, answer=answer, at=chosen[0])
    reads = [read]
    for position in (at for at in chosen[1:] if at is not None):
        here = replace(read, position=position)
        reads.append(here if answer is not None else replace(here, answer=int(here.logits(base).argmax())))
    output, layers = said_by_layer(running)
    if output != read.output:
        raise UnsupportedError(
            f"what follows the last layer gives {output!r}, and what the model says is {read.output!r}", ""
        )
    answers = [one.answer or 0 for one in reads]
    kept: dict[str, list[Any]] = {"rank": [], "probability": [], "entropy": [], "top": [], "shares": []}
    for number, logits in enumerate(layers, 1):
        rows = np.stack([logits_at(logits, one.position, output) for one in reads])
        shares = np.stack([softmax(row) for row in rows])
        own = rows[np.arange(len(rows)), answers]
        kept["rank"].append(1 + (rows > own[:, None]).sum(axis=1))
        kept["probability"].append(shares[np.arange(len(rows)), answers])
        kept["entropy"].append(-(shares * np.log(np.maximum(shares, 1e-300))).sum(axis=1))
        best = np.argsort(-rows, axis=1, kind="stable")[:, : max(1, top)]
        kept["top"].append(best)
        kept["shares"].append(np.take_along_axis(shares, best, axis=1))
        if tell is not None:
            tell(number)
    names = ("embeddings", *(f"L{layer}" for layer in range(len(kept["rank"]) - 1)))
    whole = read.kind == "label"
    places = tuple("the text" if whole else tokens.pieces[one.position].strip() for one in reads)
    arrays = {name: np.array(values) for name, values in kept.items()}
    return LogitLens(
        read.kind, output, names, tuple(one.position for one in reads), places, read.names, tuple(answers), **arrays,
        notes=tuple(running.notes),
    )  # fmt: skip


def _positions(
    model: OpenModel, outputs: Mapping[str, Array], tokens: Tokens, at: Sequence[int] | None
) -> list[int | None]:
    """The positions to read; None stands for where the model itself answers."""
    name = output_of(model, outputs)
    if name is None:
        if at:
            raise UsageError(f"{model.name} says nothing of single tokens", Wording("Leave out <at>."))
        return [None]
    if not at:
        return list(masks_of(tokens)) or [None]
    real = [position for position, is_real in enumerate(tokens.mask) if is_real]
    for position in at:
        if not 0 <= position < len(tokens):
            raise UsageError(f"there is no position {position}", f"The text has {len(tokens)}, counted from 0.")
        if outputs[name].size == outputs[name].shape[-1] and real and position != real[-1]:
            raise UnsupportedError(
                f"{model.name} gives logits of its last position alone",
                Wording("Leave out <at>, or export the model with logits of every position."),
            )
    return list(at)


__all__ = ["LogitLens", "logit_lens"]
