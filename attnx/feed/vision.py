"""Pictures -> pixel values, as preprocessor_config.json says, with Pillow (extra `vision`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnx.errors import InputError, UsageError, lacks_memory, reason
from attnx.feed.recipes import Recipe, colours_last, read_recipe
from attnx.installed import pip
from attnx.records import Array
from attnx.session.ort import Slot
from attnx.session.protocol import OpenModel
from attnx.wording import Wording

if TYPE_CHECKING:
    from PIL.Image import Image

_LARGEST = 20_000 * 20_000


def picture_slot(slots: list[Slot]) -> Slot | None:
    """The input that takes a picture: float or 8 bits, [B,C,H,W] or [B,H,W,C]."""
    floats = [s for s in slots if len(s.shape) == 4 and s.dtype in (np.float32, np.float16, np.float64, np.uint8)]
    named = [s for s in floats if any(w in s.name.lower() for w in ("pixel", "image", "img"))]
    plain = [s for s in floats if "past" not in s.name.lower() and "cache" not in s.name.lower()]
    return next(iter(named or plain), None)


def image_inputs(model: OpenModel, path: Path, given: Mapping[str, Array]) -> tuple[dict[str, Array], tuple[str, ...]]:
    """A picture as the model's input.

    Args:
        model: The model; of an encoder-decoder in two files, its encoder takes the picture.
        path: Any file that Pillow reads.
        given: Other inputs that were given.

    Returns:
        The input's name and [1,C,H,W] (or [1,H,W,C], where the graph wants colours last); and what had to be guessed.

    Raises:
        UsageError: The model takes no picture, or Pillow is not installed.
        InputError: The file is no picture.
    """
    slots = [s for m in (model.encoder, model) if m is not None for s in m.slots()]
    slot = picture_slot(slots)
    if slot is None:
        raise UsageError(
            f"{model.name} takes no picture: it has no input of four dimensions", Wording("Leave out <image>.")
        )
    if slot.name in given:
        raise UsageError(Wording("<image> and the feed both give {name}", name=slot.name), "Give one of them.")
    recipe = read_recipe(model.path, slot)
    picture = load_picture(path)
    if np.dtype(slot.dtype).kind == "u":
        pixels = np.asarray(fit(picture, recipe), np.float32).transpose(2, 0, 1)
        notes = ["the model takes pixels as they are, whole numbers from 0 to 255: they are not normalised"]
    else:
        pixels, notes = prepare(picture, recipe), list(recipe.notes)
    channels = slot.shape[3] if colours_last(slot) else slot.shape[1]
    if channels == 1:
        pixels = pixels.mean(axis=0, keepdims=True)
    if colours_last(slot):
        pixels = pixels.transpose(1, 2, 0)
    pixels = np.rint(pixels) if np.dtype(slot.dtype).kind == "u" else pixels
    return {slot.name: np.ascontiguousarray(pixels[None].astype(slot.dtype))}, tuple(notes)


def load_picture(path: Path) -> Image:
    """A picture in RGB, rotated by its EXIF data; transparency becomes white.

    Raises:
        UsageError: Pillow is not installed.
        InputError: No such file, a file that Pillow cannot read, or a picture of absurd size.
    """
    try:
        from PIL import Image as Pillow
        from PIL import ImageOps, UnidentifiedImageError
    except ImportError as error:
        if lacks_memory(error):
            raise
        raise UsageError(Wording("<image> needs Pillow"), f"Install it: {pip('vision')}") from None
    try:
        with Pillow.open(path) as opened:
            if opened.width * opened.height > _LARGEST:
                raise InputError(
                    f"{path} has {opened.width} x {opened.height} pixels, which is too many", "Make it smaller first."
                )
            turned = ImageOps.exif_transpose(opened)
            if turned.mode in ("RGBA", "LA", "PA") or "transparency" in turned.info:
                turned = turned.convert("RGBA")
                white = Pillow.new("RGBA", turned.size, "white")
                turned = Pillow.alpha_composite(white, turned)
            return turned.convert("RGB")
    except FileNotFoundError:
        raise InputError(f"there is no file {path}", Wording("<image> takes a picture.")) from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Pillow.DecompressionBombError) as error:
        raise InputError(
            f"{path} is not a picture that can be read: {reason(error)}", "PNG, JPEG, WebP and the like can be read."
        ) from None


def fit(picture: Image, recipe: Recipe) -> Image:
    """The picture resized and cropped as the model sees it, in colour.

    Raises:
        InputError: Its size is then not the one that the model takes.
    """
    sized = picture if recipe.resize is None else picture.resize(_target(picture.size, recipe), recipe.resample)
    if recipe.crop is not None and (sized.height, sized.width) != recipe.crop:
        # Centred; anything outside the picture is black, as in transformers' center_crop.
        height, width = recipe.crop
        left, top = (sized.width - width) // 2, (sized.height - height) // 2
        sized = sized.crop((left, top, left + width, top + height))
    if any(side not in (None, have) for side, have in zip(recipe.wanted, (sized.height, sized.width), strict=True)):
        high, wide = (side or "any" for side in recipe.wanted)
        raise InputError(
            f"the picture is {sized.width} x {sized.height} after its preprocessing, and the model wants "
            f"{wide} x {high}",
            "Check preprocessor_config.json.",
        )
    return sized


def _target(size: tuple[int, int], recipe: Recipe) -> tuple[int, int]:
    """The width and height to which a picture of a given width and height is resized.

    Raises:
        InputError: The picture is so narrow that nothing would be left of it, or far too much.
    """
    width, height = size
    if isinstance(recipe.resize, int):
        short, long = min(size), max(size)
        side, exact = recipe.resize, float(recipe.resize)
        if recipe.longest is not None and long / short * side > recipe.longest:
            exact = recipe.longest * short / long
            side = round(exact)
        target = (side, int(exact * height / width)) if width <= height else (int(exact * width / height), side)
    else:
        down, across = recipe.resize or (height, width)
        target = (
            across if across is not None else round(width * (down or height) / height),
            down if down is not None else round(height * (across or width) / width),
        )
    if min(target) < 1 or target[0] * target[1] > _LARGEST:
        raise InputError(
            f"the picture of {width} x {height} pixels would be {target[0]} x {target[1]} after resizing",
            "Give one that is less long and narrow.",
        )
    return target


def prepare(picture: Image, recipe: Recipe) -> Array:
    """Pixel values, float32 [C,H,W]: resized, cut, scaled, normalised."""
    pixels = _as_fractions(picture, recipe) if recipe.exact else np.asarray(fit(picture, recipe), dtype=np.float32)
    if recipe.scale is not None:
        pixels = pixels * np.float32(recipe.scale) + np.float32(recipe.offset)
    if recipe.reversed:
        pixels = pixels[..., ::-1]
    if recipe.mean and recipe.std:
        pixels = (pixels - np.array(recipe.mean, np.float32)) / np.array(recipe.std, np.float32)
    if recipe.twice:
        pixels = pixels / np.array(recipe.std, np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _as_fractions(picture: Image, recipe: Recipe) -> Array:
    """The pixels [H,W,3] of a picture whose colours are resized without rounding them to 8 bits."""
    from PIL import Image as Pillow

    colours = [Pillow.fromarray(np.asarray(band, np.float32)) for band in picture.split()]
    return np.stack([np.asarray(fit(colour, recipe), np.float32) for colour in colours], axis=-1)
