"""Refuse, before the run, numbers in a feed that have no entry in the table where they are looked up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnx.errors import AttnxError, InputError
from attnx.feed.inputs import is_ids, looked_up
from attnx.records import Array
from attnx.session.model_summary import ModelSummary
from attnx.session.protocol import OpenModel
from attnx.wording import Wording


def check(model: OpenModel, known: ModelSummary, feed: Mapping[str, Array]) -> None:
    """Check a feed's numbers against the tables of the model.

    Raises:
        InputError: A number beyond its table: which, where, and how many entries there are.
    """
    for slot in looked_up(known.inputs, known.rows):
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


def _piece(model: OpenModel, number: int) -> str:
    try:
        piece = model.tokenizer.piece(number)
    except AttnxError:
        return ""
    return "" if piece == f"#{number}" else f" ({piece!r})"
