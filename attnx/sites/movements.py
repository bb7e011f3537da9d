"""What operators that move cells make of the tokens that these stand for: one rule an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.records import Array
from attnx.sites.carrying import SOME, Carrier, Outputs, Rule, in_order, known_first, narrowed, reshaped, widened

if TYPE_CHECKING:
    from onnx import NodeProto


def _reshape(c: Carrier, node: NodeProto, _: dict[str, Any]) -> Outputs:
    array, before, after = c.held.get(node.input[0]), c.shape(node.input[0]), c.shape(node.output[0])
    return () if array is None or before is None or after is None else (reshaped(array, before, after),)


def _transpose(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    return (c.held[node.input[0]].transpose(a.get("perm") or None),)


def _whole(c: Carrier, name: str, axes: Sequence[int] | None = None) -> Array | None:
    """A value's tokens, with the whole size of some axes or of all; zeros where it stands for none."""
    shape = c.shape(name)
    if shape is None:
        return None
    array = c.held.get(name, np.zeros((1,) * len(shape), np.int64))
    at = range(len(shape)) if axes is None else [i % len(shape) for i in axes]
    return widened(array, {i: shape[i] for i in at})


def _facts(c: Carrier, node: NodeProto, start: int = 1) -> list[Array | None]:
    return [c.facts[n].value if n in c.facts else None for n in node.input[start:]]


def _slice(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    array = c.held.get(node.input[0])
    if array is None:
        return ()
    named = len(node.input) > 3 and node.input[3]
    axes = c.known(node.input[3]) if named else a.get("axes", range(array.ndim))
    tokens = None if axes is None else _whole(c, node.input[0], [i for i in axes if -array.ndim <= i < array.ndim])
    made = None if tokens is None else c.moved(node, [tokens, *_facts(c, node)])
    if made is not None:
        return made if made[0].size else ()
    if axes is not None and all(array.shape[i] == 1 for i in axes):
        return (array,)
    return (c.unsure(array, array.ndim, in_order=True),)


def _split(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    array = c.held[node.input[0]]
    axis = a.get("axis", 0)
    if array.shape[axis] == 1:
        return [array] * len(node.output)
    tokens = _whole(c, node.input[0], [axis])
    made = None if tokens is None else c.moved(node, [tokens, *_facts(c, node)])
    return made if made is not None else [c.unsure(array, array.ndim, in_order=True)] * len(node.output)


def _concat(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    parts = []
    for name in node.input:
        if 0 in (c.facts[name].shape or () if name in c.facts else ()):
            continue  # an empty cache
        part = _whole(c, name, [a["axis"]])
        if part is None:
            return ()
        parts.append(part)
    axis = a["axis"] % parts[0].ndim
    sizes = {i: max(p.shape[i] for p in parts) for i in range(parts[0].ndim) if i != axis}
    return (narrowed(np.concatenate([widened(p, sizes) for p in parts], axis=axis)),)


def _gather(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    """A table's rows stand for the tokens that chose them; a text's rows for themselves."""
    array, index = c.held.get(node.input[0]), c.held.get(node.input[1])
    axis, rank, out = a.get("axis", a.get("gather_axis", 0)), c.rank(node.input[1]), c.rank(node.output[0])
    if out is None or rank is None:
        return ()
    axis %= out - rank + 1
    if array is None:
        return () if index is None else (index.reshape((1,) * axis + index.shape + (1,) * (out - axis - index.ndim)),)
    if array.shape[axis] == 1:
        return (array.reshape(array.shape[:axis] + (1,) * rank + array.shape[axis + 1 :]),)
    value = c.facts[node.input[1]].value
    made = None
    if value is not None:
        tokens = _whole(c, node.input[0], [axis])
        made = None if tokens is None else c.moved(node, [tokens, value])
    return made if made is not None else (c.unsure(array, out, in_order(c.graph, node.input[1])),)


def _gather_elements(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    array, index = c.held.get(node.input[0]), c.held.get(node.input[1])
    axis = a.get("axis", 0)
    if array is None:
        return (index,)
    before, after = c.shape(node.input[0]), c.shape(node.input[1])
    whole = before is not None and after is not None
    same = whole and all(n == 1 or p == q for n, p, q in zip(array.shape, before or (), after or (), strict=True))
    if array.shape[axis] == 1 and same:
        return (array,)
    tokens, value = _whole(c, node.input[0]), c.facts[node.input[1]].value
    made = None if tokens is None or value is None else c.moved(node, [tokens, value])
    return made if made is not None else (c.unsure(array, array.ndim),)


def _gather_nd(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    array, places, out = c.held.get(node.input[0]), c.shape(node.input[1]), c.rank(node.output[0])
    if array is None or places is None or out is None:
        return ()
    picked = a.get("batch_dims", 0) + places[-1]
    if all(n == 1 for n in array.shape[:picked]):
        return (array.reshape((1,) * (out - array.ndim + picked) + array.shape[picked:]),)
    value = c.facts[node.input[1]].value
    tokens = _whole(c, node.input[0], range(picked))
    made = None if tokens is None or value is None else c.moved(node, [tokens, value])
    return made if made is not None else (c.unsure(array, out, in_order(c.graph, node.input[1])),)


def _scatter(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    """What is written over stands for what is written; where the places are not known, for one of the two."""
    array, written = c.held.get(node.input[0]), c.held.get(node.input[2])
    if a.get("reduction", "none") == "none":
        values = [_whole(c, node.input[0]), c.facts[node.input[1]].value, _whole(c, node.input[2])]
        made = None if values[1] is None or values[0] is None else c.moved(node, values)
        if made is not None:
            return made
    if written is None:
        return (array,)
    rank = c.rank(node.output[0]) or written.ndim
    if array is None and bool((written == SOME).all()):
        return ()  # picked, computed on by themselves, and written back to where they were (experts of heads)
    if array is None:
        # Lengths and positions say where a cache is written to: in order.
        follows = in_order(c.graph, node.input[1]) or node.input[1] not in c.of_text
        return (c.unsure(written, rank, follows),)
    both = c.at_home(array) and c.at_home(written)
    return (array,) if both or bool((written == SOME).all()) else (c.unsure(array, rank),)


def _where(c: Carrier, node: NodeProto, _: dict[str, Any]) -> Outputs:
    one, two = (c.held.get(name) for name in node.input[1:3])
    rank = c.rank(node.output[0])
    if (one is None and two is None) or rank is None:
        return ()
    known = node.input[0] in c.facts and node.input[0] not in c.graph.dynamic  # a mask leaves tokens where they are
    condition = c.facts[node.input[0]].value if known else None
    if condition is not None:
        nothing = np.zeros((1,) * rank, np.int64)
        made = np.where(condition, nothing if one is None else one, nothing if two is None else two)
        return (narrowed(made.reshape((1,) * (rank - made.ndim) + made.shape)),)
    sides = [x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (one, two) if x is not None]
    return (sides[0] if len(sides) == 1 else narrowed(known_first(sides[0], sides[1])),)


def _pad(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    array, shape = c.held[node.input[0]], c.shape(node.input[0])
    pads = c.known(node.input[1]) if len(node.input) > 1 else a.get("pads", a.get("paddings"))
    axes = c.known(node.input[3]) if len(node.input) > 3 and node.input[3] else list(range(array.ndim))
    if shape is None:
        return ()
    if pads is None or axes is None:
        return (c.unsure(array, array.ndim, in_order=True),)
    half = len(pads) // 2
    amounts = {i % array.ndim: (pads[k], pads[half + k]) for k, i in enumerate(axes)}
    amounts = {i: both for i, both in amounts.items() if any(both) and (array.shape[i] > 1 or shape[i] == 1)}
    array = array[tuple(slice(max(0, -b), n - max(0, -e)) for n, (b, e) in
                        ((n, amounts.get(i, (0, 0))) for i, n in enumerate(array.shape)))]  # fmt: skip
    wide = [tuple(max(0, n) for n in amounts.get(i, (0, 0))) for i in range(array.ndim)]
    mode = a.get("mode", "constant")
    return (narrowed(np.pad(array, wide, mode) if array.size else array),)


def _stretch(c: Carrier, node: NodeProto, _: dict[str, Any]) -> Outputs:
    """Expand, and Tile: an axis that tokens stand along is repeated as a whole."""
    array, before, after = c.held[node.input[0]], c.shape(node.input[0]), c.shape(node.output[0])
    if before is None or after is None:
        return ()
    lead = len(after) - array.ndim
    array, before = array.reshape((1,) * lead + array.shape), (1,) * lead + before
    return (np.tile(array, [q // p if n > 1 else 1 for n, p, q in zip(array.shape, before, after, strict=True)]),)


def _reverse_sequence(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    array, axis = c.held[node.input[0]], a.get("time_axis", 0)
    if array.shape[axis] == 1:
        return (array,)
    lengths = c.known(node.input[1])
    tokens = _whole(c, node.input[0], [axis, a.get("batch_axis", 1)])
    if lengths is None or tokens is None:
        return (c.unsure(array, array.ndim),)
    rows = np.moveaxis(tokens, (a.get("batch_axis", 1), axis), (0, 1))
    turned = np.stack([np.concatenate([x[:n][::-1], x[n:]]) for x, n in zip(rows, lengths, strict=True)])
    return (narrowed(np.moveaxis(turned, (0, 1), (a.get("batch_axis", 1), axis))),)


def _top(c: Carrier, node: NodeProto, a: dict[str, Any]) -> Outputs:
    array, axis = c.held[node.input[0]], a.get("axis", -1)
    made = array if array.shape[axis] == 1 else c.unsure(array, array.ndim)
    return made, made


RULES: dict[str, Rule] = {
    **dict.fromkeys("Reshape Flatten Squeeze Unsqueeze".split(), _reshape),
    **dict.fromkeys(("Expand", "Tile"), _stretch),
    **dict.fromkeys(("ScatterND", "ScatterElements", "Scatter"), _scatter),
    **dict.fromkeys(("Gather", "GatherBlockQuantized"), _gather),
    "Transpose": _transpose, "Slice": _slice, "Split": _split, "Concat": _concat, "GatherElements": _gather_elements,
    "GatherND": _gather_nd, "Where": _where, "Pad": _pad, "ReverseSequence": _reverse_sequence, "TopK": _top,
}  # fmt: skip
"""Operator -> its rule."""
