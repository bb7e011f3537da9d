"""Weights over patches, laid on the picture that the model saw."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.errors import UsageError
from attnx.feed.arrays import write_whole
from attnx.feed.patches import Grid, as_map
from attnx.feed.vision import Recipe, fit
from attnx.records import Array

if TYPE_CHECKING:
    from PIL.Image import Image

_RAMP: tuple[tuple[float, float, float], ...] = (
    (0.267, 0.005, 0.329), (0.283, 0.141, 0.458), (0.254, 0.265, 0.530), (0.207, 0.372, 0.553), (0.164, 0.471, 0.558),
    (0.128, 0.567, 0.551), (0.135, 0.659, 0.518), (0.267, 0.749, 0.441), (0.478, 0.821, 0.318), (0.741, 0.873, 0.150),
    (0.993, 0.906, 0.144),
)  # fmt: skip
"""Viridis at eleven points, even in lightness. Source: van der Walt and Smith 2015, matplotlib's default."""


def blend(
    picture: Image,
    recipe: Recipe,
    weights: Array,
    grid: Grid,
    *,
    mark: tuple[int, int] | None = None,
    strength: float = 0.6,
    side: int = 896,
) -> Image:
    """The picture as the model saw it, with the weights of its patches over it.

    Args:
        picture: As loaded.
        recipe: What was done to it.
        weights: [tokens] of one query, or of several put together; what is no patch is left out.
        grid: How the tokens lie on the picture.
        mark: Row and column of a patch to frame: the one that looks.
        strength: How much of the colours is the weights' where they are largest, 0 to 1.
        side: Length of the longer side of what comes out, in pixels, so that patches can be told apart.

    Returns:
        Where weight is, the picture takes the ramp's colour and stays bright; where there is none, it is dark grey.
    """
    from PIL import Image as Pillow

    seen = fit(picture, recipe)
    factor = max(1, round(side / max(seen.size)))
    seen = seen.resize((seen.width * factor, seen.height * factor), Pillow.Resampling.BICUBIC)
    share = as_map(weights, grid)
    largest = float(share.max())
    level = share / largest if largest > 0 else share
    ramp = np.array(_RAMP)
    at = level * (len(ramp) - 1)
    low = np.minimum(at.astype(int), len(ramp) - 2)
    colours = ramp[low] + (ramp[low + 1] - ramp[low]) * (at - low)[..., None]
    size = seen.size
    colour = _stretch(colours, size)
    amount = _stretch(np.repeat(level[..., None], 3, axis=-1), size)
    pixels = np.asarray(seen, dtype=np.float64) / 255
    grey = pixels.mean(axis=-1, keepdims=True) * 0.55
    mix = strength * amount
    shown = (grey * (1 - amount) + pixels * amount) * (1 - mix) + colour * mix
    if mark is not None:
        _frame(shown, mark, grid)
    return Pillow.fromarray((np.clip(shown, 0, 1) * 255).round().astype(np.uint8))


def _frame(pixels: Array, place: tuple[int, int], grid: Grid) -> None:
    """Draw a white frame with a black one in it round a patch, so that it shows on any ground."""
    height, width = pixels.shape[:2]
    top, bottom = place[0] * height // grid.rows, (place[0] + 1) * height // grid.rows
    left, right = place[1] * width // grid.columns, (place[1] + 1) * width // grid.columns
    for inset, shade in ((0, 1.0), (1, 1.0), (2, 0.0)):
        box = pixels[top + inset : bottom - inset, left + inset : right - inset]
        if min(box.shape[:2]) > 2:
            box[:1], box[-1:], box[:, :1], box[:, -1:] = shade, shade, shade, shade


def _stretch(values: Array, size: tuple[int, int]) -> Array:
    """[rows,columns,3] in 0..1 -> [height,width,3], each patch a block of one colour."""
    rows = np.minimum(np.arange(size[1]) * values.shape[0] // size[1], values.shape[0] - 1)
    columns = np.minimum(np.arange(size[0]) * values.shape[1] // size[0], values.shape[1] - 1)
    return np.asarray(values[rows][:, columns])


def save_overlay(path: Path, image: Image, *, force: bool = False) -> None:
    """Write a picture, whole or not at all.

    Raises:
        UsageError: An ending that is none of a picture, or the file exists.
    """
    kinds = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
    if path.suffix.lower() not in kinds:
        raise UsageError(f"an overlay is a picture, and {path.name} does not end as one", "For example: overlay.png.")
    buffer = BytesIO()
    image.save(buffer, kinds[path.suffix.lower()])
    write_whole(path, lambda file: _write(file, buffer.getvalue()), force=force)


def _write(file: Any, content: bytes) -> None:
    file.write(content)


__all__: Sequence[str] = ("blend", "save_overlay")
