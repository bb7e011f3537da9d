"""Products and writes that are computed in less give what the whole ones give, computed here one number at a time."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from attnx.graph.shapes import infer
from attnx.sites.recognise import find
from attnx.sites.strided import cell_map, subgraph_eval
from attnx.sites.strided.shortcuts import narrowed, written
from attnx.sites.strided.subgraph_eval import enact
from tests.graphs import G
from tests.sites.replacing import graph_of, model_of
from tests.sites.test_bands import MODEL, banded

Array = np.ndarray[Any, Any]
PRODUCTS = {
    "MatMul": ("bqd,bdk->bqk", {}),
    "FusedMatMul": ("bdq,bkd->bqk", {"transA": 1, "transB": 1}),
    "Einsum": ("bdq,kbd->bkq", {"equation": "bdq,kbd->bkq"}),
}


def operands(equation: str, kept: tuple[int, ...]) -> tuple[Array, Array]:
    """Whole numbers, so that sums are exact; the first operand has some of the features that are summed over alone."""
    draw = np.random.default_rng(3)
    sizes = {"b": 2, "q": 3, "k": 4, "d": 6}
    left, right = equation.partition("->")[0].split(",")
    one, two = (draw.integers(1, 5, [sizes[c] for c in side]).astype(np.float32) for side in (left, right))
    moved = np.moveaxis(one, left.index("d"), 0)
    for at in range(6):
        if at not in kept:
            moved[at] = 0
    return one, two


def summed(equation: str, one: Array, two: Array, out: tuple[int, ...]) -> Array:
    """A product, one term at a time."""
    sides, _, to = equation.partition("->")
    left, right = sides.split(",")
    sizes = {**dict(zip(left, one.shape, strict=True)), **dict(zip(right, two.shape, strict=True))}
    whole = np.zeros(out)
    for places in product(*(range(sizes[c]) for c in sizes)):
        at = dict(zip(sizes, places, strict=True))
        whole[tuple(at[c] for c in to)] += one[tuple(at[c] for c in left)] * two[tuple(at[c] for c in right)]
    return whole


@pytest.mark.parametrize("op", PRODUCTS)
@pytest.mark.parametrize("kept", [(0,), (1, 4), (), (0, 1, 2, 3, 4, 5)])
@pytest.mark.parametrize("swapped", [False, True])
def test_features_that_are_0_are_left_out(op: str, kept: tuple[int, ...], swapped: bool) -> None:
    equation, attributes = PRODUCTS[op]
    one, two = operands(equation, kept)
    if swapped:  # which of the two holds zeros does not matter
        moved = np.moveaxis(two, equation.partition("->")[0].split(",")[1].index("d"), 0)
        moved[[at for at in range(6) if at not in kept]] = 0
        one = np.ones_like(one)
    node = helper.make_node(op, ["a", "b"], ["c"], **attributes)
    less = narrowed(node, [one, two])
    d = equation.index("d")
    assert less[0] is not None
    assert less[0].shape[d] == max(1, len(kept))
    want = np.einsum(equation, one.astype(np.float64), two)
    np.testing.assert_array_equal(summed(equation, *(np.asarray(x) for x in less), want.shape), want)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_nothing_is_left_out_beside_what_is_no_number(value: float) -> None:
    one, two = operands("bqd,bdk->bqk", (0,))
    two[0, 3, 1] = value
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    assert [np.asarray(x).shape for x in narrowed(node, [one, two])] == [one.shape, two.shape]


def grid(lines: list[list[int]], order: list[int]) -> list[Array]:
    """Places of a grid, a column for each axis, which counts along `order[axis]`: int64 [..., 1], views as Expand's."""
    shape = [0] * len(lines)
    for axis, line in zip(order, lines, strict=True):
        shape[axis] = len(line)
    columns = []
    for axis, line in zip(order, lines, strict=True):
        own = [1] * len(shape)
        own[axis] = len(line)
        columns.append(np.broadcast_to(np.array(line, np.int64).reshape(own), shape)[..., None])
    return columns


def one_by_one(data: Array, columns: list[Array], updates: Array) -> Array:
    out = data.copy()
    for at in np.ndindex(*columns[0].shape[:-1]):
        out[tuple(int(c[at][0]) for c in columns)] = updates[at]
    return out


@pytest.mark.parametrize("lines", [[[0, 1], [2, 3, 4]], [[-2, -1], [0, 1, 2, 3]], [[1], [-4, -3]], [[0], [2]]])
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_a_grid_is_written_at_once(lines: list[list[int]], order: list[int]) -> None:
    draw = np.random.default_rng(1)
    data, columns = draw.normal(size=(3, 5, 2)), grid(lines, order)
    updates = draw.normal(size=(*columns[0].shape[:-1], 2))
    made = written(data, columns, updates)
    assert made is not None
    np.testing.assert_array_equal(made, one_by_one(data, columns, updates))


@pytest.mark.parametrize("lines", [[[0, 1], [3, 4, 5]], [[-4, -3], [0]], [[0, 2], [0, 1]], [[-1, 0], [0]], [[], [0]]])
def test_what_is_no_block_of_cells_is_left_to_the_node(lines: list[list[int]]) -> None:
    """Beyond the end, with holes, around the end, or nothing at all."""
    columns = grid(lines, [0, 1])
    assert written(np.zeros((3, 5)), columns, np.zeros(columns[0].shape[:-1])) is None


def test_cells_that_are_written_twice_are_left_to_the_node() -> None:
    columns = [np.broadcast_to(np.arange(2)[:, None, None], (2, 3, 1))] * 2
    assert written(np.zeros((3, 5)), columns, np.zeros((2, 3))) is None
    columns = [np.broadcast_to(np.arange(2)[:, None, None], (2, 3, 1)), np.zeros((2, 3, 1), np.int64)]
    assert written(np.zeros((3, 5)), columns, np.zeros((2, 3))) is None


@pytest.mark.parametrize("read_twice", [False, True])
@pytest.mark.parametrize("step", [1, 2])
def test_places_of_a_slice_stay_apart(
    tmp_path: Path, read_twice: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an exporter writes for x[:, 1:3] = y: Range, Expand, Concat, ScatterND; and what is not that."""
    g = G()
    x = g.input("x", ["n", 4])
    rows = g.op("Range", g.const(0, np.int64), g.const(3, np.int64), g.const(1, np.int64))
    columns = g.const(np.arange(2) * step, np.int64)
    shape = g.const([3, 2], np.int64)
    parts = [g.op("Expand", g.op("Unsqueeze", v, g.const([a], np.int64)), shape) for v, a in ((rows, 1), (columns, 0))]
    places = g.op("Concat", *(g.op("Unsqueeze", p, g.const([2], np.int64)) for p in parts), axis=2)
    y = g.op("ScatterND", x, places, g.const(np.arange(6.0).reshape(3, 2), np.float32))
    if read_twice:
        y = g.op("Add", y, g.op("ReduceSum", g.op("Cast", places, to=1), keepdims=0))
    graph = find(g.save(tmp_path, y)).graph
    at_once = Counter[bool]()

    def counted(*args: Any, **how: Any) -> Any:
        made = written(*args, **how)
        at_once[made is not None] += 1
        return made

    monkeypatch.setattr(subgraph_eval, "written", counted)
    given = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    want = given.copy()
    want[:, [0, step]] = np.arange(6.0).reshape(3, 2)
    if read_twice:
        want += 2 * (0 + 1 + 2) + 3 * step
    np.testing.assert_allclose(enact(graph, {}, [], y, {"x": given}), want, rtol=1e-6)
    assert at_once == ({} if read_twice else {step == 1: 1})


@pytest.mark.parametrize("read", ["nothing", "before", "view"])
def test_a_copy_that_nothing_else_reads_is_written_over(
    tmp_path: Path, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three writes in a row, with what the first or the second leaves read again at the end, itself or as a view."""
    g = G()
    x = g.input("x", [3, 4])
    made = [x]
    for column in range(3):
        rows = g.op("Range", g.const(0, np.int64), g.const(3, np.int64), g.const(1, np.int64))
        at = g.op("Expand", g.const([[column]], np.int64), g.const([3, 1], np.int64))
        places = g.op(
            "Concat",
            *(
                g.op("Unsqueeze", p, g.const([2], np.int64))
                for p in (
                    g.op("Expand", g.op("Unsqueeze", rows, g.const([1], np.int64)), g.const([3, 1], np.int64)),
                    at,
                )
            ),
            axis=2,
        )
        made.append(g.op("ScatterND", made[-1], places, g.const(np.full((3, 1), column + 7.0), np.float32)))
    y = made[-1]
    if read == "before":
        y = g.op("Add", y, made[1])
    elif read == "view":
        y = g.op("Add", g.op("Transpose", made[2], perm=[1, 0]), g.op("Transpose", y, perm=[1, 0]))
    graph = find(g.save(tmp_path, y)).graph
    over: list[bool] = []

    def noted(*args: Any, **how: Any) -> Any:
        over.append(how["over"])
        return written(*args, **how)

    monkeypatch.setattr(subgraph_eval, "written", noted)
    given = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    states = [given.copy()]
    for column in range(3):
        states.append(states[-1].copy())
        states[-1][:, column] = column + 7
    want = {"nothing": states[3], "before": states[3] + states[1], "view": (states[2] + states[3]).T}[read]
    kept = given.copy()
    np.testing.assert_array_equal(enact(graph, {}, [], y, {"x": given}), want)
    np.testing.assert_array_equal(given, kept)
    assert over == {"nothing": [False, True, True], "before": [False, False, True], "view": [False, True, False]}[read]


def test_a_graph_of_one_length_is_run_at_that_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other lengths are told by the nodes in front of the products; the softmax is reached once."""
    lengths: list[int] = []
    own = cell_map.Places._run

    def counted(self: Any, source: Any, sizes: dict[str, int], *rest: Any) -> Any:
        lengths.append(sizes["length"])
        return own(self, source, sizes, *rest)

    monkeypatch.setattr(cell_map.Places, "_run", counted)
    assert [site.window for site in find(MODEL).sites] == [9, None]
    assert lengths[:1] == [16]
    assert len(lengths) == 2


def test_what_stays_is_not_inferred_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The facts of a graph with nodes put beside others are those of a walk over all of it, of which little is done."""
    walked: list[int] = []
    own = infer._node

    def counted(graph: Any, *rest: Any) -> Any:
        walked.append(id(graph))
        return own(graph, *rest)

    monkeypatch.setattr(infer, "_node", counted)
    opened = find(banded(tmp_path, straight=True)).opened
    facts, sizes = opened.facts, opened.sizes
    assert walked.count(id(opened)) < len(opened.nodes)
    whole_sizes, whole = infer.probe(opened)
    assert sizes == whole_sizes
    assert set(whole) <= set(facts)
    for name, fact in whole.items():
        assert (facts[name].shape, facts[name].dtype) == (fact.shape, fact.dtype), name
        np.testing.assert_array_equal(facts[name].value, fact.value)


@pytest.mark.parametrize("given", ["x", "twice"])
def test_what_is_known_is_taken_except_behind_what_is_given(given: str) -> None:
    """A learned query is stored, and so all that is made from it is known: of the stored one, not of the given one."""
    g = G()
    x = g.const(np.array([[1.0, 2.0, 3.0]], np.float32))
    twice = g.op("Mul", x, g.const(np.array(2.0, np.float32)))
    one = g.op("Constant", value_float=1.0)
    more = g.op("Add", g.op("Mul", twice, twice), one)
    beside = g.op("Add", g.op("Exp", one), one)
    out = g.op("Mul", more, beside)
    graph = graph_of(model_of(g.nodes, {}, [out], weights=g.weights))
    facts = graph.facts
    assert facts[out].value is not None
    array = np.array([[5.0, -6.0, 7.0]], np.float32)
    name = {"x": x, "twice": twice}[given]
    want = ((array * (2 if given == "x" else 1)) ** 2 + 1) * (np.e + 1)
    np.testing.assert_allclose(enact(graph, facts, [], out, {name: array}), want, rtol=1e-6)


def test_what_is_known_at_the_length_tried_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes and the places of blocks were inferred already; only what the given values reach is run."""
    run: list[str] = []
    own = subgraph_eval._outputs

    def counted(graph: Any, node: Any, *rest: Any, **named: Any) -> Any:
        run.append(node.op_type)
        return own(graph, node, *rest, **named)

    monkeypatch.setattr(subgraph_eval, "_outputs", counted)
    assert len(find(MODEL).sites) == 2
    assert {"Einsum", "ScatterND"} <= set(run)
    assert set(run).isdisjoint(("Shape", "Unsqueeze", "Range", "ConstantOfShape", "Equal", "Mul", "Div"))
