"""The process, from its start to its end: streams, a child that does the work, a quick end."""

from __future__ import annotations

import gc
import os
import sys

from attnx.cli import interrupt
from attnx.cli.containment import contained
from attnx.cli.ending import Ending

GARBAGE = 10_000
"""New objects after which circles of them are looked for. Imports make many, which all stay: looking for circles after
each 700, as Python does, took a twentieth of a short command."""


def main() -> None:
    """Run the command line that the process was started with."""
    ending = Ending()
    gc.set_threshold(GARBAGE)
    _open_streams()
    code = contained(_work, sys.argv[1:])
    interrupt.done()
    ending.code = code
    sys.exit(code)


def _work(args: list[str]) -> int:
    """Import the app and run it: in the child, so that the parent holds nothing that the child would have to copy."""
    from attnx.cli.app import begin

    return begin(args)


def _open_streams() -> None:
    """Stand in for streams that the caller closed (`>&-`).

    Else the next file that is opened would get the number of stdout, and a library's chatter would be written into it.
    What is written to a closed stdout is an error when it is written; a closed stdin has no text, a closed stderr is
    silent.
    """
    for number, name, mode in ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is not None:
            continue
        null = os.open(os.devnull, mode)
        if null != number:
            os.dup2(null, number)
            os.close(null)
        opened = open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        setattr(sys, name, opened)
