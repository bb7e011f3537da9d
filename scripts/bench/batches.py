#!/usr/bin/env python3
"""Texts a second: attnx in batches, against onnxruntime on the very same batches, and one by one.

    python scripts/bench/batches.py [--texts 512] [--turns 5]

The texts are sentences of 8 to 40 words, seeded. Weights of every layer are fetched on all sides. The variants take
turns; medians are printed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import numpy as np

import attnx
from attnx.batch import SIZE, _batches
from attnx.tokens.given import pad

WORDS = "the animal did not cross a wide street because it was too tired to walk and so we sat there".split()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(8, 40))) for _ in range(options.texts)]
    model = attnx.open("minilm", device="cpu")
    tokens = [model.encode(text) for text in texts]
    session, _ = model.opening.session(model.find(), model.sites, ("weights",), False, many=True)
    order = sorted(range(len(texts)), key=lambda at: len(tokens[at]))

    def batches() -> None:
        """onnxruntime alone: batches sorted by length over all texts, padded, weights of every layer fetched."""
        for part in _batches(order, [len(t) for t in tokens], SIZE, 12, pads=True):
            whole = pad([tokens[at] for at in part], 0, "[PAD]")
            ids = np.stack([t.ids for t in whole])
            mask = np.array([t.mask for t in whole], np.int64)
            session.run({"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})

    def use(**named: object) -> Callable[[], None]:
        def call() -> None:
            for _ in model.trace_many(tokens, **named):  # type: ignore[arg-type]
                pass

        return call

    def single() -> None:
        for one in tokens[: options.texts // 4]:
            model.trace(tokens=one, quantities=("weights",), verify=False)

    variants: dict[str, tuple[Callable[[], None], float]] = {
        "onnxruntime, sorted batches": (batches, 1.0),
        "trace_many, weights": (use(quantities=("weights",), verify=False), 1.0),
        "trace_many, checked": (use(quantities=("masked", "weights")), 1.0),
        "trace, one by one": (single, 0.25),
    }
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(options.turns + 1):
        for name, (call, share) in variants.items():
            start = time.perf_counter()
            call()
            if turn:
                rates[name].append(options.texts * share / (time.perf_counter() - start))
    middle = {name: statistics.median(found) for name, found in rates.items()}
    for name, rate in middle.items():
        print(f"{name:<30} {rate:7.1f} texts/s   {rate / middle['onnxruntime, sorted batches']:.2f}")


if __name__ == "__main__":
    main()
