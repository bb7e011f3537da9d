"""Sequences without their padding, as onnxruntime's packing mode hands them on, and back again."""

from __future__ import annotations

from attnx.sites.emit import INT64, Emit


def restore(e: Emit, tokens: str, offset: str) -> str:
    """[tokens,D] -> [B,S,D] with zeros for padding.

    Args:
        e: Where the nodes go.
        tokens: The real tokens of all sequences, one after another.
        offset: int32 [B,S]: the places (b * S + s) of the real tokens, then those of the padding.
    """
    shape = e.op("Shape", offset)
    width = e.dim(tokens, 1)
    places = real_places(e, tokens, offset)
    cells = e.op("Mul", e.dim(offset, 0), e.dim(offset, 1))
    zeros = e.expand(e.number(0.0), cells, width)
    filled = e.op("ScatterND", zeros, e.unsqueeze(places, 1), tokens)
    return e.op("Reshape", filled, e.concat([shape, width], 0))


def real_places(e: Emit, tokens: str, offset: str) -> str:
    """The places of the real tokens, int64 [tokens]."""
    flat = e.reshape(e.cast(offset, INT64), -1)
    return e.slice(flat, 0, e.dim(tokens, 0), 0)


def remove(e: Emit, padded: str, places: str, out: str = "") -> str:
    """[B,S,D] -> [tokens,D]: the rows at `places` (int64 [tokens], b * S + s)."""
    rows = e.op("Reshape", padded, e.join(-1, e.dim(padded, 2)))
    return e.op("Gather", rows, places, axis=0, out=out)


def lengths(e: Emit, cumulative: str) -> str:
    """Each sequence's number of tokens, int64 [B], from int32 [B+1] cumulative ones."""
    wide = e.cast(cumulative, INT64)
    return e.op("Sub", e.slice(wide, 1, 2**62, 0), e.slice(wide, 0, -1, 0))


def places_of(e: Emit, visible: str) -> str:
    """The places of the True cells of a boolean [B,S], int64 [tokens]."""
    return e.squeeze(e.op("NonZero", e.reshape(visible, -1)), 0)
