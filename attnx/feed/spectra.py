"""Samples -> spectra in mel bands: Whisper's, and Kaldi's filter banks.

Sources: Radford et al. 2022 (Whisper), section 2.2, with the filters of Slaney 1998, Auditory Toolbox; Povey et al.
2011 (Kaldi), feat/feature-fbank.h, as torchaudio and transformers compute it.
"""

from __future__ import annotations

import numpy as np

from attnx.records import Array

RATE, WINDOW, HOP, SECONDS, MELS = 16_000, 400, 160, 30, 80
"""Whisper's sampling rate, samples in a spectrum, samples between two spectra, seconds in a piece, and mel bands."""
_BREAK, _LINEAR, _LOG = 1000.0, 200.0 / 3, np.log(6.4) / 27
"""The mel scale of Slaney: linear up to 1000 Hz, 66.7 Hz a mel; logarithmic above, 27 mels for a factor of 6.4."""
_AT_ONCE = 4096
"""How many spectra are computed together."""
_HIGHEST = 8000.0
"""Upper end of Whisper's bands in Hz, whatever the sampling rate."""
_SPECTRUM, _LOWEST, _EMPHASIS, _FLOOR = 512, 20.0, 0.97, float(np.finfo(np.float32).eps)
"""Kaldi's: samples that a spectrum is filled up to, Hz at which bands begin, how much of the sample before is taken
away, and the least power of a band."""


def mel_filters(bands: int, window: int, rate: int, highest: float | None = None) -> Array:
    """Triangles over the spectrum, each of area 1 in Hz, [bands, window // 2 + 1].

    Args:
        bands: How many.
        window: Samples in a spectrum.
        rate: Sampling rate.
        highest: Upper end of the last band in Hz; half the sampling rate where None.

    Source: Slaney 1998, Auditory Toolbox; librosa.filters.mel with its defaults.
    """
    centres = _hertz(np.linspace(0, _mel(rate / 2 if highest is None else highest), bands + 2))
    bins = np.linspace(0, rate // 2, window // 2 + 1)
    return np.asarray(_triangles(bins, centres) * (2 / (centres[2:] - centres[:-2]))[:, None])


def _mel(hertz: float) -> float:
    return hertz / _LINEAR if hertz < _BREAK else _BREAK / _LINEAR + float(np.log(hertz / _BREAK) / _LOG)


def _hertz(mels: Array) -> Array:
    knee = _BREAK / _LINEAR
    return np.where(mels < knee, mels * _LINEAR, _BREAK * np.exp(_LOG * (mels - knee)))


def _triangles(bins: Array, centres: Array) -> Array:
    """Triangles of height 1 between each centre's neighbours, [bands, bins]."""
    rise = (bins[None] - centres[:-2, None]) / np.diff(centres)[:-1, None]
    fall = (centres[2:, None] - bins[None]) / np.diff(centres)[1:, None]
    return np.asarray(np.maximum(0, np.minimum(rise, fall)))


def log_mel(
    samples: Array, length: int, *, rate: int = RATE, bands: int = MELS, window: int = WINDOW, hop: int = HOP
) -> Array:
    """Whisper's spectrogram, [bands, length / hop], about -1 to 1.

    Args:
        samples: The sound; silence is added up to `length`.
        length: Samples in a piece.
        rate: Sampling rate.
        bands: Mel bands.
        window: Samples in a spectrum (a Hann window).
        hop: Samples between two spectra.

    Returns:
        log10 of the power in each band, no less than 8 below the largest, then (x + 4) / 4.
    """
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    filters = mel_filters(bands, window, rate, _HIGHEST)
    level = np.empty((bands, length // hop))
    for start in range(0, length // hop, _AT_ONCE):  # all spectra of an hour at once would take gigabytes
        stop = min(start + _AT_ONCE, length // hop)
        stretch = _mirrored(samples, length, start * hop - window // 2, (stop - 1) * hop - window // 2 + window)
        framed = np.lib.stride_tricks.sliding_window_view(stretch, window)[::hop]
        level[:, start:stop] = filters @ (np.abs(np.fft.rfft(framed * hann)) ** 2).T
    np.log10(np.maximum(level, 1e-10, out=level), out=level)  # in place: an hour's is half as large as its samples
    np.maximum(level, level.max() - 8, out=level)
    return np.asarray(np.divide(np.add(level, 4, out=level), 4, out=level))


def _mirrored(samples: Array, length: int, start: int, stop: int) -> Array:
    """Samples in a range: silence after their end, and mirrored before 0 and from `length` on."""
    period = max(2 * (length - 1), 1)
    at = np.abs(np.arange(start, stop)) % period
    at = np.where(at < length, at, period - at)
    return np.where(at < len(samples), samples[np.minimum(at, len(samples) - 1)], 0.0)


def filter_bank(samples: Array, bands: int, *, povey: bool) -> Array:
    """Kaldi's log filter banks of sound at 16,000 samples a second, [frames, bands].

    Args:
        samples: At least `WINDOW`.
        bands: Mel bands, 20 to 8000 Hz.
        povey: Window by a Hann window to the power of 0.85, as Kaldi does; by a Hann window where False.

    Returns:
        ln of the power in each band, of whole windows only: (samples - 400) // 160 + 1 frames.
    """
    framed = np.lib.stride_tricks.sliding_window_view(np.asarray(samples, np.float64), WINDOW)[::HOP]
    framed = framed - framed.mean(axis=1, keepdims=True)
    before = np.concatenate([framed[:, :1], framed[:, :-1]], axis=1)
    window = np.hanning(WINDOW) ** (0.85 if povey else 1.0)
    power = np.abs(np.fft.rfft((framed - _EMPHASIS * before) * window, _SPECTRUM)) ** 2
    bins = _kaldi_mel(RATE / _SPECTRUM * np.arange(_SPECTRUM // 2 + 1))
    lowest, highest = _kaldi_mel(np.array([_LOWEST, RATE / 2]))
    filters = _triangles(bins, np.linspace(lowest, highest, bands + 2))
    return np.asarray(np.log(np.maximum(power @ filters.T, _FLOOR)))


def _kaldi_mel(hertz: Array) -> Array:
    return np.asarray(1127.0 * np.log(1.0 + hertz / 700.0))
