"""What the numbers of an inspection are: a line each, with formula and source."""

from __future__ import annotations

from attnx.study.findings import findings
from attnx.study.inspection import Inspection

_ATTENTION = "(Vaswani et al. 2017, equation 1)"
STAGES = {
    "scores": "scores: q·k, undivided; in additive attention what the model scores a pair by",
    "scaled": "scaled: scores × scale, as a rule 1 / sqrt(d_k)",
    "capped": "capped: cap × tanh(scaled / cap); the same as scaled where the model has no softcap",
    "bias": "bias: what is added to a score besides the mask",
    "masked": "masked: the softmax's input, scores × scale with bias and mask added",
    "weights": "weights: softmax(scores × scale + bias + mask)",
}
"""By stage, what it holds."""


def explained(shown: Inspection) -> tuple[str, ...]:
    """A line for each sort of number that is shown."""
    if shown.request.view != "overview":
        return (f"{STAGES[shown.request.stage]} {_ATTENTION}",)
    found = findings(shown)
    mass, heads, layer = found["mass"], found["heads"], shown.trace.labels[found["layer"]]
    return (
        f"{STAGES['weights']} {_ATTENTION}",
        f"where each token looks: the largest weights of its row over the heads of {layer}",
        "most on one token: the mean over queries of a head's weight on one key; the key that gets most, special and "
        "first tokens left out (attnx)",
        f"most confident, confidence: {heads.formula} ({heads.source})",
        "parked: as most on one token, of special and first tokens alone (attnx)",
        f"where the weight goes: {mass.formula} ({mass.source})",
    )


__all__ = ["STAGES", "explained"]
