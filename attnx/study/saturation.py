"""How much saturating integer products change a model on this processor: its kernels against exact products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.errors import AttnxError
from attnx.formula import average
from attnx.measure.difference import Difference, difference
from attnx.run.exact import variant
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import NOTHING, OpenModel, Wanted
from attnx.study.selection import of_sort
from attnx.view.cells import small
from attnx.view.columns import Columns, column, columns
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.records import Array


@dataclass(frozen=True, slots=True)
class Output:
    """How far an output of a model is from its value with exact products."""

    name: str
    difference: float
    """Largest absolute difference; NaN where their shapes differ."""
    size: float
    """Largest absolute value of the exact output."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The effect of saturation on one model."""

    model: str
    fused: bool
    """Whether these are products between DequantizeLinear, which only onnxruntime makes integer products."""
    attention: Difference | None
    """The kernels' attention against the exact; None for fused products, whose matrices cannot be tapped."""
    outputs: tuple[Output, ...]

    def document(self) -> dict[str, Any]:
        """The result as JSON data."""
        found = self.attention
        return {
            "model": self.model,
            "fused": self.fused,
            "heads": [] if found is None else [found.largest, found.divergence, found.moved],
            "outputs": [{"name": o.name, "difference": o.difference, "size": o.size} for o in self.outputs],
        }


def costs(model: OpenModel, prompt: Prompt, name: str, sort: str | None, notes: list[str]) -> Iterator[Cost]:
    """Run a model with this processor's kernels and with exact products, if these may differ.

    Args:
        model: The model.
        prompt: The prompt to run it on.
        name: The model's name.
        sort: Only attention of this kind; None for all.
        notes: Notes on what could not be measured are added here.
    """
    from attnx.session.processor import here

    held = [side.find().kernels for side in (model.encoder, model, model.with_past) if side is not None]
    kinds = [fused for fused in (False, True) if any(k.fused if fused else k.products for k in held)]
    if not kinds or not (model.sessions.processor or here()).saturates:
        return
    for fused in kinds:
        wanted = NOTHING if fused else Wanted(None, ("weights",), outputs=True, verify=False, required=False)
        try:
            kernel, exact = (
                execute(variant(model, exact=exact, fused=fused), prompt, wanted) for exact in (False, True)
            )
            found = None if fused else difference(of_sort(kernel, sort), of_sort(exact, sort))
        except AttnxError as error:
            failed = "{name}: what saturation costs could not be measured: {why}"
            notes.append(Wording(failed, name=name, why=error.message))
            continue
        outputs = tuple(_output(one, kernel.outputs[one], exact.outputs[one]) for one in kernel.outputs)
        yield Cost(name, fused, found, outputs)


def _output(name: str, kernel: Array, exact: Array) -> Output:
    one, two = (np.asarray(array, np.float64) for array in (kernel, exact))
    size = float(np.abs(two).max(initial=0))
    if one.shape != two.shape:
        return Output(name, float("nan"), size)
    with np.errstate(invalid="ignore"):
        gap = np.where(one == two, 0, np.abs(one - two))
    return Output(name, float(gap.max(initial=0)), size)


def table(cost: Cost) -> Columns:
    """Every site, or every output of the model: how far the kernels are from exact products."""
    what = "what onnxruntime makes integer products of, " if cost.fused else "integer products, "
    title = f"what saturation costs {cost.model}: {what}by this processor's kernels against exact"
    if cost.attention is None:
        parts = [
            column("output", [o.name for o in cost.outputs], whole=True),
            column("largest", [small(o.difference) for o in cost.outputs], whole=True),
            column("its largest number", [small(o.size) for o in cost.outputs], whole=True),
        ]
        return columns(title, parts, notes=["largest: |kernels' - exact| of the model's own outputs"])
    found = cost.attention
    parts = [
        column("layer", found.largest.axes[0].labels, whole=True),
        column("weights", [small(value) for value in np.nanmax(found.largest.values, axis=1)], whole=True),
        column("JS mean", [small(value) for value in average(found.divergence.values, axis=1)], whole=True),
        column("rows moved", average(found.moved.values, axis=1), decimals=3),
    ]
    said = [f"weights: {found.largest.formula}, the largest of all heads; JS: {found.divergence.formula} in nats"]
    said += [f"own output {o.name}: {small(o.difference)}, of {small(o.size)} at most" for o in cost.outputs]
    return columns(title, parts, notes=said)
