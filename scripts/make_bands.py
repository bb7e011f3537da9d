"""Build a small Longformer with random weights for the tests of attention in bands, as torch's exporter writes it.

    pip install torch transformers==4.57.6
    python scripts/make_bands.py tests/sites/bands

One layer, blocks of 8 tokens, two heads; texts of 16 tokens, any number of them, some tokens with global attention.
The names of values are shortened and equal constants are held once; nothing else is changed. truth.npz holds what was
fed and what torch's own softmaxes gave, in their own order: [B,S,H,columns] for the band, [B*H,tokens,S] for the rows
of the tokens with global attention.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from transformers import LongformerConfig, LongformerModel

LENGTH = 16


class Outer(torch.nn.Module):
    """The model with its inputs in order."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, global_attention_mask: Any) -> Any:
        """The last hidden states."""
        ran = self.model(
            input_ids=input_ids, attention_mask=attention_mask, global_attention_mask=global_attention_mask
        )
        return ran.last_hidden_state


def checkpoint() -> Any:
    """The model, with eager attention and the way of cutting chunks that is meant for export."""
    torch.manual_seed(5)
    config = LongformerConfig(
        vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        attention_window=[8], max_position_embeddings=LENGTH + 2, type_vocab_size=1, pad_token_id=1, onnx_export=True,
        initializer_range=0.6,
    )  # fmt: skip
    return LongformerModel(config, add_pooling_layer=False).eval()


def feed() -> dict[str, np.ndarray]:
    """Two texts, the second one padded; one and two tokens with global attention."""
    draw = np.random.default_rng(1)
    mask, marked = np.ones((2, LENGTH), np.int64), np.zeros((2, LENGTH), np.int64)
    mask[1, 11:] = 0
    marked[:, 0] = 1
    marked[0, 9] = 1
    ids = draw.integers(3, 40, (2, LENGTH))
    return {"input_ids": ids, "attention_mask": mask, "global_attention_mask": marked}


def softmaxes(model: Any, fed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What each softmax of a run gives."""
    kept: list[np.ndarray] = []
    own = torch.nn.functional.softmax

    def noted(*args: Any, **more: Any) -> Any:
        out = own(*args, **more)
        kept.append(out.numpy().astype(np.float32))
        return out

    torch.nn.functional.softmax = noted
    try:
        with torch.no_grad():
            Outer(model)(*(torch.from_numpy(array) for array in fed.values()))
    finally:
        torch.nn.functional.softmax = own
    return kept


def shortened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with short names, and equal constants held once."""
    graph = model.graph
    kept = {value.name: value.name for value in (*graph.input, *graph.output)}
    held: dict[tuple[Any, ...], str] = {}

    def named(name: str) -> str:
        return kept.setdefault(name, f"v{len(kept)}") if name else ""

    nodes, weights = [], []
    for tensor in graph.initializer:
        tensor.name = named(tensor.name)
        weights.append(tensor)
    for node in graph.node:
        if node.op_type == "Constant":
            array = numpy_helper.to_array(node.attribute[0].t)
            key = (array.dtype.str, array.shape, array.tobytes())
            if key not in held:
                held[key] = f"c{len(held)}"
                weights.append(numpy_helper.from_array(array, held[key]))
            kept[node.output[0]] = held[key]
            continue
        node.name, node.doc_string = f"n{len(nodes)}" if node.op_type == "Softmax" else "", ""
        inputs, outputs = [named(n) for n in node.input], [named(n) for n in node.output]
        del node.input[:], node.output[:]
        node.input.extend(inputs)
        node.output.extend(outputs)
        nodes.append(node)
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(weights)
    return model


def main() -> int:
    """Write model.onnx and truth.npz."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "tests/sites/bands")
    folder.mkdir(parents=True, exist_ok=True)
    model, fed = checkpoint(), feed()
    band, rows = softmaxes(model, fed)
    buffer = io.BytesIO()
    torch.onnx.export(
        Outer(model), tuple(torch.from_numpy(array) for array in fed.values()), buffer, dynamo=False, opset_version=17,
        input_names=[*fed], output_names=["hidden"], dynamic_axes={name: {0: "batch", 1: "length"} for name in fed},
    )  # fmt: skip
    small = shortened(onnx.load_model_from_string(buffer.getvalue()))
    onnx.checker.check_model(small)
    onnx.save(small, folder / "model.onnx")
    np.savez_compressed(folder / "truth.npz", band=band, rows=rows, **fed)
    print(sum(p.stat().st_size for p in folder.iterdir()) // 1000, "kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
