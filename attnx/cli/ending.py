"""The end of the process: what the interpreter would free object by object, the system takes back at once."""

from __future__ import annotations

import atexit
import os
import sys

from attnx.cli.containment import off


class Ending:
    """Ends the process with a code as soon as all is done that an end must do.

    To be made before anything else is: exit handlers run in the opposite order, so that this one is the last. Threads
    were waited for by then. Freeing modules, sessions and arrays one by one is what is left out: a tenth of the time of
    a short command. Where `ATTNX_ISOLATE` is off the interpreter ends as always, for profilers that count on it.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        """What the process ends with, once that is known; until then the interpreter ends it (with a traceback)."""
        atexit.register(self._end)

    def _end(self) -> None:
        if self.code is None or off():
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):  # the interpreter meets it again, and says so
            return
        os._exit(self.code)
