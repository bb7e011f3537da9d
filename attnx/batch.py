"""Many texts -> traces: sorted by length, run in batches, padding masked and cut off; in the order they came."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from attnx import feed as feeding
from attnx.errors import ModelError, UsageError
from attnx.inputs import fixed_length, is_past, named, takes_target
from attnx.records import STAGES, Attention, Tokens, Trace
from attnx.running import Wanted
from attnx.tokens.given import pad

if TYPE_CHECKING:
    from attnx.pipeline import Model

SIZE = 32
"""Texts a batch."""
WINDOW = 8
"""Batches that are sorted by length together: more of them pad less, and hold more in memory."""
CELLS = 1 << 25
"""At most this many cells of a site's matrices in one batch, whatever its size: long texts run in smaller ones."""


def trace_many(
    model: Model,
    texts: Iterable[str | Tokens],
    quantities: Collection[str],
    layers: Collection[int] | None = None,
    *,
    size: int = SIZE,
    verify: bool = True,
) -> Iterator[Trace]:
    """Trace many texts, as `Model.trace` would one by one, to float32's rounding.

    Args:
        model: The model.
        texts: Texts, or tokens made before; read as far ahead as a few batches need.
        quantities: Which arrays to keep.
        layers: Only sites of these layers.
        size: Texts a batch.
        verify: Make the checks that the arrays at hand allow; those of a batch hold for each text in it.

    Yields:
        A trace for each text, in the order given.

    Raises:
        UsageError: A batch of less than one text.
    """
    if size < 1:
        raise UsageError(f"a batch of {size} texts", "Give 1 or more.")
    wanted = Wanted(layers, quantities, verify=verify)
    how = _how(model)
    source = iter(texts)
    while window := [_tokens(model, text) for text in islice(source, size * WINDOW)]:
        if how is None:
            yield from (_single(model, tokens, wanted) for tokens in window)
            continue
        done: dict[int, Trace] = {}
        order = sorted(range(len(window)), key=lambda at: len(window[at]))
        for part in _batches(order, [len(tokens) for tokens in window], size, heads=_heads(model), pads=how):
            traces = _run(model, [window[at] for at in part], wanted)
            done.update(zip(part, traces, strict=True))
        yield from (done[at] for at in range(len(window)))


def _single(model: Model, tokens: Tokens, wanted: Wanted) -> Trace:
    return model.trace(
        tokens=tokens, layers=wanted.layers, quantities=wanted.quantities, verify=wanted.verify, required=True
    )


def _tokens(model: Model, text: str | Tokens) -> Tokens:
    return text if isinstance(text, Tokens) else model.encode(text)


def _heads(model: Model) -> int:
    return max((site.heads or 1 for site in model.sites), default=1)


def _how(model: Model) -> bool | None:
    """Whether texts of different lengths may share a batch (else those of one length do); None for one at a time."""
    slots = model.slots()
    alone = (
        model.encoder is not None
        or takes_target(slots)
        or fixed_length(slots) is not None
        or any(is_past(slot) for slot in slots)
        or any(slot.shape and isinstance(slot.shape[0], int) for slot in slots)
        or any(site.kind != "self" for site in model.sites)
    )
    if alone:
        return None
    return any(named(slot, "mask") for slot in slots) or all(site.causal is True for site in model.sites)


def _batches(order: Sequence[int], lengths: Sequence[int], size: int, heads: int, pads: bool) -> Iterator[list[int]]:
    """Cut texts that are sorted by length into batches."""
    part: list[int] = []
    for at in order:
        cells = (len(part) + 1) * heads * lengths[at] ** 2
        if part and (len(part) == size or cells > CELLS or (not pads and lengths[at] != lengths[part[0]])):
            yield part
            part = []
        part.append(at)
    if part:
        yield part


def _run(model: Model, texts: Sequence[Tokens], wanted: Wanted) -> list[Trace]:
    """One batch."""
    if len({len(tokens) for tokens in texts}) > 1:
        try:
            pad_id, piece = model.tokenizer.pad_id, model.tokenizer.piece(model.tokenizer.pad_id)
        except ModelError:
            pad_id, piece = 0, "#0"
        whole = pad(list(texts), pad_id, piece)
    else:
        whole = tuple(texts)
    feed = feeding.derive(model.slots(), feeding.batch_of(whole))
    run = model.run(feed, wanted, many=True)
    out = []
    for at, tokens in enumerate(texts):
        attentions = tuple(_cut(attention, at, len(tokens)) for attention in run.attentions)
        notes = tuple(dict.fromkeys((*tokens.notes, *run.notes)))
        out.append(Trace(model.name, run.device, tokens, None, attentions, misses=run.misses, notes=notes))
    return out


def _cut(attention: Attention, at: int, length: int) -> Attention:
    """One text's arrays out of a batch, without the padding."""
    arrays = {}
    for name in ("query", "key", "value", "context", *STAGES):
        array = getattr(attention, name)
        if array is not None:
            array = array[at : at + 1, :, :length]
            arrays[name] = array[..., :length] if name in STAGES else array
    return replace(attention, **arrays)
