"""A model's inputs, read off its graph without opening a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnx.graph.load.flat import FlatGraph


def signature(graph: FlatGraph) -> list[tuple[str, tuple[int | str | None, ...], str]]:
    """Name, shape (numbers, symbols or None) and type ("tensor(int64)") of each input.

    A value that is bfloat16 in the file takes float32 at run time, see widening.py.
    """
    from onnx import TensorProto

    found = []
    for name, info in graph.inputs.items():
        tensor = info.type.tensor_type
        dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
        kind = TensorProto.DataType.Name(tensor.elem_type).lower() if tensor.elem_type else "unknown"
        found.append((name, dims, f"tensor({'float' if kind == 'bfloat16' else kind})"))
    return found
