"""Trains tiny-gpt with torch on one CPU thread: batches, model, loop. `train_tiny_gpt.py` calls it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from gpt_in_numpy import Array
from tiny_gpt_text import documents
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

TRAIN_SEED, HELD_OUT_SEED = 2, 3
BATCH_TOKENS = 4096
# In the first quarter short sequences and many repeats (induction grows sooner so), after it the lasting mixture.
EARLY, EARLY_LENGTHS, EARLY_RANDOM_SHARE = 0.25, (64, 128, 256), 0.5
LENGTHS, LENGTH_WEIGHTS, RANDOM_SHARE = (64, 128, 256, 512), (0.2, 0.4, 0.25, 0.15), 0.25
BARE_SHARE = 0.2
MARKS = 12
WORD_STD, POSITION_STD = 0.05, 0.1
RATE, MUON_RATE, WARMUP, FALL, DECAY = 2e-3, 0.02, 50, 0.5, 0.1


def texts(tokenizer: Tokenizer, seed: int) -> Iterator[list[int]]:
    """The ids of one document after another, each behind <|endoftext|>."""
    source = documents(seed)
    while True:
        for encoding in tokenizer.encode_batch(list(islice(source, 64))):
            yield encoding.ids


def random_row(rng: np.random.Generator, vocab: int, length: int) -> tuple[Array, Array]:
    """Random blocks of different tokens, each repeated, and which tokens can be foreseen (from the second copy on)."""
    ids, known = [np.zeros(1, np.int64)], [np.zeros(1, bool)]
    while sum(map(len, ids)) <= length + 1:
        block = round(math.exp(rng.uniform(math.log(4), math.log(length // 2))))
        repeats = int(rng.integers(2, 9))
        ids.append(np.tile(rng.choice(vocab - 1, block, replace=False) + 1, repeats))
        known.append(np.arange(block * repeats) > block)
    # Now and then without <|endoftext|>, so that the first token takes its place as the one to rest on.
    start = int(rng.random() < BARE_SHARE)
    return np.concatenate(ids)[start : start + length + 1], np.concatenate(known)[start : start + length + 1]


def text_row(rng: np.random.Generator, source: Iterator[list[int]], length: int) -> Array:
    """Whole documents from the start of one on; now and then from the middle of one."""
    ids = list(next(source))
    if rng.random() < BARE_SHARE:
        ids = ids[int(rng.integers(1, len(ids))) :]
    while len(ids) <= length:
        ids += next(source)
    return np.array(ids[: length + 1], np.int64)


def batches(tokenizer: Tokenizer, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets [B,Q], about BATCH_TOKENS tokens each; -100 where a target cannot be foreseen."""
    rng = np.random.default_rng(seed)
    source, vocab = texts(tokenizer, seed), tokenizer.get_vocab_size()
    for step in range(steps):
        early = step < EARLY * steps
        length = int(rng.choice(EARLY_LENGTHS, p=(0.5, 0.4, 0.1)) if early else rng.choice(LENGTHS, p=LENGTH_WEIGHTS))
        inputs, targets = [], []
        for _ in range(BATCH_TOKENS // length):
            if rng.random() < (EARLY_RANDOM_SHARE if early else RANDOM_SHARE):
                ids, known = random_row(rng, vocab, length)
            else:
                ids = text_row(rng, source, length)
                known = np.ones(length + 1, bool)
            inputs.append(ids[:-1])
            targets.append(np.where(known, ids, -100)[1:])
        yield torch.from_numpy(np.stack(inputs)), torch.from_numpy(np.stack(targets))


class Conv1D(nn.Module):
    """x W + b with W [in, out], under the name that Hugging Face's GPT-2 has for it."""

    def __init__(self, inner: int, outer: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inner, outer) * std)
        self.bias = nn.Parameter(torch.zeros(outer))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Block(nn.Module):
    """Attention and MLP, each behind its layer norm and added to what came in."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        d, eps, self.heads = config["n_embd"], config["layer_norm_epsilon"], config["n_head"]
        std = 0.6 / math.sqrt(d)
        out = std / math.sqrt(2 * config["n_layer"])
        self.ln_1, self.ln_2 = nn.LayerNorm(d, eps), nn.LayerNorm(d, eps)
        self.attn = nn.ModuleDict({"c_attn": Conv1D(d, 3 * d, std), "c_proj": Conv1D(d, d, out)})
        self.mlp = nn.ModuleDict({"c_fc": Conv1D(d, 4 * d, std), "c_proj": Conv1D(4 * d, d, out)})

    def forward(self, x: Tensor) -> Tensor:
        batch, length, d = x.shape
        packed = self.attn["c_attn"](self.ln_1(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        # By hand: on a CPU, at these sizes, three times as fast as torch's fused attention in bfloat16.
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scaled = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
        context = scaled.masked_fill(future, -math.inf).softmax(-1).to(value.dtype) @ value
        x = x + self.attn["c_proj"](context.transpose(1, 2).reshape(batch, length, d))
        return x + self.mlp["c_proj"](functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class TinyGPT(nn.Module):
    """A GPT-2: learned positions (they start as sinusoids), pre-norm blocks, tied embeddings."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        d = config["n_embd"]
        self.wte = nn.Embedding(config["vocab_size"], d)
        self.wpe = nn.Embedding(config["n_positions"], d)
        self.h = nn.ModuleList(Block(config) for _ in range(config["n_layer"]))
        self.ln_f = nn.LayerNorm(d, config["layer_norm_epsilon"])
        nn.init.normal_(self.wte.weight, std=WORD_STD)
        angles = torch.arange(config["n_positions"])[:, None] * 10_000 ** (-torch.arange(d // 2) / (d // 2))
        self.wpe.weight.data = torch.cat([angles.sin(), angles.cos()], -1) * POSITION_STD * math.sqrt(2)

    def hidden(self, ids: Tensor) -> Tensor:
        """What the last layer norm gives, [B,Q,n_embd]."""
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)

    def forward(self, ids: Tensor) -> Tensor:
        return self.hidden(ids) @ self.wte.weight.T

    def tensors(self) -> dict[str, Array]:
        """The weights, float32, under Hugging Face's names."""
        return {f"transformer.{name}": t.detach().float().numpy().copy() for name, t in self.state_dict().items()}


class Muon:
    """Momentum whose step is made orthogonal: on hidden matrices it needs far fewer tokens than Adam.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks" (quintic Newton-Schulz).
    """

    def __init__(self, parameters: list[nn.Parameter], rate: float) -> None:
        self.parameters, self.rate = parameters, rate
        self.momenta = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        for p, momentum in zip(self.parameters, self.momenta, strict=True):
            momentum.lerp_(p.grad, 0.05)
            update = p.grad.lerp(momentum, 0.95)
            # Query, key and value stand side by side in one matrix, and are three.
            parts = update.split(p.shape[0], 1) if p.shape[1] == 3 * p.shape[0] else [update]
            p.mul_(1 - self.rate * DECAY)
            p.sub_(torch.cat([orthogonal(part) for part in parts], 1), alpha=self.rate)


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest matrix whose singular values are all near 1, times sqrt(out / in) where that is more than 1."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = (x / (x.norm() + 1e-7)).bfloat16()
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    x = x.T if matrix.shape[0] > matrix.shape[1] else x
    return x.float() * max(1.0, matrix.shape[1] / matrix.shape[0]) ** 0.5


def loss_of(model: TinyGPT, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy, nats a token that can be foreseen."""
    known = targets >= 0
    logits = model.hidden(inputs)[known] @ model.wte.weight.T
    return functional.cross_entropy(logits.float(), targets[known])


def held_out(model: TinyGPT, tokenizer: Tokenizer, rows: int = 64) -> tuple[float, float]:
    """Loss in nats a token on text and on repeated random blocks that training never sees, 256 tokens a row."""
    rng = np.random.default_rng(HELD_OUT_SEED)
    source = texts(tokenizer, HELD_OUT_SEED)
    text = torch.from_numpy(np.stack([text_row(rng, source, 256) for _ in range(rows)]))
    pairs = [random_row(rng, tokenizer.get_vocab_size(), 256) for _ in range(rows)]
    noise = torch.from_numpy(np.stack([ids for ids, _ in pairs]))
    known = torch.from_numpy(np.stack([np.where(k, ids, -100) for ids, k in pairs]))
    with torch.no_grad():
        return float(loss_of(model, text[:, :-1], text[:, 1:])), float(loss_of(model, noise[:, :-1], known[:, 1:]))


def train(
    config: dict[str, Any], tokenizer: Tokenizer, steps: int, keep: Callable[[TinyGPT, list[list[float]]], None]
) -> None:
    """Trains from scratch: Muon on hidden matrices, Adam on the rest, bfloat16 products where autocast takes them.

    Args:
        config: The model's config.json.
        tokenizer: Its tokenizer.
        steps: Batches.
        keep: Called with the model and the curve so far, MARKS times and at the end. The curve is a list of
            [step, tokens seen, loss on held-out text, loss on held-out repeats].
    """
    torch.manual_seed(0)
    model = TinyGPT(config)
    square = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("h.")]
    others = [p for name, p in model.named_parameters() if p.ndim < 2 or "wte" in name]
    groups = [{"params": others, "lr": RATE}, {"params": [model.wpe.weight], "lr": RATE / 10}]
    muon, adam = Muon(square, MUON_RATE), torch.optim.Adam(groups, betas=(0.9, 0.98))
    curve: list[list[float]] = []
    started, seen = time.perf_counter(), 0
    marks = {round(steps * i / MARKS) for i in range(MARKS + 1)}
    source = batches(tokenizer, TRAIN_SEED, steps)
    for step in range(steps + 1):
        if step in marks:
            text, repeats = held_out(model, tokenizer)
            curve.append([step, seen, text, repeats])
            minutes = (time.perf_counter() - started) / 60
            print(
                f"step {step:6d}  {minutes:5.1f} min  {seen:9d} tokens  text {text:.3f}  repeats {repeats:.3f}",
                flush=True,
            )
            keep(model, curve)
        if step == steps:
            return
        pace = min((step + 1) / WARMUP, (steps - step) / (FALL * steps), 1.0)
        muon.rate = MUON_RATE * pace
        for group, rate in zip(adam.param_groups, (RATE, RATE / 10), strict=True):
            group["lr"] = rate * pace
        inputs, targets = next(source)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, inputs, targets)
        model.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        adam.step()
        seen += inputs.numel()
