#!/usr/bin/env python3
"""How long attnx takes to start: whole processes, measured in turn so that a busy machine is unfair to none.

    python scripts/bench/startup.py [--runs N] [--processor] [--imports]

Two comparisons, each with its target:

- `attnx --help` against `python -c "import typer"`: at most 1.15 times as long.
- a warm `attnx inspect TEXT` against a bare onnxruntime script that does the same run (tokenizer, session, one run that
  gives the attention weights of every layer): at most 1.1 times as long. The script gets a model that was tapped
  before, so that it needs no graph library.

The smallest and the median of N runs are printed; ratios are of medians. `--processor` takes user and system time
instead of wall-clock time: the figure that other programs disturb less. `--imports` also shows what the two attnx
commands spend on imports (python -X importtime).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory

MINILM = Path(__file__).parents[2] / "models" / "minilm"
TEXT = "The animal didn't cross the street because it was too tired."
BARE = """
import sys
import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer
ort.set_default_logger_severity(4)
ids = np.array([Tokenizer.from_file(sys.argv[2]).encode(sys.argv[3]).ids], np.int64)
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
weights = np.stack(session.run(None, feed))
print(weights[5, 0, 11, 10, 2])
"""


def tapped(folder: Path) -> Path:
    """The bundled model with the output of every Softmax as its only outputs."""
    import onnx
    from onnx import helper

    model = onnx.load(MINILM / "model.onnx")
    taps = [node.output[0] for node in model.graph.node if node.op_type == "Softmax"]
    del model.graph.output[:]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in taps)
    onnx.save(model, folder / "tapped.onnx")
    return folder / "tapped.onnx"


def seconds(command: list[str], processor: bool = False) -> float:
    """Wall-clock or processor time of one process and its children, with compiled bytecode, as a package has it."""
    off = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    named = {name: value for name, value in os.environ.items() if name not in off}
    before, start = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=named)
    took, after = time.perf_counter() - start, getrusage(RUSAGE_CHILDREN)
    if not processor:
        return took
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(commands: dict[str, list[str]], runs: int, processor: bool = False) -> dict[str, list[float]]:
    """Run every command in turn, `runs` times, after one run of each that does not count."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(runs + 1):
        for name, command in commands.items():
            took = seconds(command, processor)
            if turn:
                times[name].append(took)
    return times


def imports(command: list[str], most: int = 15) -> list[tuple[str, float]]:
    """The packages and modules whose own import takes longest, in milliseconds: what -X importtime says, by package."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command[1:]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    own: dict[str, float] = {}
    for micros, name in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", done.stderr):
        package = ".".join(name.split(".")[:2]) if name.startswith("attnx") else name.split(".")[0]
        own[package] = own.get(package, 0.0) + int(micros) / 1000
    return sorted(own.items(), key=lambda item: -item[1])[:most]


def main() -> int:
    """Measure, print, and say in JSON on the last line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--processor", action="store_true", help="processor time in place of wall-clock time")
    parser.add_argument("--imports", action="store_true")
    options = parser.parse_args()
    attnx = [sys.executable, "-m", "attnx"]
    inspect = [*attnx, "inspect", TEXT, "--device", "cpu"]
    with TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        os.environ["ATTNX_CACHE"] = str(Path(folder) / "cache")
        model = str(tapped(Path(folder)))
        times = measure(
            {
                "import typer": [sys.executable, "-c", "import typer"],
                "attnx --help": [*attnx, "--help"],
                "bare run": [sys.executable, "-c", BARE, model, str(MINILM / "tokenizer.json"), TEXT],
                "attnx inspect": inspect,
            },
            options.runs,
            options.processor,
        )
    middle = {name: statistics.median(taken) for name, taken in times.items()}
    for name, taken in times.items():
        print(f"{name:<14} median {middle[name] * 1000:7.1f} ms   smallest {min(taken) * 1000:7.1f} ms")
    ratios = {
        "help": (middle["attnx --help"] / middle["import typer"], 1.15),
        "inspect": (middle["attnx inspect"] / middle["bare run"], 1.1),
    }
    for name, (ratio, target) in ratios.items():
        print(f"{name:<14} {ratio:.2f} times as long (target: at most {target})")
    if options.imports:
        for command in ([*attnx, "--help"], inspect):
            print(f"\nimports of {' '.join(command[2:4])}, own time by package:")
            for package, taken_ms in imports(command):
                print(f"  {taken_ms:7.1f} ms  {package}")
    print(json.dumps({"runs": options.runs, "seconds": middle, "ratios": {n: r for n, (r, _) in ratios.items()}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
