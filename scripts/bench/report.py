"""What `attnx report` costs on the bundled model: size, time and peak memory, beside the same run without a page.

    python scripts/bench/report.py [--rounds N] [--browser]

Every figure is of a fresh process; of several rounds the least, since other work on the machine only adds.
  model     onnxruntime alone: open the model, run it once on these tokens, nothing tapped
  trace     attnx: the same, with query, key, masked scores and weights of every head read and checked
  report    attnx report, from the start of the process to the file on the disk
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = Path(__file__).parents[2] / "models" / "minilm"
TEXT = (
    "The animal didn't cross the street because it was too tired, and the keeper who had followed it from the market "
    "in the old town said that nobody should be surprised when a creature so large stops to think. "
)
COUNTS = (16, 129, 512)


def ids(count: int) -> list[int]:
    """A text of exactly so many tokens, its ends included."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokenizer.no_truncation()
    inner = tokenizer.encode(TEXT * 40).ids[1:-1][: count - 2]
    return [101, *inner, 102]


def text(count: int) -> str:
    """The same as text, for the command."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokenizer.no_truncation()
    whole = TEXT * 40
    return whole[: tokenizer.encode(whole).offsets[count - 2][1]]


def model(count: int) -> None:
    """onnxruntime alone."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(str(MODEL / "model.onnx"), providers=["CPUExecutionProvider"])
    rows = np.array([ids(count)], np.int64)
    feed = {"input_ids": rows, "attention_mask": np.ones_like(rows), "token_type_ids": np.zeros_like(rows)}
    session.run(None, {one.name: feed[one.name] for one in session.get_inputs()})


def trace(count: int) -> None:
    """The run that a page needs, without a page."""
    import attnx

    attnx.open("minilm", device="cpu").trace(text(count), quantities=("query", "key", "masked", "weights"))


def report(count: int, out: str) -> None:
    """The command."""
    from attnx.cli import app as cli

    code = cli.run(["report", text(count), "--device", "cpu", "-o", out, "--force"])
    if code:
        sys.exit(code)


def measured(what: str, count: int, out: str) -> dict[str, float]:
    """Time and peak memory of a fresh process."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--only", what, str(count), out], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(done.stderr)
    return {"seconds": seconds, **json.loads(done.stdout.splitlines()[-1])}


def opening(path: Path) -> dict[str, float]:
    """Seconds until the page is ready in a headless Chromium, and until another head and another query are drawn."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.view.browser import Browser, chromium

    program = chromium()
    if program is None:
        sys.exit("there is no Chromium here")
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(program, Path(profile))
        start = time.perf_counter()
        browser.open(path.as_uri())
        ready = time.perf_counter() - start
        drawn = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
        took = {}
        for name, act, said in (
            ("head", 'document.querySelector(\'[data-r="4"][data-c="7"]\').click()', "head-name"),
            ("query", "document.querySelector('#q-3').click()", "row-name"),
        ):
            took[name] = browser.run(
                f"(async () => {{ const one = document.getElementById('{said}'), old = one.textContent;"
                f" const start = performance.now(); {act};"
                " while (one.textContent === old) await new Promise(done => setTimeout(done, 1));"
                f" return (await {drawn}) - start; }})()"
            )
        hover = browser.run(
            "(async () => { const list = document.getElementById('queries'), times = [];"
            " for (let at = 0; at < 12; at++) { const start = performance.now();"
            " list.children[at].dispatchEvent(new PointerEvent('pointermove', { bubbles: true }));"
            f" times.push((await {drawn}) - start); }} return times.sort((a, b) => a - b)[6]; }})()"
        )
        browser.close()
    return {"ready": ready, "head": took["head"] / 1e3, "query": took["query"] / 1e3, "hover": hover / 1e3}


def main() -> None:
    """Measure and write a table."""
    told = argparse.ArgumentParser(description="Size, time and memory of attnx report.")
    told.add_argument("--rounds", type=int, default=3)
    told.add_argument("--browser", action="store_true", help="Also how fast the page opens and answers in Chromium.")
    told.add_argument("--only", nargs=3, help=argparse.SUPPRESS)
    options = told.parse_args()
    if options.only:
        what, count, out = options.only
        {"model": model, "trace": trace}[what](int(count)) if what != "report" else report(int(count), out)
        times = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({"cpu": times.ru_utime + times.ru_stime, "memory": times.ru_maxrss / 1024}))
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, least of {options.rounds} rounds")
    print("tokens  what    seconds  CPU s  peak MB  page MB")
    with tempfile.TemporaryDirectory() as folder:
        for count in COUNTS:
            out = Path(folder) / f"{count}.html"
            peaks = {}
            for what in ("model", "trace", "report"):
                found = [measured(what, count, str(out)) for _ in range(options.rounds)]
                least = {name: min(one[name] for one in found) for name in found[0]}
                peaks[what] = least["memory"]
                size = f"{out.stat().st_size / 1e6:8.2f}" if what == "report" else ""
                print(
                    f"{count:6}  {what:6}  {least['seconds']:7.2f}  {least['cpu']:5.2f}  {least['memory']:7.0f}  {size}"
                )
            print(
                f"        peak memory of the report: {peaks['report'] / peaks['trace']:.2f} x the trace's, "
                f"{peaks['report'] / peaks['model']:.2f} x the model's own"
            )
            if options.browser:
                took = opening(out)
                print(
                    f"        in Chromium: ready in {took['ready']:.2f} s, another head {1e3 * took['head']:.0f} ms, "
                    f"another query {1e3 * took['query']:.0f} ms, hovering {1e3 * took['hover']:.0f} ms"
                )


if __name__ == "__main__":
    main()
