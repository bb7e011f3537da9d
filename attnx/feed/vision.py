"""Pictures -> pixel values: as preprocessor_config.json says, with Pillow (extra `vision`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.errors import InputError, UsageError
from attnx.records import Array
from attnx.session.ort import Slot
from attnx.session.protocol import Runs
from attnx.tokens.files import read_config
from attnx.wording import Wording

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of the colours where no configuration gives others.

Source: Krizhevsky et al. 2012's data, as every torchvision model is trained.
"""
_BICUBIC = 3
_LARGEST = 20_000 * 20_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is done to a picture before a model sees it."""

    height: int
    width: int
    """What the model takes, in pixels."""
    resize: tuple[int, int] | int | None
    """Height and width, or the length of the shorter side; None where the picture is not resized."""
    crop: tuple[int, int] | None
    """Height and width of what is cut out of the middle."""
    resample: int = _BICUBIC
    """Pillow's number of the filter."""
    scale: float | None = 1 / 255
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]
    """Empty where colours are not normalised."""
    notes: tuple[str, ...] = ()


def picture_slot(slots: list[Slot]) -> Slot | None:
    """The input that takes a picture: float, [B,C,H,W] or [B,H,W,C]."""
    floats = [s for s in slots if len(s.shape) == 4 and s.dtype in (np.float32, np.float16, np.uint8)]
    named = [s for s in floats if any(w in s.name.lower() for w in ("pixel", "image", "img"))]
    plain = [s for s in floats if "past" not in s.name.lower() and "cache" not in s.name.lower()]
    return next(iter(named or plain), None)


def image_inputs(model: Runs, path: Path, given: Mapping[str, Array]) -> tuple[dict[str, Array], tuple[str, ...]]:
    """A picture as the model's input.

    Args:
        model: The model; of an encoder-decoder in two files, its encoder takes the picture.
        path: Any file that Pillow reads.
        given: Inputs that are given besides.

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
    pixels = prepare(load_picture(path), recipe)
    if _colours_last(slot):
        pixels = pixels.transpose(1, 2, 0)
    colours = slot.shape[3] if _colours_last(slot) else slot.shape[1]
    if colours == 1:
        pixels = pixels.mean(axis=-1 if _colours_last(slot) else 0, keepdims=True)
    return {slot.name: np.ascontiguousarray(pixels[None].astype(slot.dtype))}, recipe.notes


def _colours_last(slot: Slot) -> bool:
    return slot.shape[3] in (1, 3) and slot.shape[1] not in (1, 3)


def load_picture(path: Path) -> Image:
    """A picture in RGB, turned as its EXIF data says; transparency becomes white.

    Raises:
        UsageError: Pillow is not installed.
        InputError: No such file, or none that Pillow can read, or one of absurd size.
    """
    try:
        from PIL import Image as Pillow
        from PIL import ImageOps, UnidentifiedImageError
    except ImportError:
        raise UsageError(Wording("<image> needs Pillow"), "Install it: pip install 'attnx[vision]'.") from None
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
            f"{path} is no picture that can be read: {str(error)[:120]}", "PNG, JPEG, WebP and the like can."
        ) from None


def read_recipe(place: Path, slot: Slot) -> Recipe:
    """What preprocessor_config.json says is done to a picture; what the graph and ImageNet say, where it is silent.

    Args:
        place: The model's file.
        slot: The input that takes the picture.

    Raises:
        InputError: The size is written nowhere.
    """
    config: dict[str, Any] = dict(read_config(place, "preprocessor_config.json"))
    nested = config.get("image_processor")
    config = nested if isinstance(nested, dict) else config
    at = (1, 2) if _colours_last(slot) else (2, 3)
    own = [d if isinstance(d := slot.shape[i], int) else None for i in at]
    said = read_config(place, "config.json")
    vision = said.get("vision_config") if isinstance(said.get("vision_config"), dict) else said
    side = vision.get("image_size") if vision is not None else None
    sides = _pair(config.get("crop_size")) if config.get("do_center_crop") else _pair(config.get("size"))
    sides = sides or _pair(side)
    height, width = own[0] or (sides or (0, 0))[0], own[1] or (sides or (0, 0))[1]
    if not height or not width:
        raise InputError(
            f"how large a picture the model wants is written nowhere: {slot.describe()}",
            Wording("Put its preprocessor_config.json beside it, or give the pixels: <inputs=>."),
        )
    notes: tuple[str, ...] = ()
    if not config:
        notes = ("no preprocessor_config.json: resized to the model's size, colours normalised as for ImageNet",)
        return Recipe(height, width, (height, width), None, notes=notes)
    size = config.get("size")
    resize: tuple[int, int] | int | None = (height, width)
    if config.get("do_resize") is False:
        resize = None
    elif isinstance(size, dict) and isinstance(size.get("shortest_edge"), int):
        resize = int(size["shortest_edge"])
    elif (both := _pair(size)) is not None and not (isinstance(size, int) and config.get("do_center_crop")):
        resize = both
    elif isinstance(size, int):
        resize = size
    if isinstance(percent := config.get("crop_pct"), int | float) and isinstance(resize, int):
        resize = int(resize / percent) if resize < 384 else (resize, resize)
    normalises = config.get("do_normalize", True)
    return Recipe(
        height,
        width,
        resize,
        (height, width) if config.get("do_center_crop") or isinstance(resize, int) else None,
        resample=config["resample"] if isinstance(config.get("resample"), int) else 2,
        scale=(config.get("rescale_factor") or 1 / 255) if config.get("do_rescale", True) else None,
        mean=tuple(config.get("image_mean") or IMAGENET[0]) if normalises else (),
        std=tuple(config.get("image_std") or IMAGENET[1]) if normalises else (),
    )


def _pair(size: object) -> tuple[int, int] | None:
    """A size as configurations write it: 224, [224, 224] or {"height": 224, "width": 224}."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size, size
    if isinstance(size, dict):
        size = (size.get("height"), size.get("width"))
    if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(n, int) for n in size):
        return int(size[0]), int(size[1])
    return None


def fit(picture: Image, recipe: Recipe) -> Image:
    """The picture resized and cut as the model sees it, in colour."""
    sized = picture
    if isinstance(recipe.resize, tuple):
        sized = picture.resize((recipe.resize[1], recipe.resize[0]), recipe.resample)
    elif recipe.resize is not None:
        width, height = picture.size
        short = min(width, height)
        target = (int(width * recipe.resize / short), int(height * recipe.resize / short))
        sized = picture.resize(target, recipe.resample)
    height, width = recipe.crop or (recipe.height, recipe.width)
    if sized.size == (width, height):
        return sized
    if recipe.crop is None:
        raise InputError(
            f"the picture is {sized.width} x {sized.height} after its preprocessing, and the model wants "
            f"{recipe.width} x {recipe.height}",
            "Check preprocessor_config.json.",
        )
    # Centred; what sticks out of the picture is black, as in transformers' center_crop.
    left, top = (sized.width - width) // 2, (sized.height - height) // 2
    return sized.crop((left, top, left + width, top + height))


def prepare(picture: Image, recipe: Recipe) -> Array:
    """Pixel values, float32 [C,H,W]: resized, cut, scaled, normalised."""
    pixels: Array = np.asarray(fit(picture, recipe), dtype=np.float32)
    if recipe.scale is not None:
        pixels = pixels * np.float32(recipe.scale)
    if recipe.mean and recipe.std:
        pixels = (pixels - np.array(recipe.mean, np.float32)) / np.array(recipe.std, np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
