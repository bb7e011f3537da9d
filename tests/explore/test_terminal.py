"""The explorer in a real terminal: however it ends, the terminal is left as it was found."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("textual", reason="the extra `explore` is not installed")
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="Linux: pty, /proc")

LEFT = b"\x1b[?1049l"
"""Out of the alternate screen."""
SHOWN = b"\x1b[?25h"
"""The cursor is shown."""
TEXT = "The animal was tired."


class Terminal:
    """`attnx explore` in a pty of 80x24, as a shell would start it."""

    def __init__(self, *args: str, **more: str) -> None:
        import pty
        import termios

        self.end, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._inside = inside
        self.before = termios.tcgetattr(inside)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "attnx", "explore", TEXT, *args],
            stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
            env=os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "", "LINES": ""} | more,
        )  # fmt: skip
        self.said = b""

    def wait(self, what: bytes, seconds: float = 120) -> None:
        """Read until something was written."""
        until = time.monotonic() + seconds
        while what not in self.said:
            assert time.monotonic() < until, self.said[-2000:]
            ready, _, _ = select.select([self.end], [], [], 0.2)
            if ready:
                self.said += os.read(self.end, 1 << 16)

    def press(self, keys: str | bytes) -> None:
        os.write(self.end, keys.encode() if isinstance(keys, str) else keys)

    def over(self) -> int:
        """Wait for the end; its exit code."""
        code: int | None = None
        until = time.monotonic() + 120
        while code is None:
            assert time.monotonic() < until, self.said[-2000:]
            ready, _, _ = select.select([self.end], [], [], 0.1)
            if ready:
                self.said += os.read(self.end, 1 << 16)
            code = self.process.poll()
        while select.select([self.end], [], [], 0.1)[0]:
            self.said += os.read(self.end, 1 << 16)
        return code

    @property
    def restored(self) -> bool:
        """Whether the terminal has its settings back, is out of the alternate screen and shows its cursor."""
        import termios

        same = termios.tcgetattr(self._inside) == self.before
        return same and self.said.rfind(LEFT) > self.said.rfind(b"\x1b[?1049h") and self.said.rstrip().count(SHOWN) > 0

    def child(self) -> int:
        """The process that does the work."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.end)
        os.close(self._inside)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    one = Terminal("-m", "tiny-gpt")
    with contextlib.closing(one):
        one.wait(b"help")
        one.wait(b"tired")
        yield one


@pytest.mark.parametrize(
    ("end", "codes"),
    [
        ("q", (0,)), ("\x03", (130,)), ("TERM", (143,)), ("INT", (130,)), ("HUP", (-1, 129)),
        ("child SEGV", (5,)), ("child KILL", (5,)),
    ],
)  # fmt: skip
def test_the_terminal_is_restored(terminal: Terminal, end: str, codes: tuple[int, ...]) -> None:
    if end in ("q", "\x03"):
        terminal.press(end)
    elif end.startswith("child"):
        os.kill(terminal.child(), getattr(signal, f"SIG{end.split()[1]}"))
    else:
        os.kill(terminal.process.pid, getattr(signal, f"SIG{end}"))
    assert terminal.over() in codes
    assert terminal.restored
    if end.startswith("child"):
        assert b"attnx" in terminal.said.rpartition(LEFT)[2]
    assert b"Traceback" not in terminal.said


def test_keys_that_come_at_once_are_all_meant(terminal: Terminal) -> None:
    """What is typed right behind / belongs to the line, not to the keys."""
    terminal.press("jjj" + "l" * 5 + "/tired\r")
    terminal.wait("L3 H5 · 4".encode())
    terminal.press("q")
    assert terminal.over() == 0
    assert terminal.restored


def test_bytes_that_are_no_text_are_ignored(terminal: Terminal) -> None:
    """Typed in a Latin-1 terminal, pasted, and Alt with a key where the terminal sets the eighth bit."""
    terminal.press(b"\xe9")
    terminal.press(b"\xff\xfejjj" + b"l" * 5 + b"/ti\xe9red\r")
    terminal.wait("L3 H5 · 4".encode())
    terminal.press(b"\xf1q")
    assert terminal.over() == 0
    assert terminal.restored
    assert b"Traceback" not in terminal.said


@pytest.mark.parametrize(
    ("where", "raised", "code", "said", "traceback"),
    [
        ("attnx.explore.panes.grid", "RuntimeError('a bug of ours')", 1, b"a bug of ours", True),
        ("attnx.explore.desk.Desk.effects", "RuntimeError('a bug of ours')", 1, b"a bug of ours", True),
        ("attnx.explore.desk.Desk.effects", "MemoryError()", 5, b"there is not enough memory for this", False),
        ("textual.drivers.linux_driver.XTermParser", "RuntimeError('a bug of theirs')", 1, b"a bug of theirs", True),
    ],
    ids=["drawing", "a run of the model", "memory", "the keyboard"],
)
def test_a_crash_restores_the_terminal_and_shows_itself(
    where: str, raised: str, code: int, said: bytes, traceback: bool, tmp_path: Path
) -> None:
    module, _, name = where.rpartition(".")
    owner = module if not module[module.rfind(".") + 1].isupper() else module.rpartition(".")[0]
    (tmp_path / "sitecustomize.py").write_text(
        f"import {owner}\ndef broken(*_):\n    raise {raised}\n{module}.{name} = broken\n", encoding="utf-8"
    )
    old = os.environ.get("PYTHONPATH", "")
    with contextlib.closing(Terminal(PYTHONPATH=f"{tmp_path}{os.pathsep}{old}")) as one:
        if name == "effects":
            one.wait(b"help")
            one.wait(b"tired")
            one.press("a")
        assert one.over() == code
        assert said in one.said
        assert (b"Traceback" in one.said) is traceback
        assert one.restored


@pytest.mark.parametrize(
    ("more", "codes"),
    [
        ({"TERM": "xterm", "COLORTERM": ""}, rb"\x1b\[[0-9;]*\b[34]8;[25]"),
        ({"TERM": "xterm-256color", "COLORTERM": ""}, rb"\x1b\[[0-9;]*\b[34]8;2"),
        # Textual keeps greys, which a theme of its own needs for its panes.
        ({"NO_COLOR": "1"}, rb"[34]8;2;(\d+);(?!\1;\1[;m])[0-9;]*"),
    ],
    ids=["16", "256", "none"],
)
def test_no_more_colours_than_there_are(more: dict[str, str], codes: bytes) -> None:
    with contextlib.closing(Terminal("-m", "tiny-gpt", **more)) as one:
        one.wait(b"help")
        one.wait(b"tired")
        one.press("jjvvx")
        one.press("q")
        assert one.over() == 0
        assert not re.findall(codes, one.said)
        assert one.restored
