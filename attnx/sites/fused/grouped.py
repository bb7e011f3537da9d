"""What operators with grouped heads and a cache of their own share: GroupQueryAttention and similar operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnx.graph.load.nodes import attributes
from attnx.sites.emit import INT64, Emit
from attnx.sites.stages import input_of, rms_norm, rotary, split_heads

if TYPE_CHECKING:
    from onnx import NodeProto


@dataclass(frozen=True, slots=True)
class Grouped:
    """Names of a node's new queries, keys and values, and of their positions in their sequences."""

    query: str
    """[B,H,S,D], after norms and rotary embedding; the same for the key."""
    key: str
    """[B,Hkv,S,D]."""
    value: str
    """[B,Hkv,S,D]."""
    total: str
    """The longest sequence, past included, as a 1-element tensor."""
    own_total: str
    """Each sequence's length, past included, int64 [B]."""
    start: str
    """How many tokens came before, int64 [B]."""
    position: str
    """Position of each new token, int64 [B,S]."""


def grouped(
    e: Emit,
    parts: tuple[str, str, str],
    counts: tuple[int, int],
    lengths: tuple[str, str],
    *,
    norms: tuple[str, str] = ("", ""),
    epsilon: float = 1e-6,
    turn: tuple[str, str, str] | None = None,
    counted: bool = False,
    pairs: bool = False,
    offset: int = 0,
) -> Grouped:
    """Split, norm and rotate the new tokens of a node.

    Args:
        e: Where the nodes go.
        parts: Query, key and value [B,S,heads*D]; or a query whose rows are [Q | K | V], and "".
        counts: H and Hkv.
        lengths: The longest total as a scalar, and each sequence's own total [B].
        norms: Norm weights [D] of query and key; "" for none.
        epsilon: The epsilon of the norms.
        turn: Caches of cosines and sines, and positions or "" for the tokens' own; None without rotary embedding.
        counted: Whether only the very first of a prompt's given positions is read, and the others count on from it.
        pairs: Whether channels rotate in neighbouring pairs.
        offset: The first channel that rotates.
    """
    heads, kv_heads = counts
    if parts[1]:
        each = zip(parts, (heads, kv_heads, kv_heads), strict=True)
        query, key, value = (split_heads(e, e.real(x), count) for x, count in each)
    else:
        every = split_heads(e, e.real(parts[0]), heads + 2 * kv_heads)
        query, key, value = e.split(every, [heads, kv_heads, kv_heads], 1)
    if all(norms):
        query, key = (rms_norm(e, x, weight, epsilon) for x, weight in zip((query, key), norms, strict=True))
    rows = e.dim(query, 2)
    total = e.reshape(lengths[0], 1)
    prompt = e.op("Equal", total, rows)
    start = e.op("Where", prompt, e.ints(0), e.op("Sub", lengths[1], rows))
    position = e.op("Add", e.unsqueeze(start, 1), e.unsqueeze(e.arange(rows), 0))
    if turn:
        places = turn[2] or position
        if turn[2] and counted:
            first = e.slice(e.reshape(turn[2], -1), 0, 1, 0)
            from_first = e.unsqueeze(e.op("Add", first, e.arange(rows)), 0)
            places = e.op("Where", prompt, from_first, turn[2])
        query, key = (rotary(e, x, turn[0], turn[1], places, pairs, offset) for x in (query, key))
    return Grouped(query, key, value, total, lengths[1], start, position)


def long_vector(e: Emit, value: str) -> str:
    """An integer input of the graph as int64 with one axis."""
    return e.reshape(e.cast(value, INT64), -1)


def visible_cells(e: Emit, new: Grouped, causal: bool, window: int) -> str:
    """Which cells are visible, [B,1,S,K]: within the sequence, not ahead, among the last `window` keys (0 for all)."""
    j = e.arange(new.total)
    p = e.unsqueeze(e.unsqueeze(new.position, 1), 3)
    visible = e.op("Less", j, e.unsqueeze(new.own_total, 1, 2, 3))
    if causal:
        visible = e.all_of(visible, e.at_most(j, p))
    if window:
        visible = e.all_of(visible, e.op("Greater", j, e.op("Sub", p, e.ints(window))))
    return visible


def head_size(e: Emit, node: NodeProto, heads: int, kv_heads: int) -> int | None:
    """The size of a head, where known; a node without a separate key has queries with rows of [Q | K | V]."""
    width = e.size(node.input[0], -1)
    return width // (heads if input_of(node, 1) else heads + 2 * kv_heads) if width else None


def sink_of(e: Emit, node: NodeProto, at: int) -> str:
    """The logits of a node's sink: from its input `at`, 0 for a smooth softmax, "" for none."""
    if input_of(node, at):
        return e.reshape(e.real(input_of(node, at)), 1, -1, 1, 1)
    return e.number(0.0) if attributes(node).get("smooth_softmax") else ""
