"""Run an encoder-decoder and keep only its cross-attention."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from attnx.errors import UsageError
from attnx.feed.inputs import takes_target
from attnx.records import Array, Attention, Site, Trace
from attnx.run.encdec import sites_of
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.run.row_sums import RowSums, UnreducedError, sound
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.selection import trusted
from attnx.wording import Wording

CROSS = ("cross", "additive")
"""Kinds of sites at which a decoder attends to its encoder's output."""


def is_two_sided(model: OpenModel) -> bool:
    """Whether a model has an encoder and a decoder."""
    return model.encoder is not None or takes_target(model.slots())


def cross_sites(model: OpenModel) -> tuple[Site, ...]:
    """The cross-attention of a model, in execution order.

    Raises:
        UsageError: The model has no cross-attention.
    """
    found = tuple(site for site in sites_of(model) if site.kind in CROSS)
    if not found:
        raise UsageError(
            f"{model.name} has no cross-attention, so there is nothing that joins its two sides",
            Wording("Choose an encoder-decoder (Marian, M2M100, T5, Whisper ...). <model.find()> shows what there is."),
        )
    return found


def cross(
    model: OpenModel,
    prompt: Prompt,
    layers: Collection[int] | None = None,
    heads: Mapping[int, Sequence[int]] | None = None,
) -> tuple[Trace, tuple[str, ...]]:
    """Run a model and keep the weights of its cross-attention.

    Args:
        model: The model.
        prompt: The prompt to run it on.
        layers: Only these layers.
        heads: By layer, only these heads, selected in the graph if its layout allows it.

    Returns:
        The trace without sites that cannot be trusted, and notes on those.

    Raises:
        UsageError: The model has no cross-attention.
    """
    cross_sites(model)
    return trusted(execute(model, prompt, Wanted(layers, ("masked", "weights"), kinds=CROSS, heads=heads)))


def summed(
    model: OpenModel, prompt: Prompt, groups: Sequence[Sequence[int]], size: int, layers: Collection[int] | None = None
) -> tuple[Trace, list[Array], tuple[str, ...]] | None:
    """Like `cross`, with each row of weights summed over groups of the encoder's positions inside the graph.

    Args:
        model: An encoder-decoder.
        prompt: Its text.
        groups: Positions of the encoder's side, G times.
        size: How many positions there are.
        layers: Only these layers.

    Returns:
        The trace, without arrays; for each of its sites float32 [H,T,G]; notes on the sites that were left out because
        their rows do not sum to 1. None if the graph does not allow it.
    """
    marks = np.zeros((size, len(groups) + 1), np.float32)
    marks[:, -1] = 1
    for at, group in enumerate(groups):
        marks[list(group), at] = 1
    rows = RowSums(lambda _: marks, kinds=CROSS, layers=layers)
    wanted = Wanted(layers, ("weights",), verify=False, kinds=CROSS)
    try:
        trace = rows.follow(prompt.feed(model, prompt.encode(model), wanted))
        sums, sites, doubts = sound(rows.sums(), rows.sites, size)
    except UnreducedError:
        return None
    bare = tuple(Attention(site) for site in sites)
    said = tuple(dict.fromkeys((*trace.notes, *rows.notes)))
    return replace(trace, attentions=bare, device=rows.device, notes=said), [one[..., :-1] for one in sums], doubts


__all__ = ["CROSS", "cross", "cross_sites", "is_two_sided", "summed"]
