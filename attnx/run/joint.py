"""Text and picture in one attention (SD3, Flux): which positions are the text's, and where the patches lie.

Sources: Esser et al. 2024 (SD3), section 4; the axes of Flux's positions (img_ids) are time, row and column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.feed.inputs import ENCODER, is_past, named, sided
from attnx.feed.patches import Frame, find_grid, pieces
from attnx.records import Array, Tokens
from attnx.session.ort import Slot
from attnx.tokens.axes import labelled

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph


@dataclass(frozen=True, slots=True)
class States:
    """What a graph takes besides pictures: hidden states of another model's tokens, and patches in a row."""

    text: str | None = None
    """The input, float [B,M,C]."""
    size: int = 0
    """M."""
    patches: str | None = None
    """The input that holds patches in a row, float [B,N,C]."""


def find_states(slots: Sequence[Slot], feed: Mapping[str, Array]) -> States:
    """Tell from names and shapes which inputs are hidden states of a text, and which are patches in a row."""
    rows = [
        s
        for s in slots
        if s.name in feed and feed[s.name].ndim == 3 and feed[s.name].dtype.kind == "f" and not is_past(s)
    ]
    text = next((s for s in rows if sided(s, ENCODER)), None)
    others = [s for s in rows if s is not text and named(s, "hidden_states", "latent", "sample")]
    patches = next(iter(others), None)
    return States(
        None if text is None else text.name,
        0 if text is None else int(feed[text.name].shape[1]),
        None if patches is None else patches.name,
    )


def joint_tokens(
    states: States, feed: Mapping[str, Array], frames: Sequence[Frame], graph: Callable[[], Graph]
) -> Callable[[int], Tokens | None]:
    """Names for a sequence of text and patches together: "text 0" ... and r0c0 ..., in the order of the graph.

    Args:
        states: What the graph takes.
        feed: The arrays.
        frames: Pictures that were fed.
        graph: Loads the graph, which shows which of the two comes first; called only where that matters.

    Returns:
        A function of the length; it gives None where that length is no text with patches.
    """

    def find(length: int) -> Tokens | None:
        count = length - states.size
        if states.text is None or count < 1:
            return None
        places = _places(count, feed, frames, states)
        if not places:
            return None
        first = text_first(graph(), states.text, [*(f.name for f in frames), states.patches or ""])
        if first is None:
            return None
        text = [f"text {i}" for i in range(states.size)]
        return labelled([*text, *places] if first else [*places, *text])

    return find


def _places(count: int, feed: Mapping[str, Array], frames: Sequence[Frame], states: States) -> list[str]:
    """Names of the patches of a picture that has `count` of them; empty where none has that many."""
    for frame in frames:
        grid = find_grid(count, frame)
        if grid is not None and grid.prefix == 0:
            return pieces(grid)[0]
    if states.patches is None or feed[states.patches].shape[1] != count:
        return []
    for name, array in feed.items():
        if "img_ids" in name.lower() and array.shape[-2:] == (count, 3):
            rows, columns = array.reshape(-1, count, 3)[0, :, 1:].T
            lattice = np.stack(np.divmod(np.arange(count), int(columns.max()) + 1))
            if np.array_equal(np.stack([rows, columns]), lattice):
                return [f"r{int(r)}c{int(c)}" for r, c in zip(rows, columns, strict=True)]
    return [f"patch {i}" for i in range(count)]


def text_first(graph: Graph, text: str, pictures: Sequence[str]) -> bool | None:
    """Whether the text stands before the picture where the two are first joined; None where they never are."""
    carried: dict[str, frozenset[str]] = {text: frozenset({"text"})}
    carried |= {name: frozenset({"picture"}) for name in pictures if name}
    for node in graph.nodes:
        if node.op_type in ("Shape", "Size"):
            continue
        of_each = [carried.get(name, frozenset()) for name in node.input]
        if node.op_type == "Concat" and {frozenset({"text"}), frozenset({"picture"})} <= set(of_each):
            return of_each.index(frozenset({"text"})) < of_each.index(frozenset({"picture"}))
        both = frozenset().union(*of_each)
        for out in node.output:
            if out and both:
                carried[out] = both
    return None
