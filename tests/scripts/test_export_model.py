"""scripts/export_model.py on tiny checkpoints with random weights; the exports themselves need torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.tokens import from_ids

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import export_model


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("GPT2LMHeadModel", "text-generation-with-past"),
        ("LlamaForCausalLM", "text-generation-with-past"),
        ("T5ForConditionalGeneration", "text2text-generation-with-past"),
        ("MarianMTModel", "text2text-generation-with-past"),
        ("BertForMaskedLM", "fill-mask"),
        ("ViTForImageClassification", "image-classification"),
        ("BertModel", "feature-extraction"),
    ],
)
def test_the_task_of_a_checkpoint_in_a_folder(architecture: str, task: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    assert export_model.task_of(str(tmp_path), "auto") == task
    assert export_model.task_of(str(tmp_path), "fill-mask") == "fill-mask"


def test_a_name_on_the_hub_is_optimums_to_know() -> None:
    assert export_model.task_of("org/name", "auto") == "auto"
    assert export_model.task_of("org/name", "text-generation") == "text-generation-with-past"


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "BertModel"])
@pytest.mark.filterwarnings("ignore")
def test_what_is_exported_attends_as_the_checkpoint(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    if kind == "BertModel":
        sizes = {
            "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 32, "max_position_embeddings": 32,
        }  # fmt: skip
    config = getattr(transformers, "BertConfig" if kind == "BertModel" else "GPT2Config")(**sizes)
    model = getattr(transformers, kind)(config).eval()
    model.save_pretrained(tmp_path / "source")
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["export_model.py", str(tmp_path / "source"), str(out), "--plain"])
    assert export_model.main() == 0
    trace = attnx.open(out, device="cpu").trace(tokens=from_ids([3, 7, 1, 12]))
    eager = getattr(transformers, kind).from_pretrained(tmp_path / "source", attn_implementation="eager").eval()
    with torch.no_grad():
        want = eager(torch.tensor([[3, 7, 1, 12]]), output_attentions=True).attentions
    for attention, weights in zip(trace.attentions, want, strict=True):
        np.testing.assert_allclose(attention.need("weights"), weights.numpy(), atol=1e-5)
