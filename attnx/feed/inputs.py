"""Recognise a model's inputs by their names, types and shapes; and what they can be filled with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnx.errors import InputError
from attnx.records import Array, Tokens
from attnx.session.ort import Slot

ENCODER = re.compile(r"(^|[._/])(encoder|enc|src|source|memory)")
DECODER = re.compile(r"(^|[._/])(decoder|dec|tgt|trg|target)")
_HIDDEN = -1e3
"""A number that is added to hide a key is below this."""
_PAST = re.compile(r"past|cache_?k|cache_?v|(key|value|kv)_?cache|(^|[._])cache[._]\d")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a rule may use to fill an input: one batch of token sequences of equal length."""

    ids: Array
    """int64 [B,Q]: the ids that are new in this call; in an encoder-decoder, the decoder's."""
    mask: Array
    """int64 [B,past+Q], 1 for real tokens, cached ones first."""
    types: Array
    """int64 [B,Q], segments."""
    memory_ids: Array | None = None
    """int64 [B,K], the encoder's ids of an encoder-decoder."""
    memory_mask: Array | None = None
    """int64 [B,K]."""
    memory: Array | None = None
    """float [B,K,hidden], the encoder's output, if the encoder is a file of its own."""
    past: int = 0
    """Number of cached tokens; their arrays are passed directly."""
    kv_heads: int | None = None
    """Key/value heads and size of a head, for caches whose shape is written in symbols."""
    head_size: int | None = None
    window: int | None = None
    """How many keys a ring buffer must hold."""

    @property
    def encoder(self) -> Needs:
        """The encoder's side, as if there were nothing else."""
        if self.memory_mask is None:
            return self
        ids = self.memory_ids if self.memory_ids is not None else np.zeros_like(self.memory_mask)
        return Needs(ids, self.memory_mask, np.zeros_like(ids))


def batch_of(tokens: Sequence[Tokens]) -> Needs:
    """Sequences of equal length as one batch."""
    ids = np.stack([t.ids for t in tokens]).astype(np.int64)
    mask = np.array([t.mask for t in tokens], dtype=np.int64)
    types = np.array([t.type_ids or (0,) * len(t) for t in tokens], dtype=np.int64)
    return Needs(ids, mask, types)


def named(slot: Slot, *words: str) -> bool:
    """Whether one of the words occurs in an input's name."""
    name = slot.name.lower().split("/")[-1]
    return any(word in name for word in words)


def is_integer(slot: Slot) -> bool:
    """Whether an input takes whole numbers."""
    return slot.dtype in (np.int64, np.int32)


def is_past(slot: Slot) -> bool:
    """Whether an input is a cache of keys or values."""
    return len(slot.shape) >= 3 and slot.dtype is not None and bool(_PAST.search(slot.name.lower()))


def is_ids(slot: Slot) -> bool:
    """Whether an input takes token ids."""
    return _may_be_ids(slot) and (slot.ids or _says_ids(slot))


def looked_up(slots: Sequence[Slot], tables: Mapping[str, int]) -> list[Slot]:
    """Inputs with their tables; if no input is named as ids, the one that takes ids is marked by its table.

    Args:
        slots: All inputs of a graph.
        tables: Input -> entries of the table that its numbers are looked up in.

    Returns:
        The same inputs with their tables; of several whose numbers are looked up, the one with the largest is the ids.
    """
    known = [replace(slot, table=tables.get(slot.name)) for slot in slots]
    may = [slot for slot in known if _may_be_ids(slot)]
    if any(_says_ids(slot) for slot in may):
        return known
    sizes = sorted(((slot.table, slot.name) for slot in may if slot.table is not None), reverse=True)
    clear = sizes and (len(sizes) == 1 or sizes[0][0] > sizes[1][0])
    return [replace(slot, ids=bool(clear) and slot.name == sizes[0][1]) for slot in known]


def _may_be_ids(slot: Slot) -> bool:
    named_else = named(slot, "mask", "type", "segment", "position", "past", "len", "pad")
    return is_integer(slot) and len(slot.shape) == 2 and not named_else


def _says_ids(slot: Slot) -> bool:
    return named(slot, "ids", "input", "token", "text") or sided(slot, ENCODER) or sided(slot, DECODER)


def sided(slot: Slot, side: re.Pattern[str]) -> bool:
    """Which side an input's name puts it on: the encoder's or the decoder's."""
    return bool(side.search(slot.name.lower()))


def _kept(slot: Slot) -> float | None:
    """A mask's value for a visible key: as the graph shows, else 0 where the name says that true means padding."""
    if slot.kept is None and slot.dtype is np.bool_ and named(slot, "pad"):
        return 0.0
    return slot.kept


def seen_by(slot: Slot, mask: Array) -> Array:
    """What a mask leaves visible, bool in its shape: for an additive mask, whatever is not far below zero.

    Args:
        slot: The input that takes it.
        mask: Its array.
    """
    if mask.dtype.kind == "f" and slot.kept == 0.0:
        return np.asarray(mask > _HIDDEN)
    return np.asarray((mask == 0) if _kept(slot) == 0.0 else (mask != 0))


def written(slot: Slot, seen: Array) -> Array:
    """A mask in the form that an input takes, from what is visible (bool).

    A float mask of unknown form has ones where something is visible; a square one is additive.
    """
    if slot.dtype is None or not np.issubdtype(slot.dtype, np.floating):
        return np.asarray(~seen if _kept(slot) == 0.0 else seen)
    added = slot.kept == 0.0 or (slot.kept is None and len(slot.shape) > 2)
    return np.where(seen, 0.0, np.finfo(slot.dtype).min) if added else np.asarray(seen)


def own_mask(slots: Sequence[Slot], given: Mapping[str, Array]) -> Slot | None:
    """The given array that marks padding in a text: [B,Q] of whole numbers."""
    memory = encoder_side(slots)
    masks = (s for s in slots if s.name in given and s.name not in memory and named(s, "attention_mask"))
    masks = (s for s in masks if not named(s, "global"))
    return next((s for s in masks if is_integer(s) and len(s.shape) == given[s.name].ndim == 2), None)


def encoder_side(slots: Sequence[Slot]) -> set[str]:
    """Inputs that describe the encoder's sequence in a graph that also has a decoder; empty in a graph with one side.

    `decoder_input_ids` makes an unmarked `input_ids` the encoder's; `encoder_attention_mask` makes it the decoder's.
    """
    plain = [s for s in slots if not is_past(s)]
    encoder = {s.name for s in plain if sided(s, ENCODER)}
    decoder = {s.name for s in plain if sided(s, DECODER)}
    unmarked = {s.name for s in plain if s.name not in encoder | decoder}
    if decoder:
        return encoder | unmarked
    # A mask alone makes no second side ("src_mask" of an encoder), unless what it masks is in a cache.
    whole = any(s.name in encoder and not named(s, "mask", "pad") for s in plain)
    whole = whole or any(is_past(s) and sided(s, ENCODER) for s in slots)
    if encoder and whole and any(is_ids(s) for s in plain if s.name in unmarked):
        return encoder
    return set()


def is_sense(slot: Slot) -> bool:
    """Whether an input takes a picture or sound: numbers with axes besides the batch, and not hidden states."""
    whole = slot.dtype in (np.float32, np.float16) and len(slot.shape) in (2, 3, 4) and not is_past(slot)
    return whole and named(slot, "pixel", "image", "input_features", "input_values", "audio", "mel", "patches")


def takes_target(slots: Sequence[Slot]) -> bool:
    """Whether a graph has an encoder's side (ids, a picture or sound) and also takes a decoder's ids."""
    memory = encoder_side(slots)
    ids = [s for s in slots if is_ids(s)]
    reads = any(s.name in memory and (is_ids(s) or is_sense(s)) for s in slots)
    return reads and any(s.name not in memory for s in ids)


def fixed_length(slots: Sequence[Slot]) -> int | None:
    """The number of tokens that a graph was exported for, if it takes no other."""
    memory = encoder_side(slots)
    sizes = [s.shape[1] for s in slots if is_ids(s) and s.name not in memory]
    return next((n for n in sizes if isinstance(n, int)), None)


def masked_by(slots: Sequence[Slot], tokens: Tokens, inputs: Mapping[str, Array]) -> Tokens:
    """Mark as padding the tokens that a mask among the inputs has 0 for: positions count from the first other token."""
    from attnx.tokens.axes import masked

    slot = own_mask(slots, inputs)
    if slot is None or inputs[slot.name].shape != (1, len(tokens)):
        return tokens
    return masked(tokens, seen_by(slot, inputs[slot.name])[0])


def padded(tokens: Tokens, length: int, pad_id: int = 0, piece: str = "[PAD]") -> Tokens:
    """Tokens padded on the right to the length that a graph was exported for.

    Raises:
        InputError: There are more tokens than that.
    """
    from attnx.tokens.ids import pad

    if len(tokens) > length:
        raise InputError(
            f"the text has {len(tokens)} tokens, and this model was exported for exactly {length}",
            "Give a shorter text, or export the model with a length that may vary.",
        )
    if len(tokens) == length:
        return tokens
    filler = replace(tokens, ids=np.zeros(length, np.int64), pieces=("",) * length)
    return pad([tokens, filler], pad_id, piece)[0]
