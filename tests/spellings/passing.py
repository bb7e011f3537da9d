"""A spelling as tools hand it on: optimised by onnxruntime, or with its weights in integers; the same attention."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
from onnxruntime.quantization import quantize_dynamic

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
    """The model with the weights of its projections in int8, and activations rounded as they come."""
    target = source.with_name(f"int8-{source.name}")
    quantize_dynamic(source, target)
    return target
