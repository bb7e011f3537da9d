"""Families whose attention is unusual: hybrids with recurrent layers, chunks, blocks, series, mixed heads, two axes.

They are exported by torch.onnx alone, by both of its exporters where both can (name-dynamo is the newer one's), so that
optimum is not needed: `pip install torch transformers onnxscript` (5.24 was used) and
`python scripts/make_families.py families cait cait-dynamo ...`. What neither exporter writes (Informer and Reformer of
transformers 5.24) is not here; Informer's attention is, as its authors wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from family_parts import record, sharpen
from torch import nn

WIDTH, HEADS = 32, 4
SIZE = WIDTH // HEADS


@dataclass
class Family:
    """One model, what it is fed, and what the framework says its attention is."""

    model: nn.Module
    feed: dict[str, torch.Tensor]
    truth: Callable[[], Sequence[Any]]
    """Weights of every site in execution order, [B,H,Q,K]."""
    sites: Sequence[tuple[str, str, bool]]
    """Kind, component and whether it hides the future, of each."""


def _write(folder: Path, family: Family, dynamo: bool) -> None:
    folder.mkdir(parents=True)
    with torch.no_grad():
        weights = list(family.truth())
    torch.onnx.export(
        family.model.eval(), tuple(family.feed.values()), str(folder / "model.onnx"), input_names=list(family.feed),
        output_names=["out"], dynamo=dynamo, opset_version=18, external_data=False,
    )  # fmt: skip
    np.savez(folder / "feed.npz", **{name: tensor.numpy() for name, tensor in family.feed.items()})
    sites = [(*site, array) for site, array in zip(family.sites, weights, strict=True)]
    record(folder, {"inputs": "feed.npz"}, sites)


# Checkpoints of transformers


def _ids(count: int) -> torch.Tensor:
    return torch.randint(1, 60, (1, count), generator=torch.Generator().manual_seed(1))


class _Reader(nn.Module):
    """A model of ids and a mask; its first output."""

    def __init__(self, model: nn.Module, **more: Any) -> None:
        super().__init__()
        self.model, self.more = model, more

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **self.more)[0]


def _decoder(kind: str, layers: Sequence[int] | None = None, **more: Any) -> Family:
    """A decoder of transformers.

    Args:
        kind: What its classes' names begin with.
        layers: Which of the attentions it gives are softmaxes'; all where None.
        more: Its configuration.
    """
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=60, hidden_size=WIDTH, intermediate_size=48, num_attention_heads=HEADS, num_key_value_heads=2,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, **more,
    )  # fmt: skip
    config._attn_implementation, config._experts_implementation = "eager", "batched_mm"
    model = sharpen(getattr(transformers, f"{kind}Model")(config))
    feed = {"input_ids": _ids(12), "attention_mask": torch.ones(1, 12, dtype=torch.int64)}

    def truth() -> list[Any]:
        found = model(**feed, use_cache=False, output_attentions=True).attentions
        there = [a for a in found if a is not None]
        return there if layers is None else [there[i] for i in layers]

    with torch.no_grad():
        count = len(truth())
    return Family(_Reader(model, use_cache=False), feed, truth, [("self", "decoder", True)] * count)


def llama4() -> Family:
    """Llama 4: chunks of four tokens in three layers of four; complex rotations as real ones, for the exporters."""
    import transformers.models.llama4.modeling_llama4 as code

    def angles(self: Any, x: Any, position_ids: Any) -> Any:
        at = (self.inv_freq[None, :, None].float() @ position_ids[:, None, :].float()).transpose(1, 2)
        return torch.stack([at.cos(), at.sin()], -1) * self.attention_scaling

    def turned(x: Any, at: Any) -> Any:
        real, imaginary = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
        cos, sin = at[:, :, None].unbind(-1)
        return torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], -1).flatten(3).type_as(x)

    code.Llama4TextRotaryEmbedding.forward = angles
    code.apply_rotary_emb = lambda query, key, at: (turned(query, at), turned(key, at))
    return _decoder(
        "Llama4Text", intermediate_size_mlp=48, head_dim=SIZE, num_hidden_layers=4, attention_chunk_size=4,
        num_local_experts=2, num_experts_per_tok=1, no_rope_layers=[1, 1, 1, 0], interleave_moe_layer_step=2,
    )  # fmt: skip


def qwen3_next() -> Family:
    """Qwen3-Next: three gated delta nets, then gated attention; the delta rule step by step, for the exporters."""
    import transformers.models.qwen3_next.modeling_qwen3_next as code

    def stepwise(*args: Any, chunk_size: int = 0, **more: Any) -> Any:
        return code.torch_recurrent_gated_delta_rule(*args, **more)

    code.torch_chunk_gated_delta_rule = stepwise
    return _decoder(
        "Qwen3Next", head_dim=SIZE, num_hidden_layers=4, linear_num_value_heads=4, linear_num_key_heads=2,
        linear_key_head_dim=8, linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )  # fmt: skip


def jamba() -> Family:
    """Jamba: Mamba and attention by turns, experts in every second layer."""
    return _decoder(
        "Jamba", num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
        expert_layer_offset=1, num_experts=2, num_experts_per_tok=1, use_mamba_kernels=False, mamba_d_state=4,
        mamba_dt_rank=4,
    )  # fmt: skip


def minimax() -> Family:
    """MiniMax: lightning attention, which has no softmax and is not shown, and attention by turns."""
    return _decoder(
        "MiniMax", (1, 3), head_dim=SIZE, num_hidden_layers=4, num_local_experts=2, num_experts_per_tok=1,
        layer_types=["linear_attention", "full_attention"] * 2, block_size=4,
    )  # fmt: skip


def bigbird() -> Family:
    """BigBird: five softmaxes over blocks in each layer, random blocks drawn by head."""
    import transformers

    config = transformers.BigBirdConfig(
        vocab_size=60, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=WIDTH,
        max_position_embeddings=64, attention_type="block_sparse", block_size=4, num_random_blocks=2,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    model = sharpen(transformers.BigBirdModel(config, add_pooling_layer=False))
    feed = {"input_ids": _ids(40), "attention_mask": torch.ones(1, 40, dtype=torch.int64)}
    return Family(_Reader(model), feed, lambda: _scattered(model, feed), [("self", "encoder", False)] * 2)


def _scattered(model: Any, feed: dict[str, Any]) -> list[Any]:
    """Transformers puts a key that it gathers twice in one cell only: weights of blocks, put together here.

    A head's context for values of ones and zeros is the sum of its weights over those keys: one run a key.
    """
    found: list[Any] = []
    for layer in model.encoder.layer:
        inner = layer.attention.self
        kept: dict[str, Any] = {}

        def keep(_: Any, args: Any, more: Any, kept: dict[str, Any] = kept) -> None:
            kept.update(args=args, more=more)

        hook = inner.register_forward_pre_hook(keep, with_kwargs=True)
        model(**feed)
        hook.remove()
        count = feed["input_ids"].shape[1]
        columns = []
        for key in range(count):
            mark = torch.zeros(1, count, WIDTH)
            mark[:, key] = 1.0
            away = inner.value.register_forward_hook(lambda *_, mark=mark: mark)
            context = inner(*kept["args"], **kept["more"])[0]
            away.remove()
            columns.append(context.view(1, count, HEADS, SIZE)[..., 0])
        found.append(torch.stack(columns, -1).permute(0, 2, 1, 3))
    return found


def pegasus_x() -> Family:
    """Pegasus-X's encoder: blocks and, for all, three global tokens; staggered by half a block in the second layer."""
    import transformers
    from transformers.models.pegasus_x.modeling_pegasus_x import PegasusXEncoder

    config = transformers.PegasusXConfig(
        vocab_size=60, d_model=WIDTH, encoder_layers=2, decoder_layers=1, encoder_attention_heads=HEADS,
        encoder_ffn_dim=WIDTH, max_position_embeddings=64, num_global_tokens=3, block_size=4,
        stagger_local_blocks=True, dropout=0, attention_dropout=0,
    )  # fmt: skip
    model = sharpen(PegasusXEncoder(config))
    mask = torch.ones(1, 16, dtype=torch.int64)
    mask[:, -2:] = 0
    feed = {"input_ids": _ids(16), "attention_mask": mask}

    def truth() -> list[Any]:
        one, two = model(**feed, output_attentions=True).attentions
        return [one["global"], _unblocked(one["local"], 0), _unblocked(two["local"], 2)]

    sites = [("cross", "encoder", False), ("self", "encoder", False), ("self", "encoder", False)]
    return Family(_Reader(model), feed, truth, sites)


def _unblocked(weights: Any, padding: int) -> Any:
    """Weights of blocks [B,H,N,size,global + size] over all tokens, [B,H,Q,global + Q], without so much padding."""
    batch, heads, blocks, size, keys = weights.shape
    extra, count = keys - size, blocks * size
    out = torch.zeros(batch, heads, count, extra + count)
    for n in range(blocks):
        rows = slice(n * size, (n + 1) * size)
        out[:, :, rows, :extra] = weights[:, :, n, :, :extra]
        out[:, :, rows, extra + n * size : extra + (n + 1) * size] = weights[:, :, n, :, extra:]
    kept = list(range(padding, count - padding))
    return out[:, :, kept][..., [*range(extra), *(extra + at for at in kept)]]


def longt5() -> Family:
    """LongT5's encoder: three tokens to each side, by blocks and those beside them."""
    return _long_t5("local")


def longt5_global() -> Family:
    """LongT5's encoder that sees a mean of every four tokens, too."""
    return _long_t5("transient-global")


def _long_t5(kind: str) -> Family:
    import transformers

    config = transformers.LongT5Config(
        vocab_size=60, d_model=WIDTH, d_kv=SIZE, d_ff=WIDTH, num_layers=2, num_heads=HEADS, local_radius=3,
        global_block_size=4, encoder_attention_type=kind, dropout_rate=0.0, relative_attention_num_buckets=8,
    )  # fmt: skip
    model = sharpen(transformers.LongT5EncoderModel(config))
    feed = {"input_ids": _ids(16), "attention_mask": torch.ones(1, 16, dtype=torch.int64)}

    def truth() -> list[Any]:
        return [_beside(weights) for weights in model(**feed, output_attentions=True).attentions]

    return Family(_Reader(model), feed, truth, [("self", "encoder", False)] * 2)


def _beside(weights: Any) -> Any:
    """Weights of blocks over three of them and what all see [B,N,H,size,3 size + G] over all tokens, [B,H,Q,Q + G]."""
    batch, blocks, heads, size, keys = weights.shape
    count = blocks * size
    out = torch.zeros(batch, heads, count, count + keys - 3 * size)
    for n in range(blocks):
        rows = slice(n * size, (n + 1) * size)
        for j in range(3 * size):
            if 0 <= (n - 1) * size + j < count:
                out[:, :, rows, (n - 1) * size + j] += weights[:, n, :, :, j]
        out[:, :, rows, count:] = weights[:, n, :, :, 3 * size :]
    return out


def patchtst() -> Family:
    """PatchTST: patches of three series, each by itself."""
    import transformers

    config = transformers.PatchTSTConfig(
        num_input_channels=3, context_length=32, patch_length=8, patch_stride=4, d_model=16, num_hidden_layers=2,
        num_attention_heads=2, ffn_dim=16, do_mask_input=False,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = sharpen(transformers.PatchTSTModel(config))
    feed = {"past_values": torch.randn(1, 32, 3, generator=torch.Generator().manual_seed(2))}

    class Series(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, past_values: torch.Tensor) -> Any:
            return self.model(past_values=past_values)[0]

    return Family(
        Series(), feed, lambda: model(**feed, output_attentions=True).attentions, [("self", "encoder", False)] * 2
    )


# Written by hand, as their authors wrote them


class _Heads(nn.Module):
    """Keeps its weights while they are asked for."""

    kept: list[torch.Tensor] | None = None

    def __init__(self, *names: str, kv: int = HEADS) -> None:
        super().__init__()
        self.kv = kv
        for name in names:
            setattr(self, name, nn.Linear(WIDTH, kv * SIZE if name in "kv" else WIDTH))

    def split(self, x: torch.Tensor, heads: int = HEADS) -> torch.Tensor:
        return x.reshape(*x.shape[:-1], heads, SIZE).transpose(-2, -3)

    def keep(self, weights: torch.Tensor, *order: int) -> None:
        if _Heads.kept is not None:
            _Heads.kept.append(weights.permute(*order) if order else weights)


def _by_hand(model: nn.Module, feed: dict[str, torch.Tensor], sites: Sequence[tuple[str, str, bool]]) -> Family:
    sharpen(model)

    def truth() -> list[torch.Tensor]:
        _Heads.kept = []
        model(*feed.values())
        out, _Heads.kept = _Heads.kept, None
        return out

    return Family(model, feed, truth, sites)


class _Talking(_Heads):
    """Source: Touvron et al. 2021, CaiT; timm's TalkingHeadAttn (Shazeer et al. 2020, talking heads)."""

    def __init__(self) -> None:
        super().__init__("q", "k", "v", "o")
        self.before, self.behind = nn.Linear(HEADS, HEADS), nn.Linear(HEADS, HEADS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        scores = (q * SIZE**-0.5) @ k.transpose(-2, -1)
        weights = self.before(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(-1)
        self.keep(weights)
        mixed = self.behind(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.o((mixed @ v).transpose(1, 2).flatten(2))


class _OfClass(_Heads):
    """Class attention: one token asks, all are asked. Source: CaiT, section 3; timm's ClassAttn."""

    def __init__(self) -> None:
        super().__init__("q", "k", "v", "o")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.q(x[:, :1])) * SIZE**-0.5, self.split(self.k(x)), self.split(self.v(x))
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        self.keep(weights)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class _Cait(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, 8)
        self.talking = nn.ModuleList(_Talking() for _ in range(2))
        self.of_class = nn.ModuleList(_OfClass() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        for layer, norm in zip(self.talking, self.norms[:2], strict=True):
            x = x + 0.5 * layer(norm(x))
        token = self.token.expand(x.shape[0], -1, -1)
        for layer, norm in zip(self.of_class, self.norms[2:], strict=True):
            token = token + 0.5 * layer(norm(torch.cat([token, x], 1)))
        return token[:, 0]


def cait() -> Family:
    """CaiT: talking heads over patches, then class attention."""
    feed = {"pixel_values": torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(3))}
    return _by_hand(_Cait(), feed, [("self", "encoder", False)] * 4)


class _Sharing(_Heads):
    """Two key heads for four query heads, and the keys are the values."""

    def __init__(self) -> None:
        super().__init__("q", "k", "o", kv=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = self.split(self.q(x)), self.split(self.k(x), self.kv).repeat_interleave(HEADS // self.kv, -3)
        weights = (q @ k.transpose(-2, -1) * SIZE**-0.5).softmax(-1)
        self.keep(weights)
        return self.o((weights @ k).transpose(1, 2).flatten(2))


class _Stack(nn.Module):
    def __init__(self, embed: nn.Module, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.embed, self.layers = embed, nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x))
        return x


def shared_keys() -> Family:
    """Grouped queries whose keys are the values too."""
    model = _Stack(nn.Embedding(60, WIDTH), [_Sharing(), _Sharing()])
    return _by_hand(model, {"input_ids": _ids(12)}, [("self", "encoder", False)] * 2)


class _Axial(_Heads):
    """Source: Rao et al. 2021, MSA Transformer; fair-esm's axial_attention.py: rows tied, or columns, of [B,R,C,W]."""

    def __init__(self, rows: bool) -> None:
        super().__init__("q", "k", "v", "o")
        self.rows = rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.permute(1, 2, 0, 3)  # fair-esm's R x C x B x W
        q, k, v = (f(x).view(*x.shape[:3], HEADS, SIZE) for f in (self.q, self.k, self.v))
        if self.rows:
            q = q * (SIZE * x.shape[0]) ** -0.5
            weights = torch.einsum("rinhd,rjnhd->hnij", q, k).softmax(-1)
            self.keep(weights, 1, 0, 2, 3)
            context = torch.einsum("hnij,rjnhd->rinhd", weights, v)
        else:
            weights = torch.einsum("icnhd,jcnhd->hcnij", q * SIZE**-0.5, k).softmax(-1)
            self.keep(weights[:, :, 0], 1, 0, 2, 3)
            context = torch.einsum("hcnij,jcnhd->icnhd", weights, v)
        return self.o(context.reshape(x.shape)).permute(2, 0, 1, 3)


def msa() -> Family:
    """MSA Transformer: along the rows of an alignment, all rows together, and along its columns."""
    model = _Stack(nn.Embedding(60, WIDTH), [_Axial(rows) for rows in (True, False)] * 2)
    return _by_hand(model, {"tokens": _ids(21).view(1, 3, 7)}, [("self", "encoder", False)] * 4)


class _Sparse(_Heads):
    """Source: Zhou et al. 2021, Informer; its attn.py, ProbAttention: the queries that differ most ask, keys all."""

    def __init__(self, length: int, ask: int = 4, sample: int = 5) -> None:
        super().__init__("q", "k", "v", "o")
        self.ask = ask
        self.register_buffer("sampled", torch.randint(0, length, (length, sample)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        some = (q.unsqueeze(-2) @ k[:, :, self.sampled].transpose(-2, -1)).squeeze(-2)
        top = (some.max(-1)[0] - some.sum(-1) / x.shape[1]).topk(self.ask)[1]
        at = torch.arange(x.shape[0])[:, None, None], torch.arange(HEADS)[None, :, None], top
        weights = (q[at] @ k.transpose(-2, -1) * SIZE**-0.5).softmax(-1)
        self.keep(weights)
        context = v.mean(-2, keepdim=True).expand(-1, -1, x.shape[1], -1).clone()
        context[at] = weights @ v
        return self.o(context.transpose(1, 2).flatten(2))


def informer() -> Family:
    """Informer's attention over a series."""
    model = _Stack(nn.Linear(3, WIDTH), [_Sparse(12), _Sparse(12)])
    feed = {"series": torch.randn(1, 12, 3, generator=torch.Generator().manual_seed(1))}
    return _by_hand(model, feed, [("self", "encoder", False)] * 2)


_MADE: dict[str, Callable[[], Family]] = {
    "llama4": llama4, "qwen3-next": qwen3_next, "jamba": jamba, "minimax": minimax, "bigbird": bigbird,
    "pegasus-x": pegasus_x, "longt5": longt5, "longt5-global": longt5_global,
    "patchtst": patchtst, "cait": cait, "shared-keys": shared_keys, "msa": msa,
    "informer": informer,
}  # fmt: skip
_ONE = {"llama4": True, "bigbird": False, "patchtst": True}
"""Those that one exporter alone writes so that onnxruntime opens it: whether that is the newer."""


def _families() -> dict[str, Callable[[Path], None]]:
    found: dict[str, Callable[[Path], None]] = {}
    for name, make in _MADE.items():
        for dynamo in (False, True) if name not in _ONE else (_ONE[name],):
            label = f"{name}-dynamo" if dynamo else name

            def build(folder: Path, make: Callable[[], Family] = make, dynamo: bool = dynamo) -> None:
                torch.manual_seed(0)
                _write(folder, make(), dynamo)

            found[label] = build
    return found


FAMILIES = _families()
