"""Cost: how attention grows with the text, compared with the rest of the block and with a recurrent layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnx.errors import UnsupportedError, UsageError
from attnx.records import Axis, Measurement, Site
from attnx.wording import Wording

COLUMNS = ("cells", "bytes", "FLOPs of attention", "FLOPs of the rest", "attention's share")


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a model's attention, computed from sizes alone."""

    attention: Measurement
    """[lengths,5]: cells of all weight matrices, their bytes, floating-point operations of attention and of the rest of
    the blocks, and attention's share of both."""
    paths: Measurement
    """[lengths,2,2]: sequential steps and longest path between two tokens, for self-attention and a recurrent layer."""
    crossover: float
    """Length at which attention takes as many operations as the rest; NaN if the rest is not known."""
    notes: tuple[str, ...]


def cost(sites: Sequence[Site], lengths: Sequence[int], *, parameters: int | None = None, width: int = 4) -> Cost:
    """Cells, bytes and operations of attention by length.

    Per site of H heads, n queries, n keys, head sizes D and Dv = D: n^2 H cells; 2 n^2 H D operations for Q K^T and as
    many for weights x V (a multiplication and an addition each). Softmax, scale and mask are left out. A causal or
    windowed site is counted in full, as exporters compute it. The rest: 2 operations per parameter and token.

    Args:
        sites: The sites of one model.
        lengths: Numbers of tokens, each at least 1. Both sides of a cross-attention are assumed to be this long.
        parameters: Weights that multiply every token (projections, feed-forward), without embeddings; None
            if not known.
        width: Bytes per number.

    Returns:
        See `Cost`.

    Raises:
        UsageError: No lengths, or one below 1.
        UnsupportedError: No site has known sizes.

    Source: Vaswani et al. 2017, table 1 (n^2 d per layer, 1 sequential step, path 1; recurrent n d^2, n, n);
    2 operations per parameter and token: Kaplan et al. 2020, section 2.1.
    """
    _check(lengths)
    known = [(site.heads, site.head_size) for site in sites if site.heads and site.head_size]
    if not known:
        raise UnsupportedError(
            "no attention of this model has a known number of heads and head size",
            Wording("<model.find()> lists what the model has."),
        )
    heads = sum(h for h, _ in known if h)
    wide = sum(h * d for h, d in known if h and d)
    lines = []
    for length in lengths:
        own = 4.0 * length**2 * wide
        rest = np.nan if parameters is None else 2.0 * parameters * length
        lines.append([float(length**2 * heads), float(length**2 * heads * width), own, rest, own / (own + rest)])
    labels = tuple(str(length) for length in lengths)
    notes = ["worked out from sizes, not measured; softmax, scale and mask are left out"]
    if len(known) < len(sites):
        notes.append(f"{len(sites) - len(known)} of {len(sites)} sites have no known sizes and are left out")
    if parameters is None:
        notes.append("the rest of the blocks is not known")
    return Cost(
        attention=Measurement(
            name="cost of attention",
            unit="",
            axes=(Axis("tokens", labels), Axis("column", COLUMNS)),
            values=np.array(lines, np.float64),
            bounds=(0.0, None),
            source="Vaswani et al. 2017, table 1; Kaplan et al. 2020, section 2.1",
            formula="cells n² H; operations 4 n² H d; the rest 2 × parameters × n",
            notes=tuple(notes),
        ),
        paths=paths(lengths),
        crossover=float("nan") if parameters is None else parameters / (2.0 * wide),
        notes=tuple(notes),
    )


def paths(lengths: Sequence[int]) -> Measurement:
    """Sequential steps, and the longest path between two tokens, for one layer of each kind.

    Args:
        lengths: Numbers of tokens, each at least 1.

    Returns:
        [lengths,2,2]: self-attention and recurrent; steps and path.

    Raises:
        UsageError: No lengths, or one below 1.

    Source: Vaswani et al. 2017, table 1.
    """
    _check(lengths)
    return Measurement(
        name="steps and paths",
        unit="steps",
        axes=(
            Axis("tokens", tuple(str(length) for length in lengths)),
            Axis("layer type", ("self-attention", "recurrent")),
            Axis("column", ("sequential steps", "longest path")),
        ),
        values=np.array([[[1.0, 1.0], [float(n), float(n)]] for n in lengths]),
        bounds=(1.0, None),
        source="Vaswani et al. 2017, table 1",
        formula="self-attention O(1) and O(1), recurrent O(n) and O(n)",
    )


def _check(lengths: Sequence[int]) -> None:
    if not lengths or any(length < 1 for length in lengths):
        raise UsageError("lengths have to be whole numbers from 1 on", Wording("Try <lengths=[64, 256, 1024]>."))
