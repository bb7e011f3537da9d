"""Models that every analysis answers on, and the bundled model's tensors by onnxruntime alone; no code of attnx."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from tokenizers import Tokenizer

from tests import small_models as small

MINILM = Path(__file__).parents[2] / "models" / "minilm"
SOURCE, TARGET = [[3, 5, 7, 2, 9]], [[1, 4, 6]]


@dataclass(frozen=True)
class Case:
    """A model of a few nodes, a feed, and the same in plain numpy."""

    model: Path
    feed: Path
    ran: small.Ran
    weights: dict[str, np.ndarray]

    @property
    def args(self) -> tuple[str, ...]:
        return ("-m", str(self.model), "--inputs", str(self.feed))


def causal(folder: Path, ids: Any = ((3, 5, 7, 2, 9, 5),), mask: Any = None) -> Case:
    """A causal decoder."""
    w = small.weights()
    small.save(folder, model=small.plain_decoder(w))
    ids = np.array(ids)
    real = np.ones_like(ids) if mask is None else np.array(mask)
    places = np.maximum(np.cumsum(real, 1) - 1, 0)
    np.savez(folder / "feed.npz", input_ids=ids, attention_mask=real, position_ids=places)
    with np.errstate(invalid="ignore"):  # a padded query sees nothing, and its rows are NaN
        ran = small.decoder(w, ids, real)
    return Case(folder / "model.onnx", folder / "feed.npz", ran, w)


def two_sided(folder: Path) -> Case:
    """An encoder-decoder in one file; 5 tokens on the encoder's side, 3 on the decoder's."""
    w = small.weights()
    small.save(folder, model=small.one_file(w))
    source, target = np.array(SOURCE), np.array(TARGET)
    np.savez(folder / "feed.npz", input_ids=source, attention_mask=np.ones_like(source), decoder_input_ids=target)
    return Case(folder / "model.onnx", folder / "feed.npz", small.encoder_decoder(w, source, target), w)


@lru_cache(maxsize=1)
def _opened() -> tuple[onnxruntime.InferenceSession, list[str], Tokenizer, dict[str, np.ndarray]]:
    model = onnx.load(MINILM / "model.onnx")
    nodes = {node.name: node for node in model.graph.node}
    names = []
    for layer in range(6):
        at = f"/encoder/layer.{layer}/attention"
        for node in (
            "self/Transpose",
            "self/Transpose_1",
            "self/Transpose_2",
            "self/MatMul",
            "self/Softmax",
            "self/MatMul_1",
        ):
            names.append(nodes[f"{at}/{node}"].output[0])
        names.append(nodes[f"{at}/self/query/MatMul"].input[0])
        names.append(nodes[f"{at}/output/dense/MatMul"].output[0])
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names if name)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if "attention.output.dense" in t.name}
    return session, names, tokenizer, stored


@dataclass(frozen=True)
class Bundled:
    """Tensors of the bundled model, [layer,...], the batch taken off."""

    pieces: list[str]
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    scores: np.ndarray
    weights: np.ndarray
    context: np.ndarray
    states: np.ndarray
    """[layer,Q,384]: what each block reads."""
    written: np.ndarray
    """[layer,Q,384]: what the output projection of each block makes, before its bias."""
    last: np.ndarray
    """[Q,384]."""


def bundled(text: str) -> Bundled:
    session, names, tokenizer, _ = _opened()
    encoded = tokenizer.encode(text)
    ids = np.array([encoded.ids], np.int64)
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    got = session.run([*names, "last_hidden_state"], feed)
    by = [np.stack([got[8 * layer + at][0] for layer in range(6)]).astype(np.float64) for at in range(8)]
    by[1] = by[1] if by[1].shape[-1] == 32 else by[1].swapaxes(-1, -2)
    return Bundled(encoded.tokens, *by, got[-1][0].astype(np.float64))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def values(measurement: dict[str, Any]) -> np.ndarray:
    """A measurement's numbers out of JSON; null is NaN."""
    return np.array(measurement["values"], dtype=np.float64)
