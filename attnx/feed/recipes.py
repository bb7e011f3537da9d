"""How a picture is prepared for a model: by the image processor that its configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnx.errors import InputError, ModelError, UnsupportedError
from attnx.feed.processors import BICUBIC, BILINEAR, DETECTOR, IMAGENET, KINDS, Kind
from attnx.numerals import real_of, whole_of
from attnx.session.ort import Slot
from attnx.tokens.config import Config
from attnx.tokens.files import read_config, read_processor
from attnx.wording import Wording

_LARGEST = 20_000
"""Pixels along a side."""
_STRONGEST = 1e6
"""Factors and divisors of colours are at most this, and at least its reciprocal."""
_WARPED = 384
"""ConvNeXt models of this size and above see the whole picture, resized out of proportion."""

Sides = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a picture is prepared for a model."""

    wanted: Sides
    """Height and width that the graph takes, in pixels; None where it takes any."""
    resize: Sides | int | None
    """Height and width (one of them None: in proportion), or the length of the shorter side; None: not resized."""
    crop: tuple[int, int] | None
    """Height and width of the centre crop."""
    resample: int = BICUBIC
    """Pillow's number of the filter."""
    scale: float | None = 1 / 255
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]
    """Empty where colours are not normalised."""
    notes: tuple[str, ...] = ()
    longest: int | None = None
    """The most that the longer side may be, where `resize` gives the shorter one."""
    offset: float = 0.0
    """What is added after `scale`."""
    twice: bool = False
    """Whether colours are divided by their deviation a second time (EfficientNet)."""
    reversed: bool = False
    """Whether the colours are in the order blue, green, red."""
    exact: bool = False
    """Whether colours are resized as fractions, and not rounded to 8 bits in between (DINOv3)."""

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of the prepared picture; if proportions are kept, those for a square."""
        if self.crop is not None:
            return self.crop
        if isinstance(self.resize, int):
            side = min(self.resize, self.longest or self.resize)
            return side, side
        height, width = self.resize or self.wanted
        side = height or width or 1
        return height or side, width or side


def read_recipe(place: Path, slot: Slot) -> Recipe:
    """How a picture is prepared by the configuration; without one, by the graph's size and ImageNet's colours.

    Args:
        place: The model's file.
        slot: The input that takes the picture.

    Raises:
        InputError: The size is not given anywhere.
        UnsupportedError: The configuration names a processor or a step that attnx does not have.
        ModelError: A field of it has the wrong type or value.
    """
    config = read_processor(place, "image_processor")
    graph = own_sides(slot)
    name = _name(config)
    if name is not None and name not in KINDS:
        raise UnsupportedError(
            f"{config.where} names {name}, whose preprocessing attnx does not have",
            Wording(
                "Prepare the picture with it and give the pixels: <inputs=>. There are: {all}.", all=", ".join(KINDS)
            ),
        )
    if not config:
        return _unsaid(place, slot, graph)
    kind = KINDS[name] if name is not None else Kind({}, None, IMAGENET, BILINEAR)
    for field in ("do_pad", "do_thumbnail", "do_align_long_axis", "keep_aspect_ratio", "do_color_quantize"):
        # A detector pads pictures to the largest of a batch; a single picture stays as it is.
        if config.flag(field, False) and not (field == "do_pad" and kind is DETECTOR and "pad_size" not in config):
            raise UnsupportedError(
                f"{config.where}: {field} is a step that attnx does not do",
                Wording("Prepare the picture with the model's own processor and give the pixels: <inputs=>."),
            )
    normalises = config.flag("do_normalize", kind.normalises)
    twice = kind.twice and config.flag("include_top", True)
    resample = config.whole("resample", kind.resample, 0, 5)
    recipe = Recipe(
        graph,
        None,
        None,
        resample=resample,
        scale=config.real("rescale_factor", kind.scale, -_STRONGEST, _STRONGEST)
        if config.flag("do_rescale", True)
        else None,
        mean=_colours(config, "image_mean", kind.colours[0]) if normalises else (),
        std=_colours(config, "image_std", kind.colours[1]) if normalises or twice else (),
        offset=-1.0 if config.flag("rescale_offset", False) else 0.0,
        twice=twice,
        reversed=config.flag("do_flip_channel_order", kind.reversed),
        exact=kind.exact,
    )
    if any(abs(one) < 1 / _STRONGEST for one in recipe.std):
        raise config.wrong("image_std", "a number other than 0 for each colour")
    return replace(recipe, notes=_guessed(config, name, normalises), **_sized(place, slot, config, kind, name))


def own_sides(slot: Slot) -> Sides:
    """Height and width that the graph takes; None where it takes any."""
    at = (1, 2) if colours_last(slot) else (2, 3)
    height, width = (d if isinstance(d := slot.shape[i], int) and d > 0 else None for i in at)
    return height, width


def colours_last(slot: Slot) -> bool:
    """Whether an input is [B,H,W,C] and not [B,C,H,W]."""
    return slot.shape[3] in (1, 3) and slot.shape[1] not in (1, 3)


def _name(config: Config) -> str | None:
    """The processor that a configuration names, without the suffix of its class."""
    said = config.text("image_processor_type") or config.text("feature_extractor_type")
    if said is None:
        return None
    bare = said.removesuffix("Pil").removesuffix("Fast")
    return bare.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")


def _unsaid(place: Path, slot: Slot, graph: Sides) -> Recipe:
    """The recipe without a processor's configuration: the model's size, ImageNet's colours."""
    said = read_config(place, "config.json")
    vision = said.part("vision_config") or said
    height, width = graph if any(graph) else _pair(vision, "image_size") or (None, None)
    if height is None and width is None:
        raise _nowhere(slot)
    how = (
        "to the model's size"
        if height and width
        else f"to a {'height' if height else 'width'} of {height or width}, in proportion"
    )
    note = f"no preprocessor_config.json: resized {how}, colours normalised as for ImageNet"
    return Recipe(graph, (height, width), None, notes=(note,))


def _nowhere(slot: Slot) -> InputError:
    return InputError(
        f"nothing says how large a picture the model takes: {slot.describe()}",
        Wording("Put its preprocessor_config.json beside it, or give the pixels: <inputs=>."),
    )


def _guessed(config: Config, name: str | None, normalises: bool) -> tuple[str, ...]:
    """What had to be guessed for a configuration that names no processor."""
    if name is not None:
        return ()
    fields = ["resample"] if config.flag("do_resize", True) else []
    fields += ["image_mean", "image_std"] if normalises else []
    missing = [field for field in fields if field not in config]
    if not missing:
        return ()
    return (f"{config.where} names no image_processor_type, and lacks {', '.join(missing)}: taken as for ImageNet",)


def _sized(place: Path, slot: Slot, config: Config, kind: Kind, name: str | None) -> dict[str, Any]:
    """How a picture is resized and cut: `resize`, `longest` and `crop` of a `Recipe`."""
    graph = own_sides(slot)
    if not config.flag("do_resize", True):
        return {"resize": None, "crop": _crop(config, kind, graph, None)}
    size = config.get("size", dict(kind.size) or None)
    if size is None:
        said = read_config(place, "config.json")
        own = _pair(said.part("vision_config") or said, "image_size")
        both = (graph[0] or (own or graph)[0], graph[1] or (own or graph)[1])
        if both == (None, None):
            raise _nowhere(slot)
        return {"resize": both, "crop": _crop(config, kind, graph, both[0])}
    crops = config.flag("do_center_crop", kind.crop is not None)
    if isinstance(size, dict):
        edges = Config(size, f"{config.where}: size")
        short, longest = (edges.maybe_whole(name, 1, _LARGEST) for name in ("shortest_edge", "longest_edge"))
        pair = _pair(config, "size") if short is None else None
        if short is None and pair is None:
            raise config.wrong("size", "a height and width, or a shortest_edge,")
    else:
        longest, pair = None, _pair(config, "size")
        side = whole_of(size)
        square = kind.square if name is not None else not crops
        short = side if side is not None and not square else None
    if short is None:
        resize: Sides | int = pair or (None, None)
        if kind.crop_pct is not None and name == "PoolFormer" and pair is not None and pair[0] == pair[1]:
            resize = int(pair[0] / _percent(config, kind))
        return {"resize": resize, "crop": _crop(config, kind, graph, None)}
    if (name is None and "crop_pct" in config) or kind.warps:
        if short >= _WARPED:
            return {"resize": (short, short), "crop": _crop(config, kind, graph, None)}
        return {"resize": int(short / _percent(config, kind)), "crop": (short, short)}
    resize = short if kind.crop_pct is None else int(short / _percent(config, kind))
    return {"resize": resize, "longest": longest, "crop": _crop(config, kind, graph, short)}


def _percent(config: Config, kind: Kind) -> float:
    percent = config.real("crop_pct", kind.crop_pct or 1.0)
    if not 0.01 <= percent <= 1:
        raise config.wrong("crop_pct", "a part from 0.01 to 1")
    return percent


def _crop(config: Config, kind: Kind, graph: Sides, side: int | None) -> tuple[int, int] | None:
    """Height and width of the centre crop; None where nothing is cropped."""
    if not config.flag("do_center_crop", kind.crop is not None):
        return None
    own = _pair(config, "crop_size")
    if own is None and kind.crop is not None:
        own = (kind.crop, kind.crop)
    if own is None:
        height, width = graph[0] or side, graph[1] or side
        if height is None or width is None:
            raise ModelError(f"{config.where}: do_center_crop is true, and crop_size is missing", "Complete the file.")
        own = (height, width)
    return own


def _pair(config: Config, name: str) -> tuple[int, int] | None:
    """A size as configurations write it: 224, [224, 224] or {"height": 224, "width": 224}; None where it is not there.

    Raises:
        ModelError: It has another form.
    """
    value = config.get(name)
    if value is None:
        return None
    if isinstance(value, dict):
        if set(value) == {"shortest_edge"}:
            value = value["shortest_edge"]
        else:
            value = [value.get("height"), value.get("width")]
    sides = value if isinstance(value, list) else [value, value]
    found = [whole_of(side, 1, _LARGEST) for side in sides]
    match found:
        case [int(height), int(width)]:
            return height, width
    raise config.wrong(name, f"a number of pixels up to {_LARGEST}, or a height and a width,")


def _colours(config: Config, name: str, otherwise: Sequence[float]) -> tuple[float, ...]:
    """A number for each colour: written as a list, or as one number for all."""
    value = config.get(name)
    if value is None:
        return tuple(otherwise)
    numbers = [real_of(one, -_STRONGEST, _STRONGEST) for one in (value if isinstance(value, list) else [value])]
    if None in numbers or len(numbers) not in (1, 3):
        raise config.wrong(name, "one number, or one for each of three colours,")
    found = tuple(number for number in numbers if number is not None)
    return found * 3 if len(found) == 1 else found
