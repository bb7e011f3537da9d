"""What places say of a softmax's rows, held against the same read cell by cell; values computed side by side."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnx.sites.recognise import find
from attnx.sites.strided import row_proof, subgraph_eval
from attnx.sites.strided.row_proof import Proof, Seen, read
from attnx.sites.strided.subgraph_eval import Run, enact, enact_all
from tests.graphs import G

B, S, H, W = 2, 6, 2, 2
Array = np.ndarray[Any, Any]


def band(rows: int = S) -> tuple[Array, Array]:
    """Query and key of each cell of a band [B,S,H,2W+1], counted from 1; 0 where there is none."""
    asked, found = np.zeros((2, B, S, H, 2 * W + 1), np.float32)
    for b in range(B):
        for i in range(rows):
            for h in range(H):
                for at in range(2 * W + 1):
                    if 0 <= i + at - W < S:
                        asked[b, i, h, at] = 1 + (b * S + i) * H + h
                        found[b, i, h, at] = 1 + (b * S + i + at - W) * H + h
    return asked, found


def seen(asked: Array, found: Array) -> Seen:
    hidden = np.where(asked > 0, np.float32(0), -np.inf)
    return Seen((B, S, H), (B, S, H), (False, False), asked, found, hidden, B, {})


def one_by_one(asked: Array, found: Array) -> tuple[bool, bool, bool]:
    """Whether rows are of one query each and queries of one row, whether a pair is there twice, and all queries."""
    pairs: Counter[tuple[float, float]] = Counter()
    rows_of: dict[float, set[int]] = {}
    apart = False
    for row, one in enumerate(asked.reshape(-1, asked.shape[-1])):
        mine = {q for q in one.tolist() if q}
        apart = apart or len(mine) > 1
        for q in mine:
            rows_of.setdefault(q, set()).add(row)
    for q, k in zip(asked.ravel().tolist(), found.ravel().tolist(), strict=True):
        if q and k:
            pairs[q, k] += 1
    single = not apart and all(len(rows) == 1 for rows in rows_of.values())
    return single, max(pairs.values()) > 1, len(rows_of) == B * S * H


def changed(kind: str) -> tuple[Array, Array]:
    asked, found = band(S - 1 if kind == "short" else S)
    if kind == "twice":
        found[1, 3, 0, 0] = found[1, 3, 0, 1]
    if kind == "two queries in a row":
        asked[0, 2, 1, 0] = asked[0, 3, 1, 0]
        found[0, 2, 1, 0] = found[0, 3, 1, 0]
    if kind == "two rows of a query":
        asked[0, 2, 1], found[0, 2, 1] = asked[0, 3, 1], found[0, 3, 1]
    return asked, found


@pytest.mark.parametrize("kind", ["whole", "short", "twice", "two queries in a row", "two rows of a query"])
@pytest.mark.parametrize("marks", [row_proof._MARKS, 0])
def test_rows_are_those_of_one_query(kind: str, marks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_proof, "_MARKS", marks)
    asked, found = changed(kind)
    single, twice, every = one_by_one(asked, found)
    assert (single, twice, every) == {
        "whole": (True, False, True), "short": (True, False, False), "twice": (True, True, True),
        "two queries in a row": (False, True, True), "two rows of a query": (False, True, False),
    }[kind]  # fmt: skip
    proof = read(seen(asked, found))
    assert isinstance(proof, Proof) == (single and not twice)
    added = read(seen(asked, found), twice=True)
    assert isinstance(added, Proof) == single
    if isinstance(added, Proof):
        assert (added.twice, added.whole, added.heads) == (twice, every, H)


def test_values_side_by_side_are_those_of_each_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g = G()
    x = g.input("x", ["n", 3])
    index = g.op("Cast", g.op("Range", g.const(0, np.int64), g.const(3, np.int64), g.const(1, np.int64)), to=1)
    table = g.op("Mul", index, g.const(2.0, np.float32))
    y = g.op("Add", g.op("Mul", x, table), index)
    graph = find(g.save(tmp_path, y)).graph
    one, two = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 7, np.float32)
    ran: Counter[str] = Counter()
    own = subgraph_eval._outputs

    def counted(graph: Any, node: Any, *more: Any, **how: Any) -> Any:
        ran[node.op_type] += 1
        return own(graph, node, *more, **how)

    monkeypatch.setattr(subgraph_eval, "_outputs", counted)
    made = enact_all(graph, {}, [Run([], y, {"x": one}), Run([], y, {"x": two}), Run([], table, {})])
    assert made is not None
    steps = np.arange(3, dtype=np.float32)
    for array, want in zip(made, (one * 2 * steps + steps, two * 2 * steps + steps, 2 * steps), strict=True):
        np.testing.assert_array_equal(array, want)
    assert (ran["Range"], ran["Mul"], ran["Add"]) == (1, 3, 2)
    np.testing.assert_array_equal(enact(graph, {}, [], y, {"x": two}), made[1])
    assert enact_all(graph, {}, [Run([], y, {"x": one}), Run([], y, {})]) is None  # nothing gives x in the second
