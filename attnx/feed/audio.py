"""Sound -> a model's input: WAV files, resampled and processed by the extractor that its configuration names."""

from __future__ import annotations

import wave
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attnx.errors import InputError, UsageError, reason
from attnx.feed.extractors import Extract, find, piece_of, rate_of, spectrogram
from attnx.feed.inputs import is_ids, is_integer
from attnx.feed.patches import Grid
from attnx.records import Array, Tokens
from attnx.session.ort import Slot
from attnx.session.protocol import OpenModel
from attnx.tokens.config import Config
from attnx.tokens.files import read_config, read_processor
from attnx.wording import Wording

_LONGEST = 1 << 28
"""The most samples read from a sound: four and a half hours at 16,000 per second."""
_AT_ONCE = 1 << 20
"""Samples that are decoded together."""
STRETCH, AROUND = 60, 4
"""Seconds of a long sound that are resampled together, and seconds of overlap on either side."""


def sound_slot(slots: list[Slot]) -> Slot | None:
    """The input that takes sound: float [B,bands,frames] or [B,samples]."""
    floats = [s for s in slots if s.dtype in (np.float32, np.float16) and len(s.shape) in (2, 3)]
    return next(
        (s for s in floats if s.name.split(".")[-1] in ("input_features", "input_values", "audio", "mel")), None
    )


def sound_shape(slot: Slot, config: Config) -> tuple[int, ...]:
    """The shape of the feed for one second of sound: its samples, or a spectrogram as long as the model's window.

    Raises:
        UnsupportedError: The features that the model takes are unknown, or cannot be computed.
    """
    tone = np.sin(np.arange(rate_of(config)) * 0.1)
    return find(config, slot)[0](tone, config, slot).array.shape


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """A sound, at the sampling rate of the model."""

    slot: Slot
    """The input that takes it."""
    samples: Array
    """float64 [n], -1 to 1."""
    rate: int
    """Samples a second."""
    length: int | None
    """Samples in a piece, the most that the model takes at once; None where it takes any length."""
    hop: int
    """Samples between two spectra."""
    config: Config
    """The model's configuration for sound."""
    extract: Extract
    notes: tuple[str, ...]

    @property
    def span(self) -> float:
        """Seconds that the model takes at once."""
        return (self.length or len(self.samples)) / self.rate

    @property
    def is_long(self) -> bool:
        """Whether the sound is longer than the model takes at once."""
        return self.length is not None and len(self.samples) > self.length

    def array(self) -> Array:
        """The feed for its first piece, [1,...]."""
        heard = self.extract(self.samples[: self.length], self.config, self.slot)
        return heard.array.astype(self.slot.dtype)

    def spectra(self, samples: Array, length: int) -> Array:
        """Whisper's spectrogram of samples, padded with silence to `length`, [bands, length / hop]."""
        return spectrogram(samples, length, self.config, self.slot)


def listen(model: OpenModel, path: Path, given: Mapping[str, Array]) -> Sound:
    """Read a sound for a model; in an encoder-decoder in two files, the encoder takes it.

    Args:
        model: The model.
        path: A WAV file.
        given: Other inputs that were given.

    Raises:
        UsageError: The model takes no sound.
        UnsupportedError: It needs features that cannot be computed.
        InputError: The file is not a WAV file that can be read.
    """
    slots = [s for m in (model.encoder, model) if m is not None for s in m.slots()]
    slot = sound_slot(slots)
    if slot is None:
        raise UsageError(
            f"{model.name} takes no sound: it has no input_features and no input_values", Wording("Leave out <audio>.")
        )
    if slot.name in given:
        raise UsageError(Wording("<audio> and the feed both give {name}", name=slot.name), "Give one of them.")
    config = read_processor(model.path, "feature_extractor")
    extract, guessed = find(config, slot)
    rate = rate_of(config)
    samples, own = read_wav(path)
    samples = resample(samples, own, rate)
    notes = guessed if own == rate else (*guessed, f"sound resampled from {own} to {rate} samples a second")
    hop, length = piece_of(extract, config, slot)
    return Sound(slot, samples, rate, length, hop, config, extract, notes)


def audio_inputs(
    model: OpenModel, path: Path, given: Mapping[str, Array]
) -> tuple[dict[str, Array], tuple[str, ...], Callable[[int], Tokens]]:
    """Sound as the model's input.

    Args:
        model: The model.
        path: A WAV file.
        given: Other inputs that were given.

    Returns:
        The input's name and array; notes; and names for positions: their time in seconds.

    Raises:
        UsageError: The model takes no sound.
        InputError: The file is not a WAV file that can be read.
    """
    sound = listen(model, path, given)
    slot = sound.slot
    heard = sound.extract(sound.samples, sound.config, slot)
    heard = replace(heard, grid=patches_of(read_config(model.path, "config.json"), heard.array))
    fed = {slot.name: heard.array.astype(slot.dtype)}
    slots = [s for m in (model.encoder, model) if m is not None for s in m.slots()]
    mask = next((s for s in slots if s.name == "attention_mask" and is_integer(s) and len(s.shape) == 2), None)
    if heard.mask is not None and mask is not None and mask.name not in given and not any(map(is_ids, slots)):
        fed[mask.name] = heard.mask
    return fed, (*sound.notes, *heard.notes), heard.name


def patches_of(config: Config, array: Array) -> Grid | None:
    """The grid of patches on a spectrogram [1,frames,bands]: rows of bands, columns of time.

    Source: Gong et al. 2021 (AST), section 2.1: patches overlap, and two tokens stand before them.
    """
    if array.ndim != 3 or not {"frequency_stride", "time_stride", "patch_size"} <= set(config):
        return None
    down, along = (config.whole(name, 1, 1) for name in ("frequency_stride", "time_stride"))
    side = config.whole("patch_size", 1, 1)
    return Grid((array.shape[2] - side) // down + 1, (array.shape[1] - side) // along + 1, 2)


def read_wav(path: Path) -> tuple[Array, int]:
    """Samples in -1..1, channels averaged, float64; and the sampling rate.

    Raises:
        InputError: No such file, or its samples are not integers of 8 to 32 bits.
    """
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            if not 1 <= width <= 4 or not 1000 <= rate <= 768_000:
                raise InputError(
                    f"{path} says that its rate is {rate} Hz, with {8 * width} bits a sample",
                    "It takes 1,000 to 768,000 Hz, with 8 to 32 bits. Convert it: "
                    "ffmpeg -i FILE -ac 1 -ar 16000 -c:a pcm_s16le OUT.wav.",
                )
            most = min(file.getnframes(), path.stat().st_size // (width * channels))  # a header may claim anything
            samples, there = np.empty(most), 0
            while there < most:  # piece by piece: the samples of an hour fill a gigabyte
                some = _decoded(file.readframes(min(_AT_ONCE, most - there)), width, channels)
                if not len(some):
                    break
                samples[there : there + len(some)] = some
                there += len(some)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}", Wording("<audio> takes a WAV file.")) from None
    except (wave.Error, EOFError, OSError) as error:
        raise InputError(
            f"{path} is not a WAV file that can be read: {reason(error)}",
            "Convert it: ffmpeg -i FILE -ac 1 -ar 16000 -c:a pcm_s16le OUT.wav.",
        ) from None
    if not there:
        raise InputError(f"{path} is silent: it has no samples", "Give a WAV file with sound in it.")
    return samples[:there], rate


def _decoded(raw: bytes, width: int, channels: int) -> Array:
    """Samples in -1..1 of whole frames, channels averaged."""
    data = np.frombuffer(raw[: len(raw) // (width * channels) * width * channels], np.uint8).reshape(-1, width)
    if width == 1:
        samples = (data[:, 0].astype(np.float64) - 128) / 128
    else:
        wide = np.zeros((len(data), 4), np.uint8)
        wide[:, 4 - width :] = data
        samples = wide.view("<i4")[:, 0] / 2.0**31
    return np.asarray(samples.reshape(-1, channels).mean(axis=1))


def resample(samples: Array, rate: int, wanted: int) -> Array:
    """Samples at another rate, by truncating or extending the spectrum: nothing above half the lower rate is left.

    A long sound is processed `STRETCH` seconds at a time, with `AROUND` seconds of overlap before and after.
    """
    if rate == wanted:
        return samples
    count = _count(len(samples), rate, wanted)
    if count > _LONGEST:
        raise InputError(
            f"the sound would have {count} samples at {wanted} a second, which is too many", "Give a shorter one."
        )
    if len(samples) <= 2 * STRETCH * rate:
        return _resampled(samples, rate, wanted)
    out = np.empty(count)
    for start in range(0, -(-len(samples) // rate), STRETCH):  # whole seconds: whole samples at either rate
        first, last = max(0, start - AROUND), start + STRETCH + AROUND
        stretch = samples[first * rate : last * rate].copy()
        faded = np.sin(np.linspace(0, np.pi / 2, AROUND * rate)) ** 2  # else an abrupt cut rings far into the piece
        if first:
            stretch[: len(faded)] *= faded
        if last * rate < len(samples):
            stretch[-len(faded) :] *= faded[::-1]
        part = _resampled(np.pad(stretch, (0, -len(stretch) % rate)), rate, wanted)
        kept = part[(start - first) * wanted :][: min(STRETCH * wanted, count - start * wanted)]
        out[start * wanted : start * wanted + len(kept)] = kept
    return out


def _count(samples: int, rate: int, wanted: int) -> int:
    return max(1, round(samples * wanted / rate))


def _resampled(samples: Array, rate: int, wanted: int) -> Array:
    count = _count(len(samples), rate, wanted)
    return np.asarray(np.fft.irfft(np.fft.rfft(samples), count) * (count / len(samples)))
