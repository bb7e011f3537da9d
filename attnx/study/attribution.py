"""What each part of a model adds to a token's logit, or to the difference of two: direct logit attribution.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Wang et al. 2022 (IOI), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnx.errors import UnsupportedError
from attnx.interventions.attribute import Attributed, attribute
from attnx.interventions.running import Intervening
from attnx.records import Array, Axis, Measurement, Tokens
from attnx.session.protocol import OpenModel
from attnx.study.readout import Readout, choice


@dataclass(frozen=True, slots=True)
class Part:
    """One summand."""

    label: str
    """ "L0 H3", "L0 MLP", "L0 attention bias", "embedding", "constant", "missed"."""
    kind: str
    """embedding, head, cross head, mlp, attention bias, constant or missed."""
    layer: int | None
    head: int | None
    added: float
    """To the logit, or to the difference."""


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """A logit, or the difference of two, as the sum of what the parts of a model add: L layers, H heads."""

    readout: Readout
    logit: float
    """Before a softcap: the sum of all parts, including the missed rest."""
    own: float
    """The model's own value, after its softcap if it has one."""
    heads: Array
    """[L,H]: of self-attention (or of cross-attention if there is no other)."""
    cross_heads: Array | None
    """[L,H], for a decoder that attends to an encoder."""
    mlps: Array
    """[L]."""
    attention_biases: Array
    """[L]."""
    embedding: float
    constant: float
    """The final norm's bias and the unembedding's."""
    missed: float
    """What the other parts do not explain: rounding."""
    notes: tuple[str, ...] = ()
    capped: bool = False
    """Whether the model's own value is behind a softcap."""

    @property
    def what(self) -> str:
        """What is decomposed: "logit(sat)", "logit(sat) - logit(mat)"."""
        read = self.readout
        answer = f"logit({read.name(read.answer or 0)})"
        return answer if read.foil is None else f"{answer} - logit({read.name(read.foil)})"

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every summand, in the order of the model; they sum to `logit`."""
        found = [Part("embedding", "embedding", None, None, self.embedding)]
        for layer in range(len(self.mlps)):
            for kind, title, heads in (("head", "", self.heads), ("cross head", "cross ", self.cross_heads)):
                for head, added in enumerate([] if heads is None else heads[layer]):
                    found.append(Part(f"{title}L{layer} H{head}", kind, layer, head, float(added)))
            bias = Part(f"L{layer} attention bias", "attention bias", layer, None, float(self.attention_biases[layer]))
            found += [bias, Part(f"L{layer} MLP", "mlp", layer, None, float(self.mlps[layer]))]
        found.append(Part("constant", "constant", None, None, self.constant))
        found.append(Part("missed", "missed", None, None, self.missed))
        return tuple(found)

    @property
    def ranked(self) -> tuple[Part, ...]:
        """The parts, those with the largest absolute contribution first."""
        return tuple(sorted(self.parts, key=lambda part: -abs(part.added)))

    def map(self) -> Measurement:
        """The contributions of heads and MLPs, layers by heads; the MLP and W_O's biases have their own columns."""
        columns = [self.heads, *([] if self.cross_heads is None else [self.cross_heads])]
        names = [f"H{head}" for head in range(self.heads.shape[1])]
        if self.cross_heads is not None:
            names += [f"cross {head}" for head in range(self.cross_heads.shape[1])]
        values = np.concatenate([*columns, self.mlps[:, None], self.attention_biases[:, None]], axis=1)
        return Measurement(
            f"added to {self.what}", "",
            (Axis("layer", tuple(f"L{layer}" for layer in range(len(values)))), Axis("head", (*names, "MLP", "bias"))),
            values, source="Elhage et al. 2021", formula=FORMULA,
        )  # fmt: skip

    def columns(self) -> dict[str, list[Any]]:
        """One row per part, as written to files."""
        parts = self.parts
        return {
            "part": [part.label for part in parts],
            "kind": [part.kind for part in parts],
            "layer": ["" if part.layer is None else str(part.layer) for part in parts],
            "head": ["" if part.head is None else str(part.head) for part in parts],
            "added": [part.added for part in parts],
        }


FORMULA = "unembedding(final norm(part)), the norm frozen at the run's own statistics"


def attribution(
    model: OpenModel,
    running: Intervening,
    tokens: Tokens,
    *,
    answer: str | None = None,
    foil: str | None = None,
    at: int | None = None,
) -> Attribution:
    """Decompose a logit, or the difference of two.

    Args:
        model: The model.
        running: The model with its feed, a batch of one.
        tokens: The tokens at the query positions.
        answer: The token or label; None for the model's own first choice.
        foil: The token or label whose logit is subtracted.
        at: The position whose logits are read; None for a decoder's last one or a masked model's mask.

    Raises:
        UnsupportedError: The model has no logits, or is not a sum of parts and one norm; the message says why.
        UsageError: An answer that is not a token, or a masked model's text without a mask.
    """
    base = running.base("inputs")
    read = choice(model, base, tokens, answer=answer, foil=foil, at=at)
    found = _taken_apart(running, read, tokens)
    if found.output != read.output:
        raise UnsupportedError(
            f"what follows the last layer gives {found.output!r}, and what the model says is {read.output!r}", ""
        )
    entries = [entry for entry in (read.answer, read.foil) if entry is not None]
    own = read.logits(base)

    def difference(values: Array) -> Array:
        return np.asarray(values[0] if len(values) == 1 else values[0] - values[1])

    return Attribution(
        read,
        float(difference(found.logit)),
        float(difference(own[entries])),
        difference(found.heads),
        None if found.cross_heads is None else difference(found.cross_heads),
        difference(found.mlps),
        difference(found.attention_biases),
        float(difference(found.embedding)),
        float(difference(found.constant)),
        float(difference(found.missed)),
        tuple(running.notes),
        found.capped,
    )


def _taken_apart(running: Intervening, read: Readout, tokens: Tokens) -> Attributed:
    """The logits of the answer and the foil, and the position whose residual stream they are computed from."""
    entries = [entry for entry in (read.answer, read.foil) if entry is not None]
    if read.kind != "label":
        return attribute(running, [(0, read.position, entry) for entry in entries])
    # A classifier reads its first token or its last; at any other, the parts do not sum to the logit.
    last = max((at for at, is_real in enumerate(tokens.mask) if is_real), default=0)
    try:
        return attribute(running, [(0, 0, entry) for entry in entries])
    except UnsupportedError:
        if not last:
            raise
        return attribute(running, [(0, last, entry) for entry in entries])


__all__ = ["Attribution", "Part", "attribution"]
