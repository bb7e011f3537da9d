#!/usr/bin/env python3
"""What opening a large model costs: whole processes that look at one short text, in turn.

    python scripts/bench/opening.py DECODER.onnx [--tokens 16] [--runs 5] [--cold]          (from make_decoder.py)

Against a bare onnxruntime script that opens the same file with its defaults and runs it once: a warm
`attnx inspect --query` of the last token, which must be no slower, and `attnx heads`. The first process of each fills
caches (attnx's, the system's) and does not count; peak is the largest resident memory of a process. With `--cold`,
attnx finds its cache empty each time, as for a model that it sees for the first time: at most 1.15 of the bare script.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from tempfile import TemporaryDirectory

BARE = """
import sys
import numpy as np
import onnxruntime as ort
ids = np.array([[int(i) for i in sys.argv[2].split(",")]], np.int64)
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
fill = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(ids.shape[1])[None]}
print(session.run(None, {i.name: fill.get(i.name, np.zeros_like(ids)) for i in session.get_inputs()})[0].shape)
"""


def once(command: list[str]) -> tuple[float, float, float]:
    """Seconds, processor seconds and gigabytes of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - start
    assert process.stderr is not None
    said = process.stderr.read().decode()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command[:4])}: {said}")
    return took, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="empty attnx's cache before each process")
    options = parser.parse_args()
    ids = ",".join(str(3 + at % 97) for at in range(options.tokens))
    attnx = [sys.executable, "-m", "attnx"]
    given = ["-m", options.model, "--ids", ids, "--device", "cpu"]
    commands = {
        "bare": [sys.executable, "-c", BARE, options.model, ids],
        "attnx inspect --query": [*attnx, "inspect", *given, "--query", f"@{options.tokens - 1}"],
        "attnx heads": [*attnx, "heads", *given],
    }
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
    with TemporaryDirectory() as folder:
        os.environ["ATTNX_CACHE"] = folder
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for turn in range(options.runs + 1):
            for name, command in commands.items():
                if options.cold:
                    shutil.rmtree(folder, ignore_errors=True)
                took = once(command)
                if turn:
                    found[name].append(took)
    middle = {name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in found.items()}
    for name, (seconds, processor, peak) in middle.items():
        ratios = "  ".join(f"x {mine / bare:.2f}" for mine, bare in zip(middle[name], middle["bare"], strict=True))
        print(f"{name:<22} {seconds:6.2f} s  {processor:6.2f} s of processor time  {peak:5.2f} GB   {ratios}")
    print(json.dumps({"tokens": options.tokens, "runs": options.runs, "cold": options.cold, "middle": middle}))


if __name__ == "__main__":
    main()
