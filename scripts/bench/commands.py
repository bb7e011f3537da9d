#!/usr/bin/env python3
"""What commands on the bundled model take, against `attnx inspect`: whole processes, measured in turn.

    python scripts/bench/commands.py [--runs N] [--processor] [--only NAME ...]

Each is to take at most 1.5 times what `attnx inspect TEXT` takes, and the data set of minimal pairs at most 1.2 times
what onnxruntime alone takes to run its texts, in sorted batches of 32, giving the weights of every layer. Caches are
warm. Medians and the smallest of N runs; `--processor` takes user and system time instead of wall-clock time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from startup import MINILM, TEXT, measure, tapped

BARE = """
import sys
import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer
ort.set_default_logger_severity(4)
tokenizer = Tokenizer.from_file(sys.argv[2])
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
texts = sorted(open(sys.argv[3], encoding="utf-8").read().splitlines(), key=len)
tokenizer.enable_padding()
for at in range(0, len(texts), 32):
    batch = tokenizer.encode_batch(texts[at : at + 32])
    ids, mask = (np.array([getattr(one, name) for one in batch], np.int64) for name in ("ids", "attention_mask"))
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    weights = np.stack(session.run(None, feed))
print(weights.shape)
"""
BANK = ["He sat on the bank of the river.", "She went to the bank for money.", "--word", "bank"]


def commands(folder: Path) -> dict[str, list[str]]:
    """Arguments of attnx by the name under which they are listed."""
    picture = ["--save", str(folder / "picture.png"), "--force"]
    return {
        "inspect": ["inspect", TEXT],
        "inspect --query": ["inspect", TEXT, "--query", "it"],
        "heads": ["heads", TEXT],
        "mask": ["mask", TEXT],
        "scale": ["scale", TEXT],
        "coref": ["coref", TEXT],
        "qkv": ["qkv", TEXT],
        "flow": ["flow", TEXT],
        "flow --query": ["flow", TEXT, "--query", "it"],
        "word": ["word", *BANK],
        "cost": ["cost"],
        "heatmap to PNG": ["inspect", TEXT, "--head", "5.11", *picture],
        "grid to PNG": ["inspect", TEXT, "--view", "grid", *picture],
        "coref --dataset": ["coref", "--dataset", "pairs"],
    }


def main() -> int:
    """Measure, print, and say in JSON on the last line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--processor", action="store_true", help="processor time in place of wall-clock time")
    parser.add_argument("--only", nargs="*", help="names of commands, as they are listed")
    options = parser.parse_args()
    with TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["PYTHONPYCACHEPREFIX"] = place
        os.environ["ATTNX_CACHE"] = str(folder / "cache")
        sys.path.insert(0, str(MINILM.parents[1]))
        from attnx.measure.coref_data import bundled

        texts = [example.text for example in bundled().examples]
        (folder / "texts").write_text("\n".join(texts), encoding="utf-8")
        own = {
            name: [sys.executable, "-m", "attnx", *arguments]
            for name, arguments in commands(folder).items()
            if not options.only or name in options.only or name == "inspect"
        }
        alone = [str(tapped(folder)), str(MINILM / "tokenizer.json"), str(folder / "texts")]
        all_of_them = {**own, "bare data set": [sys.executable, "-c", BARE, *alone]}
        measure(own, 0)  # the second run of a command finds in the cache what the first one left there
        times = measure(all_of_them, options.runs, options.processor)
    middle = {name: statistics.median(taken) for name, taken in times.items()}
    for name, taken in times.items():
        said = f"{name:<16} median {middle[name] * 1000:7.1f} ms   smallest {min(taken) * 1000:7.1f} ms"
        print(f"{said}   {middle[name] / middle['inspect']:5.2f} of inspect")
    if "coref --dataset" in middle:
        print(f"the data set: {middle['coref --dataset'] / middle['bare data set']:.2f} of its runs (target: 1.2)")
    print(json.dumps({"runs": options.runs, "processor": options.processor, "seconds": middle}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
