"""Tokens, arrays -> model inputs: ids, masks, segments, positions, empty caches; and the check of a feed that was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnx.errors import InputError
from attnx.records import Array, Tokens
from attnx.session import Slot


@dataclass(frozen=True, slots=True)
class Needs:
    """What a rule may use to fill an input: one batch of token sequences of equal length."""

    ids: Array
    """int64 [B,Q]."""
    mask: Array
    """int64 [B,Q], 1 for real tokens."""
    types: Array
    """int64 [B,Q], segments."""
    memory_ids: Array | None = None
    """int64 [B,K], the encoder's ids of an encoder-decoder."""
    memory_mask: Array | None = None


def batch_of(tokens: Sequence[Tokens]) -> Needs:
    """Sequences of equal length as one batch."""
    ids = np.stack([t.ids for t in tokens]).astype(np.int64)
    mask = np.array([t.mask for t in tokens], dtype=np.int64)
    types = np.array([t.type_ids or (0,) * len(t) for t in tokens], dtype=np.int64)
    return Needs(ids, mask, types)


Rule = Callable[[Slot, Needs], "Array | None"]


def _named(slot: Slot, *words: str) -> bool:
    name = slot.name.lower().split("/")[-1]
    return any(word in name for word in words)


def _integer(slot: Slot) -> bool:
    return slot.dtype in (np.int64, np.int32)


def _ids(slot: Slot, needs: Needs) -> Array | None:
    if not _integer(slot) or len(slot.shape) != 2 or _named(slot, "mask", "type", "segment", "position", "past", "len"):
        return None
    return needs.ids if _named(slot, "ids", "input", "token", "src", "text") else None


def _mask(slot: Slot, needs: Needs) -> Array | None:
    if not _named(slot, "mask") or len(slot.shape) != 2:
        return None
    return needs.mask


def _types(slot: Slot, needs: Needs) -> Array | None:
    return needs.types if _named(slot, "token_type", "segment", "type_ids") and len(slot.shape) == 2 else None


def _positions(slot: Slot, needs: Needs) -> Array | None:
    if not _named(slot, "position") or not _integer(slot):
        return None
    length = needs.ids.shape[1]
    if len(slot.shape) == 1:
        return np.arange(length)
    if len(slot.shape) != 2:
        return None
    return np.maximum(np.cumsum(needs.mask, axis=1) - 1, 0)


def _past(slot: Slot, needs: Needs) -> Array | None:
    if not _named(slot, "past", "cache_k", "cache_v") or len(slot.shape) < 3 or slot.dtype is None:
        return None
    shape: list[int] = []
    for i, dim in enumerate(slot.shape):
        if isinstance(dim, int):
            shape.append(dim)
        elif i == 0 and "past" not in str(dim).lower():
            shape.append(needs.ids.shape[0])
        else:
            shape.append(0)
    return np.zeros(shape, dtype=slot.dtype)


def _branch(slot: Slot, needs: Needs) -> Array | None:
    if not _named(slot, "use_cache") or slot.dtype is not np.bool_:
        return None
    return np.zeros([1] * len(slot.shape), dtype=bool)


RULES: tuple[Rule, ...] = (_branch, _past, _mask, _types, _positions, _ids)
"""In order: the first that fills an input wins."""


def derive(slots: Sequence[Slot], needs: Needs, given: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """Fill every input of a model.

    Args:
        slots: The model's inputs.
        needs: What there is to fill them with.
        given: Inputs that are given outright.

    Raises:
        InputError: An input that no rule knows; it is named with its type and shape.
    """
    feed: dict[str, Array] = dict(given or {})
    for slot in slots:
        if slot.name in feed:
            continue
        value = next((v for rule in RULES if (v := rule(slot, needs)) is not None), None)
        if value is None:
            raise InputError(
                f"the model wants an input that cannot be made from text: {slot.describe()}",
                "Give it: --inputs FEED.npz with an array of that name, or --set NAME=VALUE. "
                "`attnx sites MODEL --feed-template` lists all inputs.",
            )
        feed[slot.name] = np.ascontiguousarray(value.astype(slot.dtype or value.dtype))
    return check(slots, feed)


def check(slots: Sequence[Slot], feed: Mapping[str, Array]) -> dict[str, Array]:
    """Hold a feed against a model's inputs.

    Returns:
        The feed, integers and floats brought to the model's types where that loses nothing.

    Raises:
        InputError: A name, shape or type that does not fit, or NaN in a float input.
    """
    wanted = {s.name: s for s in slots}
    unknown = [name for name in feed if name not in wanted]
    missing = [s.describe() for s in slots if s.name not in feed]
    if missing:
        raise InputError(
            f"the feed lacks {'; '.join(missing[:6])}{' ...' if len(missing) > 6 else ''}",
            f"It has: {', '.join(feed) or 'nothing'}.",
        )
    if unknown:
        raise InputError(f"the model has no input {', '.join(unknown[:6])}", f"It takes: {', '.join(wanted)}.")
    bound: dict[str, tuple[int, str]] = {}
    out: dict[str, Array] = {}
    for name, slot in wanted.items():
        out[name] = _fit(slot, np.asarray(feed[name]), bound)
    return out


def _fit(slot: Slot, array: Array, bound: dict[str, tuple[int, str]]) -> Array:
    shape = list(array.shape)
    if slot.shape or array.ndim == 0:
        if len(shape) != len(slot.shape):
            raise InputError(f"input {slot.name} has shape {shape}; the model wants {slot.describe()}")
        for have, want in zip(shape, slot.shape, strict=True):
            if isinstance(want, int) and have != want:
                raise InputError(f"input {slot.name} has shape {shape}; the model wants {slot.describe()}")
    if array.dtype == object or array.dtype.kind in "SU":
        raise InputError(f"input {slot.name} holds {array.dtype} values; the model wants {slot.type}")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InputError(
            f"input {slot.name} has NaN in it", "Every weight behind it would be NaN. Check how it was made."
        )
    if slot.dtype is not None and array.dtype != slot.dtype:
        cast = array.astype(slot.dtype)
        if array.size and not np.array_equal(cast.astype(array.dtype), array):
            raise InputError(f"input {slot.name} is {array.dtype}, and its values do not fit into {slot.type}")
        return cast
    return array
