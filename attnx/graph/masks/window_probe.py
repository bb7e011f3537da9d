"""Sliding windows of any width, found with a short text: the width in the graph is replaced by a small one.

A window of 4,096 keys shows only in a text longer than that, whose mask has sixteen million cells. But a window comes
from a number in the graph that is compared with a distance between positions. Evaluating the mask with 7 and with 9 in
place of that number shows two bands, which give both how many keys each step of the number adds (1, or 2 where the
window extends to both sides) and how much wider the band is than its number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.fact import Fact
from attnx.records import Array

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph

LENGTH = 32
"""Tokens of the short text."""
_TRIED = (7, 9)
"""Numbers that replace a width; a band of twice the larger plus one can still move within the text."""
_NARROW = 2
"""Widths up to this one show in the first probe."""
_COMPARING = ("Sub", "Add", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Trilu")
_PERIODIC = ("Mod", "Div", "Tile")
"""Operators that may repeat a pattern at a period of their own, which a short text does not show."""
_STEP = {"Range": 2, "Slice": 4}
"""The input of each operator that holds its step."""
_CHECKED = 1 << 20
"""Cells of a text in which a window is looked for directly."""
Look = Callable[[int, Mapping[str, Fact], Collection[str]], Mapping[str, int | None]]
"""(length, facts that replace what the graph holds, weights) -> the width of each site's window where it is visible,
None without one."""


def windows(graph: Graph, cone: set[str], look: Look, names: Collection[str]) -> dict[str, int]:
    """The most keys that each site's queries see, where those keys form a band that moves with the query.

    Args:
        graph: The flat graph.
        cone: The values that the masks are made from.
        look: Evaluates the masks.
        names: The weights of the sites in question.

    Returns:
        By the name of the weights; sites without such a window are absent.
    """
    found: dict[str, int] = {}
    periodic = _has_period(graph, cone)
    for group in _groups(_numbers(graph, cone)):
        least = min(abs(int(v.ravel()[0])) for v in group.values())
        seen = [look(LENGTH, _with(graph, group, least, tried), names) for tried in _TRIED]
        for name in seen[0].keys() & seen[1].keys():
            narrow, wide = seen[0][name], seen[1][name]
            if narrow is None or wide is None or name in found:
                continue
            step = (wide - narrow) / (_TRIED[1] - _TRIED[0])
            width = narrow + int(step) * (least - _TRIED[0])
            if step in (1.0, 2.0) and (not periodic or _as_it_is(look, name, width)):
                found[name] = width
    for stored, held in _stored(graph, cone):
        square = held.reshape(held.shape[-2:])
        stored_width = band_width(square == square[0, 0])
        if stored_width is None:
            continue
        narrowed = _narrowed(square).reshape(*held.shape[:-2], LENGTH, LENGTH)
        given = {stored: Fact(narrowed.shape, graph.facts[stored].dtype, narrowed)}
        for name, seen_width in look(LENGTH, given, names).items():
            if seen_width == _TRIED[0]:
                found.setdefault(name, stored_width)
    return found


def _as_it_is(look: Look, name: str, width: int) -> bool:
    """Whether a text twice as long as a window shows it; a window too wide for that is not reported."""
    length = 2 * width + 2
    return length * length <= _CHECKED and look(length, {}, [name]).get(name) == width


def _has_period(graph: Graph, cone: set[str]) -> bool:
    """Whether something on the way to the masks may be periodic."""
    nodes = [node for value in cone if (node := graph.producer(value)) is not None]
    steps = [n.input[at] for n in nodes if (at := _STEP.get(n.op_type)) is not None and len(n.input) > at]
    apart = any((held := graph.known(name)) is None or (abs(held) != 1).any() for name in steps if name)
    return apart or any(node.op_type in _PERIODIC for node in nodes)


def band_width(visible: Array) -> int | None:
    """The width of a band of visible cells [Q,K] that moves with the query; None for any other pattern.

    Every cell must agree, and the band must end on both sides: a band that always extends to the first key, or to the
    last, wherever the query is, is not a window.
    """
    queries, keys = visible.shape
    offset = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    shown = offset[visible]
    if not shown.size:
        return None
    low, high = int(shown.min()), int(shown.max())
    if low <= 1 - queries or high >= keys - 1 or not np.array_equal(visible, (offset >= low) & (offset <= high)):
        return None
    return high - low + 1


def _numbers(graph: Graph, cone: set[str]) -> dict[str, Array]:
    """Whole numbers that something is compared with and that are the same for all input sizes."""
    found: dict[str, Array] = {}
    for value in cone:
        node = graph.producer(value)
        if node is None or node.op_type not in _COMPARING:
            continue
        for name in node.input:
            known = graph.known(name)
            if known is None or known.size != 1 or known.dtype.kind not in "if":
                continue
            number = float(known.ravel()[0])
            if _NARROW < abs(number) < 1e9 and number.is_integer() and (held := graph.stable(name)) is not None:
                found[name] = held
    return found


def _groups(numbers: Mapping[str, Array]) -> list[dict[str, Array]]:
    """Numbers that belong to the same window: w, -w, w - 1."""
    ordered = sorted(numbers, key=lambda name: abs(int(numbers[name].ravel()[0])))
    groups: list[dict[str, Array]] = []
    last: int | None = None
    for name in ordered:
        size = abs(int(numbers[name].ravel()[0]))
        if last is None or size > last + 1:
            groups.append({})
        groups[-1][name] = numbers[name]
        last = size
    return groups


def _with(graph: Graph, group: Mapping[str, Array], least: int, tried: int) -> dict[str, Fact]:
    facts = {}
    for name, held in group.items():
        number = int(held.ravel()[0])
        value = np.full(held.shape, (abs(number) - least + tried) * (1 if number > 0 else -1), dtype=held.dtype)
        known = graph.facts.get(name)
        facts[name] = Fact(held.shape, None if known is None else known.dtype, value)
    return facts


def _stored(graph: Graph, cone: set[str]) -> list[tuple[str, Array]]:
    """The square masks stored in the graph that may be bands (as in GPT-Neo), with their numbers."""
    found: list[tuple[str, Array]] = []
    for name in sorted(cone):
        shape = graph.shape(name) if graph.is_constant(name) else None
        if shape is None or len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] is None or shape[-1] <= LENGTH:
            continue
        held = graph.constant(name) if all(d == 1 for d in shape[:-2]) else None
        if held is not None:
            found.append((name, held))
    return found


def _narrowed(square: Array) -> Array:
    """A stored band [n,n] cut down to few tokens, 7 keys wide, extending to the same sides."""
    visible, hidden = square[0, 0], square[-1, 0]
    back = np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None, :]
    causal = square[0, 1] == hidden
    seen = (back >= 0) & (back < _TRIED[0]) if causal else np.abs(back) <= _TRIED[0] // 2
    return np.asarray(np.where(seen, visible, hidden), dtype=square.dtype)
