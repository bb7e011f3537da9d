"""How long the explorer takes to answer a key, and the grid to be drawn, at 30 layers x 9 heads and 512 tokens.

    python scripts/bench/explore.py [--rows 50] [--columns 160] [OPTIONS OF make_decoder.py]

Builds a decoder of that size with random weights (make_decoder.py), opens it in `attnx explore` with the bundled
model's tokenizer in a terminal of its own (a pty), and presses keys. Of each key it tells the wall-clock time until
the last byte of the answer was written, and the processor time that the program spent on it, all threads together;
medians and 95th percentiles. A layer that was not seen before is answered twice: the grid at once, its matrix when the
model has run.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from time import perf_counter

import numpy as np
from rich.console import Console

import attnx
from attnx.catalog.models import bundled_root
from attnx.view.grid import grid

LAYERS, HEADS, TOKENS = 30, 9, 512
AWAY = 0.1
"""Seconds between the first and the last byte after which the model must have run."""
QUIET = 0.25
"""Seconds without a byte after which an answer is taken to be complete."""
KEYS = (
    ("another head", ["l"] * 8 + ["h"] * 8),
    ("another token", ["n"] * 16),
    ("another stage", ["2", "3", "4", "5", "1"] * 3),
    ("another measure", ["m"] * 8),
    ("another colour scale", ["c"] * 6),
    ("lines, numbers, heatmap", ["v"] * 9),
    ("muted and back", ["x", "z"] * 4),
    ("words and back", ["w"] * 6),
    ("another layer", ["j"] * 12),
    ("a layer seen before", ["k", "j"] * 6),
)


def text(model: attnx.Model) -> str:
    """Words enough for that many tokens."""
    words = "the animal did not cross the street because it was too tired and so it slept there until noon".split()
    count = TOKENS - 2
    while True:
        made = " ".join(words[i % len(words)] for i in range(count))
        if len(model.encode(made)) <= TOKENS:
            return made
        count -= 1


class Terminal:
    """`attnx explore` in a terminal of a given size."""

    def __init__(self, command: list[str], rows: int, columns: int) -> None:
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "ATTNX_ISOLATE": "0"}
            os.execvp(command[0], command)
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def processor(self) -> float:
        """Seconds of processor time that it has used, by Linux's clock of another process (clock_getcpuclockid(3))."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def answer(self, quiet: float = QUIET, patience: float = 2.0) -> tuple[float, float, int]:
        """Read until nothing more comes; when the first and the last byte came (0 where none did), how many."""
        first = last = 0.0
        count = 0
        while True:
            ready, _, _ = select.select([self.end], [], [], quiet if count else patience)
            if not ready:
                return first, last, count
            count += len(os.read(self.end, 1 << 16))
            last = perf_counter()
            first = first or last

    def settle(self) -> float:
        """Read until it has done nothing for a while; when the last byte came, 0 where none did."""
        last = 0.0
        while True:
            used = self.processor()
            _, came, _ = self.answer(patience=0.5)
            last = came or last
            if self.processor() - used < 0.02:
                return last

    def press(self, key: str) -> None:
        os.write(self.end, key.encode())

    def close(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        os.close(self.end)
        os.waitpid(self.pid, 0)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rows", type=int, default=50)
    options.add_argument("--columns", type=int, default=160)
    options.add_argument("--model", type=Path, help="a decoder that make_decoder.py has made")
    given, rest = options.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.model or Path(folder) / "decoder.onnx"
        if given.model is None:
            make = Path(__file__).with_name("make_decoder.py")
            subprocess.run([sys.executable, make, path, *rest], check=True)
        tokenizer = bundled_root() / "minilm"
        model = attnx.open(path, device="cpu", tokenizer=tokenizer)
        shown = text(model)
        command = [sys.executable, "-m", "attnx", "explore", shown, "-m", str(path), "--tokenizer", str(tokenizer)]
        start = perf_counter()
        terminal = Terminal([*command, "--device", "cpu"], given.rows, given.columns)
        first, _, _ = terminal.answer(quiet=4.0, patience=120.0)
        print(f"{TOKENS} tokens, {given.columns}x{given.rows}: the first screen after {first - start:.1f} s")
        print(f"{'':24}{'answered after, ms':>20}{'processor, ms':>18}{'bytes':>8}")
        print(f"{'key':24}{'median':>10}{'95 %':>10}{'median':>9}{'95 %':>9}{'median':>8}")
        for kind, pressed in KEYS:
            took, used, sizes, later = [], [], [], []
            for key in pressed:
                before, start = terminal.processor(), perf_counter()
                terminal.press(key)
                begun, last, count = terminal.answer()
                spent = terminal.processor() - before
                sizes.append(count)
                more = terminal.settle()  # what runs beside is no part of the answer
                if kind == "another layer" and (more or last - begun > AWAY):
                    took.append((begun - start) * 1e3)
                    later.append(((more or last) - start) * 1e3)
                else:
                    took.append((last - start) * 1e3)
                    used.append(spent * 1e3)
            spread = [f"{np.percentile(x, p):.1f}" if x else "-" for x in (took, used) for p in (50, 95)]
            print(f"{kind:24}{spread[0]:>10}{spread[1]:>10}{spread[2]:>9}{spread[3]:>9}{np.median(sizes):>8.0f}")
            if later:
                print(
                    f"  its matrix, where the model had to run ({len(later)} of {len(pressed)}): {np.median(later):.0f}"
                )
        terminal.close()
        trace = model.trace(tokens=model.encode(shown), quantities=("weights",), verify=False)
        console = Console(
            width=given.columns, height=given.rows, force_terminal=True, color_system="truecolor", file=io.StringIO()
        )
        times = []
        for _ in range(5):
            start = perf_counter()
            console.print(grid(trace))
            times.append(perf_counter() - start)
        print(f"{LAYERS} x {HEADS} thumbnails of attnx inspect --view grid: {np.median(times) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
