"""What operators that compute make of the tokens that the cells of their inputs stand for: one rule an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.graph.fact import UNKNOWN
from attnx.records import Array
from attnx.sites.carrying import Carrier, Outputs, Rule, narrowed, widened

if TYPE_CHECKING:
    from onnx import NodeProto

_SECOND = {"QLinearMatMul": 3}
"""Products whose second operand is not their second input."""


def _nothing(_c: Carrier, _n: NodeProto, _a: dict[str, Any]) -> Outputs:
    return ()


def in_place(c: Carrier, node: NodeProto, _: dict[str, Any]) -> Outputs:
    """Operators that leave positions where they are: what they make is as large as what they read."""
    outputs: list[Array | None] = []
    for out in node.output:
        shape = c.shape(out) if out else None
        made: Array | None = None
        seen: set[str] = set()
        for name in node.input:
            array, own = c.held.get(name), c.shape(name)
            if array is None or shape is None or own is None or not _fits(own, shape):
                continue
            array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
            if name in seen:
                continue
            made = array if not seen else None if made is None else c.joined(made, array)
            seen.add(name)
        outputs.append(made)
    return outputs


def _fits(own: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(own, whole) == whole
    except ValueError:
        return False


def _product(c: Carrier, node: NodeProto, _: dict[str, Any]) -> Outputs:
    """What is multiplied by 0 is a token no longer (the start that a graph writes before its text)."""
    for name in node.input:
        value = c.graph.known(name) if name else None
        if value is not None and value.size and not np.any(value):
            return ()
    return in_place(c, node, {})


def _matmul(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    first, second = node.input[0], node.input[_SECOND.get(node.op_type, 1)]
    left, right = c.held.get(first), c.held.get(second)
    rank = c.rank(node.output[0])
    if (left is None) is (right is None) or rank is None or a.get("transBatchA") or a.get("transBatchB"):
        return ()  # of two that both stand for tokens, the result is scores, or a mix of tokens
    array, turned = (left, a.get("transA")) if left is not None else (right, a.get("transB"))
    if array is None or array.ndim < 2:
        return ()
    if node.op_type == "MatMul":
        is_left = left is not None
        at = array.ndim - (1 if is_left else 2)
        picked = _picked(
            c, *((first, second) if is_left else (second, first)), [at], [at],
            np.matmul if is_left else lambda tokens, ones: np.matmul(ones, tokens),
        )  # fmt: skip
        if picked is not None:
            return (picked,)
    made = c.summed(array.swapaxes(-1, -2) if turned else array, -1 if left is not None else -2)
    return () if made is None or made.ndim > rank else (made.reshape((1,) * (rank - made.ndim) + made.shape),)


def _picked(
    c: Carrier, live: str, other: str, along: Sequence[int], over: Sequence[int], multiply: Callable[..., Array]
) -> Array | None:
    """The tokens of a product whose every sum has a single part that is not 0 (a permutation): the cell that it picks.

    Args:
        c: What is known.
        live: The operand that stands for tokens.
        other: The matrix.
        along: The axes of `live` that the matrix has too.
        over: Those that are summed over.
        multiply: The product of `live` and the matrix.

    Returns:
        None where sums have several parts, the matrix is not known, or no tokens stand along what is summed over.
    """
    array, shape = c.held[live], c.shape(live)
    if shape is None or all(array.shape[i] == 1 for i in over):
        return None
    value = c.facts.get(other, UNKNOWN).value
    value = c.graph.known(other) if value is None else value
    if value is None:
        return None
    tokens, ones = widened(array, {i: shape[i] for i in along}).astype(np.float64), (value != 0).astype(np.float64)
    if multiply(np.ones_like(tokens), ones).max() > 1:
        return None
    return narrowed(np.rint(multiply(tokens, ones)).astype(np.int64))


def _einsum(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    terms, _, out = str(a.get("equation", "")).replace(" ", "").partition("->")
    parts = list(zip(terms.split(","), node.input, strict=False))
    live = [(letters, name) for letters, name in parts if name in c.held]
    if len(live) != 1 or "." in terms or len(live[0][0]) != c.held[live[0][1]].ndim:
        return ()
    letters, array = live[0][0], c.held[live[0][1]]
    for theirs, other in parts:
        if other == live[0][1] or len(parts) != 2:
            continue
        along, equation = [i for i, letter in enumerate(letters) if letter in theirs], f"{letters},{theirs}->{out}"
        over = [i for i in along if letters[i] not in out]
        picked = _picked(c, live[0][1], other, along, over, lambda *pair, e=equation: np.einsum(e, *pair))
        if picked is not None:
            return (picked,)
    for at, letter in enumerate(letters):
        if letter not in out:
            summed = c.summed(array, at)
            if summed is None:
                return ()
            array = summed
    kept = [x for x in out if x in letters]
    dropped = [x for x in letters if x not in out]
    array = array.transpose([letters.index(x) for x in [*kept, *dropped]])
    sizes = dict(zip(kept, array.shape, strict=False))
    return (array.reshape([sizes.get(x, 1) for x in out]),)


def _conv(c: Carrier, node: NodeProto, _: dict[str, Any]) -> Outputs:
    """Convolutions and pooling: positions stay where as many come out as went in; else nothing stands for a token."""
    array, before, after = c.held.get(node.input[0]), c.shape(node.input[0]), c.shape(node.output[0])
    made = None if array is None or array.ndim < 3 else c.summed(array, 1)
    if made is None or before is None or after is None:
        return ()
    same = all(made.shape[i] == 1 or before[i] == after[i] for i in range(2, len(before)))
    return (made,) if same else ()


def _reduce(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    array = c.held.get(node.input[0])
    if array is None:
        return ()
    by_input = len(node.input) > 1 and node.input[1]
    axes = c.known(node.input[1]) if by_input else a.get("axes")
    if axes is None and by_input:
        return ()
    over = sorted({i % array.ndim for i in axes}) if axes else list(range(array.ndim))
    if not axes and a.get("noop_with_empty_axes"):
        return (array,)
    for at in over:
        made = c.summed(array, at)
        if made is None:
            return ()
        array = made
    return (array if a.get("keepdims", 1) else array.squeeze(tuple(over)),)


def _recurrent(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    array = c.held.get(node.input[0])
    made = None if array is None or a.get("layout", 0) else c.summed(array, 2)
    return () if made is None else (np.expand_dims(made, 1),)


def _one_hot(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    array = c.held.get(node.input[0])
    return () if array is None else (np.expand_dims(array, a.get("axis", -1)),)


def _embed(c: Carrier, node: NodeProto, _: dict[str, Any]) -> Outputs:
    array = c.held.get(node.input[0])
    return () if array is None else (array[..., None],)


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        "Shape Size NonZero Range ArgMax ArgMin Loop Scan If Unique Compress ConstantOfShape EyeLike".split(), _nothing
    ),
    **dict.fromkeys(
        "MatMul MatMulInteger QLinearMatMul MatMulIntegerToFloat DynamicQuantizeMatMul MatMulNBits MatMulBnb4 "
        "FusedMatMul Gemm FusedGemm".split(), _matmul
    ),
    **dict.fromkeys("Conv ConvInteger QLinearConv FusedConv NhwcFusedConv MaxPool AveragePool LpPool".split(), _conv),
    **dict.fromkeys(
        "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp "
        "ReduceLogSum".split(), _reduce
    ),
    **dict.fromkeys("LSTM GRU RNN DynamicQuantizeLSTM".split(), _recurrent),
    **dict.fromkeys(("EmbedLayerNormalization", "QEmbedLayerNormalization"), _embed),
    "Mul": _product, "Einsum": _einsum, "OneHot": _one_hot,
}  # fmt: skip
"""Operator -> its rule; all others: `in_place`."""
