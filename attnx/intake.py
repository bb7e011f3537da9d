"""What to run on, from the command line: a text, stdin, a file of texts, token ids, or arrays for the inputs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.beyond import Beyond
from attnx.errors import InputError, ModelError, UsageError

if TYPE_CHECKING:
    from attnx.pipeline import Model

STDIN = "-"
_HOW = 'Give one: attnx COMMAND "The animal was tired.", - for stdin, --file, --ids or --inputs.'


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
            from attnx.arrays import load_feed

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
) -> list[Given]:
    """Collect what to run on.

    Args:
        text: As given; "-" reads stdin whole, line breaks kept, the last one dropped.
        pair: A second text, beside one text.
        file: One text a line; empty lines are left out. "-" is stdin.
        ids: Token ids, in place of a text.
        inputs: An .npz file; alone, or for inputs that a text cannot fill.
        values: NAME=VALUE for inputs, where `beyond` is not given.
        beyond: What else there is; a picture or sound needs no text.

    Raises:
        UsageError: Nothing, or two things that exclude each other.
        InputError: A file that cannot be read, or has no text.
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
        return [Given(text=line, inputs=inputs, beyond=beyond, line=at) for at, line in _lines(file)]
    if text == STDIN:
        text = _read_stdin().removesuffix("\n").removesuffix("\r")
        if not text.strip():
            raise InputError("stdin is empty", "Pipe a text into it, or give one as an argument.")
    return [Given(text=text, pair=pair, ids=ids, inputs=inputs, beyond=beyond)]


def only(given: list[Given], what: str) -> Given:
    """The one text there is.

    Raises:
        UsageError: There are several, which `what` cannot take.
    """
    if len(given) > 1:
        raise UsageError(f"{what} takes one text, and there are {len(given)}", "Give one text; or use --jsonl.")
    return given[0]


def _read_stdin() -> str:
    if sys.stdin.isatty():
        sys.stderr.write("attnx: reading the text from the keyboard; end with Ctrl-D\n")
    return _decode(sys.stdin.buffer.read(), "stdin")


def _lines(file: Path) -> list[tuple[int, str]]:
    if str(file) == STDIN:
        whole = _read_stdin()
    else:
        try:
            whole = _decode(file.read_bytes(), str(file))
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}", "--file takes a text file.") from None
    lines = [(at, line.removesuffix("\r")) for at, line in enumerate(whole.split("\n"), 1) if line.strip()]
    if not lines:
        raise InputError(f"{file} has no text in it", "--file takes a file with one text a line.")
    return lines


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not valid UTF-8: byte 0x{content[error.start]:02x} at byte {error.start}",
            "Convert it first, for example: iconv -f latin1 -t utf-8 FILE.",
        ) from None


def _tokenizer(model: Model, needed: bool) -> Any:
    try:
        return model.tokenizer
    except ModelError:
        if needed:
            raise
        return None
