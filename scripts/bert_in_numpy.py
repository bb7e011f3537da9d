"""BERT's forward pass in plain numpy, float32: what the models that attnx ships are held to.

It shares nothing with the ONNX graphs, onnxruntime or attnx. Read it beside `build_models.py`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_DTYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64}


def read_safetensors(data: bytes) -> dict[str, Array]:
    """Every tensor of a safetensors file, by name.

    Args:
        data: The whole file: 8 bytes of header length (little endian), a JSON header, the tensors' bytes.

    Returns:
        Read-only arrays that share `data`'s memory.

    Raises:
        KeyError: A tensor has a dtype other than F32, F16 or I64.

    Source: the safetensors format, https://github.com/huggingface/safetensors#format
    """
    (length,) = struct.unpack("<Q", data[:8])
    tensors: dict[str, Array] = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        dtype = np.dtype(_DTYPES[entry["dtype"]]).newbyteorder("<")
        tensors[name] = np.frombuffer(data[8 + length + start : 8 + length + stop], dtype).reshape(entry["shape"])
    return tensors


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(eps)) * weight + bias)


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def forward(
    tensors: Mapping[str, Array], config: Mapping[str, Any], ids: Array, mask: Array, type_ids: Array
) -> tuple[Array, Array]:
    """The weights of every head, and the last hidden state.

    Args:
        tensors: Weights under Hugging Face's names for a BertModel; a linear layer's weight is [out, in].
        config: The model's config.json.
        ids: int64 [B,Q].
        mask: int64 [B,Q], 1 for a real token.
        type_ids: int64 [B,Q].

    Returns:
        weights [layer,B,H,Q,K] and last_hidden_state [B,Q,hidden], float32.

    Source: Devlin et al. 2019, BERT; Vaswani et al. 2017, eq. 1; Hendrycks & Gimpel 2016, GELU with erf.
    """
    w = {name: np.asarray(t, np.float32) for name, t in tensors.items() if t.dtype != np.int64}
    heads = config["num_attention_heads"]
    eps = config["layer_norm_eps"]
    batch, length = ids.shape

    def linear(x: Array, name: str) -> Array:
        return np.asarray(x @ w[f"{name}.weight"].T + w[f"{name}.bias"])

    def norm(x: Array, name: str) -> Array:
        return _layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], eps)

    def split(x: Array) -> Array:
        return x.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)

    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][np.arange(length)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][type_ids], "embeddings.LayerNorm")
    hidden = np.where(mask[:, None, None, :] > 0, np.float32(0), np.float32(-np.inf))
    weights = []
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        query, key, value = (split(linear(x, f"{at}.attention.self.{name}")) for name in ("query", "key", "value"))
        a = _softmax(query @ key.transpose(0, 1, 3, 2) / np.float32(math.sqrt(query.shape[-1])) + hidden)
        weights.append(a)
        context = (a @ value).transpose(0, 2, 1, 3).reshape(batch, length, -1)
        x = norm(x + linear(context, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
        inner = linear(x, f"{at}.intermediate.dense")
        inner = inner * (0.5 * (1 + _erf(inner / math.sqrt(2)))).astype(np.float32)
        x = norm(x + linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    return np.stack(weights), x
