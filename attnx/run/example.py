"""An example feed: the arrays that the rules make from a short text, for the inputs that a rule covers."""

from __future__ import annotations

import numpy as np

from attnx.errors import InputError, UnsupportedError
from attnx.feed.audio import sound_shape, sound_slot
from attnx.feed.inputs import Needs, encoder_side, fixed_length
from attnx.feed.recipes import read_recipe
from attnx.feed.rules import RULES
from attnx.feed.vision import picture_slot
from attnx.records import Array
from attnx.run.kvcache import sized
from attnx.session.ort import Slot
from attnx.session.protocol import OpenModel
from attnx.tokens.files import read_processor

LENGTH = 8
"""Tokens of the text."""


def example(model: OpenModel) -> list[tuple[Slot, Array | None]]:
    """Every input of a model's graph, with an array for it; None where only its shape is known.

    Texts have `LENGTH` tokens, all 0; pictures have the size that the model takes, sound that of one piece.
    """
    slots = model.slots()
    of_encoder = encoder_side(slots)
    ids = np.zeros((1, fixed_length(slots) or LENGTH), dtype=np.int64)
    needs = sized(Needs(ids, np.ones_like(ids), ids, ids, np.ones_like(ids)), model)
    senses = {slot.name: array for slot, array in (_picture(model, slots), _sound(model, slots)) if slot is not None}
    out: list[tuple[Slot, Array | None]] = []
    for slot in slots:
        side = needs.encoder if slot.name in of_encoder else needs
        out.append((slot, senses[slot.name] if slot.name in senses else _made(slot, side)))
    return out


def _picture(model: OpenModel, slots: list[Slot]) -> tuple[Slot | None, Array | None]:
    slot = picture_slot(slots)
    if slot is None or slot.dtype is None or _fixed(slot):
        return None, None
    try:
        recipe = read_recipe(model.path, slot)
    except (UnsupportedError, InputError):
        return None, None
    last = slot.shape[3] in (1, 3)
    colours = slot.shape[3] if last else slot.shape[1]
    count = colours if isinstance(colours, int) else 3
    shape = (1, *recipe.size, count) if last else (1, count, *recipe.size)
    return slot, np.zeros(shape, slot.dtype)


def _sound(model: OpenModel, slots: list[Slot]) -> tuple[Slot | None, Array | None]:
    slot = sound_slot(slots)
    if slot is None or slot.dtype is None or _fixed(slot):
        return None, None
    try:
        shape = sound_shape(slot, read_processor(model.path, "feature_extractor"))
    except (UnsupportedError, InputError):
        return None, None
    return slot, np.zeros(shape, slot.dtype)


def _fixed(slot: Slot) -> bool:
    """Whether the graph fixes every size of an input except the batch."""
    return all(isinstance(dim, int) for dim in slot.shape[1:])


def _made(slot: Slot, needs: Needs) -> Array | None:
    value = next((v for rule in RULES if (v := rule(slot, needs)) is not None), None)
    if value is None or slot.dtype is None:
        return None
    value = np.asarray(value).astype(slot.dtype)
    fits = len(value.shape) == len(slot.shape) and all(
        not isinstance(want, int) or want == have for have, want in zip(value.shape, slot.shape, strict=True)
    )
    return value if fits else None
