#!/usr/bin/env python3
"""What looking costs in time and memory, against onnxruntime on the same file without attnx.

    python scripts/bench/looking.py minilm [--lengths 128 512] [--runs 5] [--turns 3] [--only row,heads,...]
    python scripts/bench/looking.py DECODER.onnx --lengths 1024 2048          (from make_decoder.py)

Each variant is a process of its own; the variants take turns, forwards and backwards, so that a busy machine is unfair
to none. For each: the median over the turns of the median of the runs after two that do not count, processor time of
those runs, and peak resident memory. Ratios are to `bare`, an InferenceSession with onnxruntime's defaults that gives
the model's own outputs.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

VARIANTS = ("bare", "row", "coref", "mask", "heads", "layer", "all")
WHAT = {
    "bare": "onnxruntime alone, its defaults",
    "row": "one token's row of every layer (inspect --query)",
    "coref": "a word's rows, what each key receives, rollout (coref)",
    "mask": "the cells that each site hides (mask)",
    "heads": "15 measures of every head, reduced in the graph",
    "layer": "the whole weights of layer 2, nothing behind it run",
    "all": "the whole weights of every layer",
}


def child(path: str, variant: str, length: int, runs: int) -> None:
    """Run one variant and print what it took."""
    import numpy as np

    ids = np.random.default_rng(0).integers(0, 200, length)
    start = time.perf_counter()
    call: Callable[[], object]
    if variant == "bare":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        fill = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(length)}
        feed = {i.name: fill.get(i.name, np.zeros_like(ids))[None] for i in session.get_inputs()}
        call = lambda: session.run(None, feed)  # noqa: E731
    else:
        import attnx
        from attnx.cli.start import Start
        from attnx.session import session_pool as opening
        from attnx.study.coref_rows import point
        from attnx.study.mask_map import masks
        from attnx.tokens import from_ids

        opening.FEW = 0  # opened for many runs from the second on, as `many` does
        model = attnx.open(path, device="cpu")
        tokens = from_ids(ids.tolist(), None)
        asked = Start(dict.fromkeys(("values", "dims", "tokenizer")) | {"ids": ",".join(map(str, ids)), "text": None})
        asked.__dict__["opened"] = model
        calls: dict[str, Callable[[], object]] = {
            "row": lambda: model.rows(tokens=tokens, positions=[length - 1], quantities=("weights",)),
            "coref": lambda: point(model, {"tokens": tokens}, f"{tokens.pieces[-1]}@{length - 1}"),
            "mask": lambda: masks(asked, None, None),
            "heads": lambda: model.heads(tokens=tokens),
            "layer": lambda: model.trace(tokens=tokens, layers=[2], quantities=("weights",), verify=False),
            "all": lambda: model.trace(tokens=tokens, quantities=("weights",), verify=False),
        }
        call = calls[variant]
    call()
    first = time.perf_counter() - start
    call()
    took, used = [], []
    for _ in range(runs):
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        took.append(time.perf_counter() - wall)
        used.append(time.process_time() - cpu)
    print(
        json.dumps(
            {
                "first": first,
                "run": statistics.median(took),
                "least": min(took),
                "cpu": statistics.median(used),
                "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024])
    parser.add_argument("--runs", type=int, default=5, help="runs in each process")
    parser.add_argument("--turns", type=int, default=3, help="processes of each variant")
    parser.add_argument("--only", default=",".join(VARIANTS))
    parser.add_argument("--child", default="")
    options = parser.parse_args()
    if options.child:
        child(options.model, options.child, options.lengths[0], options.runs)
        return
    from attnx.catalog.models import locate

    path = str(locate(options.model).path)
    variants = options.only.split(",")
    for length in options.lengths:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
        for turn in range(-1, options.turns):  # the first fills the cache of tapped graphs, and does not count
            for name in variants if turn % 2 == 0 else reversed(variants):
                runs = options.runs if turn >= 0 else 1
                command = [sys.executable, __file__, path, "--child", name, "--lengths", str(length)]
                done = subprocess.run([*command, "--runs", str(runs)], capture_output=True, text=True)
                if done.returncode:
                    print(f"{name} at {length}: {done.stderr.strip().splitlines()[-1]}")
                    continue
                if turn >= 0:
                    found[name].append(json.loads(done.stdout))
        columns = f"{'first':>7} {'run s':>7} {'least':>7} {'cpu s':>7} {'peak GB':>8}"
        print(f"\n{length} tokens   {columns}   x run  x cpu x peak")
        middle = {n: {k: statistics.median(o[k] for o in f) for k in f[0]} for n, f in found.items() if f}
        bare = middle.get("bare")
        for name, m in middle.items():
            ratio = "" if bare is None else "".join(f" {m[k] / bare[k]:6.2f}" for k in ("run", "cpu", "peak"))
            line = f"{m['first']:7.2f} {m['run']:7.2f} {m['least']:7.2f} {m['cpu']:7.2f} {m['peak'] / 1e9:8.2f}"
            print(f"{name:<13} {line}  {ratio}   {WHAT[name]}", flush=True)


if __name__ == "__main__":
    main()
