"""What a model's inputs are, told from their names, types and shapes; and what there is to fill them with."""

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
_PAST = re.compile(r"past|cache_?k|cache_?v|(key|value|kv)_?cache|(^|[._])cache[._]\d")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a rule may use to fill an input: one batch of token sequences of equal length."""

    ids: Array
    """int64 [B,Q]: what is new in this call; in an encoder-decoder, the decoder's."""
    mask: Array
    """int64 [B,past+Q], 1 for real tokens, cached ones first."""
    types: Array
    """int64 [B,Q], segments."""
    memory_ids: Array | None = None
    """int64 [B,K], the encoder's ids of an encoder-decoder."""
    memory_mask: Array | None = None
    """int64 [B,K]."""
    memory: Array | None = None
    """float [B,K,hidden], what the encoder made, where it is a file of its own."""
    past: int = 0
    """Number of cached tokens; their arrays are given outright."""
    kv_heads: int | None = None
    """Key/value heads and size of a head, for caches whose shape is written in symbols."""
    head_size: int | None = None
    window: int | None = None
    """Keys that a cache which is a ring has to hold."""

    @property
    def encoder(self) -> Needs:
        """The encoder's side as if it were all there is."""
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
    if not is_integer(slot) or len(slot.shape) != 2:
        return False
    if named(slot, "mask", "type", "segment", "position", "past", "len", "pad"):
        return False
    return named(slot, "ids", "input", "token", "text") or sided(slot, ENCODER) or sided(slot, DECODER)


def sided(slot: Slot, side: re.Pattern[str]) -> bool:
    """Whether an input's name says that it is of the encoder, or of the decoder."""
    return bool(side.search(slot.name.lower()))


def own_mask(slots: Sequence[Slot], given: Mapping[str, Array]) -> str | None:
    """Which of the given arrays says what of a text is padding: [B,Q] of whole numbers."""
    memory = encoder_side(slots)
    masks = (s for s in slots if s.name in given and s.name not in memory and named(s, "attention_mask"))
    masks = (s for s in masks if not named(s, "global"))
    return next((s.name for s in masks if is_integer(s) and len(s.shape) == given[s.name].ndim == 2), None)


def encoder_side(slots: Sequence[Slot]) -> set[str]:
    """Inputs that describe the encoder's sequence in a graph that has a decoder too; none in a graph of one side.

    `decoder_input_ids` makes an unmarked `input_ids` the encoder's; `encoder_attention_mask` makes it the decoder's.
    """
    plain = [s for s in slots if not is_past(s)]
    encoder = {s.name for s in plain if sided(s, ENCODER)}
    decoder = {s.name for s in plain if sided(s, DECODER)}
    unmarked = {s.name for s in plain if s.name not in encoder | decoder}
    if decoder:
        return encoder | unmarked
    if encoder and any(is_ids(s) for s in plain if s.name in unmarked):
        return encoder
    return set()


def is_sense(slot: Slot) -> bool:
    """Whether an input takes a picture or sound: numbers with axes besides the batch's, and no hidden states."""
    whole = slot.dtype in (np.float32, np.float16) and len(slot.shape) in (2, 3, 4) and not is_past(slot)
    return whole and named(slot, "pixel", "image", "input_features", "input_values", "audio", "mel", "patches")


def takes_target(slots: Sequence[Slot]) -> bool:
    """Whether a graph has an encoder's side, of ids, a picture or sound, and wants a decoder's ids besides."""
    memory = encoder_side(slots)
    ids = [s for s in slots if is_ids(s)]
    reads = any(s.name in memory and (is_ids(s) or is_sense(s)) for s in slots)
    return reads and any(s.name not in memory for s in ids)


def fixed_length(slots: Sequence[Slot]) -> int | None:
    """The number of tokens that a graph was exported for, where it takes no other."""
    memory = encoder_side(slots)
    sizes = [s.shape[1] for s in slots if is_ids(s) and s.name not in memory]
    return next((n for n in sizes if isinstance(n, int)), None)


def padded(tokens: Tokens, length: int, pad_id: int = 0, piece: str = "[PAD]") -> Tokens:
    """Tokens filled up at the right to the length that a graph was exported for.

    Raises:
        InputError: There are more than that.
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
