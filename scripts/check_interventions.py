"""Hold interventions to hooks in PyTorch, family by family: a head ablated, an edge of attention knocked out.

    python scripts/check_interventions.py build FOLDER      # torch 2.13, transformers 5, onnxscript
    python scripts/check_interventions.py check FOLDER      # attnx, without torch

Small models with random weights, exported by torch.onnx.export as they are; the truth is the same model with its
attention replaced by an explicit one behind transformers' attention interface, in which one head's context is 0, or one
cell of the softmax's input minus infinity. In every attention of a model: two heads and one edge.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CLOSE = 5e-5
"""By how much outputs may be off, relative to the larger of 1 and their size."""


explicit: list[Any] = []
"""The explicit attention, for modules that are no part of transformers."""


def heads_of(count: int) -> tuple[int, int]:
    """The heads that are ablated."""
    return 0, count - 1


def build(root: Path) -> int:
    """Export every family, and write what each intervention gives."""
    import torch
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    state: dict[str, Any] = {"edit": None, "calls": []}

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, scaling: Any = None,
                  position_bias: Any = None, **_: Any) -> tuple[Any, Any]:  # fmt: skip
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = query @ key.transpose(-1, -2) * scale
        if position_bias is not None:
            scores = scores + position_bias
        if attention_mask is not None:
            scores = scores + attention_mask[..., : key.shape[-2]]
        at = len(state["calls"])
        state["calls"].append(tuple(scores.shape))
        edit = state["edit"]
        if edit is not None and edit["call"] == at and edit["kind"] == "knockout":
            scores = scores.clone()
            scores[:, edit["head"], edit["query"], edit["key"]] = -torch.inf
        context = scores.softmax(-1) @ value
        if edit is not None and edit["call"] == at and edit["kind"] == "zero":
            context = context.clone()
            context[:, edit["head"]] = 0
        return context.transpose(1, 2).contiguous(), None

    explicit.append(attention)
    AttentionInterface.register("explicit", attention)
    AttentionMaskInterface.register("explicit", eager_mask)
    failed = 0
    for name, make in families().items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            torch.manual_seed(0)
            module, feed, dims, outputs = make()
            sharpen(module)
            names = list(feed)
            torch.onnx.export(
                module, tuple(feed.values()), folder / "model.onnx", input_names=names, output_names=outputs,
                dynamic_shapes=dims, dynamo=True, verbose=False, external_data=False,
            )  # fmt: skip
            for part in module.modules():
                if hasattr(part, "set_attn_implementation"):
                    part.set_attn_implementation("explicit")

            def run(edit: dict[str, Any] | None, module: Any = module, feed: dict[str, Any] = feed) -> list[Any]:
                state.update(edit=edit, calls=[])
                with torch.no_grad():
                    out = module(*feed.values())
                return [t.numpy() for t in (out if isinstance(out, tuple) else (out,))]

            arrays = {f"base.{n}": a for n, a in zip(outputs, run(None), strict=True)}
            shapes = list(state["calls"])
            plan: list[dict[str, Any]] = []
            for call, (_, heads, queries, keys) in enumerate(shapes):
                plan += [{"kind": "zero", "call": call, "head": head} for head in heads_of(heads)]
                for query in (0, queries - 1):
                    plan.append({"kind": "knockout", "call": call, "head": 1, "query": query, "key": keys // 3})
            for at, edit in enumerate(plan):
                arrays |= {f"{at}.{n}": a for n, a in zip(outputs, run(edit), strict=True)}
            np.savez_compressed(folder / "expected.npz", **arrays)
            np.savez_compressed(folder / "feed.npz", **{n: t.numpy() for n, t in feed.items()})
            (folder / "plan.json").write_text(json.dumps({"calls": len(shapes), "plan": plan}) + "\n")
            print(f"{name}: {len(shapes)} attentions, {len(plan)} interventions")
        except Exception as error:  # one that cannot be exported must not keep the others from it
            failed += 1
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
    return 1 if failed else 0


def sharpen(module: Any) -> None:
    """Draw every matrix anew, so that attention is far from uniform and every edge matters."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.eval().parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.4 / parameter[0].numel() ** 0.5)


def families() -> dict[str, Callable[[], tuple[Any, dict[str, Any], Any, list[str]]]]:
    """Each: the module, its feed, which axes are dynamic, the names of its outputs."""
    import torch
    import transformers as hf

    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=64)

    def ids(count: int = 9, low: int = 3, high: int = 50) -> Any:
        return torch.randint(low, high, (2, count))

    class Texts(torch.nn.Module):
        def __init__(self, model: Any, key: str) -> None:
            super().__init__()
            self.model, self.key = model, key

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            more = {"use_cache": False} if self.key == "logits" and hasattr(self.model.config, "use_cache") else {}
            return getattr(self.model(input_ids=input_ids, attention_mask=attention_mask, **more), self.key)

    def text(config: Any, kind: Any, key: str = "logits") -> Any:
        tokens = ids()
        feed = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        shape = {0: batch, 1: length}
        return Texts(kind(config), key), feed, (shape, shape), [key]

    def bert() -> Any:
        config = hf.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                               intermediate_size=24, attn_implementation="eager")  # fmt: skip
        return text(config, hf.BertModel, "last_hidden_state")

    small = {"vocab_size": 50, "attn_implementation": "eager"}

    def gpt2() -> Any:
        return text(hf.GPT2Config(n_embd=16, n_layer=2, n_head=4, n_positions=32, **small), hf.GPT2LMHeadModel)

    def llama_config() -> Any:
        return hf.LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                              num_key_value_heads=2, **small)  # fmt: skip

    def llama() -> Any:
        return text(llama_config(), hf.LlamaForCausalLM)

    class Cached(torch.nn.Module):
        """A decoder that is given what it has read before."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, *past: Any) -> Any:
            cache = hf.DynamicCache()
            for layer in range(len(past) // 2):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            out = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
            return (out.logits, *(t for one in out.past_key_values.layers for t in (one.keys, one.values)))

    def cached(model: Any, heads: int) -> Any:
        tokens = ids(6)
        names = [f"past_key_values.{layer}.{side}" for layer in range(2) for side in ("key", "value")]
        feed = {"input_ids": tokens, "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
        feed |= {n: torch.randn(2, heads, 3, 4) for n in names}
        dims = ({0: batch}, {0: batch}, tuple({0: batch} for _ in names))  # fixed lengths: 6 behind 3
        outputs = ["logits", *(n.replace("past_key_values", "present") for n in names)]
        return Cached(model), feed, dims, outputs

    def llama_cache() -> Any:
        return cached(hf.LlamaForCausalLM(llama_config()), 2)

    def gpt2_cache() -> Any:
        return cached(hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=16, n_layer=2, n_head=4, n_positions=32, **small)), 4)

    class Both(torch.nn.Module):
        """An encoder-decoder."""

        def __init__(self, model: Any, first: str) -> None:
            super().__init__()
            self.model, self.first = model, first

        def forward(self, given: Any, decoder_input_ids: Any) -> Any:
            return self.model(**{self.first: given}, decoder_input_ids=decoder_input_ids, use_cache=False).logits

    def two_sided(model: Any, first: str, given: Any, dims: Any) -> Any:
        feed = {first: given, "decoder_input_ids": ids(5)}
        return Both(model, first), feed, (dims, {0: batch, 1: torch.export.Dim("said", min=2, max=32)}), ["logits"]

    def bart() -> Any:
        config = hf.BartConfig(d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                               decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24,
                               max_position_embeddings=32, **small)  # fmt: skip
        return two_sided(hf.BartForConditionalGeneration(config), "input_ids", ids(), {0: batch, 1: length})

    def t5() -> Any:
        config = hf.T5Config(d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, **small)
        return two_sided(hf.T5ForConditionalGeneration(config), "input_ids", ids(), {0: batch, 1: length})

    def whisper() -> Any:
        config = hf.WhisperConfig(d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                                  decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, num_mel_bins=8,
                                  max_source_positions=20, max_target_positions=16, pad_token_id=0, bos_token_id=1,
                                  eos_token_id=2, decoder_start_token_id=1, **small)  # fmt: skip
        model = hf.WhisperForConditionalGeneration(config)
        return two_sided(model, "input_features", torch.randn(2, 8, 40), {0: batch})

    class Pictures(torch.nn.Module):
        def __init__(self, model: Any, key: str) -> None:
            super().__init__()
            self.model, self.key = model, key

        def forward(self, pixel_values: Any) -> Any:
            return getattr(self.model(pixel_values=pixel_values), self.key)

    vision = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
              "image_size": 12, "patch_size": 4}  # fmt: skip

    def vit() -> Any:
        config = hf.ViTConfig(**vision, num_labels=5, attn_implementation="eager")
        model = Pictures(hf.ViTForImageClassification(config), "logits")
        return model, {"pixel_values": torch.randn(2, 3, 12, 12)}, ({0: batch},), ["logits"]

    class Towers(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, pixel_values: Any, attention_mask: Any) -> Any:
            out = self.model(input_ids=input_ids, pixel_values=pixel_values, attention_mask=attention_mask)
            return out.text_embeds, out.image_embeds

    def clip() -> Any:
        said = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
        words = {**said, "vocab_size": 50, "max_position_embeddings": 16, "eos_token_id": 2, "pad_token_id": 0}
        config = hf.CLIPConfig(text_config=words, vision_config=vision, projection_dim=8, attn_implementation="eager")
        tokens = ids(7)
        feed = {"input_ids": tokens, "pixel_values": torch.randn(2, 3, 12, 12),
                "attention_mask": torch.ones_like(tokens)}  # fmt: skip
        dims = ({0: batch, 1: length}, {0: batch}, {0: batch, 1: length})
        return Towers(hf.CLIPModel(config)), feed, dims, ["text_embeds", "image_embeds"]

    class Block(torch.nn.Module):
        """A block of a diffusion Transformer: its norms are shifted and scaled by what the picture is to show."""

        def __init__(self, width: int = 16, heads: int = 4) -> None:
            super().__init__()
            self.heads, self.explicit = heads, False
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
            self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width) for _ in range(4))
            self.up, self.down = torch.nn.Linear(width, 24), torch.nn.Linear(24, width)
            self.modulation = torch.nn.Linear(width, 6 * width)

        def set_attn_implementation(self, _: str) -> None:
            self.explicit = True

        def forward(self, x: Any, condition: Any) -> Any:
            parts = self.modulation(torch.nn.functional.silu(condition))[:, None].chunk(6, -1)
            h = self.norms[0](x) * (1 + parts[1]) + parts[0]
            q, k, v = (p(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
            if self.explicit:
                out = explicit[0](self, q, k, v)[0]
            else:
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
            x = x + parts[2] * self.o(out.flatten(2))
            h = self.norms[1](x) * (1 + parts[4]) + parts[3]
            return x + parts[5] * self.down(torch.nn.functional.gelu(self.up(h), approximate="tanh"))

    class Diffusing(torch.nn.Module):
        """DiT (Peebles and Xie 2022): patches of a noisy picture, a time and a label."""

        def __init__(self) -> None:
            super().__init__()
            self.patches, self.labels = torch.nn.Conv2d(4, 16, 2, 2), torch.nn.Embedding(5, 16)
            self.time = torch.nn.Linear(8, 16)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
            self.out = torch.nn.Linear(16, 16)

        def forward(self, sample: Any, timestep: Any, label: Any) -> Any:
            angle = timestep[:, None] * torch.exp(-torch.arange(4, dtype=torch.float32))
            condition = self.time(torch.cat([angle.sin(), angle.cos()], -1)) + self.labels(label)
            x = self.patches(sample).flatten(2).transpose(1, 2)
            for block in self.blocks:
                x = block(x, condition)
            return self.out(x)

    def dit() -> Any:
        feed = {"sample": torch.randn(2, 4, 6, 6), "timestep": torch.rand(2) * 9, "label": torch.tensor([1, 3])}
        return Diffusing(), feed, ({0: batch}, {0: batch}, {0: batch}), ["noise"]

    return {
        "dit": dit, "bert": bert, "gpt2": gpt2, "gpt2-cache": gpt2_cache, "llama": llama, "llama-cache": llama_cache,
        "bart": bart, "t5": t5, "whisper": whisper, "vit": vit, "clip": clip,
    }  # fmt: skip


def check(root: Path) -> int:
    """Hold attnx to the truth of every family that was built."""
    import attnx
    from attnx.errors import AttnxError
    from attnx.interventions.plan import Edit, Intervention, Where
    from attnx.interventions.running import Intervening

    failed = 0
    for folder in sorted(path.parent for path in root.glob("*/plan.json")):
        told = json.loads((folder / "plan.json").read_text())
        with np.load(folder / "feed.npz") as file:
            feed = {name: file[name] for name in file.files}
        with np.load(folder / "expected.npz") as file:
            expected = {name: file[name] for name in file.files}
        try:
            model = attnx.open(folder / "model.onnx", device="cpu")
            outputs = [name.partition(".")[2] for name in expected if name.startswith("base.")]
            running = Intervening(model, {"inputs": feed}, outputs)
            sites = [site for site in model.find(feed).sites if site.kind in ("self", "cross")]
            if len(sites) != told["calls"]:
                raise AttnxError(f"{len(sites)} attentions were found, and the model has {told['calls']}", "")
            steps = []
            for at, edit in enumerate(told["plan"]):
                site = sites[edit["call"]]
                where: Where = "cross" if site.kind == "cross" else site.component
                layer, head = (site.layer or 0,), (edit["head"],)
                if edit["kind"] == "zero":
                    made = Edit("ablate", layer, head, component=where)
                else:
                    made = Edit("knockout", layer, head, (edit["query"],), (edit["key"],), component=where)
                steps.append(Intervention(str(at), (made,)))
            worst, moves = 0.0, 0
            base = running.base("inputs")
            gap = max(float(np.abs(base[name] - expected[f"base.{name}"]).max()) for name in outputs)
            if not gap <= CLOSE:
                raise AttnxError(f"the unedited export differs from the explicit model by {gap:.1e}", "")
            for effect in running.run(steps):
                moved = 0.0
                for name in outputs:
                    want, plain = expected[f"{effect.id}.{name}"], expected[f"base.{name}"]
                    size = max(1.0, float(np.abs(plain).max()))
                    worst = max(worst, float(np.abs(effect.outputs[name] - want).max()) / size)
                    moved = max(moved, float(np.abs(want - plain).max()) / size)
                moves += moved > 10 * CLOSE
        except AttnxError as error:
            failed += 1
            print(f"{folder.name}: {error.message}")
            continue
        held = worst <= CLOSE
        failed += not held
        print(f"{folder.name}: {len(steps)} interventions {'hold' if held else 'DO NOT HOLD'}, off by {worst:.1e}; "
              f"{moves} of them move the outputs by more than {10 * CLOSE:g}")  # fmt: skip
    return 1 if failed else 0


def main() -> int:
    """Build, or check."""
    warnings.simplefilter("ignore")
    if len(sys.argv) != 3 or sys.argv[1] not in ("build", "check"):
        print(__doc__, file=sys.stderr)
        return 2
    return build(Path(sys.argv[2])) if sys.argv[1] == "build" else check(Path(sys.argv[2]))


if __name__ == "__main__":
    sys.exit(main())
