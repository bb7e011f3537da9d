"""ONNX operators on numpy arrays, one rule per operator: those that make shapes, masks and scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attnx.records import Array

Inputs = Sequence[Array | None]
_Rule = Callable[[dict[str, Any], Inputs, int], Any]
"""From the attributes, the inputs and the number of outputs to one array or a list of them."""


def _numpy_type(code: int) -> Any:
    from onnx.helper import tensor_dtype_to_np_dtype

    return tensor_dtype_to_np_dtype(code)


def _axes(a: dict[str, Any], x: Inputs, at: int) -> tuple[int, ...] | None:
    given = x[at] if len(x) > at else None
    axes = np.asarray(given).ravel().tolist() if given is not None else a.get("axes")
    return None if axes is None else tuple(int(i) for i in axes)


def _unsqueeze(a: dict[str, Any], x: Inputs, _: int) -> Array:
    array = np.asarray(x[0])
    axes = _axes(a, x, 1) or ()
    return np.expand_dims(array, tuple(i % (array.ndim + len(axes)) for i in axes))


def _reshape(a: dict[str, Any], x: Inputs, _: int) -> Array:
    array, target = np.asarray(x[0]), [int(i) for i in np.asarray(x[1]).ravel()]
    if not a.get("allowzero"):
        target = [array.shape[i] if n == 0 else n for i, n in enumerate(target)]
    return array.reshape(target)


def _slice(a: dict[str, Any], x: Inputs, _: int) -> Array:
    array = np.asarray(x[0])
    starts: Any
    ends: Any
    axes: Any
    steps: Any
    if len(x) > 1:
        starts, ends = np.asarray(x[1]).ravel(), np.asarray(x[2]).ravel()
        axes = np.asarray(x[3]).ravel() if len(x) > 3 and x[3] is not None else np.arange(len(starts))
        steps = np.asarray(x[4]).ravel() if len(x) > 4 and x[4] is not None else np.ones(len(starts), dtype=np.int64)
    else:
        starts, ends = a["starts"], a["ends"]
        axes, steps = a.get("axes", range(len(starts))), [1] * len(starts)
    where: list[slice] = [slice(None)] * array.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = array.shape[axis]
        start, end, step = int(start), int(end), int(step)
        if step > 0:
            where[axis] = slice(start if start >= -size else 0, end if end >= -size else 0, step)
        else:
            where[axis] = slice(start if start >= -size else 0, None if end < -size else end, step)
    return array[tuple(where)]


def _gather_nd(a: dict[str, Any], x: Inputs, _: int) -> Array:
    data, index, batch = np.asarray(x[0]), np.asarray(x[1]), a.get("batch_dims", 0)
    if batch == 0:
        return np.asarray(data[tuple(np.moveaxis(index, -1, 0))])
    lead: list[Array] = list(np.ogrid[tuple(slice(n) for n in index.shape[:batch])])
    lead = [g.reshape(g.shape + (1,) * (index.ndim - 1 - batch)) for g in lead]
    return np.asarray(data[(*lead, *np.moveaxis(index, -1, 0))])


def _scatter_nd(a: dict[str, Any], x: Inputs, _: int) -> Array:
    out = np.array(x[0])
    if a.get("reduction", "none") != "none":
        raise NotImplementedError
    out[tuple(np.moveaxis(np.asarray(x[1]), -1, 0))] = x[2]
    return out


def _fused_matmul(a: dict[str, Any], x: Inputs, _: int) -> Array:
    """Source: onnxruntime, FusedMatMul: transBatch means [rows, batch..., columns], trans swaps the last two axes."""
    sides = []
    for value, side in zip(x, "AB", strict=True):
        array = np.asarray(value)
        array = np.moveaxis(array, 0, -2) if a.get(f"transBatch{side}") else array
        sides.append(array.swapaxes(-1, -2) if a.get(f"trans{side}") else array)
    product = np.matmul(*sides)
    return np.asarray(product * product.dtype.type(a.get("alpha", 1.0)))


def _trilu(a: dict[str, Any], x: Inputs, _: int) -> Array:
    k = int(np.asarray(x[1]).item()) if len(x) > 1 and x[1] is not None else 0
    return np.triu(np.asarray(x[0]), k) if a.get("upper", 1) else np.tril(np.asarray(x[0]), k)


def _cumsum(a: dict[str, Any], x: Inputs, _: int) -> Array:
    axis = int(np.asarray(x[1]).item())
    array = np.asarray(x[0])
    if a.get("reverse"):
        array = np.flip(array, axis)
    out = np.cumsum(array, axis=axis, dtype=array.dtype)
    if a.get("exclusive"):
        out = out - array
    return np.flip(out, axis) if a.get("reverse") else out


def _reduce(function: Any) -> _Rule:
    def rule(a: dict[str, Any], x: Inputs, _: int) -> Array:
        axes = _axes(a, x, 1)
        array = np.asarray(x[0])
        if not axes and a.get("noop_with_empty_axes"):
            return array
        out = function(array, axis=axes or None, keepdims=bool(a.get("keepdims", 1)))
        return np.asarray(out).astype(array.dtype, copy=False)

    return rule


def _split(a: dict[str, Any], x: Inputs, outputs: int) -> list[Array]:
    array, axis = np.asarray(x[0]), a.get("axis", 0)
    sizes = np.asarray(x[1]).ravel() if len(x) > 1 and x[1] is not None else a.get("split")
    if sizes is None:
        part = -(-array.shape[axis] // outputs)
        sizes = [part] * (outputs - 1) + [array.shape[axis] - part * (outputs - 1)]
    return list(np.split(array, np.cumsum(sizes)[:-1], axis=axis))


def _pad(a: dict[str, Any], x: Inputs, _: int) -> Array:
    array = np.asarray(x[0])
    pads = [int(p) for p in (np.asarray(x[1]).ravel() if len(x) > 1 and x[1] is not None else a["pads"])]
    if a.get("mode", "constant") != "constant" or (len(x) > 3 and x[3] is not None) or min(pads) < 0:
        raise NotImplementedError
    fill = np.asarray(x[2]).item() if len(x) > 2 and x[2] is not None else a.get("value", 0)
    half = len(pads) // 2
    return np.pad(array, list(zip(pads[:half], pads[half:], strict=True)), constant_values=fill)


def _div(_a: dict[str, Any], x: Inputs, _: int) -> Array:
    p, q = np.asarray(x[0]), np.asarray(x[1])
    if np.issubdtype(p.dtype, np.integer):  # ONNX truncates towards zero
        return np.asarray((np.sign(p) * np.sign(q) * (np.abs(p) // np.abs(q))).astype(p.dtype))
    return np.asarray(p / q)


def _softmax(a: dict[str, Any], x: Inputs, _: int) -> Array:
    array, axis = np.asarray(x[0]), a.get("axis", -1)
    shifted = np.exp(array - array.max(axis=axis, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=axis, keepdims=True))


def _log_softmax(a: dict[str, Any], x: Inputs, _: int) -> Array:
    array, axis = np.asarray(x[0]), a.get("axis", -1)
    shifted = array - array.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def _hardmax(a: dict[str, Any], x: Inputs, _: int) -> Array:
    array, axis = np.asarray(x[0]), a.get("axis", -1)
    out = np.zeros_like(array)
    np.put_along_axis(out, np.expand_dims(array.argmax(axis=axis), axis), 1, axis=axis)
    return out


FLATTENING = ("Softmax", "LogSoftmax", "Hardmax")
"""Operators that before opset 13 ran over their axis and all later ones, flattened, and not over one axis."""


def over_the_rest(rule: _Rule) -> _Rule:
    """A rule as it was before opset 13, over flattened axes. Source: ONNX operator specifications, Softmax-11 etc."""

    def flat(a: dict[str, Any], x: Inputs, outputs: int) -> Array:
        array, axis = np.asarray(x[0]), a.get("axis", 1)
        lead = int(np.prod(array.shape[: axis if axis >= 0 else array.ndim + axis]))
        return np.asarray(rule({}, [array.reshape(lead, -1)], outputs)).reshape(array.shape)

    return flat


def _constant_of_shape(a: dict[str, Any], x: Inputs, _: int) -> Array:
    from onnx import numpy_helper

    shape = [int(n) for n in np.asarray(x[0]).ravel()]
    fill = numpy_helper.to_array(a["value"]) if "value" in a else np.zeros(1, np.float32)
    return np.full(shape, fill.ravel()[0], dtype=fill.dtype)


def _beside(scale: Array, array: Array, a: dict[str, Any]) -> Array:
    """A scale or zero point shaped to match its array: one for all, one per channel, or one per block of channels."""
    if scale.ndim == 0 or scale.size == 1:
        return scale.reshape(())
    axis, block = a.get("axis", 1) % array.ndim, a.get("block_size", 0)
    if block:
        return np.repeat(scale, block, axis=axis)[tuple(slice(n) for n in array.shape)]
    if scale.ndim != 1 or scale.size != array.shape[axis]:
        raise ValueError("a scale for each channel, and another number of channels")
    return scale.reshape([-1 if i == axis else 1 for i in range(array.ndim)])


def _quantize(a: dict[str, Any], x: Inputs, _: int) -> Array:
    array, scale = np.asarray(x[0]), np.asarray(x[1])
    kind = _numpy_type(a["output_dtype"]) if a.get("output_dtype") else np.uint8
    zero = np.asarray(x[2]) if len(x) > 2 and x[2] is not None else np.zeros((), kind)
    limits = np.iinfo(zero.dtype)
    scale, offset = (_beside(v, array, a) for v in (scale, zero))
    whole = np.rint(array / scale) + offset.astype(np.int64)
    return np.asarray(np.clip(whole, limits.min, limits.max).astype(zero.dtype))


def _dequantize(a: dict[str, Any], x: Inputs, _: int) -> Array:
    array, scale = np.asarray(x[0]), np.asarray(x[1])
    zero = np.asarray(x[2]) if len(x) > 2 and x[2] is not None else np.zeros((), array.dtype)
    wide = np.int64 if array.dtype.kind in "iu" or "int" in array.dtype.name else np.float64  # float8 has fractions
    scale, offset = (_beside(v, array, a) for v in (scale, zero))
    return np.asarray(((array.astype(wide) - offset.astype(wide)) * scale).astype(np.asarray(x[1]).dtype))


def _shape(a: dict[str, Any], x: Inputs, _: int) -> Array:
    return np.array(np.asarray(x[0]).shape[a.get("start", 0) : a.get("end")], dtype=np.int64)


def _flatten(a: dict[str, Any], x: Inputs, _: int) -> Array:
    array, axis = np.asarray(x[0]), a.get("axis", 1)
    return array.reshape(int(np.prod(array.shape[:axis])), -1)


def _expand(_a: dict[str, Any], x: Inputs, _: int) -> Array:
    array, target = np.asarray(x[0]), tuple(int(n) for n in np.asarray(x[1]))
    return np.broadcast_to(array, np.broadcast_shapes(array.shape, target))


def _clip(a: dict[str, Any], x: Inputs, _: int) -> Array:
    low, high = (x[i] if len(x) > i else a.get(name) for i, name in ((1, "min"), (2, "max")))
    if any(limit is not None and np.size(limit) != 1 for limit in (low, high)):
        raise ValueError("a limit is one number")
    return np.asarray(np.clip(np.asarray(x[0]), low, high))


def _binary(function: Any) -> _Rule:
    return lambda _a, x, _n: function(x[0], x[1])


def _unary(function: Any) -> _Rule:
    return lambda _a, x, _n: function(x[0])


def _many(function: Any) -> _Rule:
    def rule(_a: dict[str, Any], x: Inputs, _n: int) -> Any:
        out = x[0]
        for other in x[1:]:
            out = function(out, other)
        return out

    return rule


RULES: dict[str, _Rule] = {
    "Add": _binary(np.add), "Sub": _binary(np.subtract), "Mul": _binary(np.multiply), "Div": _div,
    "Pow": lambda _a, x, _n: np.power(x[0], x[1]).astype(np.asarray(x[0]).dtype),  # type: ignore[arg-type]
    "Mod": lambda a, x, _n: (np.fmod if a.get("fmod") else np.mod)(x[0], x[1]),  # type: ignore[arg-type]
    "Min": _many(np.minimum), "Max": _many(np.maximum), "Sum": _many(np.add),
    "Equal": _binary(np.equal), "Less": _binary(np.less), "LessOrEqual": _binary(np.less_equal),
    "Greater": _binary(np.greater), "GreaterOrEqual": _binary(np.greater_equal),
    "And": _binary(np.logical_and), "Or": _binary(np.logical_or), "Xor": _binary(np.logical_xor),
    "Not": _unary(np.logical_not), "Neg": _unary(np.negative), "Abs": _unary(np.abs), "Sign": _unary(np.sign),
    "Sqrt": _unary(np.sqrt), "Exp": _unary(np.exp), "Log": _unary(np.log), "Tanh": _unary(np.tanh),
    "Floor": _unary(np.floor), "Ceil": _unary(np.ceil), "Round": _unary(np.rint), "Reciprocal": _unary(np.reciprocal),
    "Sin": _unary(np.sin), "Cos": _unary(np.cos), "IsNaN": _unary(np.isnan),
    "Sigmoid": lambda _a, x, _n: 1 / (1 + np.exp(-np.asarray(x[0]))),
    "Relu": lambda _a, x, _n: np.maximum(x[0], np.asarray(x[0]).dtype.type(0)),  # type: ignore[arg-type]
    "Identity": _unary(np.asarray), "Dropout": _unary(np.asarray),
    "Cast": lambda a, x, _n: np.asarray(x[0]).astype(_numpy_type(a["to"])),
    "CastLike": lambda _a, x, _n: np.asarray(x[0]).astype(np.asarray(x[1]).dtype),
    "Where": lambda _a, x, _n: np.where(*(np.asarray(v) for v in x)),
    "Shape": _shape,
    "Size": lambda _a, x, _n: np.array(np.size(np.asarray(x[0])), dtype=np.int64),
    "Unsqueeze": _unsqueeze,
    "Squeeze": lambda a, x, _n: np.squeeze(np.asarray(x[0]), axis=_axes(a, x, 1)),
    "Reshape": _reshape,
    "Transpose": lambda a, x, _n: np.transpose(np.asarray(x[0]), a.get("perm")),
    "Flatten": _flatten,
    "Concat": lambda a, x, _n: np.concatenate([np.asarray(v) for v in x], axis=a["axis"]),
    "Expand": _expand,
    "Tile": lambda _a, x, _n: np.tile(np.asarray(x[0]), [int(n) for n in np.asarray(x[1])]),
    "Gather": lambda a, x, _n: np.take(np.asarray(x[0]), np.asarray(x[1]), axis=a.get("axis", 0)),
    "GatherElements": lambda a, x, _n: np.take_along_axis(np.asarray(x[0]), np.asarray(x[1]), axis=a.get("axis", 0)),
    "GatherND": _gather_nd, "ScatterND": _scatter_nd, "Slice": _slice, "Split": _split, "Pad": _pad,
    "Range": lambda _a, x, _n: np.arange(*(np.asarray(v).item() for v in x), dtype=np.asarray(x[0]).dtype),
    "ConstantOfShape": _constant_of_shape, "Trilu": _trilu, "CumSum": _cumsum,
    "QuantizeLinear": _quantize, "DequantizeLinear": _dequantize, "Softmax": _softmax,
    "LogSoftmax": _log_softmax, "Hardmax": _hardmax,
    "Clip": _clip,
    "Einsum": lambda a, x, _n: np.einsum(a["equation"], *(np.asarray(v) for v in x), optimize=True),
    "NonZero": lambda _a, x, _n: np.array(np.nonzero(np.asarray(x[0])), dtype=np.int64),
    "MatMul": _binary(np.matmul), "FusedMatMul": _fused_matmul,
    "ReduceSum": _reduce(np.sum), "ReduceMax": _reduce(np.max), "ReduceMin": _reduce(np.min),
    "ReduceMean": _reduce(np.mean), "ReduceProd": _reduce(np.prod),
}  # fmt: skip
