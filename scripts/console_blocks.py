#!/usr/bin/env python3
"""The commands of README.md and docs/: run them, and put what they print under them.

    python scripts/console_blocks.py [PAGE ...]            # rewrite the output in these pages, or in all
    python scripts/console_blocks.py --check [PAGE ...]    # only list the commands whose output is out of date

A ```console block holds lines that start with "$ ", each with its output below; a block of the language `console
ignore` is shown but not run (installation). The commands of a page run in order in one empty folder, 80 columns wide,
without colour. tests/test_docs.py holds every page to this.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Command:
    """A command of a page and the output that is printed under it."""

    line: str
    output: str


def commands(text: str) -> Iterator[Command]:
    """Every command that is run, in order."""
    for block in _BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = _joined(part).partition("\n")
            yield Command(line, output)


def _joined(part: str) -> str:
    """A command that goes on after a backslash, on one line."""
    return re.sub(r"\\\n\s*", "", part, count=part.count("\\\n"))


def environment() -> dict[str, str]:
    """What commands run with: this Python's programs first, 80 columns, no colour."""
    kept = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "PYTHONPATH", "LINES")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return kept | {"PATH": path, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONUTF8": "1", "TERM": "xterm-256color"}


def run(line: str, folder: Path) -> str:
    """Run one command line and give what a terminal would show: stdout and stderr together."""
    if not (folder / "scripts").exists():  # commands are written as they are typed in a clone
        (folder / "scripts").symlink_to(Path(__file__).resolve().parent)
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        check=False,
    )
    return done.stdout


def renew(text: str, folder: Path) -> str:
    """A page with the output of every command as it is now."""

    def block(match: re.Match[str]) -> str:
        parts = re.split(r"^\$ ", match[1], flags=re.MULTILINE)[1:]
        out = []
        for part in parts:
            shown = re.match(r"(?:[^\n]*\\\n)*[^\n]*", part)
            assert shown is not None
            output = run(_joined(part).partition("\n")[0], folder)
            out.append(f"$ {shown[0]}\n{output}" + ("" if not output or output.endswith("\n") else "\n"))
        return "```console\n" + "".join(out) + "```"

    return _BLOCK.sub(block, text)


def main() -> int:
    """Rewrite pages, or check them."""
    named = [Path(arg).resolve() for arg in sys.argv[1:] if arg != "--check"]
    stale = 0
    for page in named or PAGES:
        text = page.read_text(encoding="utf-8")
        with TemporaryDirectory() as folder:
            new = renew(text, Path(folder))
        if "--check" not in sys.argv:
            page.write_text(new, encoding="utf-8")
            continue
        for before, after in zip(commands(text), commands(new), strict=True):
            if before != after:
                print(f"{page.name}: out of date: {before.line}")
                stale += 1
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
