"""Families that make pictures: DiT, PixArt, a UNet that looks at a text, SD3 and Flux with both in one attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from family_parts import record, sharpen


@contextmanager
def recorded() -> Iterator[list[Any]]:
    """Every attention that runs inside, computed in the open: [B,H,Q,K] each."""
    seen: list[Any] = []
    whole = torch.nn.functional.scaled_dot_product_attention

    def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, scale: float | None = None, **_: Any) -> Any:
        scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        weights = scores.softmax(-1)
        seen.append(weights)
        return weights @ value

    torch.nn.functional.scaled_dot_product_attention = attend
    try:
        yield seen
    finally:
        torch.nn.functional.scaled_dot_product_attention = whole


def export(folder: Path, model: Any, feed: dict[str, Any], kinds: str, open_axes: dict[str, dict[int, str]],
           *, dynamo: bool = False) -> None:  # fmt: skip
    """Write the graph, the feed and the truth.

    Args:
        folder: Where to.
        model: A diffusers model; its first output is kept.
        feed: Its inputs.
        kinds: "sc" where self- and cross-attention take turns, "s" where there is only self-attention.
        open_axes: Axes that may vary.
        dynamo: By torch.export, where the older way lacks an operator.
    """
    names = list(feed)

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *arrays: Any) -> Any:
            return self.model(**dict(zip(names, arrays, strict=True)), return_dict=False)[0]

    folder.mkdir(parents=True)
    with torch.no_grad():
        torch.onnx.export(
            First().eval(), tuple(feed.values()), str(folder / "model.onnx"), dynamo=dynamo, opset_version=18,
            input_names=names, output_names=["out"], dynamic_axes=open_axes or None, external_data=False,
        )  # fmt: skip
        with recorded() as seen:
            model(**feed, return_dict=False)
    model.save_config(folder)
    np.savez(folder / "feed.npz", **{k: v.numpy() for k, v in feed.items()})
    component = "decoder" if "c" in kinds else "encoder"
    sites = [("cross" if kinds[i % len(kinds)] == "c" else "self", component, False, w) for i, w in enumerate(seen)]
    record(folder, {"inputs": "feed.npz"}, sites)


def noise(seed: int, *shape: int) -> Any:
    """As attnx makes it for randn:SEED."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def dit(folder: Path) -> None:
    """DiT: patches of a latent, told the step and the class."""
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8, patch_size=2,
        num_embeds_ada_norm=10, norm_num_groups=4,
    )  # fmt: skip
    feed = {
        "hidden_states": noise(0, 1, 4, 8, 8), "timestep": torch.tensor([10]), "class_labels": torch.tensor([3]),
    }  # fmt: skip
    export(folder, sharpen(model), feed, "s", {n: {0: "batch"} for n in feed})


def pixart(folder: Path) -> None:
    """PixArt: patches, and in every layer a look at the text."""
    from diffusers import PixArtTransformer2DModel

    model = PixArtTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2, sample_size=8,
        patch_size=2, cross_attention_dim=16, caption_channels=12, norm_num_groups=4, use_additional_conditions=False,
    )  # fmt: skip
    feed = {
        "hidden_states": noise(0, 1, 4, 8, 8), "encoder_hidden_states": noise(1, 1, 6, 12),
        "timestep": torch.tensor([10]),
    }  # fmt: skip
    model = sharpen(model)

    class Conditioned(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = model

        def forward(self, **given: Any) -> Any:
            return self.inside(**given, added_cond_kwargs={"resolution": None, "aspect_ratio": None})

        def save_config(self, folder: Path) -> None:
            self.inside.save_config(folder)

    open_axes = {n: {0: "batch"} for n in feed} | {"encoder_hidden_states": {0: "batch", 1: "text"}}
    export(folder, Conditioned(), feed, "sc", open_axes)


def sd3(folder: Path) -> None:
    """Stable Diffusion 3: text and picture in one attention, the picture first."""
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=12, caption_projection_dim=16, pooled_projection_dim=10, out_channels=4,
        pos_embed_max_size=8,
    )  # fmt: skip
    feed = {
        "hidden_states": noise(0, 1, 4, 8, 8), "encoder_hidden_states": noise(1, 1, 6, 12),
        "pooled_projections": noise(2, 1, 10), "timestep": torch.tensor([10]),
    }  # fmt: skip
    open_axes = {n: {0: "batch"} for n in feed} | {"encoder_hidden_states": {0: "batch", 1: "text"}}
    export(folder, sharpen(model), feed, "s", open_axes)


def flux(folder: Path) -> None:
    """Flux: text and picture in one attention, the text first."""
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        patch_size=1, in_channels=8, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=12, pooled_projection_dim=10, guidance_embeds=False, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    feed = {
        "hidden_states": noise(0, 1, 16, 8), "encoder_hidden_states": noise(1, 1, 6, 12),
        "pooled_projections": noise(2, 1, 10), "timestep": torch.tensor([0.5]),
        "img_ids": torch.stack([torch.zeros(16), rows.flatten(), columns.flatten()], -1), "txt_ids": torch.zeros(6, 3),
    }  # fmt: skip
    export(folder, sharpen(model), feed, "s", {}, dynamo=True)


def unet(folder: Path) -> None:
    """A UNet that looks at the text at two resolutions."""
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=12, attention_head_dim=2, norm_num_groups=4,
    )  # fmt: skip
    feed = {
        "sample": noise(0, 1, 4, 8, 8), "timestep": torch.tensor([10]), "encoder_hidden_states": noise(1, 1, 6, 12),
    }  # fmt: skip
    open_axes = {"sample": {0: "batch"}, "encoder_hidden_states": {0: "batch", 1: "text"}}
    export(folder, sharpen(model, gain=1.0), feed, "sc", open_axes)


FAMILIES = {"dit": dit, "pixart": pixart, "sd3": sd3, "flux": flux, "unet": unet}
