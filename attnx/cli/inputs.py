"""What to run on, from the command line: a text, stdin, a file of texts, token ids, or arrays for the inputs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from attnx.cli import extra_inputs
from attnx.cli.option_groups import NO_WRITING, Source, Writing
from attnx.errors import AttnxError, InputError, ModelError, UsageError
from attnx.tokens.text_file import byte_lines, remedy, wide
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.model import Model
    from attnx.run.prompt import Prompt
    from attnx.tokens import Tokenizer

STDIN = "-"
_HOW = Wording(
    'Give one: attnx COMMAND "The animal was tired."; or - for stdin[, <file>][, <ids>][, <values>][, <image>]'
    "[, <audio>] or <inputs>."
)
_FILES = {
    "a model": ({".onnx"}, "[<model> names the model: attnx COMMAND TEXT -m FILE. ]"),
    "a picture": ({".png", ".jpg", ".jpeg", ".webp", ".bmp"}, "[<image> gives the model a picture. ]"),
    "a sound": ({".wav"}, "[<audio> gives the model a sound. ]"),
    "arrays": ({".npz"}, "[<inputs> gives the model arrays. ]"),
    "text": (
        {".txt", ".md", ".json", ".jsonl", ".ndjson", ".csv", ".tsv"},
        "[<file=> takes one text per line. ]- < FILE takes it whole. ",
    ),
}
"""What a file holds -> the suffixes of such files, and how a command takes them."""
_FIELDS = {".json", ".jsonl", ".ndjson", ".csv", ".tsv"}
"""Files with fields, one of which may be the text; here each line is a text as it stands."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to run on."""

    source: Source
    writing: Writing = NO_WRITING
    line: int | None = None
    """Its line in the file, from 1."""

    @property
    def text(self) -> str | None:
        """Its text, where it has one."""
        return self.source.text

    def prompt(self, model: Model, *, needs_tokenizer: bool = False) -> Prompt:
        """What a model is run on: files read, ids and settings parsed.

        Args:
            model: Its tokenizer names the pieces of ids.
            needs_tokenizer: Whether ids without a tokenizer are an error; else they are shown as numbers.

        Raises:
            UsageError: Arguments that cannot be combined; a name, value or size that does not fit the model.
            InputError: Ids or arrays that cannot be read.
            ModelError: A text, but the model has no tokenizer.
        """
        from attnx.run.prompt import Prompt

        source = self.source
        arrays = extra_inputs.arrays(source, model) or None
        text, tokens = source.text, None
        if source.ids is not None:
            from attnx.tokens import from_ids

            tokens = from_ids(source.ids, _tokenizer(model, needs_tokenizer))
        if self.writing.chat:
            text, tokens = None, extra_inputs.chat(model, source)
        generate = extra_inputs.plan(model, self.writing)
        pair = source.pair if text is not None else None
        return Prompt(text, pair, tokens, arrays, source.target, source.image, source.audio, generate)


def take(source: Source, writing: Writing = NO_WRITING) -> list[Item] | Lines:
    """Collect what to run on.

    Args:
        source: As the options have it. "-" as the text reads stdin whole, line breaks kept, the last one dropped. A
            file is read only as far as its texts are needed.
        writing: What a decoder is to write.

    Raises:
        UsageError: Nothing, or two things that exclude each other.
        InputError: An empty text, or a file that cannot be read or has no text.
    """
    sources = {"a text": source.text, "--file": source.file, "--ids": source.ids}
    named = [name for name, value in sources.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} cannot be given together", "Give one of them.")
    if source.is_empty:
        raise UsageError("there is no text", _HOW)
    if source.pair is not None and source.text is None:
        raise UsageError("--pair needs a text to go with", 'attnx COMMAND "First." --pair "Second."')
    if source.file is not None:
        return Lines(source.file, source, writing)
    if source.text == STDIN:
        source = replace(source, text=_read_stdin().removesuffix("\n").removesuffix("\r"))
        if not (source.text or "").strip():
            raise InputError("stdin is empty", "Pipe a text into it, or give one as an argument.")
    elif source.text is not None:
        _refuse_path(source.text)
    for what, text in (("text", source.text), ("text of --pair", source.pair)):
        # A decoder that writes has something to show even without a text: its start tokens, and what it wrote.
        if text is not None and not text.strip() and writing.generate is None:
            raise InputError(f"the {what} is empty", "Give at least one word, in quotes.")
    return [Item(source, writing)]


def _refuse_path(text: str) -> None:
    """Refuse the path of a file in place of a text: its name would be analysed without any warning.

    Raises:
        UsageError: There is a file of that name, of a kind that is passed with an option.
    """
    path = Path(text)
    there = False
    if text.isprintable() and any(path.suffix.lower() in suffixes for suffixes, _ in _FILES.values()):
        with contextlib.suppress(OSError):  # a text that is too long for a name
            there = path.is_file()
    if there:
        holds, how = next((h, how) for h, (suffixes, how) in _FILES.items() if path.suffix.lower() in suffixes)
        raise UsageError(
            f"the text is the path of a file with {holds}: {text}",
            Wording(how + "The name itself as a text: through -."),
        )


class Lines:
    """The texts of a file, one per line, read as they are needed: a long file is never held whole.

    Attributes:
        several: Whether there are more than one.
    """

    def __init__(self, file: Path, source: Source, writing: Writing) -> None:
        """Open a file and read as far as its second text.

        Raises:
            InputError: It cannot be read, or there is no text in it.
        """
        self._file, self._writing = file, writing
        self._source = replace(source, file=None)
        self._rest = self._read()
        self._first = list(islice(self._rest, 2))
        if not self._first:
            raise InputError(f"{file} has no text in it", "--file takes a file with one text per line.")
        self.several = len(self._first) > 1
        if file.suffix.lower() in _FIELDS:
            _tell(
                "each line of --file is read as a text as it stands, with names and separators of fields; "
                "attnx scan reads the field alone"
            )

    @property
    def count(self) -> int | None:
        """How many texts there are; None for stdin and pipes, which can be read only once."""
        if not self.several:
            return 1
        if str(self._file) == STDIN or not self._file.is_file():
            return None
        with self._file.open("rb") as lines:
            return sum(bool(_text_of(line, first=at == 0).strip()) for at, line in enumerate(byte_lines(lines)))

    @property
    def is_plain(self) -> bool:
        """Whether there are texts and nothing else."""
        return self._source == Source() and self._writing == NO_WRITING

    def __iter__(self) -> Iterator[Item]:
        """Each text, once."""
        yield from self._first
        yield from self._rest

    def _read(self) -> Iterator[Item]:
        place = 0
        try:
            with self._opened() as lines:
                for at, line in enumerate(byte_lines(lines), 1):
                    text = _decode(line, "stdin" if str(self._file) == STDIN else str(self._file), place)
                    place += len(line)
                    text = text.removesuffix("\n").removesuffix("\r")
                    if text.strip():
                        yield Item(replace(self._source, text=text), self._writing, at)
        except OSError as error:
            raise InputError(f"{self._file} cannot be read: {error.strerror}", "--file takes a text file.") from None

    def _opened(self) -> contextlib.AbstractContextManager[BinaryIO]:
        if str(self._file) == STDIN:
            _say_keyboard()
            return contextlib.nullcontext(sys.stdin.buffer)
        return self._file.open("rb")


@contextlib.contextmanager
def naming_line(item: Item) -> Iterator[None]:
    """Name the line of the file in errors about it."""
    try:
        yield
    except AttnxError as error:
        if item.line is not None:
            error.message = Wording("line {line}: {what}", line=item.line, what=error.message)
        raise


def several(items: list[Item] | Lines) -> bool:
    """Whether there are more texts than one."""
    return items.several if isinstance(items, Lines) else len(items) > 1


def only(items: list[Item] | Lines, what: str, instead: str = "") -> None:
    """Refuse several texts for an option that takes one.

    Args:
        items: The texts to run on.
        what: The option that takes only one.
        instead: What to do for several: "use --jsonl".

    Raises:
        UsageError: There are several, which `what` cannot take.
    """
    if several(items):
        count = items.count if isinstance(items, Lines) else len(items)
        raise UsageError(
            f"{what} takes one text, and there are {count or 'several'}",
            f"Give one text; or {instead}." if instead else "Give one text.",
        )


def _say_keyboard() -> None:
    if sys.stdin.isatty():
        _tell("reading the text from the keyboard; end with Ctrl-D")


def _tell(note: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"attnx: {note}\n")


def _read_stdin() -> str:
    _say_keyboard()
    return _decode(sys.stdin.buffer.read(), "stdin")


def _decode(content: bytes, name: str, start: int = 0) -> str:
    if not start and wide(content):
        raise InputError(f"{name} is not valid UTF-8: every other byte is NUL", remedy(content))
    try:
        return content.decode("utf-8" if start else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not valid UTF-8: byte 0x{content[error.start]:02x} at byte {start + error.start}",
            remedy(b"" if start else content),
        ) from None


def _text_of(line: bytes, *, first: bool) -> str:
    """A line as text, ignoring bytes that are not UTF-8: they are reported when the line is used."""
    return line.decode("utf-8-sig" if first else "utf-8", "replace")


def _tokenizer(model: Model, needed: bool) -> Tokenizer | None:
    try:
        return model.tokenizer
    except ModelError:
        if needed:
            raise
        return None
