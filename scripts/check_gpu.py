#!/usr/bin/env python3
"""Compare the CPU and CUDA: the largest difference of every stage, and time by length. Exits 0 without a GPU.

    python scripts/check_gpu.py [MODEL ...] [--lengths 128 512] [--device cuda:0]

MODEL is anything that `attnx -m` takes and that runs on a text; the bundled model where none is named. TF32 is off.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np

import attnx
from attnx.errors import AttnxError
from attnx.records import QUANTITIES
from attnx.session.ort import has_driver

TEXT = "The animal didn't cross the street because it was too tired."
TOLERANCE = 1e-3
"""Largest difference of a stage, relative to the larger of 1 and its own size, that is not an error."""


def compare(name: str, device: str) -> bool:
    """Print the largest difference of every stage."""
    on_cpu = attnx.open(name, device="cpu").trace(TEXT)
    on_gpu = attnx.open(name, device=device).trace(TEXT)
    good = True
    for quantity in QUANTITIES:
        gaps = []
        for one, other in zip(on_cpu.attentions, on_gpu.attentions, strict=True):
            want, got = getattr(one, quantity), getattr(other, quantity)
            if want is None or got is None:
                continue
            shown = np.isfinite(want) & (want > -1e4)
            size = max(1.0, float(np.abs(want[shown]).max(initial=0.0)))
            gaps.append(float(np.abs(want[shown] - got[shown]).max(initial=0.0)) / size)
        if gaps:
            good = good and max(gaps) <= TOLERANCE
            print(f"{name} on {on_gpu.device}: {quantity:<8} differs by at most {max(gaps):.2e}")
    return good


def times(name: str, device: str, lengths: list[int]) -> None:
    """Print seconds a run by length: whole weights, and heads reduced in the graph."""
    for length in lengths:
        for where in ("cpu", device):
            model = attnx.open(name, device=where)
            tokens = model.encode("animal " * (length - 2))
            for what, call in (
                ("weights", lambda m=model, t=tokens: m.trace(tokens=t, quantities=("weights",), verify=False)),
                ("heads", lambda m=model, t=tokens: m.heads(tokens=t)),
            ):
                took = []
                for turn in range(8):
                    start = time.perf_counter()
                    call()
                    if turn > 2:
                        took.append(time.perf_counter() - start)
                print(f"{name}: {len(tokens)} tokens, {what:<7} {where:<7} {1000 * statistics.median(took):8.1f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=["minilm"])
    parser.add_argument("--lengths", type=int, nargs="*", default=[128, 512])
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if not has_driver():
        print("there is no NVIDIA driver on this machine: nothing was checked")
        return 0
    good = True
    for name in options.models:
        try:
            good = compare(name, options.device) and good
            times(name, options.device, options.lengths)
        except AttnxError as error:
            print(f"{name}: {error.message} {error.hint}", file=sys.stderr)
            good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
