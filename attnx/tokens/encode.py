"""A loaded tokenizer, which turns texts and ids into tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attnx.errors import InputError, UsageError, lacks_memory
from attnx.numerals import counted
from attnx.records import Tokens
from attnx.silence import quiet
from attnx.tokens.ids import from_ids, pad
from attnx.tokens.jamo import in_text, letters
from attnx.tokens.lost import dropped, unknown_id, unwritten
from attnx.tokens.pieces import BYTES, Spelling, in_prose, shorten, visible
from attnx.tokens.words import index_words
from attnx.wording import Wording

_SHOWN = 5


class Tokenizer:
    """Text -> Tokens, for one model. Made by `load_tokenizer`.

    Attributes:
        path: The file it was read from.
        limit: The most tokens the model takes, special ones included; None where unknown.
        notes: What had to be guessed while loading.
        size: Number of entries in the vocabulary, added tokens included.
        special_ids: Ids of tokens that stand for no text: [CLS], </s>, <|endoftext|>, [PAD] (not [UNK], not [MASK]).
        pad_id: The id that fills a batch.
        roles: Special tokens by role ("bos_token", "eos_token", ...), where a configuration names them.
        unknown_id: The id that stands for what the vocabulary cannot write; None where it can write everything.

    Not safe for use by several threads at once: a length that differs from the last one changes its state.
    """

    def __init__(
        self,
        raw: Any,
        *,
        path: Path,
        limit: int | None = None,
        spelling: Spelling | None = None,
        roles: Mapping[str, str] | None = None,
        pad: str | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self._raw = raw
        self._spelling = spelling or Spelling()
        self.roles: Mapping[str, str] = roles or {}
        self.path = path
        self.limit = limit
        self.notes = notes
        self.size: int = raw.get_vocab_size(with_added_tokens=True)
        added = raw.get_added_tokens_decoder()
        self._added = {number: token.content for number, token in added.items()}
        writes_all = self._spelling.byte_level and all(raw.token_to_id(character) is not None for character in BYTES)
        # GPT-2's configuration also calls its end-of-text token unknown; a vocabulary of all bytes has no unknowns.
        self.unknown_id: int | None = None if writes_all else unknown_id(raw, self.roles.get("unk_token"))
        mask = {self.roles.get("mask_token"), "[MASK]", "<mask>"}
        special = {number for number, token in added.items() if token.special and token.content not in mask}
        special |= {
            raw.token_to_id(text) for role, text in self.roles.items() if role not in {"mask_token", "unk_token"}
        }
        wrapped = raw.encode("")
        special |= {
            number for number, is_added in zip(wrapped.ids, wrapped.special_tokens_mask, strict=True) if is_added
        }
        special -= {self.unknown_id}
        self.special_ids: frozenset[int] = frozenset(number for number in special if number is not None)
        names = (pad, self.roles.get("pad_token"), "[PAD]", "<pad>", self.roles.get("eos_token"))
        found = (raw.token_to_id(name) for name in names if name)
        self.pad_id: int = next((number for number in found if number is not None), 0)
        self._longest: int | None = None

    def token_id(self, entry: str) -> int | None:
        """The id of a vocabulary entry, as the vocabulary writes it; None when there is none."""
        number: int | None = self._raw.token_to_id(entry)
        return number

    def piece(self, number: int) -> str:
        """The text of a token id, ready to show; "#" and the number when the vocabulary has no such id."""
        return letters(self._spelled(number))

    def written(self, number: int) -> str:
        """What a token id adds to a text, with spaces and line breaks as they are; its piece where it adds none."""
        entry = self._raw.id_to_token(number) if 0 <= number < 2**32 and number not in self._added else None
        text = "" if entry is None else self._spelling.text(entry)
        return text if text.isspace() else self.piece(number)

    def _spelled(self, number: int) -> str:
        """See `piece`; Hangul letters stay as the vocabulary has them."""
        if number in self._added:
            # Added tokens are plain text, never bytes.
            return Spelling(space=self._spelling.space).show(self._added[number])
        entry = self._raw.id_to_token(number) if 0 <= number < 2**32 else None
        return f"#{number}" if entry is None else self._spelling.show(entry)

    def encode(
        self, text: str, pair: str | None = None, max_length: int | None = None, *, add_special: bool = True
    ) -> Tokens:
        """One text, or two as a pair, as the model sees it.

        Args:
            text: Any text; may be empty where the tokenizer adds special tokens.
            pair: A second segment, as BERT takes it.
            max_length: Cut to this many tokens, special ones included; the model's own limit holds in any case. Of a
                pair, the longer text is cut first.
            add_special: Whether special tokens are put around the text; False where it holds them itself.

        Returns:
            Tokens of length Q. Its notes tell of text that was cut off, of unknown pieces, and of `notes`.

        Raises:
            InputError: The text is not valid Unicode, gives no token at all, or cannot be written in this vocabulary.
            UsageError: max_length leaves no room for any text.
        """
        for part in (text, pair or ""):
            check_text(part)
        longest = self._set_longest(max_length, pair is not None)
        encoding = self._encoded(text, pair, add_special)
        if not encoding.ids:
            raise InputError("the text is empty: it gives no tokens", "Give at least one word.")
        ids: list[int] = encoding.ids
        whole = text if pair is None else f"{text}\n{pair}"
        shift = len(text) + 1
        special = [
            bool(added) or number in self.special_ids
            for number, added in zip(ids, encoding.special_tokens_mask, strict=True)
        ]
        offsets: list[tuple[int, int]] = []
        reached = [0, 0]
        for (start, stop), segment, is_special in zip(encoding.offsets, encoding.sequence_ids, special, strict=True):
            if segment is not None:
                reached[segment] = max(reached[segment], stop)
            if is_special:
                offsets.append((0, 0))
            else:
                move = shift if segment == 1 else 0
                offsets.append(_trim(whole, start + move, stop + move))
        pieces = tuple(
            in_text(self._spelled(number), whole[start:stop])
            for number, (start, stop) in zip(ids, offsets, strict=True)
        )
        notes = list(self.notes)
        if encoding.overflowing:
            notes.append(self._cut_note((text, pair), reached, longest))
        notes += self._unknown_note(ids, offsets, whole)
        if gone := dropped((text, pair or ""), reached, encoding, self._raw.normalizer):
            self._placed(text + (pair or ""))
            count, places = counted(len(gone), "character"), [f"{visible(one)} at {at}" for one, at in gone]
            notes.append(f"the tokenizer drops {count} of the text: {_some(places)} (counted in characters)")
        if all(special):
            notes.append("the text gives no tokens of its own; only special tokens are left")
        return Tokens(
            ids=np.array(ids, np.int64),
            pieces=pieces,
            offsets=tuple(offsets),
            words=index_words(whole, offsets, special, pieces),
            special=tuple(special),
            mask=(True,) * len(ids),
            type_ids=tuple(encoding.type_ids),
            text=whole,
            notes=tuple(notes),
        )

    def encode_batch(
        self, texts: Iterable[str], max_length: int | None = None, side: Literal["right", "left"] = "right"
    ) -> tuple[Tokens, ...]:
        """Several texts, padded to the longest; `pad` of `encode` of each.

        Args:
            texts: At least one.
            max_length: As in `encode`.
            side: Where padding goes; decoders that generate want "left".
        """
        encoded = [self.encode(text, max_length=max_length) for text in texts]
        return pad(encoded, self.pad_id, self.piece(self.pad_id), side)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens written out; U+FFFD where a character is incomplete."""
        text: str = self._raw.decode(list(ids), skip_special_tokens=False)
        return text

    def from_ids(self, ids: str | Iterable[int]) -> Tokens:
        """Tokens of the given ids: nothing is added, cut or padded. See the function `from_ids`."""
        return from_ids(ids, self)

    def is_special(self, number: int) -> bool:
        """Whether an id stands for no text of its own."""
        return number in self.special_ids

    def _encoded(self, text: str, pair: str | None, add_special: bool) -> Any:
        """The tokenizers package's own answer.

        Raises:
            InputError: The vocabulary has no entry for a part of the text, and none that stands for unknown ones.
        """
        try:
            with quiet(errors=True):  # what a panic prints
                return self._raw.encode(text, pair, add_special_tokens=add_special)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # it has no class of its own; a panic of its Rust code is no Exception at all
            if lacks_memory(error):
                raise
            raise InputError(
                f"the tokenizer {self.path} cannot write this text: {error}",
                Wording("Give another text, another tokenizer (<tokenizer=>)[, or the token ids (<tokens>)]."),
            ) from error

    def _placed(self, text: str) -> None:
        """Refuse characters behind which the tokenizers package counts wrongly where each piece stands.

        Raises:
            InputError: The vocabulary lacks them, and has no entry for the unknown.
        """
        if missing := unwritten(self._raw, text):
            raise InputError(
                f"the tokenizer {self.path} has no entry for {_some([repr(one) for one in missing])}, nor one for "
                "unknown characters: it drops them, and misplaces the pieces behind them",
                "Leave them out of the text: the model sees none of them.",
            )

    def _set_longest(self, max_length: int | None, is_pair: bool) -> int | None:
        lengths = [n for n in (max_length, self.limit) if n is not None]
        longest = min(lengths, default=None)
        added = self._raw.num_special_tokens_to_add(is_pair)
        if longest is not None and longest <= added:
            raise UsageError(
                f"a length of {longest} leaves no room for text: {added} special tokens are added",
                f"Allow at least {added + 1} tokens.",
            )
        if longest != self._longest:
            if longest is None:
                self._raw.no_truncation()
            else:
                self._raw.enable_truncation(longest)
            self._longest = longest
        return longest

    def _cut_note(self, texts: tuple[str, str | None], reached: Sequence[int], longest: int | None) -> str:
        why = "the model's limit" if longest == self.limit else "as asked"
        lost = [
            f"{len(part) - end} of the {len(part)} characters of the {name}"
            for name, part, end in zip(("text", "pair"), texts, reached, strict=True)
            if part and part[end:].strip()
        ]
        return f"cut to {counted(longest or 0, 'token')} ({why}); left out: {' and '.join(lost) or 'its end'}"

    def _unknown_note(self, ids: Sequence[int], offsets: Sequence[tuple[int, int]], text: str) -> list[str]:
        at = [i for i, number in enumerate(ids) if number == self.unknown_id]
        if not at:
            return []
        places = [f"{in_prose(shorten(text[slice(*offsets[i])]))} at {i}" for i in at]
        count = counted(len(at), "piece is", "pieces are")
        return [f"{count} unknown to the tokenizer and seen as {self.piece(ids[at[0]])}: {_some(places)}"]


def _some(places: Sequence[str]) -> str:
    """The first few of a list, and how many more there are."""
    more = [f"and {len(places) - _SHOWN} more"] if len(places) > _SHOWN else []
    return ", ".join([*places[:_SHOWN], *more])


def _is_utf8(text: str, locale: str) -> bool:
    """Whether the bytes that the command line's text was read from are UTF-8."""
    try:
        text.encode(locale, "surrogateescape").decode("utf-8")
    except ValueError:
        return False
    return True


def check_text(text: str) -> None:
    """Raises InputError for lone surrogates, which bytes that are not UTF-8 become on the command line."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code, locale = ord(text[error.start]), sys.getfilesystemencoding()
        if locale != "utf-8" and _is_utf8(text, locale):
            raise InputError(
                f"the text is UTF-8, and the locale is {locale}, which has no such characters",
                "Set a locale with UTF-8, such as LC_ALL=C.UTF-8, or PYTHONUTF8=1.",
            ) from None
        what = f"byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"half a character, U+{code:04X},"
        raise InputError(
            f"the text is not valid UTF-8: {what} at character {error.start}",
            "Convert it first, for example: iconv -f latin1 -t utf-8 FILE.",
        ) from None


def _trim(text: str, start: int, stop: int) -> tuple[int, int]:
    """The span without surrounding spaces; unchanged when it has nothing else."""
    span = text[start:stop]
    bare = span.lstrip()
    if not bare or (bare == span and not span[-1].isspace()):
        return start, stop
    return stop - len(bare), stop - len(bare) + len(bare.rstrip())
