"""models/tiny-gpt/MODEL.md, from what `train_tiny_gpt.py` measured."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from gpt_graph import IR, OPSET
from gpt_in_numpy import Array

PAGE = """# tiny-gpt

A GPT-2 of our own with {layers} layers, {heads} heads and a head size of {size}, as one ONNX file with a
key-value cache. `scripts/train_tiny_gpt.py` writes this folder, this page included.

It is small: {parameters:,} parameters, a vocabulary of {vocab} tokens, {positions} positions, about
{tokens:.0f} million tokens of generated text. It knows the stories of its grammar and nothing else; it is no
language model to build on. It is here so that a causal mask, a first-token sink, previous-token heads and
induction can be seen offline, next to a BERT.

## Where it comes from

- Text: made by the seeded grammar in `scripts/tiny_gpt_text.py` and the word lists in
  `scripts/tiny_gpt_words.py`, both written for this model: stories with names and pronouns, "it" that means one
  of two nouns, "John gave a drink to Mary", agreement over a distance, questions about facts just told, songs
  with refrains, words with two meanings, numbers and days, random words repeated, talk. No text of anybody else
  went in. {share:.0%} of the sequences, and in the first quarter of the training half of them, are random tokens
  in blocks that repeat, of which only what can be foreseen counts in the loss.
- Tokenizer: a byte-level BPE trained on 20,000 such documents. `<|endoftext|>` (0) stands in front of every
  text and ends it.
- Licence: Apache-2.0, as attnx.

## Files

| file | bytes | sha256 |
|---|---:|---|
{files}

## How it was built

    pip install torch==2.13.0 numpy tokenizers onnx onnxruntime
    python scripts/train_tiny_gpt.py

torch 2.13.0, one CPU thread, about an hour, 8 GB of memory. All seeds are fixed and torch runs its deterministic
algorithms, but another processor or version may round otherwise and give a model that differs a little. The file is
written anew from kept weights, byte for byte, by `--reuse`.

The graph is written node by node with
onnx.helper, without torch's exporters: opset {opset}, IR {ir}; inputs `input_ids`, `attention_mask`,
`position_ids` and `past_key_values.N.key|value`, outputs `logits` and `present.N.key|value`; batch, sequence
and past are dynamic and the past may be empty. Learned positions, layer norm before each part, GELU with tanh,
output tied to the embeddings. Attention is in its eager form: MatMul, Div by sqrt({size}), Add of the mask,
Softmax, MatMul; the causal mask is built in the graph from the lengths. Weight matrices and embedding tables
are stored in float16 and cast to float32 in the graph; biases and layer norms are stored in float32. Everything
is computed in float32.

## Training

Loss on held-out text and on held-out repeated random blocks, nats a token:

| step | tokens | text | repeated blocks |
|---:|---:|---:|---:|
{curve}

A uniform guess over the vocabulary would lose {uniform:.2f}.

## How faithful it is

On 64 held-out documents, over all positions:

| | largest difference |
|---|---:|
{differences}

Greedy decoding with the cache and without it gives the same tokens on the prompts below.

## What its heads do

Computed in plain numpy (`scripts/gpt_in_numpy.py`) with the stored weights; above 0.5 in bold. On 64 held-out
documents, queries from the third on: `previous`, the mean weight on the token before; `self`, on the query's own
token; `first`, on the first token; `entropy` of the rows in nats. On 32 random blocks of 25 tokens, 4 times each
(Olsson et al. 2022): `induction`, the mean weight on what followed earlier copies of a token; `duplicate`, on the
copies themselves.

| head | previous | self | first | entropy | induction | duplicate |
|---|---:|---:|---:|---:|---:|---:|
{scores}

{words}

## What it writes

Greedily, 24 tokens at most:

{samples}
"""


def _cell(value: Any) -> str:
    return f"**{value:.3f}**" if value > 0.5 else f"{value:.3f}"


def describe(scores: dict[str, Array]) -> str:
    """Which heads are what, in sentences made from the numbers."""

    def names(name: str) -> str:
        found = [(v, i) for i, v in np.ndenumerate(scores[name]) if v > 0.5]
        return ", ".join(f"L{layer} H{head} ({v:.2f})" for v, (layer, head) in sorted(found, reverse=True)) or "none"

    return "\n".join((
        f"- Previous-token heads: {names('previous')}.",
        f"- Heads that look at the query's own token: {names('self')}.",
        f"- Heads that rest on the first token, the sink: {names('first')}.",
        f"- Induction heads: {names('induction')}.",
        f"- Duplicate-token heads: {names('duplicate')}.",
    ))  # fmt: skip


def page(
    files: dict[str, bytes],
    config: dict[str, Any],
    tensors: dict[str, Array],
    curve: list[list[float]],
    random_share: float,
    differences: dict[str, float],
    scores: dict[str, Array],
    samples: list[tuple[str, str]],
) -> str:
    """The page.

    Args:
        files: Name and content of the other files of the folder.
        config: config.json.
        tensors: The weights, for their number.
        curve: [step, tokens, loss on text, loss on repeats] a row.
        random_share: Share of the training sequences that are random blocks.
        differences: What was compared, and the largest difference.
        scores: "previous", "self", "first", "entropy", "induction", "duplicate": [layer,H] each.
        samples: Prompts and how the model goes on.
    """
    rows = [f"| {n} | {len(data)} | `{hashlib.sha256(data).hexdigest()}` |" for n, data in files.items()]
    entropy = scores["entropy"]
    table = []
    for layer, head in np.ndindex(entropy.shape):
        cells = [_cell(scores[name][layer, head]) for name in ("previous", "self", "first", "induction", "duplicate")]
        cells.insert(3, f"{entropy[layer, head]:.2f}")
        table.append(f"| L{layer} H{head} | {' | '.join(cells)} |")
    return PAGE.format(
        layers=config["n_layer"], heads=config["n_head"], size=config["n_embd"] // config["n_head"],
        parameters=sum(t.size for t in tensors.values()), vocab=config["vocab_size"], positions=config["n_positions"],
        tokens=curve[-1][1] / 1e6, share=random_share, files="\n".join(rows), opset=OPSET, ir=IR,
        curve="\n".join(f"| {step:.0f} | {seen:.0f} | {a:.3f} | {b:.3f} |" for step, seen, a, b in curve),
        uniform=np.log(config["vocab_size"]),
        differences="\n".join(f"| {name} | {value:.2g} |" for name, value in differences.items()),
        scores="\n".join(table), words=describe(scores),
        samples="\n".join(f"    {a} [{b.strip()}]" for a, b in samples),
    )  # fmt: skip
