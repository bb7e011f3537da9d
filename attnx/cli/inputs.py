"""What to run on, from the command line: a text, stdin, a file of texts, token ids, or arrays for the inputs."""

from __future__ import annotations

import codecs
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from attnx.cli.extra_inputs import Beyond
from attnx.errors import AttnxError, InputError, ModelError, UsageError
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.model import Model

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
        {".txt", ".md", ".jsonl", ".csv", ".tsv"},
        "[<file=> takes one text a line. ]- < FILE takes it whole. ",
    ),
}
"""What a file holds, by its suffix, and how a command is given it."""


@dataclass(frozen=True, slots=True)
class Given:
    """One thing to run on."""

    text: str | None = None
    pair: str | None = None
    ids: str | None = None
    inputs: Path | None = None
    beyond: Beyond = field(default_factory=Beyond)
    """What else there is: targets, pictures, values of inputs."""
    line: int | None = None
    """Its line in the file, from 1."""

    def feed(self, model: Model, *, needs_tokenizer: bool = False) -> dict[str, Any]:
        """What `Model.trace` is to be given.

        Args:
            model: Its tokenizer names the pieces of ids that were given.
            needs_tokenizer: Whether ids without a tokenizer are an error; else they are shown as numbers.

        Raises:
            InputError: Ids or arrays that cannot be read.
            ModelError: A text, and no tokenizer.
        """
        arrays: Mapping[str, Any] | None = None
        if self.inputs is not None:
            from attnx.feed.arrays import load_feed

            arrays = load_feed(self.inputs)
        arrays = self.beyond.arrays(model, arrays) or None
        told: dict[str, Any] = {"text": self.text, "pair": self.pair, "inputs": arrays}
        if self.ids is not None:
            from attnx.tokens import from_ids

            told = {"tokens": from_ids(self.ids, _tokenizer(model, needs_tokenizer)), "inputs": arrays}
        return self.beyond.feed(model, told)


def take(
    text: str | None = None,
    *,
    pair: str | None = None,
    file: Path | None = None,
    ids: str | None = None,
    inputs: Path | None = None,
    values: Sequence[str] | None = None,
    beyond: Beyond | None = None,
) -> list[Given] | Lines:
    """Collect what to run on.

    Args:
        text: As given; "-" reads stdin whole, line breaks kept, the last one dropped.
        pair: A second text, beside one text.
        file: One text a line; empty lines are left out. "-" is stdin. It is read as far as the texts are asked for.
        ids: Token ids, in place of a text.
        inputs: An .npz file; alone, or for inputs that a text cannot fill.
        values: NAME=VALUE for inputs, where `beyond` is not given.
        beyond: What else there is; a picture or sound needs no text.

    Raises:
        UsageError: Nothing, or two things that exclude each other.
        InputError: A text with nothing in it, or a file that cannot be read, or has none.
    """
    sources = {"a text": text, "--file": file, "--ids": ids}
    named = [name for name, value in sources.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} cannot be given together", "Give one of them.")
    beyond = beyond or Beyond(values=tuple(values or ()))
    if not named and inputs is None and not beyond.alone:
        raise UsageError("there is no text", _HOW)
    if pair is not None and text is None:
        raise UsageError("--pair needs a text to go with", 'attnx COMMAND "First." --pair "Second."')
    if file is not None:
        return Lines(file, inputs, beyond)
    if text == STDIN:
        text = _read_stdin().removesuffix("\n").removesuffix("\r")
        if not text.strip():
            raise InputError("stdin is empty", "Pipe a text into it, or give one as an argument.")
    elif text is not None:
        _refuse_path(text)
    for what, said in (("text", text), ("text of --pair", pair)):
        # A decoder that writes has something to show without a text: what it begins with, and what it wrote.
        if said is not None and not said.strip() and beyond.generate is None:
            raise InputError(f"the {what} is empty", "Give at least one word, in quotes.")
    return [Given(text=text, pair=pair, ids=ids, inputs=inputs, beyond=beyond)]


def _refuse_path(text: str) -> None:
    """A path of a file in place of a text: its name would be analysed, and nothing would say so.

    Raises:
        UsageError: There is a file of that name, of a kind that a command is given in another way.
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
    """The texts of a file, one a line, read as they are asked for: a long file is never held whole.

    Attributes:
        several: Whether there are more than one.
    """

    def __init__(self, file: Path, inputs: Path | None, beyond: Beyond) -> None:
        """Open a file and read as far as its second text.

        Raises:
            InputError: It cannot be read, or there is no text in it.
        """
        self._file, self._inputs, self._beyond = file, inputs, beyond
        self._rest = self._read()
        self._first = list(islice(self._rest, 2))
        if not self._first:
            raise InputError(f"{file} has no text in it", "--file takes a file with one text a line.")
        self.several = len(self._first) > 1

    @property
    def count(self) -> int | None:
        """How many texts there are; None of stdin, which can be read but once."""
        if not self.several:
            return 1
        if str(self._file) == STDIN:
            return None
        with self._file.open("rb") as lines:
            return sum(not line.isspace() for line in lines)

    @property
    def is_plain(self) -> bool:
        """Whether there are texts and nothing else."""
        return self._inputs is None and self._beyond == Beyond()

    def __iter__(self) -> Iterator[Given]:
        """Each text, once."""
        yield from self._first
        yield from self._rest

    def _read(self) -> Iterator[Given]:
        place = 0
        try:
            with self._opened() as lines:
                for at, line in enumerate(lines, 1):
                    text = _decode(line, "stdin" if str(self._file) == STDIN else str(self._file), place)
                    place += len(line)
                    text = text.removesuffix("\n").removesuffix("\r")
                    if text.strip():
                        yield Given(text=text, inputs=self._inputs, beyond=self._beyond, line=at)
        except OSError as error:
            raise InputError(f"{self._file} cannot be read: {error.strerror}", "--file takes a text file.") from None

    def _opened(self) -> contextlib.AbstractContextManager[BinaryIO]:
        if str(self._file) == STDIN:
            _say_keyboard()
            return contextlib.nullcontext(sys.stdin.buffer)
        return self._file.open("rb")


@contextlib.contextmanager
def told_where(one: Given) -> Iterator[None]:
    """Say in an error which line of the file it is about."""
    try:
        yield
    except AttnxError as error:
        if one.line is not None:
            error.message = Wording("line {line}: {what}", line=one.line, what=error.message)
        raise


def several(given: list[Given] | Lines) -> bool:
    """Whether there are more texts than one."""
    return given.several if isinstance(given, Lines) else len(given) > 1


def only(given: list[Given] | Lines, what: str, instead: str = "") -> None:
    """Hold what was given against an option that takes one text.

    Args:
        given: What there is to run on.
        what: The option.
        instead: What takes several: "use --jsonl".

    Raises:
        UsageError: There are several, which `what` cannot take.
    """
    if several(given):
        count = given.count if isinstance(given, Lines) else len(given)
        raise UsageError(
            f"{what} takes one text, and there are {count or 'several'}",
            f"Give one text; or {instead}." if instead else "Give one text.",
        )


def _say_keyboard() -> None:
    if sys.stdin.isatty():
        sys.stderr.write("attnx: reading the text from the keyboard; end with Ctrl-D\n")


def _read_stdin() -> str:
    _say_keyboard()
    return _decode(sys.stdin.buffer.read(), "stdin")


def _decode(content: bytes, name: str, start: int = 0) -> str:
    try:
        return content.decode("utf-8" if start else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not valid UTF-8: byte 0x{content[error.start]:02x} at byte {start + error.start}",
            f"Convert it first, for example: iconv -f {_guess(content, start)} -t utf-8 FILE.",
        ) from None


def _guess(content: bytes, start: int) -> str:
    """The name of the encoding that bytes which are no UTF-8 are in most likely, for iconv: a mark tells UTF-16."""
    return "utf-16" if not start and content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "latin1"


def _tokenizer(model: Model, needed: bool) -> Any:
    try:
        return model.tokenizer
    except ModelError:
        if needed:
            raise
        return None
