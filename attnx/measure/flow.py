"""Flow: how much of an input token can reach a position at the top, with attention weights as capacities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnx.errors import UnsupportedError, UsageError
from attnx.formula import normalise
from attnx.measure.layered import EXPERIMENTAL, layers, left_out, mixed, uniform
from attnx.records import Array, Axis, Measurement, Tokens, Trace

SOURCE = "Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers"
FLOW_LIMIT = 30_000_000
"""Flow is computed up to this product of edges, input tokens and queries: about half a minute."""
_TINY = 1e-12


def flow(
    trace: Trace, queries: Sequence[int], tokens: Tokens | None = None, *, residual: float = 0.5, relative: bool = False
) -> Measurement:
    """Attention flow: the largest flow from a token at the last layer to each input token, capacities A_l.

    Exact (Dinic's algorithm on the layered graph); rows are normalised to sum to 1.

    Args:
        trace: As for `rollout`.
        queries: Positions of the tokens to follow.
        tokens: As for `rollout`.
        residual: Weight of the residual connection.
        relative: As for `rollout`: divided by the flow of uniform attention, experimental.

    Returns:
        [len(queries),K], share.

    Raises:
        UsageError: There is no such position.
        UnsupportedError: The graph is too large for an exact answer, or as for `rollout`.

    Source: Abnar and Zuidema 2020, section 3 (flow); Dinic 1970.
    """
    labels, matrices, text = layers(trace, tokens)
    if any(not 0 <= query < len(text) for query in queries):
        raise UsageError(f"there is no token {max(queries)}", f"Tokens run from 0 to {len(text) - 1}.")
    if len(labels) * len(text) ** 3 * len(queries) > FLOW_LIMIT:
        fits = int((FLOW_LIMIT / len(labels) / max(len(queries), 1)) ** (1 / 3))
        raise UnsupportedError(
            f"exact flow from {len(queries)} of {len(text)} tokens through {len(labels)} layers would take too long; "
            f"{fits} tokens are the most",
            "Follow a single token, use a shorter text, or use rollout.",
        )
    values = _flows([mixed(m, residual) for m in matrices], queries)
    if relative:
        even = _flows([mixed(m, residual) for m in uniform(trace, text)], queries)
        values = np.where(even > _TINY, values / np.where(even > _TINY, even, 1.0), 0.0)
    return Measurement(
        name="attention flow",
        unit="share",
        axes=(Axis("query", tuple(text.pieces[at] for at in queries)), Axis("key", text.pieces)),
        values=normalise(values),
        bounds=(0.0, 1.0),
        source=SOURCE,
        formula=f"max-flow through {1 - residual:g} A + {residual:g} I, rows normalised",
        notes=(*left_out(trace, text), *((EXPERIMENTAL,) if relative else ())),
    )


def _flows(capacities: Sequence[Array], queries: Sequence[int]) -> Array:
    """Largest flow from each query at the top to each input, [len(queries),n]; capacities from the input up."""
    return np.array(
        [[_max_flow(capacities, query, target) for target in range(len(capacities[0]))] for query in queries]
    )


def _max_flow(capacities: Sequence[Array], source: int, target: int) -> float:
    """Dinic's algorithm on the layered graph: node (l, i) is l x n + i, edges run from layer l to l - 1."""
    n, depth = len(capacities[0]), len(capacities)
    heads: list[list[int]] = [[] for _ in range(n * (depth + 1))]
    to: list[int] = []
    room: list[float] = []
    # Only nodes reachable from the source and leading to the target can carry flow.
    down: list[Array] = [np.zeros(n, bool) for _ in range(depth + 1)]
    down[depth][source] = True
    for level in range(depth, 0, -1):
        down[level - 1] = np.asarray((capacities[level - 1][down[level]] > 0).any(axis=0))
    up: list[Array] = [np.zeros(n, bool) for _ in range(depth + 1)]
    up[0][target] = True
    for level in range(1, depth + 1):
        up[level] = np.asarray((capacities[level - 1][:, up[level - 1]] > 0).any(axis=1))
    for level in range(depth, 0, -1):
        for i in np.flatnonzero(down[level] & up[level]).tolist():
            for j in np.flatnonzero(down[level - 1] & up[level - 1] & (capacities[level - 1][i] > 0)).tolist():
                a, b = level * n + i, (level - 1) * n + j
                heads[a].append(len(to))
                heads[b].append(len(to) + 1)
                to += [b, a]
                room += [float(capacities[level - 1][i, j]), 0.0]
    start, end, total = depth * n + source, target, 0.0
    while True:
        level_of = _levels(heads, to, room, start)
        if level_of[end] < 0:
            return total
        at = [0] * len(heads)
        while (pushed := _push(heads, to, room, level_of, at, start, end)) > 0:
            total += pushed


def _levels(heads: list[list[int]], to: list[int], room: list[float], start: int) -> list[int]:
    level = [-1] * len(heads)
    level[start] = 0
    queue = [start]
    for node in queue:
        for edge in heads[node]:
            if room[edge] > _TINY and level[to[edge]] < 0:
                level[to[edge]] = level[node] + 1
                queue.append(to[edge])
    return level


def _push(
    heads: list[list[int]], to: list[int], room: list[float], level: list[int], at: list[int], start: int, end: int
) -> float:
    """Push flow along one path from start to end in the level graph, without recursion; returns its flow or 0."""
    path: list[int] = []
    node = start
    while node != end:
        while at[node] < len(heads[node]):
            edge = heads[node][at[node]]
            if room[edge] > _TINY and level[to[edge]] == level[node] + 1:
                break
            at[node] += 1
        else:
            if not path:
                return 0.0
            node = to[path.pop() ^ 1]
            at[node] += 1
            continue
        path.append(edge)
        node = to[edge]
    carried = min(room[edge] for edge in path)
    for edge in path:
        room[edge] -= carried
        room[edge ^ 1] += carried
    return carried
