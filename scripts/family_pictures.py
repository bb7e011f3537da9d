"""Families that see: ViT and its like, Swin's windows, CLIP and SigLIP with text and picture, DETR."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from family_parts import alike, export, in_turn, picture, record, sharpen, tokenizer

CAPTION = "a photo of a cat"


def _pixels(eyes: Any, folder: Path) -> tuple[Any, str]:
    """The picture as the framework's own preprocessing sees it."""
    from PIL import Image

    path = picture(folder / "picture.png")
    with Image.open(path) as opened:
        got = eyes(opened.convert("RGB"), return_tensors="pt")
    return got["pixel_values"], path.name


@contextmanager
def overheard(model: Any, *names: str) -> Iterator[list[Any]]:
    """The weights that modules of these classes give as their second output, in the order in which they run."""
    seen: list[Any] = []
    handles = []
    for module in model.modules():
        if type(module).__name__ in names:
            handles.append(module.register_forward_hook(lambda _, __, out: seen.append(out[1])))
        if type(module).__name__ == "MultiheadAttention" and type(module).__name__ in names:
            handles.append(module.register_forward_pre_hook(
                lambda _, args, kwargs: (args, kwargs | {"average_attn_weights": False}), with_kwargs=True
            ))  # fmt: skip
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _seen(folder: Path, kind: str, head: str, eyes: Any, gain: float = 1.4, **config: Any) -> None:
    import transformers

    sizes = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 32,
        "patch_size": 8, **config,
    }  # fmt: skip
    if kind == "Swin":
        sizes = config
    made = getattr(transformers, head)(getattr(transformers, f"{kind}Config")(**sizes))
    model = export(sharpen(made, 1, gain), folder, "feature-extraction", eyes)
    pixels, name = _pixels(eyes, folder)
    with torch.no_grad():
        ran = model(pixels, output_attentions=True)
    record(folder, {"image": name}, alike(ran.attentions, "encoder", False))


def vit(folder: Path) -> None:
    """ViT."""
    from transformers import ViTImageProcessor

    _seen(folder, "ViT", "ViTModel", ViTImageProcessor(size={"height": 32, "width": 32}))


def deit(folder: Path) -> None:
    """DeiT: a token for distillation, and the middle cut out."""
    from transformers import DeiTImageProcessor

    eyes = DeiTImageProcessor(size={"height": 40, "width": 40}, crop_size={"height": 32, "width": 32})
    _seen(folder, "DeiT", "DeiTModel", eyes)


def dinov2(folder: Path) -> None:
    """DINOv2: the shorter side to a length, then the middle."""
    from transformers import BitImageProcessor

    eyes = BitImageProcessor(size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32})
    _seen(folder, "Dinov2", "Dinov2Model", eyes)


def beit(folder: Path) -> None:
    """BEiT: a bias by relative position."""
    from transformers import BeitImageProcessor

    eyes = BeitImageProcessor(size={"height": 32, "width": 32}, crop_size={"height": 32, "width": 32})
    _seen(folder, "Beit", "BeitModel", eyes, use_relative_position_bias=True)


def swin(folder: Path) -> None:
    """Swin: windows, every other layer's shifted."""
    from transformers import SwinConfig, SwinModel, ViTImageProcessor

    eyes = ViTImageProcessor(size={"height": 32, "width": 32})
    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, mlp_ratio=2.0
    )
    model = export(sharpen(SwinModel(config), 1), folder, "feature-extraction", eyes)
    pixels, name = _pixels(eyes, folder)
    with torch.no_grad(), overheard(model, "SwinSelfAttention") as seen:
        model(pixels, output_attentions=True)
    # Two layers over 8 x 8 patches, the second one shifted; two over 4 x 4, which are a single window.
    maps = [_whole(w, side, shift) for w, side, shift in zip(seen, (8, 8, 4, 4), (0, 2, 0, 0), strict=True)]
    record(folder, {"image": name}, alike(maps, "encoder", False))


def _whole(windows: Any, side: int, shift: int, size: int = 4) -> Any:
    """Swin's windows [windows,H,16,16] over the whole map [1,H,side²,side²], by the way the model itself goes.

    Each place is numbered, and the numbers are rolled and cut as the model rolls and cuts its patches.
    """
    at = torch.arange(side * side).view(1, side, side, 1)
    at = torch.roll(at, (-shift, -shift), (1, 2)).view(1, side // size, size, side // size, size, 1)
    places = at.permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size)
    out = torch.zeros(1, windows.shape[1], side * side, side * side)
    for window, where in zip(windows, places, strict=True):
        out[0, :, where[:, None], where[None]] = window
    return out


def _two_towers(folder: Path, kind: str, around: str, roles: dict[str, str], causal: bool, eyes: Any) -> None:
    import transformers

    special = ["<pad>", "<s>", "</s>", "<unk>"]
    tokens = tokenizer(special, around, **roles)
    text = {
        "vocab_size": len(tokens), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1,
        "pad_token_id": 0, "projection_size": 16,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": 32, "patch_size": 8,
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision, projection_dim=16)
    model = sharpen(getattr(transformers, f"{kind}Model")(config), 1)
    eager = export(model, folder, "zero-shot-image-classification", tokens, eyes)
    pixels, name = _pixels(eyes, folder)
    ids = torch.tensor([tokens(CAPTION)["input_ids"]])
    with torch.no_grad():
        with overheard(eager.vision_model, f"{kind}Attention", "MultiheadAttention") as pictures:
            eager.vision_model(pixels, output_attentions=True)
        with overheard(eager.text_model, f"{kind}Attention") as texts:
            eager.text_model(ids, output_attentions=True)
    sites = alike(pictures[:2], "encoder", False)
    sites += alike(pictures[2:], "encoder", False, "pooling")  # SigLIP's learnt query, which gathers the patches
    sites += alike(texts, "decoder" if causal else "encoder", causal)
    record(folder, {"text": CAPTION, "image": name}, sites, ids=ids[0].tolist())


def clip(folder: Path) -> None:
    """CLIP: a causal tower over the text, one over the picture."""
    from transformers import CLIPImageProcessor

    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    eyes = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    _two_towers(folder, "CLIP", "<s> $A </s>", roles, True, eyes)


def siglip(folder: Path) -> None:
    """SigLIP: both towers see both ways; a learnt query gathers the patches."""
    from transformers import SiglipImageProcessor

    roles = {"eos_token": "</s>", "pad_token": "<pad>"}
    _two_towers(folder, "Siglip", "$A </s>", roles, False, SiglipImageProcessor(size={"height": 32, "width": 32}))


def detr(folder: Path) -> None:
    """DETR: a convolution's map, encoded; objects look for their places."""
    from transformers import DetrConfig, DetrForObjectDetection, DetrImageProcessor, ResNetConfig

    back = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 8, 16], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )
    config = DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=back, d_model=16,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, num_queries=5, num_labels=3,
    )  # fmt: skip
    eyes = DetrImageProcessor(size={"height": 128, "width": 160}, do_pad=False)
    model = export(sharpen(DetrForObjectDetection(config), 2), folder, "object-detection", eyes)
    pixels, name = _pixels(eyes, folder)
    with torch.no_grad():
        ran = model(pixels, output_attentions=True)
    sites = in_turn(ran.decoder_attentions, ran.cross_attentions)
    sites = [(kind, component, False, w) for kind, component, _, w in sites]
    record(folder, {"image": name}, alike(ran.encoder_attentions, "encoder", False) + sites)


FAMILIES = {
    "vit": vit, "deit": deit, "dinov2": dinov2, "beit": beit, "swin": swin, "clip": clip, "siglip": siglip,
    "detr": detr,
}  # fmt: skip
