"""Caches of 8 and 4 bits: the meaning of their bytes, and how new keys and values are written to them.

A cache is handled as the floats that its bytes hold, before any scale: whole numbers for int8, nibbles 0 to 15 for int4
(two per byte, the first in the low half, 8 standing for zero), rounded numbers for float8.
Source: onnxruntime contrib operators, GroupQueryAttention; rounding and packing as measured on its CPU kernel.
"""

from __future__ import annotations

from typing import Literal

from attnx.sites.emit import BFLOAT16, DOUBLE, FLOAT, FLOAT16, INT8, INT32, UINT8, Emit

Store = Literal["float", "int8", "int4", "float8"]
FLOAT8 = 17
"""TensorProto.FLOAT8E4M3FN."""


def store_of(e: Emit, past: str) -> Store | None:
    """How a cache of the graph stores its numbers; None where its type does not show it."""
    dtype = e.dtype(past) if past else FLOAT
    kinds: dict[int | None, Store] = {
        FLOAT: "float", FLOAT16: "float", BFLOAT16: "float", DOUBLE: "float", INT8: "int8", UINT8: "int4",
        FLOAT8: "float8",
    }  # fmt: skip
    return kinds.get(dtype)


def opened(e: Emit, past: str, store: Store) -> str:
    """A cache of the graph [.., D] as the numbers that it holds."""
    if store == "float":
        return e.real(past)
    if store != "int4":
        return e.cast(past, e.work)
    bytes_ = e.cast(past, INT32)
    sixteen = e.const(16, "int32")
    high = e.op("Div", bytes_, sixteen)
    low = e.op("Sub", bytes_, e.op("Mul", high, sixteen))
    pairs = e.concat([e.unsqueeze(low, 4), e.unsqueeze(high, 4)], 4)
    width = e.dim(past, 3)
    return e.cast(e.reshape(pairs, 0, 0, 0, e.op("Add", width, width)), e.work)  # no -1: the past may be empty


def stored(e: Emit, x: str, store: Store, scale: str) -> str:
    """New keys or values as the numbers that a cache stores for them."""
    if store == "float":
        return x
    ratio = e.op("Div", x, scale)
    if store == "float8":
        return e.cast(e.cast(ratio, FLOAT8), e.work)
    low, high = (-128.0, 127.0) if store == "int8" else (-8.0, 7.0)
    whole = e.op("Clip", e.op("Round", ratio), e.number(low), e.number(high))
    return whole if store == "int8" else e.op("Add", whole, e.number(8.0))


def loaded(e: Emit, x: str, store: Store, scale: str) -> str:
    """The keys or values that a cache's numbers stand for."""
    if store == "float":
        return x
    return e.op("Mul", e.op("Sub", x, e.number(8.0)) if store == "int4" else x, scale)


def shut(e: Emit, x: str, store: Store, like: str, out: str) -> str:
    """A cache's numbers as the bytes of the graph, under the name `out`."""
    if store == "float":
        return e.back(x, like, out=out)
    if store != "int4":
        return e.cast(x, INT8 if store == "int8" else FLOAT8, out=out)
    pairs = e.reshape(e.cast(x, INT32), 0, 0, 0, -1, 2)
    low, high = (e.squeeze(e.slice(pairs, i, i + 1, 4), 4) for i in (0, 1))
    return e.cast(e.op("Add", low, e.op("Mul", high, e.const(16, "int32"))), UINT8, out=out)


def scale_of(e: Emit, scale: str, kv_heads: int) -> str:
    """A cache's scale, one number or one per channel, broadcasting to [B,Hkv,K,D]."""
    if e.size(scale, -1) == 1 or e.rank(scale) == 4:
        return e.real(scale)
    return e.reshape(e.real(scale), 1, kv_heads, 1, -1)
