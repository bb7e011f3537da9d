"""Make tests/zoo: small files from real exporters, each with what its attention must be.

    pip install torch==2.13.0 onnx onnxscript onnxruntime
    python scripts/make_test_zoo.py [tests/zoo]

Every module computes its attention in the open and keeps it, so that the truth comes from the framework that ran the
model, not from the file. Seeded; a few kB a case.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, LENGTH = 16, 4, 6
SIZE = WIDTH // HEADS


class Block(nn.Module):
    """Two layers of self-attention over an embedding; `how` says how the attention is written."""

    def __init__(self, how: str, causal: bool = False, kv_heads: int = HEADS) -> None:
        super().__init__()
        self.how, self.causal, self.kv_heads = how, causal, kv_heads
        self.embed = nn.Embedding(32, WIDTH)
        self.q = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.kv = nn.ModuleList(nn.Linear(WIDTH, 2 * kv_heads * SIZE) for _ in range(2))
        self.o = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.n = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.seen: list[dict[str, torch.Tensor]] = []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.seen = []
        x = self.embed(ids)
        for q, kv, o, n in zip(self.q, self.kv, self.o, self.n, strict=True):
            h = n(x)
            b, s, _ = h.shape
            query = q(h).view(b, s, HEADS, SIZE).transpose(1, 2)
            key, value = kv(h).view(b, s, 2, self.kv_heads, SIZE).permute(2, 0, 3, 1, 4).unbind(0)
            context = self.attend(query, key, value)
            x = x + o(context.transpose(1, 2).reshape(b, s, WIDTH))
        return x

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        own = {"query": q, "key": k, "value": v}
        if self.kv_heads < HEADS:
            k, v = (x.repeat_interleave(HEADS // self.kv_heads, 1) for x in (k, v))
        scores = q @ k.transpose(-1, -2)
        scaled = scores * SIZE**-0.5
        masked = scaled
        if self.causal:
            later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
            masked = scaled.masked_fill(later, float("-inf"))
        weights = masked.softmax(-1)
        context = weights @ v
        if not torch.onnx.is_in_onnx_export():
            self.seen.append({**own, "scores": scores, "scaled": scaled, "weights": weights, "context": context})
        if self.how == "sdpa":
            return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        if self.how == "baddbmm":
            flat = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
            bias = torch.zeros(1, 1, 1) if not self.causal else torch.full((q.shape[2], k.shape[2]), -1e4).triu(1)[None]
            w = torch.baddbmm(
                bias.expand(flat[0].shape[0], q.shape[2], k.shape[2]),
                flat[0],
                flat[1].transpose(1, 2),
                alpha=SIZE**-0.5,
            )
            return (w.softmax(-1) @ flat[2]).view(q.shape)
        if self.how == "einsum":
            w = torch.einsum("bhid,bhjd->bhij", q * SIZE**-0.5, k).softmax(-1)
            return torch.einsum("bhij,bhjd->bhid", w, v)
        return context


class Packed(nn.Module):
    """nn.MultiheadAttention from one sequence to another."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.seen: list[dict[str, torch.Tensor]] = []

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        q, k = self.a(x), self.b(memory)
        if not torch.onnx.is_in_onnx_export():
            _, w = self.attention(q, k, k, average_attn_weights=False)
            self.seen = [{"weights": w}]
        return self.attention(q, k, k, need_weights=True)[0]


def sharpen(module: nn.Module) -> None:
    """Scale weights so that attention is far from uniform."""
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim > 1:
                p.mul_(2.5)


def export(
    module: nn.Module, args: tuple[torch.Tensor, ...], names: list[str], path: Path, opset: int, dynamo: bool
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes = tuple({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO} for _ in args)
            program = torch.onnx.export(
                module, args, dynamo=True, opset_version=opset, dynamic_shapes=shapes, input_names=names, verbose=False
            )
            onnx.save(program.model_proto, path)
        else:
            axes = {n: {0: "batch", 1: f"length_{n}"} for n in names}
            torch.onnx.export(
                module, args, str(path), dynamo=False, opset_version=opset, input_names=names, dynamic_axes=axes
            )
    slim(path)


def slim(path: Path) -> None:
    """Leave out what the exporter notes for debugging (stack traces name folders of the machine)."""
    model = onnx.load(path)
    del model.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    del model.graph.metadata_props[:]
    onnx.save(model, path)


def write(
    folder: Path, module: nn.Module, feed: dict[str, torch.Tensor], sites: list[dict[str, object]], tolerance: float
) -> None:
    with torch.no_grad():
        module(*feed.values())
    truth = {f"attention.{i}.{q}": a.numpy() for i, seen in enumerate(module.seen) for q, a in seen.items()}  # type: ignore[union-attr, arg-type]
    np.savez_compressed(folder / "inputs.npz", **{k: v.numpy() for k, v in feed.items()})
    np.savez_compressed(folder / "truth.npz", **truth)
    (folder / "about.json").write_text(json.dumps({"sites": sites, "tolerance": tolerance}, indent=1) + "\n")


def main(root: Path) -> None:
    cases: list[tuple[str, nn.Module, bool, int, dict[str, object]]] = []
    for how, causal, kv in (
        ("eager", False, HEADS),
        ("eager", True, 2),
        ("sdpa", True, HEADS),
        ("sdpa", False, 2),
        ("baddbmm", True, HEADS),
        ("einsum", False, HEADS),
    ):
        about = {"kind": "self", "causal": causal, "heads": HEADS, "kv_heads": kv, "scale": SIZE**-0.5}
        for label, dynamo, opset in (("ts17", False, 17), ("dynamo18", True, 18), ("dynamo23", True, 23)):
            if dynamo and how in ("baddbmm", "einsum"):
                continue
            name = f"{how}{'-causal' if causal else ''}{'-gqa' if kv < HEADS else ''}-{label}"
            torch.manual_seed(0)
            cases.append((name, Block(how, causal, kv), dynamo, opset, about))
    ids = torch.randint(0, 32, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    for name, module, dynamo, opset, about in cases:
        sharpen(module.eval())
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        export(module, (ids,), ["ids"], folder / "model.onnx", opset, dynamo)
        write(folder, module, {"ids": ids}, [about] * 2, 1e-4)
    torch.manual_seed(0)
    packed = Packed().eval()
    sharpen(packed)
    x, memory = torch.randn(2, 5, WIDTH), torch.randn(2, LENGTH, WIDTH)
    about = {"kind": "cross", "causal": False, "heads": HEADS, "kv_heads": HEADS, "scale": SIZE**-0.5}
    for label, dynamo, opset in (("ts17", False, 17), ("dynamo18", True, 18)):
        folder = root / f"nn-multihead-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        export(packed, (x, memory), ["x", "memory"], folder / "model.onnx", opset, dynamo)
        write(folder, packed, {"x": x, "memory": memory}, [about], 1e-4)
    derived(root)


def own_tensors(model: onnx.ModelProto) -> list[dict[str, str]]:
    """Quantity -> the tensor that holds it, for each attention as `Block` writes it out."""
    maker = {out: node for node in model.graph.node for out in node.output}
    sites = []
    for softmax in (node for node in model.graph.node if node.op_type == "Softmax"):
        (last,) = (node for node in model.graph.node if softmax.output[0] in node.input)
        scaled = maker[softmax.input[0]]
        scores = maker[scaled.input[0]]
        query, turned = scores.input
        sites.append(
            {
                "query": query, "key": maker[turned].input[0], "value": last.input[1], "scores": scores.output[0],
                "scaled": scaled.output[0], "weights": softmax.output[0], "context": last.output[0],
            }
        )  # fmt: skip
    return sites


def derived(root: Path) -> None:
    """What optimisers and quantisers make of one of the exports."""
    import shutil

    from onnxruntime.quantization import QuantType, quantize_dynamic

    base = root / "eager-ts17"
    folder = root / "int8-dynamic-ts17"
    shutil.copytree(base, folder, dirs_exist_ok=True)
    with tempfile.TemporaryDirectory():
        quantize_dynamic(base / "model.onnx", folder / "model.onnx", weight_type=QuantType.QInt8)
    # Kernels for integers give other numbers on another processor: no numbers are stored, but where they stand.
    (folder / "truth.npz").unlink()
    about = json.loads((folder / "about.json").read_text())
    for site, tensors in zip(about["sites"], own_tensors(onnx.load(folder / "model.onnx")), strict=True):
        site["tensors"] = tensors
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    import onnxruntime

    folder = root / "ortsaved-ts17"
    shutil.copytree(base, folder, dirs_exist_ok=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "model.onnx")
    onnxruntime.InferenceSession(str(base / "model.onnx"), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "tests" / "zoo"))
