#!/usr/bin/env python3
"""The README's commands: run them, and put what they print under them.

    python scripts/readme.py            # write the README anew
    python scripts/readme.py --check    # only say which output is not what the README shows

A ```console block holds lines that start with "$ ", each with its output below; a block of the language `console
ignore` is shown but not run (installation). Everything runs in one empty folder, 80 columns wide, without colour.
The tests hold the README to this; see tests/test_readme.py.
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

README = Path(__file__).parents[1] / "README.md"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Command:
    """A command of the README and the output that is printed under it."""

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
    """The README with the output of every command as it is now."""

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
    """Write the README anew, or check it."""
    text = README.read_text(encoding="utf-8")
    with TemporaryDirectory() as folder:
        new = renew(text, Path(folder))
    if "--check" not in sys.argv:
        README.write_text(new, encoding="utf-8")
        return 0
    stale = [a.line for a, b in zip(commands(text), commands(new), strict=True) if a != b]
    for line in stale:
        print(f"not as shown: {line}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
