"""Read an .onnx file without its weights: a skeleton whose large tensors point at byte ranges of the file.

A serialised ModelProto is a tree of length-delimited fields, so one pass over a memory map can copy everything but the
tensors' bytes and put in their place the external-data entries that onnxruntime reads itself. A model of any size then
costs a few hundred kB of Python memory, and the weights are never copied. Source: onnx.proto3 (field numbers).
"""

from __future__ import annotations

import mmap
from pathlib import Path

from attnx.errors import ModelError

KEEP_BELOW = 1024
"""Tensors smaller than this many bytes stay in the skeleton: shapes, scales and flags are read during recognition."""

# Field numbers of onnx.proto3 on the way to a tensor's bytes: {message: {field: (message inside)}}.
_INSIDE = {
    "Model": {7: "Graph", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Function": {7: "Node"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph"},
    "SparseTensor": {},
    "Tensor": {},
}
_RAW, _FLOATS, _DOUBLES, _EXTERNAL, _LOCATION = 9, 4, 10, 13, 14
_MAX_DEPTH = 64
_AGAIN = "Download or export the model again: the file is cut short, or damaged."
_MAX_SKELETON = 512 * 1024 * 1024


def _varint(data: mmap.mmap | bytes, at: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if at >= end or shift > 63:
            raise ModelError("the file is not a whole ONNX model: a number in it runs past its end", _AGAIN)
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7


def _encode(number: int) -> bytes:
    out = bytearray()
    while True:
        low, number = number & 0x7F, number >> 7
        if not number:
            out.append(low)
            return bytes(out)
        out.append(low | 0x80)


def _text_field(number: int, text: bytes) -> bytes:
    return _encode(number << 3 | 2) + _encode(len(text)) + text


def _entry(key: str, value: str) -> bytes:
    pair = _text_field(1, key.encode()) + _text_field(2, value.encode())
    return _text_field(_EXTERNAL, pair)


class _Skeleton:
    def __init__(self, data: mmap.mmap, location: str) -> None:
        self.data, self.location, self.kept = data, location, 0

    def copy(self, kind: str, start: int, end: int, depth: int = 0) -> bytes:
        """The message at data[start:end], with large tensors replaced by references to their bytes."""
        if depth > _MAX_DEPTH:
            raise ModelError(
                f"the model nests subgraphs more than {_MAX_DEPTH} deep", "attnx refuses to read such files."
            )
        data, inside = self.data, _INSIDE[kind]
        out: list[bytes] = []
        plain = at = start  # fields that need no change are copied in one slice
        while at < end:
            head = at
            tag, at = _varint(data, at, end)
            field, wire = tag >> 3, tag & 7
            if wire == 0:
                number, at = _varint(data, at, end)
                if kind == "Tensor" and field == _LOCATION and number == 0:
                    # "in this message", made explicit: dropped, since the last entry would override our reference.
                    out.append(data[plain:head])
                    plain = at
                continue
            if wire == 5:
                at += 4
            elif wire == 1:
                at += 8
            elif wire == 2:
                size, at = _varint(data, at, end)
                body, at = at, at + size
                if at > end:
                    raise ModelError("the file is not a whole ONNX model: a part of it is longer than the file", _AGAIN)
                if size >= KEEP_BELOW:
                    if field in inside:
                        out += (data[plain:head], _text_field(field, self.copy(inside[field], body, at, depth + 1)))
                        plain = at
                    elif kind == "Tensor" and field in (_RAW, _FLOATS, _DOUBLES):
                        # Packed float and double fields hold the same little-endian bytes as raw_data.
                        out += (data[plain:head], self._reference(body, size))
                        plain = at
            else:
                raise ModelError(
                    "the file is not an ONNX model: it is not written as a protocol buffer",
                    "attnx opens .onnx files; export the model to ONNX first.",
                )
            if at > end:
                raise ModelError("the file is not a whole ONNX model: it ends inside a field", _AGAIN)
        out.append(data[plain:end])
        joined = b"".join(out)
        if depth == 1:
            self.kept += len(joined)
            if self.kept > _MAX_SKELETON:
                raise ModelError(
                    "the model's graph, without its weights, is larger than 512 MB", "attnx refuses to read such files."
                )
        return joined

    def _reference(self, offset: int, size: int) -> bytes:
        return (
            _entry("location", self.location)
            + _entry("offset", str(offset))
            + _entry("length", str(size))
            + _encode(_LOCATION << 3)
            + b"\x01"
        )


def read_skeleton(path: Path, location: str) -> bytes:
    """The model at `path` as serialised ModelProto bytes without its large tensors.

    Args:
        path: The .onnx file.
        location: The external-data location to write for tensors that are stored in this file.

    Raises:
        ModelError: The file is empty, truncated, or not a protocol buffer.
    """
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ModelError(f"{path} is empty", "Download or export the model again.") from None
        with data:
            return _Skeleton(data, location).copy("Model", 0, len(data))
