"""Image processors that attnx has: what each does where its configuration is silent.

Each is held to the one of the same name in transformers (its backend on Pillow).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of the colours where no configuration gives others.

Source: Krizhevsky et al. 2012's data, as every torchvision model is trained.
"""
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
BILINEAR, BICUBIC = 2, 3
"""Pillow's numbers of its filters."""


@dataclass(frozen=True, slots=True)
class Kind:
    """An image processor: what it does where its configuration is silent."""

    size: Mapping[str, int]
    crop: int | None = None
    colours: tuple[Sequence[float], Sequence[float]] = _HALF
    resample: int = BICUBIC
    square: bool = True
    """Whether a size that is one number is that of a square; else of the shorter side."""
    normalises: bool = True
    crop_pct: float | None = None
    """What part of the resized picture is cut out."""
    warps: bool = False
    """Whether `crop_pct` decides about the cut by itself, and large sizes are resized out of proportion (ConvNeXt)."""
    scale: float = 1 / 255
    reversed: bool = False
    twice: bool = False
    exact: bool = False


def _sides(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


_SHORT = {"shortest_edge": 224}
DETECTOR = Kind({"shortest_edge": 800, "longest_edge": 1333}, None, IMAGENET, BILINEAR)
KINDS: dict[str, Kind] = {
    "ViT": Kind(_sides(224), None, _HALF, BILINEAR),
    "DeiT": Kind(_sides(256), 224),
    "CLIP": Kind(_SHORT, 224, _CLIP, square=False),
    "ChineseCLIP": Kind(_SHORT, 224, _CLIP, square=False),
    "Bit": Kind(_SHORT, 224, _CLIP, square=False),
    "Blip": Kind(_sides(384), None, _CLIP),
    "Siglip": Kind(_sides(224)),
    "Pvt": Kind(_sides(224), None, IMAGENET),
    "Beit": Kind(_sides(224)),
    "Segformer": Kind(_sides(512), None, IMAGENET, BILINEAR),
    "MobileNetV1": Kind({"shortest_edge": 256}, 224, resample=BILINEAR, square=False),
    "MobileNetV2": Kind({"shortest_edge": 256}, 224, resample=BILINEAR, square=False),
    "MobileViT": Kind(_SHORT, 256, square=False, normalises=False, reversed=True),
    "ConvNext": Kind({"shortest_edge": 384}, None, square=False, crop_pct=224 / 256, warps=True),
    "PoolFormer": Kind(_SHORT, 224, IMAGENET, square=False, crop_pct=0.9),
    "Levit": Kind(_SHORT, 224, IMAGENET, square=False, crop_pct=224 / 256),
    "EfficientNet": Kind(_sides(346), None, twice=True),
    "DINOv3ViT": Kind(_sides(224), None, IMAGENET, BILINEAR, exact=True),
    "RTDetr": Kind(_sides(640), None, IMAGENET, BILINEAR, normalises=False),
    "Detr": DETECTOR,
    "ConditionalDetr": DETECTOR,
    "DeformableDetr": DETECTOR,
    "GroundingDino": DETECTOR,
}
"""By the names of their classes in transformers, without what says that they are image processors."""
