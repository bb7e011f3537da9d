"""Sounds that families hear: written anew where they are needed, so that no file of noise is kept."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np


def speech(path: Path, seconds: float) -> np.ndarray:
    """Tones that change three times a second, with gaps between them; the samples as they are read back."""
    at = np.arange(int(seconds * 16_000)) / 16_000
    tones = np.sin(2 * np.pi * (200 + 300 * np.floor(at * 3) % 1500) * at) * ((at * 2) % 1 < 0.7)
    whole = np.round(0.3 * tones * 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(whole.tobytes())
    return whole / 32768.0
