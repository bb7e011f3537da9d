"""Inputs of a feed whose lengths do not go together: named where a run of it failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from attnx.errors import RunError
from attnx.numerals import counted
from attnx.records import Array
from attnx.wording import Wording


class Slot(Protocol):
    """An input of a model; see `attnx.session.ort.Slot`."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def shape(self) -> tuple[int | str | None, ...]:
        """Numbers, names of symbolic dimensions, or None."""

    @property
    def ids(self) -> bool:
        """Whether it takes token ids although its name does not say so."""


def disagreement(slots: Sequence[Slot], feed: Mapping[str, Array]) -> RunError | None:
    """The input whose length is not that of the others; None if there is none.

    Names of dimensions are not trusted before a run: exporters give one name to lengths that differ. A length of 1 may
    stand for any.

    Args:
        slots: The model's inputs.
        feed: An array for each.
    """
    sizes: dict[str, dict[Slot, int]] = {}
    for slot in slots:
        shape = np.shape(feed[slot.name]) if slot.name in feed else ()
        if len(shape) != len(slot.shape):
            continue
        for name, size in zip(slot.shape, shape, strict=True):
            if isinstance(name, str) and name.strip("? ") and size != 1:
                sizes.setdefault(name, {})[slot] = size
    for of_name in sizes.values():
        if len(set(of_name.values())) < 2:
            continue
        ((usual, _),) = Counter(of_name.values()).most_common(1)  # the first of those that are as frequent
        like = next(slot for slot, size in of_name.items() if size == usual)
        odd, size = next((slot, size) for slot, size in of_name.items() if size != usual)
        return _error(odd, size, usual, f"{like.name} has {usual}")
    return _mask([slot for slot in slots if slot.name in feed], feed)


def _mask(slots: Sequence[Slot], feed: Mapping[str, Array]) -> RunError | None:
    """The same of a mask over cached keys and those of the text, whose length has a name of its own."""
    flat = [slot for slot in slots if len(slot.shape) == 2 == np.ndim(feed[slot.name])]
    ids = next((slot for slot in flat if slot.ids or slot.name.lower().endswith("input_ids")), None)
    mask = next((slot for slot in flat if "mask" in slot.name.lower()), None)
    if ids is None or mask is None:
        return None
    caches = [np.shape(feed[slot.name]) for slot in slots if len(slot.shape) == 4 and "past" in slot.name.lower()]
    past = max((shape[2] for shape in caches if len(shape) == 4), default=0)
    text, size = (np.shape(feed[slot.name])[1] for slot in (ids, mask))
    if size in (1, past, text + past):
        return None
    return _error(mask, size, text + past, f"{ids.name} has {text}{f' and the past {past}' if past else ''}")


def _error(slot: Slot, size: int, want: int, where: str) -> RunError:
    return RunError(
        f"input {slot.name} has {counted(size, 'entry', 'entries')} where {where}",
        Wording("Give {count} of {name}[: <values=>[ or <inputs=>]].", count=want, name=slot.name),
    )
