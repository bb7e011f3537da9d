"""Rules that fill a model's inputs: each covers one sort of input, and returns None for all others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnx.feed.inputs import ENCODER, Needs, is_ids, is_integer, is_past, named, sided, written
from attnx.records import Array
from attnx.session.ort import Slot

Rule = Callable[[Slot, Needs], "Array | None"]


def _ids(slot: Slot, needs: Needs) -> Array | None:
    return needs.ids if is_ids(slot) else None


def _mask(slot: Slot, needs: Needs) -> Array | None:
    if not named(slot, "mask", "pad") or slot.dtype is None or len(slot.shape) not in (2, 3, 4):
        return None
    mask = needs.mask
    if named(slot, "global") and len(slot.shape) == 2:
        return np.zeros_like(mask)  # which tokens attend to all others (Longformer): none, as in transformers
    width = slot.shape[-1]
    if len(slot.shape) == 2:
        if isinstance(width, int) and width > mask.shape[1]:  # a static cache has room that is not used yet
            mask = np.pad(mask, ((0, 0), (0, width - mask.shape[1])))
        return written(slot, mask > 0)
    return written(slot, _square(slot, needs))


def _square(slot: Slot, needs: Needs) -> Array:
    """Which keys each query may see, bool [B,(1,)Q,K]."""
    queries, keys = needs.ids.shape[1], needs.mask.shape[1]
    seen = np.tril(np.ones((queries, keys), dtype=bool), keys - queries) & (needs.mask[:, None, :] > 0)
    width = slot.shape[-1]
    if isinstance(width, int) and width > keys:
        seen = np.pad(seen, ((0, 0), (0, 0), (0, width - keys)))
    return seen[:, None] if len(slot.shape) == 4 else seen


def _types(slot: Slot, needs: Needs) -> Array | None:
    return needs.types if named(slot, "token_type", "segment", "type_ids") and len(slot.shape) == 2 else None


def _positions(slot: Slot, needs: Needs) -> Array | None:
    if not named(slot, "position") or not is_integer(slot):
        return None
    length = needs.ids.shape[1]
    if len(slot.shape) == 1:
        return np.arange(needs.past, needs.past + length)
    places = np.maximum(np.cumsum(needs.mask, axis=1) - 1, 0)[:, -length:]
    if len(slot.shape) == 3 and slot.shape[0] == 3:  # rotary positions of time, height and width: equal for a text
        return np.broadcast_to(places, (3, *places.shape))
    return places if len(slot.shape) == 2 else None


def _lengths(slot: Slot, needs: Needs) -> Array | None:
    """Counts of tokens, as fused operators and old recurrent models take them."""
    if not is_integer(slot) or len(slot.shape) > 2 or named(slot, "mask", "ids"):
        return None
    total = needs.mask.shape[1]
    counts = {"seqlens_k": needs.mask.sum(axis=1) - 1, "total_seq": np.array(total), "past_seq": np.array(needs.past)}
    value = next((v for word, v in counts.items() if word in slot.name.lower()), None)
    if value is None and named(slot, "length", "seq_len"):
        value = needs.mask.sum(axis=1)
    if value is None:
        return None
    shape = [d if isinstance(d, int) else len(needs.ids) for d in slot.shape]
    return np.broadcast_to(value.reshape([-1] + [1] * (len(shape) - 1)) if shape else value, shape).copy()


def _past(slot: Slot, needs: Needs) -> Array | None:
    """An empty cache; a static one is full of zeros."""
    if not is_past(slot):
        return None
    rank = len(slot.shape)
    batch = next((i for i, d in enumerate(slot.shape) if not isinstance(d, int) and "batch" in str(d).lower()), None)
    if batch is None:
        batch = 1 if rank == 5 and slot.shape[0] == 2 else 0
    shape: list[int] = []
    for i, dim in enumerate(slot.shape):
        name = str(dim).lower()
        if isinstance(dim, int):
            shape.append(dim)
        elif i == batch:
            shape.append(needs.ids.shape[0])
        elif "sliding" in name and needs.window is not None:
            shape.append(needs.window)  # a ring buffer, which its operator fills; it refuses fewer than the window
        elif "past" in name or "seq" in name or "len" in name:
            shape.append(0)
        elif "head" in name and i < rank - 1 and needs.kv_heads is not None:
            shape.append(needs.kv_heads)
        elif i == rank - 1 and needs.head_size is not None:
            shape.append(needs.head_size)
        else:
            shape.append(0)
    return np.zeros(shape, dtype=slot.dtype)


def _branch(slot: Slot, needs: Needs) -> Array | None:
    if not named(slot, "use_cache") or slot.dtype is not np.bool_:
        return None
    return np.full([1] * len(slot.shape), needs.past > 0)


def _all_logits(slot: Slot, needs: Needs) -> Array | None:
    """How many logits to compute, counted from the end; 0 means all."""
    return np.zeros([1] * len(slot.shape)) if named(slot, "logits_to_keep") and len(slot.shape) <= 1 else None


def memory(slot: Slot, needs: Needs) -> Array | None:
    """The encoder's output, for the input that takes it."""
    hidden = len(slot.shape) == 3 and slot.dtype in (np.float32, np.float16) and sided(slot, ENCODER)
    return needs.memory if hidden and not named(slot, "mask") else None


RULES: tuple[Rule, ...] = (_branch, _all_logits, _past, _lengths, _mask, _types, _positions, _ids)
"""In order: the first rule that fills an input wins."""
