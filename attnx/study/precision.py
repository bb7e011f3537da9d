"""How a model file stores its numbers: the precision of its weights, and the operators that a quantiser added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnx.session.model_summary import kept_values

if TYPE_CHECKING:
    from attnx.graph.load.load import Loaded
    from attnx.session.session_pool import SessionPool

QUANTISED = (
    "TRT_FP8QuantizeLinear", "TRT_FP8DequantizeLinear", "TRT_FP4DynamicQuantize", "TRT_MXFP8DynamicQuantize",
    "TRT_MXFP8DequantizeLinear",
    "MatMulInteger", "ConvInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulIntegerToFloat",
    "QuantizeLinear", "DequantizeLinear", "QLinearMatMul", "QLinearConv", "QLinearAdd", "QLinearMul", "QLinearSoftmax",
    "QGemm", "QAttention", "QMoE", "MatMulNBits", "MatMulBnb4", "GatherBlockQuantized",
)  # fmt: skip
"""Operators that compute with quantised numbers, or convert numbers to and from them."""


@dataclass(frozen=True, slots=True)
class Written:
    """How one file stores its numbers."""

    file: str
    """Its name, without the folder."""
    weights: str
    """The type of most bytes of its weights: "fp32", "fp16", "int8", "int4"; "" if it has no weights."""
    quantised: Mapping[str, int]
    """How many nodes there are of each operator of `QUANTISED`, the most frequent first; empty if there are none."""

    def __str__(self) -> str:
        """In one line: "model.onnx · int8 weights · 36 MatMulInteger, 25 DynamicQuantizeLinear"."""
        parts = [self.file, *([f"{self.weights} weights"] if self.weights else [])]
        if self.quantised:
            parts.append(", ".join(f"{count} {name}" for name, count in self.quantised.items()))
        return " · ".join(parts)


def written(path: Path) -> Written:
    """Read this from the graph, without its weights.

    Raises:
        ModelError: The file cannot be read as an ONNX model.
    """
    from attnx.graph.load.load import load

    return _read(load(path))


def of_model(sessions: SessionPool) -> Written:
    """The same of an opened model: kept in the cache, or read from the graph that it has read already."""

    def read() -> tuple[str, dict[str, int]]:
        found = _read(sessions.loaded())
        return found.weights, dict(found.quantised)

    weights, quantised = kept_values(sessions.find(), ["written"], read)
    return Written(sessions.path.name, weights, quantised)


def _read(loaded: Loaded) -> Written:
    from attnx.study.shelf import precision

    nodes = [*loaded.proto.graph.node, *(node for function in loaded.proto.functions for node in function.node)]
    found = Counter(node.op_type for node in nodes if node.op_type in QUANTISED)
    return Written(loaded.path.name, precision(loaded), dict(found.most_common()))
