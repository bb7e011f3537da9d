"""Makes truth.json: what image processors of transformers (5.24, on Pillow) make of one picture. Not run by the tests.

python tests/pictures/make.py > tests/pictures/truth.json      # where transformers and torch are installed
"""

import json

import numpy as np

SMALL = {"height": 7, "width": 9}
SHORT = {"shortest_edge": 8}
CASES = (
    ("ViT", {"size": SMALL}),
    ("ViT", {"size": {"height": 8, "width": 8}, "resample": 0, "image_mean": 0.5, "image_std": 0.25}),
    ("ViT", {"do_resize": False, "do_rescale": False}),
    ("DeiT", {"size": {"height": 10, "width": 10}, "crop_size": {"height": 7, "width": 6}}),
    ("CLIP", {"size": SHORT, "crop_size": {"height": 6, "width": 6}}),
    ("CLIP", {"size": 8, "crop_size": 11, "do_normalize": False}),
    ("ChineseCLIP", {"size": SHORT, "do_center_crop": False}),
    ("Bit", {"size": SHORT, "crop_size": 7, "rescale_factor": 0.01}),
    ("Blip", {"size": SMALL}),
    ("Siglip", {"size": SMALL, "resample": 2}),
    ("Pvt", {"size": SMALL}),
    ("Beit", {"size": SMALL}),
    ("Beit", {"size": 9, "do_center_crop": True, "crop_size": 6}),
    ("Segformer", {"size": SMALL}),
    ("MobileNetV1", {"size": SHORT, "crop_size": 6}),
    ("MobileNetV2", {"size": SHORT, "crop_size": 6}),
    ("MobileViT", {"size": SHORT, "crop_size": 6}),
    ("MobileViT", {"size": SHORT, "do_center_crop": False, "do_flip_channel_order": False}),
    ("ConvNext", {"size": {"shortest_edge": 7}}),
    ("ConvNext", {"size": {"shortest_edge": 384}, "crop_pct": 0.9}),
    ("ConvNext", {"size": 7, "crop_pct": 0.5}),
    ("PoolFormer", {"size": SHORT, "crop_size": 6}),
    ("PoolFormer", {"size": {"height": 9, "width": 9}, "crop_size": 6, "crop_pct": 0.8}),
    ("Levit", {"size": SHORT, "crop_size": 6}),
    ("EfficientNet", {"size": SMALL}),
    ("EfficientNet", {"size": SMALL, "rescale_factor": 1 / 127.5, "rescale_offset": True, "include_top": False}),
    ("DINOv3ViT", {"size": SMALL}),
    ("RTDetr", {"size": SMALL}),
    ("Detr", {"size": {"shortest_edge": 7, "longest_edge": 20}}),
    ("Detr", {"size": {"shortest_edge": 10, "longest_edge": 11}}),
    ("ConditionalDetr", {"size": {"shortest_edge": 7, "longest_edge": 9}}),
    ("DeformableDetr", {"size": {"height": 8, "width": 5}}),
    ("GroundingDino", {"size": {"shortest_edge": 7, "longest_edge": 20}}),
)


def picture() -> np.ndarray:
    """Slopes and a chequer in three colours, uint8 [12,17,3]."""
    rows, columns = np.mgrid[:12, :17]
    red, green = rows * 21, columns * 15
    blue = (rows // 3 + columns // 4) % 2 * 200 + (rows * columns) % 31
    return np.stack([red, green, blue], axis=-1).astype(np.uint8)


def dinov3(size: dict[str, int]) -> np.ndarray:
    """DINOv3's steps as its processor takes them on torchvision, which resizes by this function of torch."""
    import torch

    pixels = torch.from_numpy(picture().transpose(2, 0, 1).astype(np.float32) / 255)[None]
    shape = (size["height"], size["width"])
    resized = torch.nn.functional.interpolate(pixels, shape, mode="bilinear", align_corners=False, antialias=True)
    mean, std = (np.array(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return np.asarray((resized[0].numpy() - mean) / std)


def main() -> None:
    import transformers
    from PIL import Image

    out = []
    for name, config in CASES:
        if name == "DINOv3ViT":
            made = dinov3(config["size"])
        else:
            processor = getattr(transformers, f"{name}ImageProcessorPil")(**config)
            made = np.asarray(processor(Image.fromarray(picture()), return_tensors="np")["pixel_values"], np.float64)[0]
        at = np.unique(np.linspace(0, made.size - 1, 20).astype(int))
        values = [float(f"{v:.5g}") for v in made.ravel()[at]]
        one = {"processor": name, "config": config, "shape": made.shape, "at": at.tolist(), "values": values}
        out.append(one | {"mean": float(f"{made.mean():.6g}")})
    print("[" + ",\n".join(json.dumps(one) for one in out) + "]")  # noqa: T201


if __name__ == "__main__":
    main()
