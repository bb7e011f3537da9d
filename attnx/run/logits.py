"""Find the output of a model that predicts the next token: by the size of the vocabulary, never by being wide."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from attnx.errors import ModelError, UnsupportedError
from attnx.feed.generation_config import settings
from attnx.feed.inputs import is_ids
from attnx.numerals import counted
from attnx.records import Array
from attnx.session.protocol import OpenModel

_WIDEST = 1 << 24


def vocabulary(model: OpenModel) -> frozenset[int]:
    """Sizes that a model's vocabulary may have: by its embedding's entries, its configuration, and its tokenizer.

    They may differ by entries added as padding; an empty set where nothing tells.
    """
    sizes = {slot.table for slot in model.slots() if is_ids(slot)}
    config = settings(model)
    for part in (config, config.part("text_config"), config.part("decoder")):
        sizes.add(part.maybe_whole("vocab_size", 1, _WIDEST) if part is not None else None)
    try:
        sizes.add(model.tokenizer.size)
    except ModelError:
        pass
    return frozenset(size for size in sizes if size is not None)


def next_logits(outputs: Mapping[str, Array], sizes: Collection[int], position: int) -> Array:
    """Logits of the next token, [vocabulary], float64.

    Args:
        outputs: The model's own outputs of one sequence.
        sizes: See `vocabulary`.
        position: Of the last token, from 0; -1 where the outputs end with it.

    Raises:
        UnsupportedError: No output has one number for each token of the vocabulary, or several do.
    """
    name = logits_output(outputs, sizes)
    return logits_at(outputs[name], position, name)


def logits_at(logits: Array, position: int, name: str = "logits") -> Array:
    """The logits of one position, [vocabulary], float64; of probabilities after a softmax, their logarithms.

    Args:
        logits: An output of one sequence: [1,Q,V], or [1,V] for its last position; [Q,1,V] is recognised by the batch
            of one.
        position: From 0; -1 for the last.
        name: What the output is called.

    Raises:
        UnsupportedError: The output does not reach that position.
    """
    if logits.ndim == 3 and logits.shape[0] != 1 and logits.shape[1] == 1:
        logits = logits.transpose(1, 0, 2)  # the sequence axis comes before the batch
    if logits.ndim == 3 and logits.shape[1] not in (1, position + 1) and position >= logits.shape[1]:
        raise UnsupportedError(
            f"output {name} has {counted(logits.shape[1], 'position')}, and the token after position {position} is "
            "needed",
            "Export the model so that it gives logits for every position, or for the last.",
        )
    row = logits[0] if logits.ndim == 3 else logits
    found = np.asarray(row[position if 0 <= position < len(row) else -1], dtype=np.float64)
    if (found >= 0).all() and abs(found.sum() - 1) < 1e-3:  # these are probabilities after a softmax, not logits
        with np.errstate(divide="ignore"):
            return np.log(found)
    return found


def logits_output(outputs: Mapping[str, Array], sizes: Collection[int]) -> str:
    """The output that has one number for each token of the vocabulary.

    Raises:
        UnsupportedError: No output has, or several have.
    """
    floats = {n: a.shape[-1] for n, a in outputs.items() if a.dtype.kind == "f" and 2 <= a.ndim <= 3}
    fits = [n for n, width in floats.items() if width in sizes and "hidden" not in n.lower()]
    called = [n for n in fits if "logit" in n.lower()] or [n for n in fits if "prob" in n.lower()]
    if not fits:
        # A head may have fewer entries than the embedding (a target language) or more (padding); then its name decides.
        least = min(sizes, default=2) // 2
        called = [n for n, width in floats.items() if "logit" in n.lower() and width >= max(least, 2)]
    if len(called or fits) == 1:
        return (called or fits)[0]
    if called:
        return called[0]
    said = " or ".join(str(size) for size in sorted(sizes)) or "an unknown number of"
    raise UnsupportedError(
        f"no output of the model predicts the next token: its vocabulary has {said} entries, and it gives "
        + ", ".join(f"{n} {list(a.shape)}" for n, a in outputs.items() if a.ndim)
        if not fits
        else f"several outputs may be the logits: {', '.join(fits)}",
        "Export it with its language-model head (task text-generation).",
    )
