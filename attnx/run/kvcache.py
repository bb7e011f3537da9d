"""A decoder's cache of keys and values: which output of one call is which input of the next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnx.feed.inputs import Needs, is_past
from attnx.records import Array
from attnx.session.ort import Slot
from attnx.session.protocol import OpenModel

_MARK = re.compile(r"past_key_values?|present_key_values?|past|present|updated|new|out(put)?|in(put)?")


def _bare(name: str) -> str:
    """A cache's name without the part that marks it as input or output: "present.0.decoder.key" -> "0decoderkey"."""
    return re.sub(r"[^a-z0-9]", "", _MARK.sub("", name.lower()))


def pair(slots: Sequence[Slot], outputs: Sequence[str]) -> dict[str, str] | None:
    """Match each cache input to the output that fills it in the next call: by name, or by order if names do not help.

    Args:
        slots: Inputs of the graph that continues.
        outputs: Outputs of the graph that ran.

    Returns:
        Input -> output; None where there is no cache, or where the match is unclear. A cross-attention's cache that is
        filled once and never changes may have no output.
    """
    pasts = [s.name for s in slots if is_past(s)]
    if not pasts:
        return None
    found = pair_by_name(slots, outputs)
    if all(name in found or is_cross(name) for name in pasts):
        return found
    presents = [name for name in outputs if re.search(r"present|past|cache", name.lower())]
    return dict(zip(pasts, presents, strict=True)) if len(presents) == len(pasts) else None


def pair_by_name(slots: Sequence[Slot], outputs: Sequence[str]) -> dict[str, str]:
    """The cache inputs that an output of the same name (apart from "past" and "present") can fill."""
    by_name = {_bare(name): name for name in outputs}
    return {s.name: by_name[_bare(s.name)] for s in slots if is_past(s) and _bare(s.name) in by_name}


def is_cross(name: str) -> bool:
    """Whether a cache is a cross-attention's: filled once from the encoder."""
    return bool(re.search(r"cross|(^|[._])encoder", name.lower()))


def carry(pairs: Mapping[str, str], outputs: Mapping[str, Array], old: Mapping[str, Array]) -> dict[str, Array]:
    """The caches for the next call.

    A branch that only reads a cross-attention's cache returns an empty array for it; the old array is kept.
    """
    new = dict(old)
    for name, output in pairs.items():
        array = outputs.get(output)
        if array is not None and (array.size or name not in old) and not (is_cross(name) and name in old):
            new[name] = array
    return new


def is_static(slots: Sequence[Slot]) -> bool:
    """Whether the caches have a fixed size, with room that is not used yet."""
    pasts = [s for s in slots if is_past(s)]
    return bool(pasts) and all(isinstance(d, int) and d > 0 for s in pasts for d in s.shape[1:])


def room(slots: Sequence[Slot]) -> int | None:
    """How many tokens a static cache holds; None where it grows."""
    if not is_static(slots):
        return None
    past = next(s for s in slots if is_past(s))
    axis = len(past.shape) - 2
    size = past.shape[axis]
    return size if isinstance(size, int) else None


def slides(slots: Sequence[Slot]) -> bool:
    """Whether a cache is a ring buffer that only its operator can fill: its tokens are not in order."""
    return any("sliding" in str(d).lower() for s in slots if is_past(s) for d in s.shape)


def sized(needs: Needs, model: OpenModel) -> Needs:
    """The needs with the sizes of the model's caches, which their inputs may leave open."""
    site = next((s for s in model.sites if s.kv_heads), None)
    window = max((s.window for s in model.sites if s.window is not None), default=None)
    if site is None:
        return needs
    return replace(needs, kv_heads=site.kv_heads, head_size=site.head_size, window=window)
