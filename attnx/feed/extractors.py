"""Samples -> a model's features, by the feature extractor that its configuration names; one function for each.

Tests compare each with the extractor of the same name in transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnx.errors import InputError, UnsupportedError
from attnx.feed.patches import Grid, pieces
from attnx.feed.spectra import HOP, MELS, RATE, SECONDS, WINDOW, filter_bank, log_mel
from attnx.records import Array, Tokens
from attnx.session.ort import Slot
from attnx.tokens.axes import labelled
from attnx.tokens.config import Config
from attnx.wording import Wording

_RATES = (1000, 768_000)
"""The highest sampling rate that a sound may have."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Sound as a model takes it."""

    array: Array
    """[1,...]."""
    span: float
    """Seconds that the model's positions cover."""
    mask: Array | None = None
    """int64 [1,positions]: 1 for sound, 0 for padding."""
    notes: tuple[str, ...] = ()
    grid: Grid | None = None
    """The grid of patches on a spectrogram, if the model takes patches."""

    def name(self, count: int) -> Tokens:
        """Names of a number of positions: the times at which they begin, or their places on the spectrogram."""
        if self.grid is not None and count == self.grid.prefix + self.grid.rows * self.grid.columns:
            return labelled(*pieces(self.grid))
        return labelled([f"{i * self.span / count:.2f}s" for i in range(count)])


Extract = Callable[[Array, Config, Slot], Heard]
"""Samples at the configuration's rate, the configuration, and the input -> what is fed."""


def rate_of(config: Config) -> int:
    """The sampling rate that an extractor needs."""
    return config.whole("sampling_rate", RATE, *_RATES)


def find(config: Config, slot: Slot) -> tuple[Extract, tuple[str, ...]]:
    """The extractor for an input.

    Args:
        config: The part of preprocessor_config.json about sound; empty where there is none.
        slot: The input.

    Returns:
        The extractor, and what had to be guessed.

    Raises:
        UnsupportedError: The configuration names one that is not here, or names none for a spectrogram of a kind that
            its shape does not tell.
    """
    name = config.text("feature_extractor_type")
    if name is not None:
        if name not in EXTRACTORS:
            raise UnsupportedError(
                f"{config.where} names {name}, whose features attnx does not compute",
                Wording(
                    "Compute them with it and give the array: <inputs=>. There are: {all}.", all=", ".join(EXTRACTORS)
                ),
            )
        return EXTRACTORS[name], ()
    why = "nothing names a feature extractor (preprocessor_config.json: feature_extractor_type)"
    if len(slot.shape) == 2:
        said = "the samples, " + ("normalised" if config.flag("do_normalize", True) else "as they are")
        return _wav2vec2, (f"{why}: taken to be {said}, as for wav2vec 2.0",)
    bands, frames = slot.shape[1:]
    if (isinstance(bands, int) and bands not in (MELS, 128)) or frames in (MELS, 128):
        raise UnsupportedError(
            f"{why}, and the model wants {slot.describe()}",
            Wording("Put its preprocessor_config.json beside it, or give the features: <inputs=>."),
        )
    return _whisper, (f"{why}: taken to be Whisper's log-mel spectrogram",)


def _wav2vec2(samples: Array, config: Config, slot: Slot) -> Heard:
    if config.flag("do_normalize", True):
        samples = _normal(samples, len(samples))
    return Heard(samples[None], len(samples) / rate_of(config), np.ones((1, len(samples)), np.int64))


def _whisper(samples: Array, config: Config, slot: Slot) -> Heard:
    _, length = piece_of(_whisper, config, slot)
    assert length is not None
    notes = _cut(len(samples), length, rate_of(config))
    array = spectrogram(samples[:length], length, config, slot)
    return Heard(array[None], length / rate_of(config), notes=notes)


def piece_of(extract: Extract, config: Config, slot: Slot) -> tuple[int, int | None]:
    """Samples between two spectra, and samples in a piece, the most that Whisper takes at once; None for all others."""
    hop = config.whole("hop_length", HOP, 1, 1 << 16)
    if extract is not _whisper:
        return hop, None
    frames = slot.shape[2]
    length = config.whole("chunk_length", SECONDS, 1, 1 << 12) * rate_of(config)
    return hop, frames * hop if isinstance(frames, int) else length


def spectrogram(samples: Array, length: int, config: Config, slot: Slot) -> Array:
    """Whisper's spectrogram of samples, padded to `length`, with a configuration's settings: [bands, length / hop]."""
    bands = config.whole("feature_size", MELS if not isinstance(slot.shape[1], int) else slot.shape[1], 1, 1 << 12)
    window, hop = config.whole("n_fft", WINDOW, 2, 1 << 16), config.whole("hop_length", HOP, 1, 1 << 16)
    if config.flag("do_normalize", False):
        filled = np.full(length, config.real("padding_value", 0.0, -1e6, 1e6))
        filled[: len(samples)] = _normal(samples, len(samples))
        samples = filled
    return log_mel(samples, length, rate=rate_of(config), bands=bands, window=window, hop=hop)


def _ast(samples: Array, config: Config, slot: Slot) -> Heard:
    bands = filter_bank(_long_enough(samples, config), config.whole("num_mel_bins", 128, 1, 1 << 12), povey=False)
    wanted = config.whole("max_length", 1024, 1, 1 << 16)
    notes = _cut(len(bands), wanted, RATE // HOP)
    array = np.zeros((wanted, bands.shape[1]))
    array[: len(bands)] = bands[:wanted]
    if config.flag("do_normalize", True):
        mean, std = (config.real(name, usual, -1e6, 1e6) for name, usual in (("mean", -4.2677393), ("std", 4.5689974)))
        if abs(std) < 1e-6:
            raise config.wrong("std", "a number other than 0")
        array = (array - mean) / (2 * std)
    return Heard(array[None], wanted * HOP / RATE, notes=notes)


def _speech_to_text(samples: Array, config: Config, slot: Slot) -> Heard:
    bands = filter_bank(_long_enough(samples, config) * 2**15, config.whole("num_mel_bins", 80, 1, 1 << 12), povey=True)
    frames = slot.shape[1] if isinstance(slot.shape[1], int) else len(bands)
    notes = _cut(len(bands), frames, RATE // HOP)
    bands = bands[:frames]
    if config.flag("do_ceptral_normalize", True):
        if config.flag("normalize_means", True):
            bands = bands - bands.mean(axis=0)
        if config.flag("normalize_vars", True):
            bands = bands / bands.std(axis=0)
    array, mask = _filled(bands, frames, config.real("padding_value", 0.0, -1e6, 1e6))
    return Heard(array, frames * HOP / RATE, mask, notes)


def _seamless(samples: Array, config: Config, slot: Slot) -> Heard:
    bands = filter_bank(_long_enough(samples, config) * 2**15, config.whole("num_mel_bins", 80, 1, 1 << 12), povey=True)
    if len(bands) < 2:
        raise InputError("the sound has one frame, and its bands are normalised over frames", "Give a longer sound.")
    bands = (bands - bands.mean(axis=0)) / np.sqrt(bands.var(axis=0, ddof=1) + 1e-7)
    stride = config.whole("stride", 2, 1, 64)
    frames = slot.shape[1] * stride if isinstance(slot.shape[1], int) else len(bands) + len(bands) % 2
    notes = _cut(len(bands), frames, RATE // HOP)
    array, mask = _filled(bands[:frames], frames, config.real("padding_value", 0.0, -1e6, 1e6))
    whole = frames // stride * stride
    array = array[:, :whole].reshape(1, whole // stride, -1)
    return Heard(array, whole * HOP / RATE, mask[:, :whole][:, 1 % stride :: stride], notes)


EXTRACTORS: dict[str, Extract] = {
    "WhisperFeatureExtractor": _whisper,
    "Wav2Vec2FeatureExtractor": _wav2vec2,
    "ASTFeatureExtractor": _ast,
    "Speech2TextFeatureExtractor": _speech_to_text,
    "SeamlessM4TFeatureExtractor": _seamless,
}
"""By the names of their classes in transformers."""


def _normal(samples: Array, count: int) -> Array:
    """Samples of mean 0 and variance 1."""
    return np.asarray((samples - samples.mean()) / np.sqrt(samples.var() + 1e-7))


def _cut(count: int, most: int, a_second: int) -> tuple[str, ...]:
    if count <= most:
        return ()
    return (f"cut to {most / a_second:g} seconds of {count / a_second:.1f}, which is all that the model hears",)


def _filled(bands: Array, frames: int, value: float) -> tuple[Array, Array]:
    """[1,frames,bands] padded with a value, and which frames are sound."""
    array, mask = np.full((1, frames, bands.shape[1]), value), np.zeros((1, frames), np.int64)
    array[0, : len(bands)], mask[0, : len(bands)] = bands, 1
    return array, mask


def _long_enough(samples: Array, config: Config) -> Array:
    if rate_of(config) != RATE:
        raise UnsupportedError(
            f"{config.where} wants {rate_of(config)} samples a second, and these features are computed at {RATE} only",
            Wording("Compute them with the model's own extractor and give the array: <inputs=>."),
        )
    if len(samples) < WINDOW:
        raise InputError(f"the sound has {len(samples)} samples, and one frame takes {WINDOW}", "Give a longer sound.")
    return samples
