"""A number without an entry in the table it is looked up in is told before the run, with the token that it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from attnx.errors import AttnxError, InputError
from attnx.feed.inputs import is_ids
from attnx.records import Array
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.model import Model
    from attnx.session.model_summary import Inventory


def check(model: Model, known: Inventory, feed: Mapping[str, Array]) -> None:
    """Hold a feed's numbers against the tables of the model.

    Raises:
        InputError: A number beyond its table: which, where, and how many entries there are.
    """
    for slot in known.inputs:
        size, array = known.rows.get(slot.name), feed.get(slot.name)
        if size is None or array is None or array.dtype.kind not in "iu" or not array.size:
            continue
        beyond = (array >= size) | (array < -size)  # ONNX counts negative numbers from the end
        if not beyond.any():
            continue
        place = [int(at) for at in np.argwhere(beyond)[0]]
        number = int(array[tuple(place)])
        if is_ids(slot):
            raise InputError(
                f"token id {number}{_piece(model, number)} at position {place[-1]} is beyond the model's vocabulary of "
                f"{size}: tokenizer and model do not belong together",
                Wording("Give the model's own tokenizer (<tokenizer=>)[, or ids that the model has (<tokens>)]."),
            )
        raise InputError(
            f"input {slot.name} holds {number} at {place}, and the model has {size} entries for it",
            "Is the text longer than the model takes, or the tokenizer that of another model?",
        )


def _piece(model: Model, number: int) -> str:
    try:
        said: str = model.tokenizer.piece(number)
    except AttnxError:
        return ""
    return "" if said == f"#{number}" else f" ({said!r})"
