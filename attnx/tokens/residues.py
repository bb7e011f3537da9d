"""ESM's tokenizer from its list of pieces: one token per residue, <cls> before the protein and <eos> after it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnx.errors import ModelError
from attnx.wording import Wording

ROLES = {
    "cls_token": "<cls>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
"""Special tokens where no configuration names others."""


def is_of_residues(vocabulary: Mapping[str, int], settings: Mapping[str, Any]) -> bool:
    """Whether a list of pieces holds residues rather than BERT's words: by the configuration, else by its own names."""
    named = settings.get("tokenizer_class") == "EsmTokenizer"
    return named or ("<cls>" in vocabulary and "<eos>" in vocabulary and "[CLS]" not in vocabulary)


def residues(file: Path, vocabulary: Mapping[str, int], roles: Mapping[str, str]) -> Any:
    """A tokenizer that cuts a protein into the pieces of its vocabulary, as transformers' EsmTokenizer does.

    White space is skipped; a stretch between two pieces that is not a piece becomes one unknown token.

    Args:
        file: Where the vocabulary was read.
        vocabulary: Ids by piece.
        roles: The special tokens: all of `ROLES`.

    Raises:
        ModelError: A special token is not in the vocabulary.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors

    first, last, unknown = roles["cls_token"], roles["eos_token"], roles["unk_token"]
    if missing := [name for name in (first, last, unknown) if name not in vocabulary]:
        raise ModelError(
            f"{str(file)!r} is not a vocabulary of residues: {', '.join(missing)} is not in it",
            Wording("Give another with <tokenizer=>[, or the ids with <tokens>]."),
        )
    pieces = sorted((piece for piece in vocabulary if piece not in roles.values()), key=len, reverse=True)
    raw = Tokenizer(models.WordLevel(dict(vocabulary), unk_token=unknown))
    between = Regex("|".join(map(re.escape, pieces)))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(between, "isolated")]
    )
    raw.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(name, vocabulary[name]) for name in (first, last)],
    )
    special = [name for name in dict.fromkeys(roles.values()) if name in vocabulary]
    raw.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    return raw


__all__ = ["ROLES", "is_of_residues", "residues"]
