#!/usr/bin/env python3
"""What `attnx align` costs in memory and time where the text is long, against onnxruntime on the same file alone.

    python scripts/bench/align.py [--tokens 8192] [--words 2048] [--whisper FOLDER --minutes 60]

answer: a decoder of 2 layers, 2 heads of 8, with a cache, that reads a prompt of so many tokens and writes two more.
translation: an encoder-decoder of the same size on so many source and as many target words, two tokens each. sound: so
many minutes of noise and a Whisper export (make_families.py whisper). Each run is a process of its own; of it, the peak
of resident memory (getrusage) and the seconds from start to end. `empty` is the process before it runs anything.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
import wave
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def write(folder: Path, tokens: int, words: int) -> None:
    """The two models, with places for long texts."""
    import numpy as np

    from tests import small_models, small_senses

    for name, longest in (("decoder", tokens + 64), ("translator", 2 * words + 64)):
        weights = small_models.weights(4)
        weights["places"] = np.random.default_rng(1).standard_normal((longest, 16)).astype(np.float32)
        config = {"decoder_start_token_id": 5, "max_position_embeddings": longest}
        if name == "decoder":
            small_models.save(folder / name, config=config, model=small_models.cached_decoder(weights))
        else:
            small_models.save(
                folder / name,
                config=config,
                encoder_model=small_models.encoder(weights),
                decoder_model=small_models.cross_decoder(weights, cached=False),
            )
        small_senses.letters(folder / name)


def sound(path: Path, minutes: float) -> None:
    """Noise, 16,000 samples a second, half a minute after another: a child's peak begins with its parent's size."""
    import numpy as np

    rng = np.random.default_rng(0)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        for _ in range(round(minutes * 2)):
            file.writeframes((rng.standard_normal(30 * 16_000) * 3000).astype("<i2").tobytes())


def text(words: int, step: int) -> str:
    """Letters with spaces between them, which are one unknown token each."""
    return " ".join(chr(97 + (at * step) % 20) for at in range(words))


def bare(folder: Path, kind: str, count: int) -> None:
    """The model's own outputs for the same input, by onnxruntime alone."""
    import numpy as np
    import onnxruntime

    def run(name: str, **given: np.ndarray) -> list[np.ndarray]:
        session = onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), providers=["CPUExecutionProvider"])
        feed = {}
        for slot in session.get_inputs():
            shape = [1 if size == "batch" else size if isinstance(size, int) else 0 for size in slot.shape]
            feed[slot.name] = given.get(slot.name, np.zeros(shape, np.float32))
        return session.run(None, feed)

    ids = np.arange(count)[None] % 20
    if kind == "answer":
        run("model", input_ids=ids, attention_mask=np.ones_like(ids), position_ids=np.arange(count)[None])
        return
    hidden = run("encoder_model", input_ids=ids, attention_mask=np.ones_like(ids))[0]
    run("decoder_model", input_ids=ids, encoder_hidden_states=hidden, encoder_attention_mask=np.ones_like(ids))


def child(folder: Path, what: str, count: int) -> None:
    """One run, and what it took."""
    from attnx.cli import app

    start = time.perf_counter()
    kind, _, how = what.partition(" ")
    code = 0
    if how == "bare":
        bare(folder / ("decoder" if kind == "answer" else "translator"), kind, 2 * count if kind != "answer" else count)
    elif kind == "answer":
        said = ",".join(str(at % 20) for at in range(count))
        code = app.run(["align", "--ids", said, "-m", str(folder / "decoder"), "--generate", "2"])
    elif kind == "translation":
        args = ["align", text(count, 3), "-m", str(folder / "translator"), "--target", text(count, 7)]
        code = app.run([*args, "--view", "pharaoh", *how.split()[1:]])
    elif kind == "sound":
        code = app.run(["align", "--audio", str(folder / "noise.wav"), "-m", how, "--generate", "20"])
    if code:
        sys.exit(code)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{peak:.0f} MiB, {time.perf_counter() - start:.1f} s", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--words", type=int, default=2048)
    parser.add_argument("--whisper", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(Path(options.child[0]), options.child[1], int(options.child[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.tokens, options.words)
        runs = [("empty", 0)]
        runs += [(f"answer {how}", options.tokens) for how in ("bare", "attnx")]
        runs += [(f"translation {how}", options.words) for how in ("bare", "attnx", "attnx --head 1.0")]
        if options.whisper is not None:
            for minutes in (0.5, options.minutes):
                sound(Path(folder) / "noise.wav", minutes)
                measure(folder, f"sound {options.whisper.absolute()}", 0, f"sound, {minutes:g} minutes")
        for what, count in runs:
            measure(folder, what, count, f"{what}, {count}" if count else what)


def measure(folder: str, what: str, count: int, shown: str) -> None:
    """Run a child, and write down what it took."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", folder, what, str(count)], capture_output=True, text=True, check=False
    )
    print(f"{shown}: {done.stderr.strip().splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    main()
