"""Build small models of the kinds that are not bundled, to try attnx on: seeded, written node by node, a few kB each.

    python scripts/make_examples.py [examples]

translator: an encoder, a decoder and a decoder with its cache, over letters; its weights are random, so what it writes
means nothing, and how it attends is real. protein: an encoder over residues, random as well. listener: a Whisper with
random weights, and 1.3 seconds of sound. eyes: one attention over 4 x 4 patches that looks at bright ones. ears: one
attention over the frames of half a second of sound. With picture.png (one bright patch) and beep.wav (a beep after a
quarter of a second).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests import small_models, small_senses

FAMILIES = Path(__file__).resolve().parents[1] / "tests" / "families"


def main() -> None:
    """Write everything into one folder."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "examples")
    weights = small_models.weights(4)
    translator = small_models.save(
        folder / "translator",
        config={"decoder_start_token_id": 5},
        encoder_model=small_models.encoder(weights),
        decoder_model=small_models.cross_decoder(weights, cached=False),
        decoder_with_past_model=small_models.cross_decoder(weights, cached=True),
    )
    small_senses.letters(translator, spaced=True)
    protein = small_models.save(folder / "protein", model=small_models.encoder(small_models.weights(4)))
    pieces = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWC"]
    (protein / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    shutil.copytree(FAMILIES / "whisper-words", folder / "listener", dirs_exist_ok=True)
    small_senses.vit(folder / "eyes")
    small_senses.bright(folder / "picture.png", 2, 1)
    small_senses.listener(folder / "ears")
    samples = np.zeros(8000)
    samples[4000:4800] = np.sin(np.arange(800) * 0.9) * 0.5
    small_senses.write(folder / "beep.wav", (samples * 32767).astype("<i2").tobytes())
    print(f"wrote translator, protein, listener, eyes, ears, picture.png and beep.wav into {folder}")


if __name__ == "__main__":
    main()
