"""The process, from its start to its end: streams, a child that does the work, a quick end."""

from __future__ import annotations

import gc
import os
import sys
import warnings

from attnx.cli import interrupt
from attnx.cli.containment import contained, memory_limit
from attnx.cli.ending import Ending
from attnx.errors import RUN, lacks_memory

GARBAGE = 10_000
"""New objects after which circles of them are looked for. Imports make many, which all stay: looking for circles after
each 700, as Python does, took a twentieth of a short command."""
_NO_MEMORY = b"attnx: there is not enough memory to run in\n  Free some, or raise the limit: ulimit -a shows it.\n"
"""Made in time: when it is needed nothing can be made."""


def main() -> None:
    """Run the command line that the process was started with."""
    ending = Ending()
    gc.set_threshold(GARBAGE)
    _open_streams()
    code = contained(work, sys.argv[1:])
    interrupt.done()
    ending.code = code
    sys.exit(code)


def work(args: list[str]) -> int:
    """Import the app and run a command line, in the child: what the parent holds the child would have to copy."""
    one_thread()
    if not sys.warnoptions:  # Python's warnings are for who writes programs (-W, PYTHONWARNINGS show them)
        warnings.simplefilter("ignore")
    try:
        from attnx.cli.app import begin
        from attnx.silence import reserve

        reserve()
        return begin(args)
    except (MemoryError, ImportError, SystemError) as error:  # while another was told of, or the app was imported
        if not lacks_memory(error) and not (isinstance(error, SystemError) and memory_limit() is not None):
            raise
        os.write(2, _NO_MEMORY)
        return RUN


def one_thread() -> None:
    """Let numpy's products run in one thread, unless the environment says otherwise; before numpy is imported.

    They are small, or cut into small squares, and OpenBLAS's other threads go on spinning after each: many small ones
    took four times the processor time, from onnxruntime's threads if it runs beside them.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


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
