"""Sound -> what a model listens to: WAV files, resampled, as samples or as a log-mel spectrogram; positions in seconds.

Source of the log-mel spectrogram: Radford et al. 2022 (Whisper), section 2.2, with the filters of Slaney 1998, Auditory
Toolbox, as librosa and transformers compute them. The numbers are those of preprocessor_config.json where it is there.
"""

from __future__ import annotations

import wave
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnx.errors import InputError, UsageError
from attnx.records import Array, Tokens
from attnx.session.ort import Slot
from attnx.session.protocol import Runs
from attnx.tokens.axes import labelled
from attnx.tokens.files import read_config
from attnx.wording import Wording

RATE, WINDOW, HOP, SECONDS, MELS = 16_000, 400, 160, 30, 80
"""Whisper's: samples a second, samples of a spectrum, samples between two, seconds of a piece, mel bands."""
_AT_ONCE = 4096
"""Spectra that are made together."""
_BREAK, _LINEAR, _LOG = 1000.0, 200.0 / 3, np.log(6.4) / 27
"""The mel scale of Slaney: linear up to 1000 Hz, 66.7 Hz a mel; logarithmic above, 27 mels for a factor of 6.4."""


def sound_slot(slots: list[Slot]) -> Slot | None:
    """The input that takes sound: float [B,bands,frames] or [B,samples]."""
    floats = [s for s in slots if s.dtype in (np.float32, np.float16) and len(s.shape) in (2, 3)]
    return next(
        (s for s in floats if s.name.split(".")[-1] in ("input_features", "input_values", "audio", "mel")), None
    )


def sound_shape(slot: Slot, config: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of one piece: all samples of a second, or [1,bands,frames] of as long as the model hears."""
    rate = _whole(config, "sampling_rate", RATE)
    if len(slot.shape) == 2:
        return (1, rate)
    bands = slot.shape[1] if isinstance(slot.shape[1], int) else _whole(config, "feature_size", MELS)
    frames = _whole(config, "chunk_length", SECONDS) * rate // _whole(config, "hop_length", HOP)
    return (1, bands, slot.shape[2] if isinstance(slot.shape[2], int) else frames)


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """A sound at the rate of the model that is to hear it."""

    slot: Slot
    """The input that takes it."""
    samples: Array
    """float64 [n], -1 to 1."""
    rate: int
    """Samples a second."""
    length: int | None
    """Samples of a piece, which is all that the model hears at once; None where it hears all there is."""
    bands: int
    fft: int
    """Samples of a spectrum."""
    hop: int
    """Samples between two spectra."""
    notes: tuple[str, ...]

    @property
    def span(self) -> float:
        """Seconds that the model hears at once."""
        return (self.length or len(self.samples)) / self.rate

    @property
    def is_long(self) -> bool:
        """Whether it is more than the model hears at once."""
        return self.length is not None and len(self.samples) > self.length

    def array(self) -> Array:
        """What the model is fed of its first piece: [1,samples] as they are, or [1,bands,frames]."""
        if self.length is None:
            return self.samples[None].astype(self.slot.dtype)
        made = self.spectra(self.samples[: self.length], self.length)
        return made[None].astype(self.slot.dtype)

    def spectra(self, samples: Array, length: int) -> Array:
        """The log-mel spectrogram of samples, silence added up to `length`, [bands, length / hop]."""
        return log_mel(samples, length, rate=self.rate, bands=self.bands, window=self.fft, hop=self.hop)


def listen(model: Runs, path: Path, given: Mapping[str, Array]) -> Sound:
    """Read a sound for a model; of an encoder-decoder in two files, its encoder listens.

    Args:
        model: The model.
        path: A WAV file.
        given: Inputs that are given besides.

    Raises:
        UsageError: The model takes no sound.
        InputError: The file is no WAV file that can be read.
    """
    slots = [s for m in (model.encoder, model) if m is not None for s in m.slots()]
    slot = sound_slot(slots)
    if slot is None:
        raise UsageError(
            f"{model.name} does not listen: it has no input_features and no input_values", Wording("Leave out <audio>.")
        )
    if slot.name in given:
        raise UsageError(Wording("<audio> and the feed both give {name}", name=slot.name), "Give one of them.")
    config = read_config(model.path, "preprocessor_config.json")
    nested = config.get("feature_extractor")
    config = nested if isinstance(nested, dict) else config
    rate, hop = _whole(config, "sampling_rate", RATE), _whole(config, "hop_length", HOP)
    samples, own = read_wav(path)
    samples = resample(samples, own, rate)
    notes = () if own == rate else (f"sound resampled from {own} to {rate} samples a second",)
    bands, length = 0, None
    if len(slot.shape) == 2:
        if config.get("do_normalize", True):
            samples = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
    else:
        frames = slot.shape[2]
        length = frames * hop if isinstance(frames, int) else _whole(config, "chunk_length", SECONDS) * rate
        bands = slot.shape[1] if isinstance(slot.shape[1], int) else _whole(config, "feature_size", MELS)
    return Sound(slot, samples, rate, length, bands, _whole(config, "n_fft", WINDOW), hop, notes)


def audio_inputs(
    model: Runs, path: Path, given: Mapping[str, Array]
) -> tuple[dict[str, Array], tuple[str, ...], Callable[[int], Tokens]]:
    """Sound as the model's input.

    Args:
        model: The model.
        path: A WAV file.
        given: Inputs that are given besides.

    Returns:
        The input's name and array; what the user should know; and how positions are called: their time in seconds.

    Raises:
        UsageError: The model takes no sound.
        InputError: The file is no WAV file that can be read.
    """
    sound = listen(model, path, given)
    notes = list(sound.notes)
    if sound.is_long:
        seconds_there = len(sound.samples) / sound.rate
        notes.append(f"cut to {sound.span:g} seconds of {seconds_there:.1f}, which is all that the model hears")
    return {sound.slot.name: sound.array()}, tuple(notes), lambda count: seconds(count, sound.span)


def seconds(count: int, span: float) -> Tokens:
    """Positions called by the time at which each begins: "0.00s", "0.02s", ..."""
    return labelled([f"{i * span / count:.2f}s" for i in range(count)])


def _whole(config: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else otherwise


def read_wav(path: Path) -> tuple[Array, int]:
    """Samples in -1..1, channels averaged, float64; and how many there are a second.

    Raises:
        InputError: No such file, or none of whole numbers of 8 to 32 bits.
    """
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            raw = file.readframes(file.getnframes())
    except FileNotFoundError:
        raise InputError(f"there is no file {path}", Wording("<audio> takes a WAV file.")) from None
    except (wave.Error, EOFError, OSError) as error:
        raise InputError(
            f"{path} is no WAV file that can be read: {error}",
            "Convert it: ffmpeg -i FILE -ac 1 -ar 16000 -c:a pcm_s16le OUT.wav.",
        ) from None
    data = np.frombuffer(raw[: len(raw) // (width * channels) * width * channels], np.uint8).reshape(-1, width)
    if width == 1:
        samples = (data[:, 0].astype(np.float64) - 128) / 128
    else:
        wide = np.zeros((len(data), 4), np.uint8)
        wide[:, 4 - width :] = data
        samples = wide.view("<i4")[:, 0] / 2.0**31
    if not len(samples):
        raise InputError(f"{path} is silent: it has no samples", "Give a WAV file with sound in it.")
    return samples.reshape(-1, channels).mean(axis=1), rate


def resample(samples: Array, rate: int, wanted: int) -> Array:
    """Samples at another rate, by cutting or widening the spectrum: nothing above half the lower rate is left."""
    if rate == wanted:
        return samples
    count = max(1, round(len(samples) * wanted / rate))
    return np.asarray(np.fft.irfft(np.fft.rfft(samples), count) * (count / len(samples)))


def mel_filters(bands: int, window: int, rate: int) -> Array:
    """Triangles over the spectrum, each of area 1 in Hz, [bands, window // 2 + 1].

    Source: Slaney 1998, Auditory Toolbox; librosa.filters.mel with its defaults.
    """
    centres = _hertz(np.linspace(0, _mel(rate / 2), bands + 2))
    bins = np.linspace(0, rate / 2, window // 2 + 1)
    rise = (bins[None] - centres[:-2, None]) / np.diff(centres)[:-1, None]
    fall = (centres[2:, None] - bins[None]) / np.diff(centres)[1:, None]
    return np.asarray(np.maximum(0, np.minimum(rise, fall)) * (2 / (centres[2:] - centres[:-2]))[:, None])


def _mel(hertz: float) -> float:
    return hertz / _LINEAR if hertz < _BREAK else _BREAK / _LINEAR + float(np.log(hertz / _BREAK) / _LOG)


def _hertz(mels: Array) -> Array:
    knee = _BREAK / _LINEAR
    return np.where(mels < knee, mels * _LINEAR, _BREAK * np.exp(_LOG * (mels - knee)))


def log_mel(
    samples: Array, length: int, *, rate: int = RATE, bands: int = MELS, window: int = WINDOW, hop: int = HOP
) -> Array:
    """Whisper's spectrogram, [bands, length / hop], about -1 to 1.

    Args:
        samples: The sound; silence is added up to `length`.
        length: Samples of a piece.
        rate: Samples a second.
        bands: Mel bands.
        window: Samples of a spectrum (a Hann window).
        hop: Samples between two spectra.

    Returns:
        log10 of the power in each band, no less than 8 below the largest, then (x + 4) / 4.
    """
    piece = np.pad(samples, (0, length - len(samples)))
    framed = np.lib.stride_tricks.sliding_window_view(np.pad(piece, window // 2, mode="reflect"), window)[::hop]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    filters = mel_filters(bands, window, rate)
    level = np.empty((bands, length // hop))
    for start in range(0, length // hop, _AT_ONCE):  # an hour's spectra together would take gigabytes
        some = framed[start : min(start + _AT_ONCE, length // hop)]
        level[:, start : start + len(some)] = filters @ (np.abs(np.fft.rfft(some * hann)) ** 2).T
    level = np.log10(np.maximum(level, 1e-10))
    return np.asarray((np.maximum(level, level.max() - 8) + 4) / 4)
