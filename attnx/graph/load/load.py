"""Open an .onnx file: its graph as a skeleton, its weights as checked references into the files that hold them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

import numpy as np

from attnx.errors import ModelError
from attnx.graph.fact import Inferred
from attnx.graph.load.outline import Outlines
from attnx.graph.load.soundness import check_model, expected_bytes
from attnx.graph.load.wire import read_skeleton
from attnx.records import Array
from attnx.wording import Wording

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, OperatorSetIdProto, TensorProto

    from attnx.graph.fact import Fact

SELF = "\0self"
"""Stands for the model file itself as the location of a tensor's bytes; never a name in a real file."""

_DAMAGED = "The file is damaged, or was not written by an exporter; export the model again."
_MAGIC = (
    (b"GGUF", "a GGUF file (llama.cpp)"),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint or a .keras file)"),
    (b"\x80\x02", "a Python pickle (an old PyTorch checkpoint)"),
    (b"\x89HDF", "an HDF5 file (Keras)"),
    (b"\x7fELF", "a program or shared library"),
    (b"TFL3", "a TensorFlow Lite file"),
    (b"version https://git-lfs", "a Git LFS pointer: the file itself was not downloaded"),
    (b"<!DOCTYPE", "a web page: the download went wrong"),
    (b"<html", "a web page: the download went wrong"),
)


_WEIGHTS = (b"GGUF", b"PK\x03\x04", b"\x80\x02")
"""First bytes of weight files from which a model can be exported."""
_AGAIN = "Export the model to ONNX, or download it again."


Outside = Callable[["NodeProto", Sequence["Fact"], Sequence["OperatorSetIdProto"]], "list[Fact] | None"]
"""(node, what is known of its inputs, the model's opsets) -> what is known of its outputs."""


@dataclass(slots=True)
class Loaded:
    """A model file, opened: the graph without its weights, and where the weights are."""

    path: Path
    proto: ModelProto
    """The skeleton. Large tensors are external; those in the model file itself have the location `SELF`."""
    files: dict[str, Path]
    """External-data location -> real path of the file (links resolved)."""
    missing: dict[str, str] = field(default_factory=dict)
    """Location -> why it cannot be read; the graph can then be examined but not run."""
    outside: Outside | None = None
    """Consulted for the shapes of operators that no rule covers."""
    outlines: Outlines = field(default_factory=Outlines)
    """What its nodes hold."""
    inferred: Inferred = field(default_factory=Inferred)
    """Facts that were worked out for its nodes, and hold for all nodes like them."""

    def folder(self) -> Path:
        """The folder that contains every data file, as onnxruntime requires: their closest common parent."""
        return Path(os.path.commonpath([str(p.parent) for p in self.files.values()]))


def load(path: Path) -> Loaded:
    """Open the model at `path` without reading its weights.

    Raises:
        ModelError: Not an ONNX model (the message names what it is instead), truncated, or refused external data.
    """
    if path.is_dir():
        raise ModelError(f"{path} is a folder, not an .onnx file", "Give the .onnx file in it.")
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob("*.onnx"))[:5] if path.parent.is_dir() else []
        hint = f"In that folder: {', '.join(near)}." if near else "Check the path."
        raise ModelError(f"there is no file {path}", hint) from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}", "Check the path, and who may read it.") from None
    _refuse_other_formats(path, head)

    import onnx
    from google.protobuf.message import DecodeError

    skeleton = read_skeleton(path, SELF)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(skeleton)
    except (DecodeError, RecursionError):
        raise ModelError(
            f"{path} is not an ONNX model", "attnx opens .onnx files; export the model to ONNX first."
        ) from None
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(f"{path} is not an ONNX model: it has no graph", "Is this a tokenizer or a weights file?")
    outlines = Outlines()
    check_model(proto, outlines)
    loaded = Loaded(path, proto, {SELF: path.resolve()}, outlines=outlines)
    for tensor in tensors(proto, outlines):
        if tensor.data_location == 1:
            _locate(loaded, tensor)
    return loaded


def _refuse_other_formats(path: Path, head: bytes) -> None:
    if head[4:8] in (b"ORTM", b"ORTF"):
        raise ModelError(
            f"{path} is in onnxruntime's ORT format, from which nothing can be tapped",
            "Give the .onnx file that it was converted from.",
        )
    for magic, what in _MAGIC:
        if head.startswith(magic) or head[4:8] == magic:
            raise ModelError(f"{path} is {what}, not an ONNX model", _export(path) if magic in _WEIGHTS else _AGAIN)
    if head[:1] in (b"{", b"[") or (head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32):
        what = "a safetensors file: weights without a graph" if head[8:9] == b"{" else "JSON text"
        how = _export(path) if "weights" in what else "Give the .onnx file."
        raise ModelError(f"{path} is {what}, not an ONNX model", how)


def _export(path: Path) -> str:
    """The export command for a weight file: for the folder that contains it, where that is a checkpoint."""
    if not (path.parent / "config.json").is_file() or path.suffix == ".gguf":
        return Wording(
            "Export the checkpoint it came from to ONNX: <attnx.catalog.export.export('ORG/NAME', 'OUT')>; "
            "of a module of your own with torch.onnx.export."
        )
    folder = path.resolve().parent
    makes = "<attnx.catalog.export.export({name!r}, {out!r})> makes ONNX of it."
    return Wording(makes, name=str(path.parent), out=f"{folder.name}-onnx")


def tensors(proto: ModelProto, outlines: Outlines | None = None) -> list[TensorProto]:
    """Every initializer and Constant tensor of a model, including subgraphs and functions.

    With what its nodes hold, those of one node alone where several hold the same.
    """
    from onnx import GraphProto

    found: list[TensorProto] = []
    seen: set[int] = set()

    def walk(graph: GraphProto) -> None:
        found.extend(graph.initializer)
        attributes(graph.node)

    def attributes(nodes: list[NodeProto]) -> None:
        for node in nodes:
            if outlines is not None:
                kind = outlines.of(node).kind
                if kind in seen:
                    continue
                if kind is not None:
                    seen.add(kind)
            for attribute in node.attribute:
                if attribute.type == 4:
                    found.append(attribute.t)
                elif attribute.type == 9:
                    found.extend(attribute.tensors)
                elif attribute.type == 5:
                    walk(attribute.g)
                elif attribute.type == 10:
                    for graph in attribute.graphs:
                        walk(graph)

    walk(proto.graph)
    for function in proto.functions:
        attributes(function.node)
    return found


def _locate(loaded: Loaded, tensor: TensorProto) -> None:
    """Check where a tensor's bytes are, and that all of them are there."""
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if location not in loaded.files and location not in loaded.missing:
        _add_file(loaded, location, tensor.name)
    if location in loaded.missing:
        return
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or -1)
    except ValueError:
        raise ModelError(
            f"the weight {tensor.name!r} has an external-data offset that is not a number", _DAMAGED
        ) from None
    size = loaded.files[location].stat().st_size
    if length < 0:
        length = expected_bytes(tensor)
    if offset < 0 or any(d < 0 for d in tensor.dims):
        raise ModelError(f"the weight {tensor.name!r} has a negative size or offset", _DAMAGED)
    if offset + length > size:
        where = loaded.files[location]
        raise ModelError(
            f"the weight {tensor.name!r} needs bytes {offset} to {offset + length} of {where.name}, which has {size}",
            "The file is cut short; download it again.",
        )
    expected = expected_bytes(tensor)
    if expected != length:
        raise ModelError(
            f"the weight {tensor.name!r} of shape {list(tensor.dims)} needs {expected} bytes, and {length} are stored",
            _DAMAGED,
        )


def _add_file(loaded: Loaded, location: str, name: str) -> None:
    folder = loaded.path.parent
    refused = f"the weight {name!r} points at {location!r}, outside the model's folder"
    hint = "attnx reads external data only from the folder of the model. Do not trust this file."
    if not location:
        raise ModelError(f"the weight {name!r} is external, but names no file", _DAMAGED)
    # On every system, refuse what any system could take for a way out: "C:\\x", "\\\\server\\share", "..\\x".
    way = PureWindowsPath(location)
    if "\0" in location or way.drive or way.root or ".." in way.parts or Path(location).is_absolute():
        raise ModelError(refused, hint)
    real = Path(os.path.realpath(folder / location))
    if not real.is_file() and "\\" in location:  # written on Windows
        real = Path(os.path.realpath(folder.joinpath(*way.parts)))
    # Inside the folder or, as in the Hub's cache, next to the file that the model's own link points to.
    inside = real.is_relative_to(Path(os.path.realpath(folder)))
    beside = loaded.path.is_symlink() and real.parent == loaded.files[SELF].parent
    if not (inside or beside):
        raise ModelError(refused + " (through a link)", hint)
    if not real.is_file():
        loaded.missing[location] = f"{folder / location} is missing"
        return
    loaded.files[location] = real


def read_tensor(loaded: Loaded, tensor: TensorProto) -> Array | None:
    """The values of one tensor, read now; None where its file is missing. For small tensors only."""
    from onnx import numpy_helper

    if tensor.data_location != 1:
        return np.asarray(numpy_helper.to_array(tensor))
    entries = {e.key: e.value for e in tensor.external_data}
    file = loaded.files.get(entries.get("location", ""))
    if file is None:
        return None
    from onnx import TensorProto as Proto

    length = int(entries.get("length") or -1)
    with file.open("rb") as stream:
        stream.seek(int(entries.get("offset") or 0))
        raw = stream.read() if length < 0 else stream.read(length)
    return np.asarray(numpy_helper.to_array(Proto(dims=tensor.dims, data_type=tensor.data_type, raw_data=raw)))


def read_rows(loaded: Loaded, tensor: TensorProto, most: int) -> Iterator[Array]:
    """A tensor [R,...] in pieces of an even number of rows, of about `most` numbers; none where its file is missing.

    Of a large tensor, only the pieces asked for are read.
    """
    from onnx import helper

    shape = tuple(tensor.dims) or (1,)
    entries = {e.key: e.value for e in tensor.external_data}
    file = loaded.files.get(entries.get("location", ""))
    if tensor.data_location != 1:
        whole = read_tensor(loaded, tensor)
    elif file is None or not prod(shape):
        whole = None
    else:
        dtype, start = helper.tensor_dtype_to_np_dtype(tensor.data_type), int(entries.get("offset") or 0)
        whole = np.memmap(file, dtype, "r", start, shape)
    if whole is not None:
        rows = max(most // max(prod(shape[1:]), 1), 2) // 2 * 2
        for at in range(0, shape[0], rows):
            yield whole.reshape(shape)[at : at + rows]
