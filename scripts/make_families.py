"""Build one small model of each family that attnx opens, with random weights, as real exporters write them.

    pip install torch transformers==4.57.6 optimum-onnx==0.1.0 diffusers==0.35.2 pillow
    python scripts/make_families.py [families] [NAME ...]

Each is a folder as on the Hub, some tens to hundreds of kB, with about.json (what to run it on) and truth.npz (what the
framework says its attention is). `python scripts/check_families.py families` holds attnx to that, without torch.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import family_diffusion
import family_pictures
import family_recurrent
import family_speech
import family_texts
import family_unusual
from family_parts import slim

FAMILIES: dict[str, Callable[[Path], None]] = {
    **family_texts.FAMILIES, **family_speech.FAMILIES, **family_pictures.FAMILIES, **family_diffusion.FAMILIES,
    **family_recurrent.FAMILIES, **family_unusual.FAMILIES,
}  # fmt: skip


def main() -> int:
    """Build those that were named, or all."""
    warnings.simplefilter("ignore")
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "families")
    failed = 0
    for name in sys.argv[2:] or FAMILIES:
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        try:
            FAMILIES[name](folder)
        except Exception as error:  # one that an exporter cannot do must not keep the others from being made
            failed += 1
            shutil.rmtree(folder, ignore_errors=True)
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        slim(folder)
        size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        print(f"{name}: {size / 1e3:.0f} kB")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
