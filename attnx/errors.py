"""Every error a user can cause, as one tree, each with a hint and an exit code.

    AttnxError
    ├── UsageError     2   the command line asks for something impossible
    ├── ModelError     3   the model file, its weights or its tokenizer
    │   └── UnsupportedError 3   read and understood, but this attention cannot be shown; says why
    ├── InputError     4   the text, the feed, an audio or image file
    └── RunError       5   the device, the provider, onnxruntime, memory, disk
        └── DeviceError  5   the session did not get the requested device

A bug of attnx is outside this tree and shows its traceback.

A message or hint that names an argument or a call is an `attnx.wording.Wording`: a str worded for Python, from
which the command line derives its option names.
"""

from __future__ import annotations

import errno

OK, USAGE, MODEL, INPUT, RUN, DIFFERENT, INTERRUPTED = 0, 2, 3, 4, 5, 6, 130
"""Exit codes. DIFFERENT is not an error: two models were compared and differ by more than was allowed."""


class AttnxError(Exception):
    """An error says what was found and what was expected; `hint` says what to do about it.

    Args:
        message: One or two sentences: what was found, what was expected.
        hint: What the user can do next; empty where nothing sensible can be said.
    """

    exit_code = RUN

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AttnxError):
    """The command line or an API argument asks for something impossible."""

    exit_code = USAGE


class ModelError(AttnxError):
    """The model file, its weights, its configuration or its tokenizer cannot be used."""

    exit_code = MODEL


class UnsupportedError(ModelError):
    """The model was read, but what was requested cannot be shown; the message says why."""


class InputError(AttnxError):
    """The text, the feed, an image or an audio file cannot be used."""

    exit_code = INPUT


class RunError(AttnxError):
    """The run failed: device, provider, onnxruntime, memory or disk."""

    exit_code = RUN


class DeviceError(RunError):
    """The session did not get the requested device."""


_REFUSED = (
    "bad_alloc", "bad allocation", "Failed to allocate memory", "failed to map segment", "annot allocate memory",
)  # fmt: skip
"""What C++, onnxruntime and (the last two) the dynamic loader say where they got no memory."""


def lacks_memory(error: BaseException) -> bool:
    """Whether an error of a library says that it got no memory, whatever it was doing: it says nothing of a file.

    Code that takes any error of a library for a fault of a file lets such a one pass; the command line names it.
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return any(said in str(error) for said in _REFUSED)


def reason(error: Exception) -> str:
    """Why a file cannot be read, in the words of the library that read it.

    An OSError's number and path are left out, and so is numpy's advice to unpickle: numpy takes any file that is not in
    its own format for a pickle.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, EOFError):
        return "it ends too early"
    said = str(error)
    if "allow_pickle" in said:
        return "it holds Python objects" if "Object arrays" in said else "it is in no format of numpy's"
    return said[:150] or type(error).__name__
