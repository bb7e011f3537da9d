#!/usr/bin/env python3
"""The pages of docs/ that are made from the program itself: commands, JSON documents, Python interface, measures.

    python scripts/reference.py            # write them
    python scripts/reference.py --check    # only name those that are out of date

tests/test_reference.py holds the pages to this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import reference_commands
import reference_documents
import reference_measures
import reference_python

DOCS = Path(__file__).parents[1] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": reference_commands.page,
    "reference/json.md": reference_documents.page,
    "reference/python.md": reference_python.page,
    "explanation/measures.md": reference_measures.page,
}
"""Path in docs/ -> what makes the page."""


def stale(name: str) -> bool:
    """Whether a page is not what the program now gives."""
    page = DOCS / name
    return not page.exists() or page.read_text(encoding="utf-8") != PAGES[name]()


def main() -> int:
    """Write the pages, or check them."""
    if "--check" in sys.argv:
        old = [name for name in PAGES if stale(name)]
        print("".join(f"docs/{name}: out of date\n" for name in old), end="")
        return 1 if old else 0
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
