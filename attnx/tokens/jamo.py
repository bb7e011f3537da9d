"""Pieces of Hangul syllables: a tokenizer that strips accents also splits syllables, so that pieces are letters.

A terminal cannot show such a letter (a conjoining jamo) by itself. It is shown as the standalone letter, and where the
text is known, in its syllable: the vowel of 는 is 는(ㅡ).

Source: Unicode 16, section 3.12 (conjoining jamo behaviour) and the blocks Hangul Jamo and Hangul Compatibility Jamo.
"""

from __future__ import annotations

import unicodedata

_INITIALS = "ㄱㄲㄴㄷㄸㄹㅁㅂㅃㅅㅆㅇㅈㅉㅊㅋㅌㅍㅎ"
_VOWELS = "ㅏㅐㅑㅒㅓㅔㅕㅖㅗㅘㅙㅚㅛㅜㅝㅞㅟㅠㅡㅢㅣ"
_FINALS = "ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ"
_ALONE = {
    start + at: letter
    for start, letters in ((0x1100, _INITIALS), (0x1161, _VOWELS), (0x11A8, _FINALS))
    for at, letter in enumerate(letters)
}
"""Conjoining jamo -> the standalone letter."""


def letters(piece: str) -> str:
    """A piece with its syllables composed, and the remaining letters as standalone letters."""
    if piece.isascii() or not any(ord(character) in _ALONE for character in piece):
        return piece
    return unicodedata.normalize("NFC", piece).translate(_ALONE)


def in_text(piece: str, written: str) -> str:
    """A piece as `letters` gives it; if it is part of syllables, these come before it: "##는(ㅡ)".

    Args:
        piece: As the vocabulary has it; "##" and spaces before it stay.
        written: What it stands for in the text; "" where that is not known.
    """
    shown = letters(piece)
    if shown == piece:
        return piece
    bare = shown.removeprefix("##").lstrip(" ")
    start = shown[: len(shown) - len(bare)]
    whole = unicodedata.normalize("NFC", written)
    if not whole or whole == bare:
        return start + (whole or bare)
    return f"{start}{whole}({bare})"


__all__ = ["in_text", "letters"]
