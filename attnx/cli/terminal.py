"""The size of a terminal as the environment says it: COLUMNS and LINES, where they are sizes."""

from __future__ import annotations

import os

from attnx.numerals import whole

WIDEST = 100_000
"""Columns in a pipe or a file where COLUMNS does not say otherwise: nothing is cut there for want of width."""


def asked_columns() -> int | None:
    """How wide the environment says that output is to be; None where it does not say."""
    return whole(os.environ.get("COLUMNS", ""), least=1, most=WIDEST)


def settle() -> None:
    """Take away what stands in COLUMNS and LINES and is no size, before a library reads it.

    Some shells set 0 where there is no terminal; rich tells a number by `str.isdigit`, and stops at "²".
    """
    for name in ("COLUMNS", "LINES"):
        if whole(os.environ.get(name, "1"), least=1, most=WIDEST) is None:
            del os.environ[name]
