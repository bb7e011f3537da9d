#!/usr/bin/env python3
"""What commands cost on a long text, in memory above all, against onnxruntime on the same file without attnx.

    python scripts/bench/long.py DECODER.onnx [--lengths 1024 2048] [--turns 3] [--only bare,report,...] [--cold]

DECODER.onnx is from make_decoder.py. Every process is a whole command, from its start to its end, on random ids; `bare`
opens an InferenceSession with onnxruntime's defaults and runs it once for the model's own outputs. The variants take
turns, forwards and backwards. For each: medians over the turns of wall-clock time, processor time and peak resident
memory, and ratios to `bare`. With --layers, the commands that hold matrices do so for these layers only: --layers 28-29
runs all thirty layers and holds what every stretch of them holds, in less time. A first turn fills the cache of tapped
graphs and does not count, unless --cold.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS: dict[str, list[str]] = {
    "bare": [],
    "inspect": ["inspect", "-m", "MODEL", "--query", "@LAST"],
    "heads": ["heads", "-m", "MODEL"],
    "coref": ["coref", "-m", "MODEL", "--from", "@LAST", "--to", "@1,@2"],
    "scale": ["scale", "-m", "MODEL"],
    "report": ["report", "-m", "MODEL", "-o", "FOLDER/page.html", "--force"],
    "diff": ["diff", "MODEL", "MODEL"],
    "npz": ["trace", "MODEL", "--save", "FOLDER/run.npz", "--force"],
    "safetensors": ["trace", "MODEL", "--save", "FOLDER/run.safetensors", "--force"],
}


HOLD = ("scale", "report", "diff", "npz", "safetensors")
"""Those that fetch whole matrices."""


def ids(length: int) -> list[int]:
    """The same ids for every variant."""
    import numpy as np

    found: list[int] = np.random.default_rng(0).integers(0, 200, length).tolist()
    return found


def bare(path: str, length: int) -> None:
    """onnxruntime alone."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    row = np.array([ids(length)])
    fill = {"input_ids": row, "position_ids": np.arange(length)[None], "attention_mask": np.ones_like(row)}
    feed = {i.name: fill.get(i.name, np.zeros_like(row)) for i in session.get_inputs()}
    floats = [i.name for i in session.get_inputs() if i.type == "tensor(float)"]
    session.run(None, {name: array.astype(np.float32) if name in floats else array for name, array in feed.items()})


def child(path: str, name: str, length: int, folder: str, layers: str) -> None:
    """Run one variant; its last line says what it took."""
    start = time.perf_counter()
    code = 0
    if name == "bare":
        bare(path, length)
    else:
        from attnx.cli.process import one_thread

        one_thread()
        from attnx.cli import app

        put = {"MODEL": path, "@LAST": f"@{length - 1}"}
        words = [put.get(word, word.replace("FOLDER", folder)) for word in COMMANDS[name]]
        words += ["--layer", layers] if layers and name in HOLD else []
        code = app.run([*words, "--ids", ",".join(map(str, ids(length))), "--device", "cpu"])
    used = resource.getrusage(resource.RUSAGE_SELF)
    took = {"wall": time.perf_counter() - start, "cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss * 1024}
    print("\n" + json.dumps(took), flush=True)
    os._exit(code)


def main() -> None:
    """Measure and write a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default=",".join(COMMANDS))
    parser.add_argument("--layers", default="", help="Layers whose matrices are held; all without it.")
    parser.add_argument("--cold", action="store_true", help="Count the first turn too, in which graphs are tapped.")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.model, options.child[0], options.lengths[0], options.child[1], options.layers)
    names = options.only.split(",")
    for length in options.lengths:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(0 if options.cold else -1, options.turns):
                for name in names if turn % 2 == 0 else reversed(names):
                    command = [
                        sys.executable,
                        __file__,
                        options.model,
                        "--lengths",
                        str(length),
                        "--layers",
                        options.layers,
                    ]
                    done = subprocess.run([*command, "--child", name, folder], capture_output=True, text=True)
                    for file in Path(folder).iterdir():
                        file.unlink()
                    if done.returncode:
                        print(f"{name} at {length}: {done.stderr.strip()[-300:]}", flush=True)
                    elif turn >= 0:
                        found[name].append(json.loads(done.stdout.splitlines()[-1]))
                        took = found[name][-1]
                        line = f"{took['wall']:.0f} s, {took['cpu']:.0f} s of processor, {took['peak'] / 1e9:.2f} GB"
                        print(f"  {name:<12} {line}", file=sys.stderr, flush=True)
        middle = {n: {k: statistics.median(o[k] for o in f) for k in f[0]} for n, f in found.items() if f}
        whole = middle.get("bare")
        print(
            f"\n{length:>6} tokens   wall s    cpu s  peak GB   x wall   x cpu  x peak   load {os.getloadavg()[0]:.0f}"
        )
        for name, m in middle.items():
            ratio = "" if whole is None else "".join(f" {m[k] / whole[k]:8.2f}" for k in ("wall", "cpu", "peak"))
            print(f"{name:<13} {m['wall']:8.1f} {m['cpu']:8.1f} {m['peak'] / 1e9:8.2f}{ratio}", flush=True)


if __name__ == "__main__":
    main()
