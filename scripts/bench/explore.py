"""How long the explorer takes to answer a key, and the grid to be drawn, at 30 layers x 9 heads and 512 tokens.

    python scripts/bench/explore.py

Builds a decoder of that size with random weights (make_decoder.py), opens it with the bundled model's tokenizer, and
presses keys through Textual's pilot at 160x50: medians over many keys, the first look at a layer (which runs the model)
told apart from moves within what is loaded.
"""

from __future__ import annotations

import asyncio
import io
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from rich.console import Console

import attnx
from attnx.explore.app import Explorer
from attnx.explore.desk import Desk
from attnx.models import bundled_root
from attnx.view.grid import grid

LAYERS, HEADS, TOKENS = 30, 9, 512


def text(model: attnx.Model) -> str:
    """Words enough for that many tokens."""
    words = "the animal did not cross the street because it was too tired and so it slept there until noon".split()
    count = TOKENS - 2
    while True:
        made = " ".join(words[i % len(words)] for i in range(count))
        if len(model.encode(made)) <= TOKENS:
            return made
        count -= 1


async def keys(desk: Desk) -> dict[str, list[float]]:
    """Seconds for each kind of key."""
    took: dict[str, list[float]] = {}
    app = Explorer(desk)
    async with app.run_test(size=(160, 50)) as pilot:
        await pilot.pause()
        for kind, pressed in (
            ("another head", ["right"] * 8 + ["left"] * 8),
            ("another token", ["n"] * 20),
            ("another stage", ["2", "3", "4", "5", "1"] * 2),
            ("another measure", ["m"] * 8),
            ("lines and back", ["v"] * 6),
            ("another layer, first look", ["down"] * 5),
            ("another layer, seen before", ["up", "down"] * 4),
        ):
            for key in pressed:
                start = perf_counter()
                await pilot.press(key)
                await pilot.pause()
                took.setdefault(kind, []).append(perf_counter() - start)
    return took


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.onnx"
        make = Path(__file__).with_name("make_decoder.py")
        subprocess.run([sys.executable, make, path, *sys.argv[1:]], check=True)
        model = attnx.open(path, device="cpu", tokenizer=bundled_root() / "minilm")
        start = perf_counter()
        desk = Desk(model, text(model))
        opened = perf_counter() - start
        print(f"{desk.sites} layers x {desk.heads} heads, {len(desk.tokens)} tokens: {opened:.1f} s to open")
        for kind, seconds in asyncio.run(keys(desk)).items():
            print(f"{kind:28} median {statistics.median(seconds) * 1e3:7.1f} ms   largest {max(seconds) * 1e3:7.1f} ms")
        trace = model.trace(tokens=desk.tokens, quantities=("weights",), verify=False)
        console = Console(width=160, height=50, force_terminal=True, color_system="truecolor", file=io.StringIO())
        times = []
        for _ in range(5):
            start = perf_counter()
            console.print(grid(trace))
            times.append(perf_counter() - start)
        print(f"{'grid of every head':28} median {statistics.median(times) * 1e3:7.1f} ms")


if __name__ == "__main__":
    main()
