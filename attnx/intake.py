"""What to run on, from the command line: a text, stdin, a file of texts, token ids, or arrays for the inputs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    values: tuple[str, ...] = ()
    """NAME=VALUE, one number for an input."""
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
        if self.values:
            arrays = {**(arrays or {}), **_filled(self.values, model)}
        if self.ids is not None:
            from attnx.tokens import from_ids

            return {"tokens": from_ids(self.ids, _tokenizer(model, needs_tokenizer)), "inputs": arrays}
        return {"text": self.text, "pair": self.pair, "inputs": arrays}


def take(
    text: str | None = None,
    *,
    pair: str | None = None,
    file: Path | None = None,
    ids: str | None = None,
    inputs: Path | None = None,
    values: Sequence[str] | None = None,
) -> list[Given]:
    """Collect what to run on.

    Args:
        text: As given; "-" reads stdin whole, line breaks kept, the last one dropped.
        pair: A second text, beside one text.
        file: One text a line; empty lines are left out. "-" is stdin.
        ids: Token ids, in place of a text.
        inputs: An .npz file; alone, or for inputs that a text cannot fill.
        values: NAME=VALUE for inputs that hold one number.

    Raises:
        UsageError: Nothing, or two things that exclude each other.
        InputError: A file that cannot be read, or has no text.
    """
    sources = {"a text": text, "--file": file, "--ids": ids}
    named = [name for name, value in sources.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} cannot be given together", "Give one of them.")
    if not named and inputs is None:
        raise UsageError("there is no text", _HOW)
    if pair is not None and text is None:
        raise UsageError("--pair needs a text to go with", 'attnx COMMAND "First." --pair "Second."')
    if file is not None:
        return [Given(text=line, inputs=inputs, values=tuple(values or ()), line=at) for at, line in _lines(file)]
    if text == STDIN:
        text = _read_stdin().removesuffix("\n").removesuffix("\r")
        if not text.strip():
            raise InputError("stdin is empty", "Pipe a text into it, or give one as an argument.")
    return [Given(text=text, pair=pair, ids=ids, inputs=inputs, values=tuple(values or ()))]


def _filled(values: Sequence[str], model: Model) -> dict[str, Any]:
    """NAME=VALUE for inputs that hold one number: a switch, a length.

    Raises:
        UsageError: No NAME=VALUE, no such input, or no number of its type.
    """
    import numpy as np

    slots = {slot.name: slot for slot in model.slots()}
    out = {}
    for text in values:
        name, equals, value = text.partition("=")
        slot = slots.get(name)
        if not equals or slot is None:
            raise UsageError(
                f"--set {text!r} names no input of the model", f"NAME=VALUE; it takes: {', '.join(slots)}."
            )
        if any(isinstance(size, int) and size != 1 for size in slot.shape):
            raise UsageError(f"{slot.describe()} holds more than one number", "Give it in a file: --inputs FEED.npz.")
        try:
            number = {"true": 1.0, "false": 0.0}.get(value.strip().lower())
            number = float(value) if number is None else number
            array = np.full([1] * len(slot.shape), number).astype(slot.dtype or np.float32)
        except ValueError:
            raise UsageError(f"--set {text!r}: {value!r} is no number", "Give a number, true or false.") from None
        if float(array.ravel()[0]) != np.float64(number) and array.dtype.kind != "f":
            raise UsageError(f"--set {text!r}: {value!r} does not fit into {slot.type}", "Give a whole number.")
        out[name] = array
    return out


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
