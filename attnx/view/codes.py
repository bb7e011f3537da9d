"""Arrays as integers times a step, deflated, in base64, as a page reads them back."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field

import numpy as np

from attnx.records import Array

FINE, COARSE = 32767, 2047
"""Steps on either side of 0."""
MISSING = -32768
"""The code for NaN."""
ROOTS = 254
"""Steps of the square root of a weight, where weights are kept in one byte each; the next code means NaN."""


@dataclass(slots=True)
class Blobs:
    """Packed arrays; the same bytes are kept once."""

    texts: list[str] = field(default_factory=list)
    """Base64 of raw deflate streams (RFC 1951)."""
    _where: dict[bytes, int] = field(default_factory=dict)

    def put(self, *parts: bytes) -> int:
        """Deflate bytes, each part with codes of its own, and keep them; returns their number."""
        squeeze = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = b"".join(squeeze.compress(part) + squeeze.flush(zlib.Z_BLOCK) for part in parts) + squeeze.flush()
        if packed not in self._where:
            self._where[packed] = len(self.texts)
            self.texts.append(base64.b64encode(packed).decode("ascii"))
        return self._where[packed]

    def forget(self, known: int) -> None:
        """Drop all but the first `known`."""
        del self.texts[known:]
        self._where = {packed: at for packed, at in self._where.items() if at < known}

    @property
    def size(self) -> int:
        """Characters of base64."""
        return sum(map(len, self.texts))


def whole_numbers(values: Array, levels: int = FINE) -> tuple[Array, float]:
    """Values as int16 times a step; what is not finite becomes `MISSING`.

    Args:
        values: Any shape.
        levels: Steps on either side of 0.

    Returns:
        int16 of the same shape, and the step: the largest value / levels.
    """
    finite = np.isfinite(values)
    top = float(np.abs(values, where=finite, out=np.zeros(values.shape, np.float32)).max(initial=0.0))
    step = top / levels if top > 0 else 1.0
    codes = np.full(values.shape, MISSING, np.int16)
    np.copyto(codes, np.rint(np.where(finite, values, 0.0) / step).astype(np.int16), where=finite)
    return codes, step


def numbers(codes: Array, step: float) -> Array:
    """The float32 that a page reads back from `whole_numbers`."""
    out = codes.astype(np.float32) * np.float32(step)
    out[codes == MISSING] = np.nan
    return out


def plane(blobs: Blobs, codes: Array, step: float) -> list[float]:
    """Keep int16 codes: all low bytes, then all high bytes, which deflate packs better.

    Returns:
        [number of the blob, step].
    """
    pairs = np.ascontiguousarray(codes, dtype="<i2").view(np.uint8).reshape(-1, 2)
    return [blobs.put(pairs[:, 0].tobytes(), pairs[:, 1].tobytes()), step]


def square_roots(weights: Array) -> tuple[Array, float]:
    """Weights as uint8: the square root of their share of the largest, in `ROOTS` steps; NaN is `ROOTS` + 1.

    Returns:
        uint8 of the same shape, and the largest weight.
    """
    top = float(np.nan_to_num(weights, nan=0.0).max(initial=0.0)) or 1.0
    codes = np.rint(np.sqrt(np.nan_to_num(weights, nan=0.0) / top) * ROOTS).astype(np.uint8)
    codes[np.isnan(weights)] = ROOTS + 1
    return codes, top


def squares(codes: Array, top: float) -> Array:
    """The float32 that a page reads back from `square_roots`."""
    out = (codes.astype(np.float32) / ROOTS) ** 2 * np.float32(top)
    out[codes > ROOTS] = np.nan
    return out
