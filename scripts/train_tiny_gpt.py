"""Trains and writes models/tiny-gpt, a small causal decoder of our own: `python scripts/train_tiny_gpt.py`.

The text is made by a seeded grammar (`tiny_gpt_text.py`), the tokenizer and the model are trained on it
(`tiny_gpt_training.py`, torch on one CPU thread), the weights are laid out as an ONNX graph node by node
(`gpt_graph.py`), and what comes out is held to torch and to plain numpy (`gpt_in_numpy.py`), with and without cache.

    pip install torch==2.13.0 numpy tokenizers onnx onnxruntime
    python scripts/train_tiny_gpt.py                       # trains, keeps the float32 weights in --weights, writes
    python scripts/train_tiny_gpt.py --weights FILE.npz --reuse     # writes again from weights at hand
    python scripts/train_tiny_gpt.py --steps 50 --out DIR  # a short run, somewhere else
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("RAYON_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
import onnxruntime
import torch
from gpt_graph import build_gpt2, is_half
from gpt_in_numpy import Array, forward, on_repeats, on_text, probes
from tiny_gpt_page import page
from tiny_gpt_tokenizer import train_tokenizer
from tiny_gpt_training import HELD_OUT_SEED, RANDOM_SHARE, TinyGPT, texts, train
from tokenizers import Tokenizer

ROOT = Path(__file__).parents[1]
STEPS = 3_000
LARGEST_FOLDER = 6_000_000
CONFIG: dict[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.0,
    "bos_token_id": 0,
    "embd_pdrop": 0.0,
    "eos_token_id": 0,
    "layer_norm_epsilon": 1e-5,
    "model_type": "gpt2",
    "n_embd": 192,
    "n_head": 6,
    "n_inner": 768,
    "n_layer": 4,
    "n_positions": 512,
    "pad_token_id": 0,
    "resid_pdrop": 0.0,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 2048,
}
GENERATION = {
    "bos_token_id": 0, "do_sample": False, "eos_token_id": 0, "max_new_tokens": 40, "pad_token_id": 0,
}  # fmt: skip
PROMPTS = (
    "Once upon a time there was a girl named Mia. She had a red ball and a dog.",
    "When Mary and John went to the store, John gave a drink to",
    "The animal didn't cross the street because it was too tired. The",
    "The animal didn't cross the street because it was too wide. The",
    "There is a key in the red box. There is a coin in the blue box. What is in the red box?",
    "Monday, Tuesday, Wednesday,",
)


class Runner:
    """The written model in onnxruntime, with and without its cache."""

    def __init__(self, model: bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.caches = [i.name for i in self.session.get_inputs() if i.name.startswith("past_key_values.")]

    def __call__(self, ids: Array, mask: Array, past: list[Array] | None = None) -> tuple[Array, list[Array]]:
        """Logits [B,Q,vocab] and the longer past; `mask` [B,K] covers the past too."""
        if past is None:
            empty = np.zeros((len(ids), CONFIG["n_head"], 0, CONFIG["n_embd"] // CONFIG["n_head"]), np.float32)
            past = [empty] * len(self.caches)
        positions = np.maximum(mask.cumsum(-1) - 1, 0)[:, -ids.shape[1] :]
        feed = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        logits, *present = self.session.run(None, feed | dict(zip(self.caches, past, strict=True)))
        return logits, present

    def stepwise(self, ids: Array, mask: Array, first: int) -> Array:
        """Logits [B,Q,vocab] of a run that takes `first` tokens at once and the others one by one, from the cache."""
        logits, past = self(ids[:, :first], mask[:, :first])
        parts = [logits]
        for i in range(first, ids.shape[1]):
            logits, past = self(ids[:, i : i + 1], mask[:, : i + 1], past)
            parts.append(logits)
        return np.concatenate(parts, axis=1)

    def generate(self, ids: list[int], count: int, cached: bool = True) -> list[int]:
        """The `count` next ids, greedily, or fewer when the text ends; without cache everything is computed anew."""
        new: list[int] = []
        past: list[Array] | None = None
        while len(new) < count and 0 not in new:
            fresh = [*ids, *new][-1:] if cached and past else [*ids, *new]
            mask = np.ones((1, len(ids) + len(new)), np.int64)
            logits, present = self(np.array([fresh], np.int64), mask, past if cached else None)
            past = present
            new.append(int(logits[0, -1].argmax()))
        return new


def verify(runner: Runner, model: TinyGPT, tensors: dict[str, Array], tokenizer: Tokenizer) -> dict[str, float]:
    """Largest differences between the written file, torch and numpy, and between decoding with and without cache."""
    source = texts(tokenizer, HELD_OUT_SEED)
    rows = [next(source) for _ in range(64)]
    length = max(map(len, rows))
    rounded = {name: t.astype(np.float16) if is_half(name) else t for name, t in tensors.items()}
    ids = np.array([[0] * (length - len(row)) + row for row in rows], np.int64)
    mask = np.array([[0] * (length - len(row)) + [1] * len(row) for row in rows], np.int64)
    real = mask > 0
    together, _ = runner(ids, mask)
    whole, torch_off, torch_rounded = [], 0.0, 0.0
    halves = TinyGPT(CONFIG)
    halves.load_state_dict({n.removeprefix("transformer."): torch.from_numpy(t).float() for n, t in rounded.items()})
    for row in rows:
        one = np.array([row], np.int64)
        logits, _ = runner(one, np.ones_like(one))
        whole.append(logits[0])
        with torch.no_grad():
            torch_off = max(torch_off, float(np.abs(logits - model(torch.from_numpy(one)).numpy()).max()))
            torch_rounded = max(torch_rounded, float(np.abs(logits - halves(torch.from_numpy(one)).numpy()).max()))
    weights, expected = forward(rounded, CONFIG, ids, mask)
    full_weights, _ = forward(tensors, CONFIG, ids, mask)
    alone = np.concatenate(whole)
    prompts = [tokenizer.encode(p).ids for p in PROMPTS]
    same = all(runner.generate(p, 60) == runner.generate(p, 60, cached=False) for p in prompts)
    return {
        "float32 torch, logits": torch_off,
        "torch with the rounded weights, logits": torch_rounded,
        "numpy with the rounded weights, logits": float(np.abs(together - expected)[real].max()),
        "float32 and rounded weights, attention weights": float(np.nanmax(np.abs(weights - full_weights))),
        "left-padded batch and one by one, logits": float(np.abs(together[real] - alone).max()),
        "cache after 1 token and no cache, logits": float(np.abs(runner.stepwise(ids, mask, 1) - together)[real].max()),
        "cache after 7 tokens and no cache, logits": float(
            np.abs(runner.stepwise(ids, mask, 7) - together)[real].max()
        ),
        "greedy texts that differ with and without cache": float(not same),
    }


def measure(tensors: dict[str, Array], tokenizer: Tokenizer) -> dict[str, Array]:
    """What every head does, [layer,H] each: on 64 held-out documents and on repeated random blocks."""
    source = texts(tokenizer, HELD_OUT_SEED)
    rows = [next(source)[:128] for _ in range(64)]
    found = [on_text(forward(tensors, CONFIG, np.array([row], np.int64))[0][:, 0]) for row in rows]
    scores = {name: np.concatenate([f[name] for f in found], axis=-1).mean(-1) for name in found[0]}
    weights, _ = forward(tensors, CONFIG, probes(CONFIG["vocab_size"], 0))
    return scores | on_repeats(weights, 25)


def main() -> None:
    """Trains, writes, verifies, measures; fails rather than write a model that is not what its page says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "models" / "tiny-gpt")
    parser.add_argument(
        "--weights", type=Path, default=ROOT / "build" / "tiny-gpt.npz", help="float32, written or read"
    )
    parser.add_argument("--reuse", action="store_true", help="take the weights from --weights and do not train")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = train_tokenizer(CONFIG["vocab_size"])
    if not options.reuse:
        options.weights.parent.mkdir(parents=True, exist_ok=True)
        train(
            CONFIG, tokenizer, options.steps, lambda m, c: np.savez(options.weights, curve=np.array(c), **m.tensors())
        )
    with np.load(options.weights) as stored:
        tensors = {name: stored[name] for name in stored.files if name != "curve"}
        curve = stored["curve"].tolist()
    model = TinyGPT(CONFIG)
    model.load_state_dict({name.removeprefix("transformer."): torch.from_numpy(t) for name, t in tensors.items()})

    data = build_gpt2(tensors, CONFIG).SerializeToString(deterministic=True)
    runner = Runner(data)
    differences = verify(runner, model, tensors, tokenizer)
    for name, difference in differences.items():
        print(f"{difference:.2e}  {name}")
    rounded = {n: t.astype(np.float16).astype(np.float32) if is_half(n) else t for n, t in tensors.items()}
    scores = measure(rounded, tokenizer)
    samples = [(p, tokenizer.decode(runner.generate(tokenizer.encode(p).ids, 24))) for p in PROMPTS]
    files = {
        "model.onnx": data,
        "tokenizer.json": (tokenizer.to_str(pretty=False) + "\n").encode(),
        "config.json": (json.dumps(CONFIG, indent=2) + "\n").encode(),
        "generation_config.json": (json.dumps(GENERATION, indent=2) + "\n").encode(),
    }
    text = page(files, CONFIG, tensors, curve, RANDOM_SHARE, differences, scores, samples)
    print(text)
    faults = [
        ("larger than it may be", sum(map(len, files.values())) > LARGEST_FOLDER),
        ("not faithful to torch", max(v for k, v in differences.items() if "float32" not in k) > 1e-3),
        ("without a previous-token head", scores["previous"].max() <= 0.5),
        ("without an induction head", scores["induction"].max() <= 0.5),
    ]
    for fault in [name for name, there in faults if there]:
        raise SystemExit(f"the model is {fault}: nothing was written")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (options.out / name).write_bytes(content)
    (options.out / "MODEL.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
