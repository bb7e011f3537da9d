"""What a model's own outputs predict, in the terms of that model, and how far a changed run moves them.

A language model predicts the next token, a masked model the token at its mask, a classifier a label; an embedding
model gives the text's vector; for any other model the outputs themselves are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from attnx.catalog.models import WRITES, bundled
from attnx.errors import UnsupportedError, UsageError
from attnx.records import Array, Tokens
from attnx.run.logits import logits_at, logits_output, vocabulary
from attnx.session.protocol import OpenModel
from attnx.study.entries import label_of, labels_of, vocabulary_of
from attnx.tokens.pieces import quoted
from attnx.wording import Wording

Kind = Literal["next token", "masked token", "label", "embedding", "outputs"]
_MASKS = ("[mask]", "<mask>")
_OF_TEXT = "1 - cosine, text"


@dataclass(frozen=True, slots=True)
class Reading:
    """The prediction of one run."""

    scores: Mapping[str, float]
    """Name of a number -> its value: "p(mat)", "mat - rug", ...; the numbers in which a changed run is compared."""
    first: str = ""
    """The first choice of a model that predicts tokens or labels; "" for any other."""


@dataclass(frozen=True, slots=True)
class Change:
    """How far a run is from the unedited one."""

    reading: Reading
    moved: float
    """The number that interventions are ranked by: see `Readout.heading`."""
    kept: bool | None
    """Whether the first choice is the same; None if the model predicts no tokens or labels."""


@dataclass(frozen=True, slots=True)
class Readout:
    """Where a model's answer is in its outputs, and which numbers report it."""

    kind: Kind
    output: str
    """The output that is read; "" if all are compared."""
    position: int = 0
    """The position that is read, for outputs by position."""
    answer: int | None = None
    foil: int | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    """Entry of the output -> its name, for the named ones."""
    unpadded: tuple[int, ...] = ()
    """Positions over which an embedding's mean is taken."""
    of_token: bool = False
    """For an embedding: whether changes are ranked by the vector at `position` instead of the text's."""

    @property
    def by_position(self) -> bool:
        """Whether it is read at one position."""
        return self.kind in ("next token", "masked token") or self.of_token

    @property
    def heading(self) -> str:
        """The name of `Change.moved`."""
        if self.kind in ("next token", "masked token", "label"):
            return "KL" if self.foil is None else "change of the logit difference"
        if self.kind == "outputs":
            return "relative change"
        return f"1 - cosine, {self.name(self.position)}" if self.of_token else _OF_TEXT

    @property
    def formula(self) -> str:
        """How `Change.moved` is computed, and its source."""
        if self.heading == "KL":
            return "KL(unedited || edited) of the model's answer, in nats"
        if self.kind in ("next token", "masked token", "label"):
            return "|logit(answer) - logit(foil)|, edited less unedited (Heimersheim and Nanda 2024)"
        if self.kind == "embedding":
            which = "the token's vector" if self.of_token else "the text's vector (mean over its tokens)"
            return f"1 - cosine of {which} with that of the unedited run"
        return "|edited - unedited| / |unedited|, the largest over the model's outputs (Euclidean norms)"

    def read(self, outputs: Mapping[str, Array]) -> Reading:
        """Read a run's prediction.

        Args:
            outputs: The model's own outputs, a batch of one.
        """
        if self.kind in ("embedding", "outputs"):
            return Reading({})
        logits = self.logits(outputs)
        shares = softmax(logits)
        best = int(shares.argmax())
        answer = best if self.answer is None else self.answer
        scores = {f"p({self.name(answer)})": float(shares[answer])}
        if self.foil is not None:
            scores[f"{self.name(answer)} - {self.name(self.foil)}"] = float(logits[answer] - logits[self.foil])
        return Reading(scores, self.name(best))

    def change(self, base: Mapping[str, Array], edited: Mapping[str, Array]) -> Change:
        """How far an edited run is from the unedited one."""
        if self.kind == "outputs":
            moved = {name: _relative(base[name], edited[name]) for name in base if base[name].dtype.kind == "f"}
            return Change(Reading(moved), max(moved.values(), default=0.0), None)
        if self.kind == "embedding":
            one, two = (np.asarray(run[self.output][0], np.float64) for run in (base, edited))
            if one.ndim == 1:
                return Change(Reading({_OF_TEXT: _apart(one, two)}), _apart(one, two), None)
            of_text = _apart(*(run[list(self.unpadded)].mean(0) for run in (one, two)))
            here = _apart(one[self.position], two[self.position])
            scores = {_OF_TEXT: of_text}
            if self.of_token:
                scores[self.heading] = here
            return Change(Reading(scores), here if self.of_token else of_text, None)
        before, after = self.read(base), self.read(edited)
        if self.foil is not None:
            key = list(before.scores)[-1]
            moved_by = abs(after.scores[key] - before.scores[key])
        else:
            p, q = (softmax(self.logits(run)) for run in (base, edited))
            seen = p > 0
            moved_by = float((p[seen] * (np.log(p[seen]) - np.log(np.maximum(q[seen], 1e-300)))).sum())
        return Change(after, max(moved_by, 0.0), before.first == after.first)

    def name(self, entry: int) -> str:
        """The name of an entry of the output."""
        return self.names.get(entry, f"#{entry}")

    def logits(self, outputs: Mapping[str, Array]) -> Array:
        """The logits that are read, for a model that predicts: [tokens or labels], float64."""
        return logits_at(outputs[self.output], self.position, self.output)

    def share(self, outputs: Mapping[str, Array], entry: int) -> float:
        """The probability of an entry."""
        return float(softmax(self.logits(outputs))[entry])


def readout(
    model: OpenModel,
    outputs: Mapping[str, Array],
    tokens: Tokens,
    *,
    answer: str | None = None,
    foil: str | None = None,
    position: int | None = None,
    at: int | None = None,
) -> Readout:
    """Find where a model's answer is in its outputs.

    Args:
        model: The model.
        outputs: The outputs of its unedited run, a batch of one.
        tokens: The tokens at the positions.
        answer: The token or label whose probability is reported; None for the model's own first choice.
        foil: The token or label to compare the answer with.
        position: For an embedding, the token whose own vector is reported; otherwise, which of several masks is read.
        at: The position whose logits are read, instead of the last one or the mask's.

    Raises:
        UsageError: An answer or foil for a model that predicts none, or one of several tokens; several masks.
    """
    floats = {name: array for name, array in outputs.items() if array.dtype.kind == "f" and array.size}
    real = tuple(index for index, is_real in enumerate(tokens.mask) if is_real)
    last = real[-1] if real else 0
    found = output_of(model, floats)
    masks = masks_of(tokens)
    if found is not None and at is None and not masks and not is_causal(model):
        if answer is not None or foil is not None:
            raise UsageError(
                f"{model.name} answers at a mask, and the text has none", "Put the mask token into the text."
            )
        return Readout("outputs", "")  # a masked model has no next token
    if found is not None:
        if len(masks) > 1 and at is None and position not in masks:
            raise UsageError(f"the text has {len(masks)} masks, at {', '.join(map(str, masks))}", "Leave one of them.")
        if at is not None:
            place = at
        else:
            place = last if not masks else masks[0] if position is None or position not in masks else position
        named = vocabulary_of(model, floats[found].shape[-1])
        chosen = None if answer is None else named.entry(answer, "answer")
        if chosen is None:
            chosen = int(logits_at(floats[found], place, found).argmax())
        second = None if foil is None else named.entry(foil, "foil")
        _differ(chosen, second, named)
        kind: Kind = "next token" if is_causal(model) and not masks else "masked token"
        return Readout(kind, found, place, chosen, second, named)
    labels = [n for n, a in floats.items() if a.ndim == 2 and "logits" in n.lower() and a.shape[-1] > 1]
    if labels:
        names = labels_of(model, floats[labels[0]].shape[-1])
        chosen = int(floats[labels[0]][0].argmax()) if answer is None else label_of(names, answer, "answer")
        second = None if foil is None else label_of(names, foil, "foil")
        _differ(chosen, second, names)
        return Readout("label", labels[0], 0, chosen, second, names)
    if answer is not None or foil is not None:
        raise UsageError(
            f"{model.name} gives no logits, so it has no answer", Wording("Leave out <answer>[ and <foil>].")
        )
    vectors = {n: a for n, a in floats.items() if "logit" not in n.lower()}  # per-token label logits
    states = [n for n, a in vectors.items() if a.ndim in (2, 3) and (a.ndim == 2 or a.shape[1] == len(tokens))]
    if (len(floats) == 1 and states) or any("hidden_state" in n or "embedding" in n for n in states):
        best = next((n for n in states if "hidden_state" in n or "embedding" in n), states[0])
        at = position if position is not None else last
        pieces = dict(enumerate(piece.strip() or piece for piece in tokens.pieces))
        shown = floats[best].ndim == 3 and position is not None
        return Readout("embedding", best, at, names=pieces, unpadded=real or (0,), of_token=shown)
    return Readout("outputs", "")


def _differ(answer: int, foil: int | None, names: Mapping[int, str]) -> None:
    if answer == foil:
        raise UsageError(
            f"the answer and the foil are both {quoted(names[answer])}, so their logits do not differ",
            Wording("Give another <foil=>, or another <answer=>."),
        )


def choice(
    model: OpenModel,
    outputs: Mapping[str, Array],
    tokens: Tokens,
    *,
    answer: str | None = None,
    foil: str | None = None,
    at: int | None = None,
) -> Readout:
    """Like `readout`, for a model that predicts tokens or labels.

    Raises:
        UsageError: An answer or foil that is not a token or label; a masked model without a mask or a position.
        UnsupportedError: The model predicts no tokens or labels.
    """
    if at is None and not masks_of(tokens) and output_of(model, outputs) is not None and not is_causal(model):
        raise UsageError(
            f"{model.name} answers at a mask, and the text has none",
            Wording("Put the mask token into the text[, or choose a token: <at=>]."),
        )
    floats = {name: array for name, array in outputs.items() if array.dtype.kind == "f" and array.size}
    if not any("logit" in name.lower() for name in floats) and output_of(model, floats) is None:
        raise UnsupportedError(
            f"{model.name} gives no logits, so it chooses no token",
            _with_head(model),
        )
    read = readout(model, outputs, tokens, answer=answer, foil=foil, at=at)
    if read.answer is None:
        raise UnsupportedError(
            f"{model.name} gives logits of no vocabulary and no labels of the text: " + ", ".join(floats),
            _with_head(model),
        )
    return read


def _with_head(model: OpenModel) -> Wording:
    """Which model to use where one gives no logits; beside a bundled one there is another that does."""
    other = f"[, or try another bundled model: <model={WRITES!r}>]" if model.name in bundled() else ""
    return Wording(f"Export it with its language-model head (task text-generation or fill-mask){other}.")


def output_of(model: OpenModel, outputs: Mapping[str, Array]) -> str | None:
    """The output that predicts the token at or after a position; None if the model has no such output."""
    sizes = vocabulary(model)
    try:
        name = logits_output(outputs, sizes)
    except UnsupportedError:
        return None
    # Two axes: the last position's logits if as wide as the vocabulary; otherwise a classifier's labels.
    return name if outputs[name].ndim == 3 or outputs[name].shape[-1] in sizes else None


def masks_of(tokens: Tokens) -> list[int]:
    """The positions of a masked model's mask token in a text."""
    return [at for at, piece in enumerate(tokens.pieces) if piece.strip().lower() in _MASKS]


def is_causal(model: OpenModel) -> bool:
    """Whether a model predicts the next token; a bidirectional one predicts the token at the position itself."""
    return not all(site.causal is False for site in model.sites)


def softmax(logits: Array) -> Array:
    """Shares that sum to 1."""
    raised = np.exp(logits - logits.max())
    shares: Array = raised / raised.sum()
    return shares


def _apart(one: Array, two: Array) -> float:
    sizes = float(np.linalg.norm(one) * np.linalg.norm(two))
    return 1.0 - float(one @ two) / sizes if sizes else float(not np.array_equal(one, two))


def _relative(one: Array, two: Array) -> float:
    size = float(np.linalg.norm(np.asarray(one, np.float64)))
    return float(np.linalg.norm(np.asarray(two, np.float64) - one)) / (size or 1.0)


__all__ = [
    "Change", "Kind", "Reading", "Readout", "choice", "is_causal", "masks_of", "output_of", "readout", "softmax",
]  # fmt: skip
