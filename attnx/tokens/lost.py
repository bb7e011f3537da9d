"""What of a text a tokenizer loses: the characters it drops, and its entry for those that it cannot write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unicodedata import category

from attnx.errors import lacks_memory

_NOWHERE = "\U0010ffff"
"""A code that is no character, and so in no vocabulary."""


def unknown_id(raw: Any, named: str | None) -> int | None:
    """The id that stands for what the vocabulary cannot write.

    Args:
        raw: A tokenizer of the tokenizers package.
        named: The unknown token, where a configuration names it.

    Returns:
        Its id; None where there is none.
    """
    for entry in (getattr(raw.model, "unk_token", None), named):
        if entry:
            named_id: int | None = raw.token_to_id(entry)
            return named_id
    if not hasattr(raw.model, "unk_token"):  # a Unigram model has an id alone, and does not tell it
        try:
            found = {token.id for token in raw.model.tokenize(_NOWHERE)}
        except Exception as error:  # that is its only class; without such an id it cannot tokenise this
            if lacks_memory(error):
                raise
            found = set()
        if len(found) == 1 and raw.id_to_token(number := int(found.pop())) != _NOWHERE:
            return number
    usual: int | None = raw.token_to_id("<unk>")
    return usual


def dropped(texts: tuple[str, str], reached: Sequence[int], encoding: Any, normaliser: Any) -> list[tuple[str, int]]:
    """The characters that are in no token. Spaces and accents do not count, nor does what was cut off at the end.

    Args:
        texts: The text, and its pair or "".
        reached: Where the last token of each ends.
        encoding: What the tokenizers package made of them.
        normaliser: Its normaliser, or None.

    Returns:
        Each character and its position in the two texts, a line break between them.
    """
    spans = list(zip(encoding.offsets, encoding.sequence_ids, strict=True))
    gone = []
    for segment, text in enumerate(texts):
        covered = bytearray(len(text))
        for (start, stop), side in spans:
            if side == segment:
                covered[start:stop] = b"\1" * (stop - start)
        # A token's span may leave out the spaces around it: only the normaliser shows what happens to these.
        erased = {one for one in set(text) if _is_control(one) and _erases(normaliser, one)}
        end = reached[segment] if encoding.overflowing else len(text)
        for at, (one, seen) in enumerate(zip(text[:end], covered, strict=False)):
            if one in erased or not (seen or one.isspace() or category(one).startswith("M")):
                gone.append((one, at + segment * (len(texts[0]) + 1)))
    return gone


def unwritten(raw: Any, text: str) -> list[str]:
    """The characters of a text that a BPE model leaves out, whose places it then does not count.

    Args:
        raw: A tokenizer of the tokenizers package.
        text: A text of which it has dropped something.

    Returns:
        Each once, in order; none where the model has an entry for the unknown, or is of another kind.
    """
    if getattr(raw.model, "unk_token", "") is not None:
        return []
    for times in (3, 1):  # a vocabulary may lack a character at the end of a word alone
        missing = [one for one in dict.fromkeys(text) if not raw.encode(one * times, add_special_tokens=False).ids]
        if found := [one for one in missing if not one.isspace()]:
            return found
    return missing


def _erases(normaliser: Any, character: str) -> bool:
    """Whether a normaliser removes a character between letters."""
    if normaliser is None:
        return False
    return bool(normaliser.normalize_str(f"a{character}a") == normaliser.normalize_str("aa"))


def _is_control(character: str) -> bool:
    """Whether a character is invisible (or replaces one that was lost), and is not a tab or line break."""
    if character == "\ufffd":
        return True
    return not character.isprintable() and character not in "\t\n\r" and category(character) in {"Cc", "Cf"}
