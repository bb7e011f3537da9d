"""Attention in windows of a picture (Swin), put back in its place: every patch against every patch of the whole map.

Source: Liu et al. 2021, Swin Transformer, section 3.2: windows side by side, in every other layer shifted by half a
window, where a mask keeps apart what the shift brought together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import numpy as np

from attnx.feed.patches import Frame
from attnx.numerals import counted
from attnx.records import STAGES, Array, Attention

LARGEST = 1600
"""Largest map, in patches, whose windows are put back: the whole map has the square of it in cells, for each head."""
_NOTHING = 1e-30
"""Weights below this are hidden by a mask: Swin adds -100 before the softmax, which leaves exp(-100)."""


@dataclass(frozen=True, slots=True)
class Windows:
    """How windows are laid out on a map."""

    rows: int
    columns: int
    """Patches of the map: rows, columns."""
    side: int
    """Patches along each side of a window."""
    shift: int = 0
    """By how many patches the map was rolled to the upper left before it was cut into windows."""

    def places(self) -> Array:
        """For each window, where on the map its patches are, counted row by row: int [windows, side * side]."""
        rows, columns = np.meshgrid(np.arange(self.rows), np.arange(self.columns), indexing="ij")
        at = (rows + self.shift) % self.rows * self.columns + (columns + self.shift) % self.columns
        return self._cut(at)

    def apart(self) -> Array:
        """Which pairs the mask of a shifted layer keeps apart: bool [windows, side * side, side * side]."""

        def band(count: int) -> Array:
            at = np.arange(count)
            return (at >= count - self.side).astype(int) + (at >= count - self.shift)

        region = self._cut(band(self.rows)[:, None] * 3 + band(self.columns)[None])
        return np.asarray(region[:, :, None] != region[:, None, :])

    def _cut(self, whole: Array) -> Array:
        side = self.side
        tiles = whole.reshape(self.rows // side, side, self.columns // side, side).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(tiles.reshape(-1, side * side))


def is_windowed(attention: Attention, batch: int) -> bool:
    """Whether a site has a larger batch than the model was fed: windows of a picture."""
    array = attention.weights if attention.weights is not None else attention.masked
    return array is not None and array.shape[0] > batch and array.shape[0] % batch == 0 and batch > 0


def find_windows(weights: Array, frame: Frame, batch: int) -> Windows | None:
    """Find the layout of a site's windows, from their number and size and from what is hidden in them.

    Args:
        weights: [batch * windows, H, side * side, side * side].
        frame: The picture.
        batch: Pictures.

    Returns:
        None where they are not windows of a map of the picture's proportions, or their mask is not that of a shift.
    """
    count, size = weights.shape[0] // batch, weights.shape[2]
    side, total = isqrt(size), count * size
    step = isqrt(frame.height * frame.width // total) if total <= frame.height * frame.width else 0
    if side * side != size or weights.shape[3] != size or step < 1:
        return None
    rows, columns = frame.height // step, frame.width // step
    if rows * columns != total or rows % side or columns % side:
        return None
    hidden = weights[:count].max(axis=1) < _NOTHING
    if not hidden.any():
        return Windows(rows, columns, side)
    shifted = (Windows(rows, columns, side, shift) for shift in range(1, side))
    return next((w for w in shifted if np.array_equal(w.apart(), hidden)), None)


def put_back(
    attentions: Sequence[Attention], frames: Sequence[Frame], batch: int
) -> tuple[tuple[Attention, ...], tuple[str, ...]]:
    """Put windows back in their place on the picture.

    Args:
        attentions: The sites; those without windows stay as they are.
        frames: Pictures that were fed.
        batch: The batch size that was fed.

    Returns:
        Attentions over the whole map, [B,H,rows * columns, rows * columns]: outside of its window a patch has weight 0,
        masked is -inf there, and scores are NaN, for the model never computed them. And a note on what was done.
    """
    out: list[Attention] = []
    done, left = 0, 0
    for attention in attentions:
        found = None
        if frames and attention.weights is not None and is_windowed(attention, batch):
            found = find_windows(attention.weights, frames[0], batch)
            fits = found is not None and found.rows * found.columns <= LARGEST
            left += not fits
            found = found if fits else None
        done += found is not None
        out.append(attention if found is None else _whole(attention, found, batch))
    notes = [f"windows of {done} site{'s' * (done > 1)} put back to their place on the picture"] if done else []
    if left:
        which = counted(left, "site attends", "sites attend")
        notes.append(f"{which} in windows that are shown as they are, the first one of each")
    return tuple(out), tuple(notes)


def _whole(attention: Attention, windows: Windows, batch: int) -> Attention:
    places = windows.places()
    total = windows.rows * windows.columns
    new: dict[str, Any] = {}
    for name in ("query", "key", "value", "context"):
        array = getattr(attention, name)
        if array is not None:
            parts = array.reshape(batch, len(places), *array.shape[1:])
            whole = np.zeros((batch, array.shape[1], total, array.shape[3]), array.dtype)
            for window, at in enumerate(places):
                whole[:, :, at] = parts[:, window]
            new[name] = whole
    for name in STAGES:
        array = getattr(attention, name)
        if array is not None:
            parts = array.reshape(batch, len(places), *array.shape[1:])
            outside = 0.0 if name == "weights" else -np.inf if name == "masked" else np.nan
            whole = np.full((batch, array.shape[1], total, total), outside, array.dtype)
            for window, at in enumerate(places):
                whole[:, :, at[:, None], at[None, :]] = parts[:, window]
            new[name] = whole
    return replace(attention, **new)
