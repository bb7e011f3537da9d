"""A spelling as tools hand it on: optimised by onnxruntime, or with its weights in integers; the same attention."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

from tests.spellings.pen import Arrays

LEVELS = {
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def optimised(source: Path, level: str) -> Path:
    """The model that onnxruntime makes of another at a level, beside it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = LEVELS[level]
    target = source.with_name(f"{level}-{source.name}")
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return target


def in_integers(source: Path) -> Path:
    """The model with the weights of its projections in int8, and activations rounded as they come.

    With 7 bits of weight no product saturates, so that the numbers are the same on every processor.
    """
    target = source.with_name(f"int8-{source.name}")
    quantize_dynamic(source, target, reduce_range=True)
    return target


class _Once(CalibrationDataReader):
    """One feed to calibrate with."""

    def __init__(self, feed: Arrays) -> None:
        self.left: list[Arrays] = [feed]

    def get_next(self) -> Arrays | None:
        return self.left.pop() if self.left else None


def rounded(source: Path, feed: Arrays, *, everywhere: bool) -> Path:
    """The model with a QuantizeLinear and DequantizeLinear before and behind products, or each operator that may."""
    target = source.with_name(f"qdq-{source.name}")
    operators = None if everywhere else ["MatMul", "Gemm", "Conv"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a mask of -inf has no scale: the quantiser divides by it
        quantize_static(source, target, _Once(feed), quant_format=QuantFormat.QDQ, op_types_to_quantize=operators)
    return target
