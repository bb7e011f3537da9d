"""The metric that compares a patched run with the clean and the corrupt one.

Source: Heimersheim and Nanda 2024, "How to use and interpret activation patching", section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from attnx.errors import UsageError
from attnx.records import Array, Tokens
from attnx.session.protocol import OpenModel
from attnx.study.readout import Readout, readout, softmax
from attnx.tokens.pieces import quoted
from attnx.wording import Wording

Metric = Literal["difference", "probability", "kl", "cosine", "distance"]
CHOSEN: tuple[Metric, ...] = ("difference", "probability", "kl")
"""The metrics of a model with logits."""
BARELY: Mapping[Metric, float] = {
    "difference": 0.5, "probability": 0.05, "kl": 0.02, "cosine": 0.002, "distance": 0.01,
}  # fmt: skip
"""Below this, clean and corrupt barely differ, and a share of that difference is mostly chance."""
NOTHING = 1e-6
"""Below this they do not differ, and the share is undefined."""


@dataclass(frozen=True, slots=True, eq=False)
class Meter:
    """Computes one number for a run; patching restores the clean run's number."""

    metric: Metric
    readout: Readout
    clean: Mapping[str, Array]
    """The outputs of the clean run."""

    @property
    def name(self) -> str:
        """The name of the number."""
        read = self.readout
        answer, foil = read.name(read.answer or 0), read.name(read.foil or 0)
        where = f", {read.name(read.position)}" if read.of_token else ", text"
        return {
            "difference": f"{answer} - {foil}",
            "probability": f"p({answer})",
            "kl": "-KL",
            "cosine": f"cosine{where}",
            "distance": "-distance",
        }[self.metric]

    @property
    def formula(self) -> str:
        """How it is computed."""
        read = self.readout
        return {
            "difference": f"logit({read.name(read.answer or 0)}) - logit({read.name(read.foil or 0)})",
            "probability": "the answer's probability",
            "kl": "-KL(clean || run) of the model's answer, in nats",
            "cosine": "cosine with the clean run of "
            + ("the token's vector" if read.of_token else "the text's vector (mean over its tokens)"),
            "distance": "-|run - clean| / |clean|, the largest over the model's outputs",
        }[self.metric]

    def __call__(self, outputs: Mapping[str, Array]) -> float:
        """The number of a run."""
        read = self.readout
        if self.metric in ("difference", "probability"):
            logits = read.logits(outputs)
            assert read.answer is not None
            if self.metric == "probability":
                return float(softmax(logits)[read.answer])
            assert read.foil is not None
            return float(logits[read.answer] - logits[read.foil])
        moved = replace(read, foil=None).change(self.clean, outputs).moved
        return 1.0 - moved if self.metric == "cosine" else -moved


def meter(
    model: OpenModel,
    clean: Mapping[str, Array],
    corrupt: Mapping[str, Array],
    tokens: Tokens,
    *,
    metric: str | None = None,
    answer: str | None = None,
    foil: str | None = None,
    at: int | None = None,
) -> Meter:
    """Choose the metric.

    For a model with logits it is the difference of two logits: the answer's and the foil's, which default to the first
    choices of the two runs. If both runs make the same choice, it is the probability of a named
    answer, otherwise the divergence from the clean run.

    Args:
        model: The model.
        clean: The outputs of the clean run, a batch of one.
        corrupt: The outputs of the corrupt run.
        tokens: The tokens of the clean text.
        metric: difference, probability or kl.
        answer: The token or label; None for the clean run's first choice.
        foil: The token or label to compare it with; None for the corrupt run's first choice.
        at: The position to read; None for the last or the mask (logits), or the whole text (an embedding).

    Raises:
        UsageError: A metric that the model does not have; an answer or foil that is not a token; a foil with another
            metric than "difference".
    """
    if metric is not None and metric not in CHOSEN:
        raise UsageError(f"there is no metric {metric!r}", f"Choose from {', '.join(CHOSEN)}.")
    if foil is not None and metric not in (None, "difference"):
        raise UsageError(
            Wording("<foil> is held against the answer in a difference of logits, and <metric={metric}> is none",
                    metric=metric),
            "Leave one of them out.",
        )  # fmt: skip
    read = readout(model, clean, tokens, answer=answer, foil=foil, position=at, at=at)
    if read.kind in ("embedding", "outputs"):
        if metric is not None:
            raise UsageError(
                f"{model.name} has no answer here, so its runs are held against each other as wholes",
                Wording("Leave out <metric>."),
            )
        return Meter("cosine" if read.kind == "embedding" else "distance", read, clean)
    if metric == "kl":
        if answer is not None:
            raise UsageError("the divergence is of all tokens, and an answer is named", Wording("Leave out <answer>."))
        return Meter("kl", read, clean)
    if metric == "probability":
        return Meter("probability", read, clean)
    if read.foil is None:
        other = int(np.argmax(read.logits(corrupt)))
        if other != read.answer:
            read = replace(read, foil=other)
        elif metric == "difference":
            raise UsageError(
                f"the corrupt run's first choice is {quoted(read.name(other))} too, so there is no foil",
                Wording("Name one: <foil=>."),
            )
        else:
            return Meter("kl" if answer is None else "probability", read, clean)
    return Meter("difference", read, clean)


__all__ = ["BARELY", "CHOSEN", "NOTHING", "Meter", "Metric", "meter"]
