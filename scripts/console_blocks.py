#!/usr/bin/env python3
"""The commands of README.md and docs/: run them, and put what they print under them.

    python scripts/console_blocks.py [PAGE ...]            # rewrite the output in these pages, or in all
    python scripts/console_blocks.py --check [PAGE ...]    # only list the commands whose output is out of date

A ```console block holds lines that start with "$ ", each with its output below; a block of the language `console
ignore` is shown but not run (installation). The commands of a page run in order in one empty folder, on 80 columns,
without colour; one whose output goes into a pipe or a file is not told of the terminal's width, as in a shell, which
does not export COLUMNS. tests/test_docs.py holds every page to this.
"""

from __future__ import annotations

import os
import re
import shlex
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


def parted(line: str) -> tuple[str, str]:
    """A line at its first pipe: what is piped, and what it is piped into, "" where nothing is."""
    tokens = shlex.shlex(line, posix=False, punctuation_chars=True)
    tokens.whitespace_split = True
    before = 0
    for token in tokens:
        before = line.index(token, before)
        if token == "|":
            return line[:before].rstrip(), line[before + 1 :].lstrip()
        before += len(token)
    return line, ""


def to_terminal(line: str) -> bool:
    """Whether what a command without a pipe prints goes to the terminal: there is no `> FILE`."""
    tokens = shlex.shlex(line, posix=False, punctuation_chars=True)
    tokens.whitespace_split = True
    found = list(tokens)
    return not any(one in (">", ">>") and found[at - 1] != "2" for at, one in enumerate(found))


def environment(*, terminal: bool) -> dict[str, str]:
    """What commands run with: this Python's programs first, no colour; and 80 columns where they print to the terminal.

    COLUMNS stands for the terminal, which there is none of here.
    """
    kept = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "PYTHONPATH", "LINES", "COLUMNS")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    wide = {"COLUMNS": "80"} if terminal else {}
    return kept | wide | {"PATH": path, "NO_COLOR": "1", "PYTHONUTF8": "1", "TERM": "xterm-256color"}


def run(line: str, folder: Path) -> str:
    """Run one command line and give what a terminal would show: stdout and stderr together."""
    if not (folder / "scripts").exists():  # commands are written as they are typed in a clone
        (folder / "scripts").symlink_to(Path(__file__).resolve().parent)
    *piped, last = _stages(line)
    done = subprocess.run(
        ["bash", "-c", " | ".join([*piped, f"COLUMNS=80 {last}"] if piped else [last])],
        cwd=folder,
        env=environment(terminal=not piped and to_terminal(line)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        check=False,
    )
    return done.stdout


def _stages(line: str) -> list[str]:
    """The commands of a pipeline; a line without a pipe is one."""
    first, rest = parted(line)
    return [first, *_stages(rest)] if rest else [first]


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
