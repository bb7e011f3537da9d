"""Bytes from the keyboard that are no UTF-8: ignored, where Textual's drivers would end with what they raise."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable
from functools import partial


def ignore_broken_bytes(driver: type) -> None:
    """Let a driver of Textual's leave out what is no UTF-8: keys of a Latin-1 terminal, or of one that sets bit 8.

    Args:
        driver: Its class. One that decodes in some other way is left as it is.
    """
    module = vars(sys.modules[driver.__module__])
    if "getincrementaldecoder" in module:
        module["getincrementaldecoder"] = _lenient


def _lenient(encoding: str) -> Callable[[], codecs.IncrementalDecoder]:
    """As `codecs.getincrementaldecoder`, of decoders that leave out what they cannot read."""
    return partial(codecs.getincrementaldecoder(encoding), errors="ignore")
