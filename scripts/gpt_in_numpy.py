"""GPT-2's forward pass in plain numpy, float32, and what its heads do: what tiny-gpt is held to and described by.

It shares nothing with the ONNX graph, torch, onnxruntime or attnx. Read it beside `train_tiny_gpt.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(eps)) * weight + bias)


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def forward(
    tensors: Mapping[str, Array], config: Mapping[str, Any], ids: Array, mask: Array | None = None
) -> tuple[Array, Array]:
    """The weights of every head, and the logits, without a cache.

    Args:
        tensors: Weights under Hugging Face's names for a GPT2LMHeadModel; a Conv1D's weight is [in, out].
        config: The model's config.json.
        ids: int64 [B,Q].
        mask: int64 [B,Q], 1 for a real token; padding stands on the left. All ones when absent.

    Returns:
        weights [layer,B,H,Q,K] and logits [B,Q,vocab], float32. Rows of padded queries are NaN.

    Source: Radford et al. 2019, GPT-2; Vaswani et al. 2017, eq. 1; Hendrycks & Gimpel 2016, GELU with tanh.
    """
    w = {name: np.asarray(t, np.float32) for name, t in tensors.items()}
    batch, length = ids.shape
    real = np.ones_like(ids) if mask is None else mask
    positions = np.maximum(real.cumsum(-1) - 1, 0)
    visible = np.tri(length, dtype=bool) & (real[:, None, None, :] > 0)

    def linear(x: Array, name: str) -> Array:
        return np.asarray(x @ w[f"{name}.weight"] + w[f"{name}.bias"])

    def norm(x: Array, name: str) -> Array:
        return _layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], config["layer_norm_epsilon"])

    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][positions]
    weights = []
    for layer in range(config["n_layer"]):
        at = f"transformer.h.{layer}"
        packed = linear(norm(x, f"{at}.ln_1"), f"{at}.attn.c_attn")
        query, key, value = (
            part.reshape(batch, length, config["n_head"], -1).transpose(0, 2, 1, 3) for part in np.split(packed, 3, -1)
        )
        scaled = query @ key.transpose(0, 1, 3, 2) / np.float32(math.sqrt(query.shape[-1]))
        with np.errstate(invalid="ignore"):
            a = _softmax(np.where(visible, scaled, np.float32(-np.inf)))
        weights.append(a)
        context = (np.nan_to_num(a) @ value).transpose(0, 2, 1, 3).reshape(batch, length, -1)
        x = x + linear(context, f"{at}.attn.c_proj")
        inner = linear(norm(x, f"{at}.ln_2"), f"{at}.mlp.c_fc")
        curve = np.tanh(np.float32(math.sqrt(2 / math.pi)) * (inner + np.float32(0.044715) * inner**3))
        x = x + linear(np.float32(0.5) * inner * (1 + curve), f"{at}.mlp.c_proj")
    logits = norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].T
    return np.stack(weights), np.where(real[:, :, None] > 0, logits, np.float32(np.nan))


def probes(vocab: int, first: int, *, block: int = 25, repeats: int = 4, count: int = 32, seed: int = 1) -> Array:
    """Random blocks of different tokens, each repeated, behind the beginning-of-text token.

    Args:
        vocab: Ids 0 to vocab - 1 are drawn, but for `first`.
        first: The id that stands first.
        block: Tokens of a block.
        repeats: How often it stands there.
        count: Sequences.
        seed: The same seed gives the same sequences.

    Returns:
        int64 [count, 1 + block x repeats].

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads": 25 tokens, 4 times.
    """
    rng = np.random.default_rng(seed)
    allowed = np.setdiff1d(np.arange(vocab), [first])
    rows = [np.tile(rng.choice(allowed, block, replace=False), repeats) for _ in range(count)]
    return np.concatenate([np.full((count, 1), first), np.stack(rows)], axis=1).astype(np.int64)


def on_repeats(weights: Array, block: int) -> dict[str, Array]:
    """How much each head uses the earlier copies on `probes`, where tokens of the second block and later are queries.

    Args:
        weights: [layer,B,H,Q,K] on probes.
        block: Tokens of a block.

    Returns:
        [layer,H] each, shares: "induction", the weight on what followed earlier copies of the token (Olsson et al.
        2022, prefix matching); "duplicate", the weight on the earlier copies themselves.
    """
    queries = np.arange(1 + block, weights.shape[-1])
    found = {}
    for name, after in (("induction", 1), ("duplicate", 0)):
        # The copies of query i stand at i - block, i - 2 block, ... down to position 1.
        shares = [
            weights[:, :, :, i, [k + after for k in range(i - block, 0, -block)]].sum(-1).mean(1) for i in queries
        ]
        found[name] = np.asarray(np.mean(shares, axis=0))
    return found


def on_text(weights: Array) -> dict[str, Array]:
    """What each head looks at in running text. Queries from the third on: before, the first token is all there is.

    Args:
        weights: [layer,H,Q,K] of one text.

    Returns:
        [layer,H,Q-2] each: "previous", "self" and "first", the weight on the token before, on the query's own and on
        the first one; "entropy" of the row, in nats.
    """
    queries = np.arange(2, weights.shape[-1])
    rows = weights[:, :, queries]
    logs = np.log(rows, where=rows > 0, out=np.zeros_like(rows))
    return {
        "previous": weights[:, :, queries, queries - 1],
        "self": weights[:, :, queries, queries],
        "first": rows[..., 0],
        "entropy": -(rows * logs).sum(-1),
    }
