"""Tokens, arrays -> a model's feed: fill every input by the rule that covers it, and check a feed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np

from attnx.errors import InputError
from attnx.feed.inputs import Needs, batch_of, encoder_side, is_ids
from attnx.feed.rules import RULES, memory
from attnx.records import Array
from attnx.session.ort import Slot
from attnx.wording import Wording

_HOW = Wording("<attnx.run.example.example()> shows how such a feed is made.")
__all__ = ["Needs", "array_of", "batch_of", "check", "derive"]


def derive(slots: Sequence[Slot], needs: Needs, arrays: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """Fill every input of a model.

    Args:
        slots: The model's inputs.
        needs: What they can be filled with.
        arrays: Inputs that need no rule.

    Raises:
        InputError: No rule covers an input; the message has its name, type and shape.
    """
    feed: dict[str, Array] = dict(arrays or {})
    of_encoder = encoder_side(slots)
    for slot in slots:
        if slot.name in feed:
            continue
        value = memory(slot, needs) if slot.name in of_encoder else None
        if value is None:
            side = needs.encoder if slot.name in of_encoder else needs
            if slot.name in of_encoder and needs.memory_mask is None:
                raise InputError(
                    f"the model takes two texts, and there is one: it wants {slot.describe()} for the encoder",
                    Wording("Give what the decoder says as well: <target=>[, or <generate=>]."),
                )
            value = next((v for rule in RULES if (v := rule(slot, side)) is not None), None)
        if value is None:
            raise InputError(
                f"the model wants an input that cannot be made from text: {slot.describe()}",
                Wording(
                    "[{sense}<inputs=> with an array of that name[, or <values=>]. <model.slots()> lists all inputs.|"
                    "Choose a model that takes a text and nothing else: here is nothing else to give it.]",
                    sense=_sense(slot),
                ),
            )
        feed[slot.name] = _typed(slot, value)
    return check(slots, feed)


def _sense(slot: Slot) -> str:
    """The argument that fills an input for a picture or a sound."""
    from attnx.feed.audio import sound_slot
    from attnx.feed.vision import picture_slot

    if picture_slot([slot]) is not None:
        return Wording("[Give a picture, if it takes one: <image=>; or else |Give it: ]")
    if sound_slot([slot]) is not None:
        return Wording("[Give a sound: <audio=>; or else |Give it: ]")
    return "Give it: "


def _typed(slot: Slot, value: Array) -> Array:
    """An array in the input's type, repeated where the model was exported for a larger batch."""
    rows = slot.shape[0] if slot.shape else None
    if isinstance(rows, int) and rows > 1 and value.shape[0] == 1:
        value = np.repeat(value, rows, axis=0)
    return np.ascontiguousarray(value.astype(slot.dtype or value.dtype)).reshape(value.shape)


def array_of(name: str, value: object) -> Array:
    """An input as an array; other values are converted by numpy.

    Raises:
        InputError: It is ragged, or a masked array that hides some of its values.
    """
    # Who has a masked array has loaded numpy.ma, which takes a while.
    if "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError(
            f"input {name} is a masked array, and hides {int(np.sum(value.mask))} of its values",
            "A model runs on all of them. Fill it: array.filled(0); what it is not to see goes into its mask input.",
        )
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"input {name} is not an array: its rows have different lengths", "Give one shape.") from None


def check(slots: Sequence[Slot], feed: Mapping[str, Array]) -> dict[str, Array]:
    """Check a feed against a model's inputs.

    Returns:
        The feed, with integers and floats converted to the model's types where nothing is lost.

    Raises:
        InputError: A name, shape or type that does not fit, or NaN in a float input.
    """
    wanted = {s.name: s for s in slots}
    unknown = [name for name in feed if name not in wanted]
    missing = [s.describe() for s in slots if s.name not in feed]
    if missing:
        raise InputError(
            f"the feed lacks {'; '.join(missing[:6])}{' ...' if len(missing) > 6 else ''}",
            f"It has: {', '.join(feed) or 'nothing'}."
            + (" Give a text as well." if any(is_ids(s) for s in slots if s.name not in feed) else ""),
        )
    if unknown:
        raise InputError(f"the model has no input {', '.join(unknown[:6])}", f"It takes: {', '.join(wanted)}.")
    bound: dict[str, tuple[int, str]] = {}
    out: dict[str, Array] = {}
    for name, slot in wanted.items():
        out[name] = _fit(slot, array_of(name, feed[name]), bound)
    return out


def _fit(slot: Slot, array: Array, bound: dict[str, tuple[int, str]]) -> Array:
    shape = list(array.shape)
    if slot.shape or array.ndim == 0:
        if len(shape) != len(slot.shape):
            raise InputError(f"input {slot.name} has shape {shape}; the model wants {slot.describe()}", _HOW)
        for have, want in zip(shape, slot.shape, strict=True):
            if isinstance(want, int) and have != want:
                raise InputError(f"input {slot.name} has shape {shape}; the model wants {slot.describe()}", _HOW)
    if array.ndim > 1 and shape[0] == 0:  # some kernels divide by the number of rows, and crash the process
        raise InputError(f"input {slot.name} has shape {shape}: there is no row to run on", "Give at least one.")
    if array.dtype.kind not in "biuf" and array.dtype != slot.dtype:  # text, times, records; bfloat16 is of kind V
        raise InputError(f"input {slot.name} holds {array.dtype} values; the model wants {slot.type}", _HOW)
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InputError(
            f"input {slot.name} has NaN in it", "Every weight behind it would be NaN. Check how it was made."
        )
    if slot.dtype is not None and array.dtype != slot.dtype:
        with np.errstate(all="ignore"):
            cast = array.astype(slot.dtype)
            back = cast.astype(array.dtype)
        # Of integers of one width, signed and unsigned, each cast back to the other whatever they are.
        if not (np.array_equal(back, array) and np.array_equal(cast < 0, array < 0)):
            raise InputError(f"input {slot.name} is {array.dtype}, and its values do not fit into {slot.type}", _HOW)
        return cast
    return array
