"""The size of a terminal as the environment gives it: COLUMNS and LINES, where they are valid sizes."""

from __future__ import annotations

import os

from attnx.numerals import whole

WIDEST = 100_000
"""Columns in a pipe or a file without COLUMNS: wide enough that nothing is cut."""


def asked_columns() -> int | None:
    """The output width that the environment sets; None where it sets none."""
    return whole(os.environ.get("COLUMNS", ""), least=1, most=WIDEST)


def settle() -> None:
    """Remove COLUMNS and LINES from the environment if they are not sizes, before a library reads them.

    Some shells set 0 where there is no terminal; rich recognises numbers by `str.isdigit`, and crashes on "²".
    """
    for name in ("COLUMNS", "LINES"):
        if whole(os.environ.get(name, "1"), least=1, most=WIDEST) is None:
            del os.environ[name]
