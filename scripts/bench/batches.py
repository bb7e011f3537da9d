#!/usr/bin/env python3
"""Texts a second on the bundled model: attnx in batches, against onnxruntime on the very same batches, and others.

    python scripts/bench/batches.py [--texts 512] [--turns 5] [--torch-python PATH]

The texts are sentences of 8 to 40 words, seeded. The variants take turns in one process; medians are printed, with
their ratio to the first.
  model as it is        onnxruntime alone, its own settings: batches of 32 sorted by length, the model's own output
  weights fetched       the same with the weights of every layer as outputs and nothing else
  trace_many            attnx's batches; weights; and masked and weights, checked
  scan                  what `attnx scan --measure heads` does with a part: tokens, run, measures, the bytes of the file
  trace, one by one     a text at a time
  transformers, eager   in another environment (`--torch-python`, with torch and transformers): a BertModel of the same
                        size with random weights, output_attentions, batches of 32 as they come, padded to the longest
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import attnx
from attnx.run.batch import SIZE, WINDOW
from attnx.scan.corpus import Text
from attnx.scan.measuring import Job, measure
from attnx.session.ort import Session, open_session
from attnx.taps.tap import places_for, tap
from attnx.tokens.ids import pad

WORDS = "the animal did not cross a wide street because it was too tired to walk and so we sat there".split()
TORCH = """
import json, sys, time
import torch
from transformers import BertConfig, BertModel
config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
                    attn_implementation="eager")
model = BertModel(config, add_pooling_layer=False).eval()
texts = json.loads(sys.stdin.readline())
batches = []
for at in range(0, len(texts), 32):
    rows = texts[at:at + 32]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    batches.append((ids, mask))
print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
for _ in sys.stdin:
    start = time.perf_counter()
    with torch.no_grad():
        for ids, mask in batches:
            model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    print(time.perf_counter() - start, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--torch-python", help="a Python with torch and transformers")
    options = parser.parse_args()
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(8, 40))) for _ in range(options.texts)]
    model = attnx.open("minilm", device="cpu")
    tokens = [model.encode(text) for text in texts]
    feeds = []
    for start in range(0, len(texts), SIZE * WINDOW):  # attnx sorts as many texts at once
        window = sorted(tokens[start : start + SIZE * WINDOW], key=len)
        for at in range(0, len(window), SIZE):
            whole = pad(window[at : at + SIZE], 0, "[PAD]")
            ids = np.stack([t.ids for t in whole])
            mask = np.array([t.mask for t in whole], np.int64)
            feeds.append({"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})
    plain = model.plain()
    tapped = tap(model.graph(), {s.index: places_for(s, ("weights",)) for s in model.sites}, outputs=())
    weights = open_session(tapped.model, tapped.folder, "cpu")

    def bare(session: Session) -> Callable[[], None]:
        def call() -> None:
            for feed in feeds:
                session.run(feed)

        return call

    def use(**named: object) -> Callable[[], None]:
        def call() -> None:
            for _ in model.trace_many(tokens, **named):  # type: ignore[arg-type]
                pass

        return call

    def single() -> None:
        for one in tokens[: options.texts // 4]:
            model.trace(tokens=one, quantities=("weights",), verify=False)

    corpus = [Text("bench", at, text) for at, text in enumerate(texts, 1)]

    def scan() -> None:
        for start in range(0, len(corpus), 512):
            measure(model, Job(), 0, start, corpus[start : start + 512])

    variants: dict[str, tuple[Callable[[], float | None], float]] = {
        "onnxruntime, model as it is": (bare(plain), 1.0),
        "onnxruntime, weights fetched": (bare(weights), 1.0),
        "trace_many, weights": (use(quantities=("weights",), verify=False), 1.0),
        "trace_many, checked": (use(quantities=("masked", "weights")), 1.0),
        "scan, heads": (scan, 1.0),
        "trace, one by one": (single, 0.25),
    }
    other = None
    if options.torch_python:
        other = subprocess.Popen(
            [options.torch_python, "-c", TORCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(repr([t.ids.tolist() for t in tokens]) + "\n")
        other.stdin.flush()
        print(other.stdout.readline().strip() or sys.exit("torch or transformers is missing there"))
        stdin, stdout = other.stdin, other.stdout

        def eager() -> float:
            stdin.write("go\n")
            stdin.flush()
            return float(stdout.readline())

        variants["transformers, eager"] = (eager, 1.0)
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(options.turns + 1):
        for name, (call, share) in variants.items():
            start = time.perf_counter()
            taken = call()
            if turn:
                rates[name].append(options.texts * share / (taken or time.perf_counter() - start))
    if other is not None:
        other.stdin.close()  # type: ignore[union-attr]
        other.wait()
    middle = {name: statistics.median(found) for name, found in rates.items()}
    best = {name: max(found) for name, found in rates.items()}
    first = next(iter(middle))
    print(f"{'':<30}{'median':>9}{'ratio':>7}{'best':>9}{'ratio':>7}   texts/s")
    for name, rate in middle.items():
        ratios = rate / middle[first], best[name] / best[first]
        print(f"{name:<30}{rate:9.1f}{ratios[0]:7.2f}{best[name]:9.1f}{ratios[1]:7.2f}")


if __name__ == "__main__":
    main()
