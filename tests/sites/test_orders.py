"""Graphs that move the positions of their text: rows and columns are named by the tokens that stand there, or numbered.

Which token stands at a position is read off onnxruntime: the row of the query or key that changes with the token's id.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

import attnx
from attnx.errors import UnsupportedError
from attnx.interventions.feeds import plan_run
from attnx.measure.offsets import offset
from attnx.measure.rollout import rollout
from attnx.records import Attention, Order, Site
from attnx.run.axis_tokens import in_place
from attnx.run.prompt import Prompt
from attnx.run.steps import join_steps
from attnx.tokens.axes import numbered, reordered
from attnx.view.interop import to_bertviz
from tests.graphs import D, G, H

VOCABULARY, WIDTH, END = 40, 16, 2**62
Move = Callable[[G, str], str]


def ints(g: G, *values: int) -> str:
    return g.const(list(values), np.int64)


def cut(g: G, x: str, start: int, end: int, step: int = 1, axis: int = 1) -> str:
    return str(g.op("Slice", x, ints(g, start), ints(g, end), ints(g, axis), ints(g, step)))


def length(g: G, x: str) -> str:
    return str(g.op("Gather", g.op("Shape", x), g.const(1, np.int64)))


def places(g: G, x: str) -> str:
    return str(g.op("Range", g.const(0, np.int64), length(g, x), g.const(1, np.int64)))


def learned(g: G) -> str:
    return g.weight(1, 1, WIDTH)


def one_for_all(g: G, x: str, value: str) -> str:
    """A learned vector for each text of the batch."""
    batch = g.op("Slice", g.op("Shape", x), ints(g, 0), ints(g, 1))
    return str(g.op("Expand", value, g.op("Concat", batch, ints(g, 1, 1), axis=0)))


def reverse(g: G, x: str) -> str:
    return cut(g, x, -1, -END, -1)


def reverse_sequence(g: G, x: str) -> str:
    batch = g.op("Slice", g.op("Shape", x), ints(g, 0), ints(g, 1))
    lengths = g.op("Expand", g.op("Unsqueeze", length(g, x), ints(g, 0)), batch)
    return str(g.op("ReverseSequence", x, lengths, batch_axis=0, time_axis=1))


def reverse_by_places(g: G, x: str) -> str:
    last = g.op("Sub", length(g, x), g.const(1, np.int64))
    return str(g.op("Gather", x, g.op("Sub", last, places(g, x)), axis=1))


def shift(g: G, x: str) -> str:
    return str(g.op("Concat", one_for_all(g, x, learned(g)), cut(g, x, 0, -1), axis=1))


def shift_by_padding(g: G, x: str) -> str:
    return cut(g, str(g.op("Pad", x, ints(g, 0, 1, 0, 0, 0, 0))), 0, -1)


def shift_by_writing(g: G, x: str) -> str:
    """new_zeros, then shifted[:, 1:] = x[:, :-1]: T5's and BART's labels, with the text first for the indices."""
    first = g.op("Transpose", x, perm=[1, 0, 2])
    zeros = g.op("ConstantOfShape", g.op("Shape", first))
    late = g.op("Unsqueeze", cut(g, places(g, x), 1, END, axis=0), ints(g, 1))
    moved = g.op("ScatterND", zeros, late, cut(g, str(first), 0, -1, axis=0))
    return str(g.op("Transpose", moved, perm=[1, 0, 2]))


def roll(g: G, x: str) -> str:
    return str(g.op("Concat", cut(g, x, 2, END), cut(g, x, 0, 2), axis=1))


def roll_by_places(g: G, x: str) -> str:
    far = g.op("Mod", g.op("Add", places(g, x), g.const(3, np.int64)), length(g, x))
    return str(g.op("Gather", x, far, axis=1))


def replaced(g: G, x: str) -> str:
    return str(g.op("Concat", one_for_all(g, x, learned(g)), cut(g, x, 1, END), axis=1))


def replaced_where(g: G, x: str) -> str:
    first = g.op("Unsqueeze", g.op("Equal", places(g, x), g.const(0, np.int64)), ints(g, 0, 2))
    return str(g.op("Where", first, learned(g), x))


def turned_by_elements(g: G, x: str) -> str:
    last = g.op("Sub", g.op("Sub", length(g, x), g.const(1, np.int64)), places(g, x))
    index = g.op("Expand", g.op("Unsqueeze", last, ints(g, 0, 2)), g.op("Shape", x))
    return str(g.op("GatherElements", x, index, axis=1))


def flat(g: G, x: str) -> str:
    """In rows of tokens, as exporters flatten for Gemm, then reversed."""
    rows = g.op("Reshape", x, ints(g, -1, WIDTH))
    back = g.op("Reshape", g.op("Tanh", rows), g.op("Shape", x))
    return reverse(g, str(back))


KNOWN = {
    f.__name__: f
    for f in (
        reverse, reverse_sequence, reverse_by_places, shift, shift_by_padding, shift_by_writing, roll, roll_by_places,
        replaced, replaced_where, turned_by_elements, flat,
    )
}  # fmt: skip


def attention(g: G, x: str, keys: str | None = None) -> tuple[str, str, str]:
    """One layer: what it adds to x, and its query and key, [b,s,features]."""
    query, key, value = g.linear(x, D * H), g.linear(keys or x, D * H), g.linear(keys or x, D * H)
    weights = g.softmax(g.scores(g.heads(query), g.heads(key, (0, 2, 3, 1))))
    return str(g.op("Add", x, g.out(str(g.op("MatMul", weights, g.heads(value)))))), query, key


def embedded(g: G) -> tuple[str, str]:
    ids = g.input("input_ids", ["b", "s"], TensorProto.INT64)
    return ids, str(g.op("Gather", g.weight(VOCABULARY, WIDTH), ids))


def standing(path: Path, value: str, size: int) -> list[int | None]:
    """For each row of a tensor [1,size,...], the one token that changes it; None for none."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    ids = np.arange(size)[None]

    def rows(feed: np.ndarray) -> np.ndarray:
        return np.asarray(session.run([value], {"input_ids": feed})[0]).reshape(size, -1)

    before = rows(ids)
    changed = np.zeros((size, size), bool)
    for token in range(size):
        other = ids.copy()
        other[0, token] = VOCABULARY - 1
        changed[:, token] = (rows(other) != before).any(axis=1)
    assert (changed.sum(axis=1) <= 1).all()
    return [int(row.argmax()) if row.any() else None for row in changed]


def named(tokens: attnx.records.Tokens) -> list[int | None]:
    """The token that each position is named by; ids are the places of tokens here."""
    return [
        None if piece.startswith("+") else int(i) for piece, i in zip(tokens.pieces, tokens.ids.tolist(), strict=True)
    ]


def traced(path: Path, size: int) -> attnx.records.Trace:
    return attnx.open(path, device="cpu").trace(inputs={"input_ids": np.arange(size)[None]})


@pytest.mark.parametrize(
    ("move", "only_keys"), [*((move, False) for move in KNOWN), ("reverse", True), ("shift", True), ("roll", True)]
)
def test_moved_positions_are_named_by_what_stands_there(move: str, only_keys: bool, tmp_path: Path) -> None:
    g = G()
    _, x = embedded(g)
    moved = KNOWN[move](g, x)
    x, query, key = attention(g, x if only_keys else moved, moved)
    out, *_ = attention(g, x)
    path = g.save(tmp_path, out, query, key)
    for size in (7, 10):
        trace = traced(path, size)
        first, second = trace.attentions
        truth = standing(path, key, size)
        assert truth != list(range(size))
        assert named(trace.queries_of(first)) == standing(path, query, size)
        assert named(trace.keys_of(first)) == truth
        assert named(trace.queries_of(second)) == named(trace.keys_of(second)) == standing(path, query, size)
        assert sum("moves the tokens" in note for note in trace.notes) == 1


def test_a_fused_operator_reads_what_was_moved(tmp_path: Path) -> None:
    g = G()
    _, x = embedded(g)
    moved = shift(g, x)
    query, key, value = (g.linear(side, D * H) for side in (x, moved, moved))
    made = g.op("MultiHeadAttention", query, key, value, domain="com.microsoft", num_heads=H)
    path = g.save(tmp_path, str(made), query, key)
    model = onnx.load(path)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)
    (one,) = (trace := traced(path, 7)).attentions
    assert named(trace.queries_of(one)) == standing(path, query, 7) == list(range(7))
    assert named(trace.keys_of(one)) == standing(path, key, 7) == [None, *range(6)]


def sort_by_top(g: G, ids: str, x: str) -> str:
    """Tokens in the order of their ids."""
    size = g.op("Unsqueeze", length(g, ids), ints(g, 0))
    values, _ = g.op("TopK", ids, size, axis=1, outputs=2)
    return str(g.op("Gather", g.weight(VOCABULARY, WIDTH), values))


def picked_by_top(g: G, ids: str, x: str) -> str:
    """Tokens in the order of numbers made from them."""
    size = g.op("Unsqueeze", length(g, ids), ints(g, 0))
    _, index = g.op("TopK", g.op("ReduceSum", x, ints(g, 2), keepdims=0), size, axis=1, outputs=2)
    wide = g.op("Expand", g.op("Unsqueeze", index, ints(g, 2)), g.op("Shape", x))
    return str(g.op("GatherElements", x, wide, axis=1))


def written_by_top(g: G, ids: str, x: str) -> str:
    size = g.op("Unsqueeze", length(g, ids), ints(g, 0))
    _, index = g.op("TopK", g.op("ReduceSum", x, ints(g, 2), keepdims=0), size, axis=1, outputs=2)
    wide = g.op("Expand", g.op("Unsqueeze", index, ints(g, 2)), g.op("Shape", x))
    return str(g.op("ScatterElements", g.op("ConstantOfShape", g.op("Shape", x)), wide, x, axis=1))


@pytest.mark.parametrize("move", [sort_by_top, picked_by_top, written_by_top])
def test_positions_that_the_text_decides_are_numbered(move: Callable[[G, str, str], str], tmp_path: Path) -> None:
    g = G()
    ids, x = embedded(g)
    out, *_ = attention(g, move(g, ids, x))
    trace = traced(g.save(tmp_path, out), 7)
    (one,) = trace.attentions
    assert trace.queries_of(one).pieces == trace.keys_of(one).pieces == tuple("0123456")
    assert trace.queries_of(one).text == ""
    assert any("not known" in note for note in trace.notes)


def test_numbers_added_beside_the_text_do_not_hide_that_it_moves(tmp_path: Path) -> None:
    """Positions that are an input, and looked up as ids are."""
    g = G()
    _, x = embedded(g)
    places = g.input("pos_ids", ["b", "s"], TensorProto.INT64)
    out, *_ = attention(g, str(g.op("Add", g.op("Gather", g.weight(12, WIDTH), places), shift(g, x))))
    (site,) = attnx.open(g.save(tmp_path, out), device="cpu").sites
    assert site.query_order == site.key_order == ((0, -1, 0, 0, 1), (0, 0, 1, 1, -1))


def test_padding_that_moves_a_text_is_numbered(tmp_path: Path) -> None:
    """Texts aligned at the right by their masks: a text without padding does not show it."""
    g = G()
    _, x = embedded(g)
    mask = g.input("attention_mask", ["b", "s"], TensorProto.INT64)
    count = g.op("ReduceSum", mask, ints(g, 1), keepdims=1)
    far = g.op("Sub", length(g, mask), count)
    index = g.op("Mod", g.op("Add", places(g, mask), far), length(g, mask))
    wide = g.op("Expand", g.op("Unsqueeze", index, ints(g, 2)), g.op("Shape", x))
    out, *_ = attention(g, str(g.op("GatherElements", x, wide, axis=1)))
    (site,) = attnx.open(g.save(tmp_path, out), device="cpu").sites
    assert (site.query_order, site.key_order) == ((), ())


def half_turn(g: G, x: str) -> str:
    """x1, x2 -> -x2, x1: along features."""
    return str(g.op("Concat", g.op("Neg", cut(g, x, D // 2, D, axis=3)), cut(g, x, 0, D // 2, axis=3), axis=3))


def rotary(g: G) -> str:
    _, x = embedded(g)
    table = g.op("Gather", g.weight(64, D), places(g, x))
    query, key, value = (g.heads(g.linear(x, D * H)) for _ in range(3))
    turned = [
        g.op("Add", g.op("Mul", one, g.op("Cos", table)), g.op("Mul", half_turn(g, one), g.op("Sin", table)))
        for one in (query, key)
    ]
    weights = g.softmax(g.scores(turned[0], g.op("Transpose", turned[1], perm=[0, 1, 3, 2])))
    return g.out(str(g.op("MatMul", weights, value)))


def relative_shift(g: G) -> str:
    """Transformer-XL: scores of positions are padded, reshaped and cut; the text is not."""
    _, x = embedded(g)
    query, key, value = g.heads(g.linear(x, D * H)), g.heads(g.linear(x, D * H), (0, 2, 3, 1)), g.linear(x, D * H)
    far = g.op("Gather", g.weight(64, D), reverse(g, str(g.op("Unsqueeze", places(g, x), ints(g, 0)))))
    by_place = g.op("MatMul", query, g.op("Transpose", g.op("Unsqueeze", far, ints(g, 1)), perm=[0, 1, 3, 2]))
    size = g.op("Shape", by_place)
    padded = g.op("Pad", by_place, ints(g, 0, 0, 0, 1, 0, 0, 0, 0))
    n = cut(g, str(size), 2, 3, axis=0)
    turned = g.op("Reshape", padded, g.op("Concat", cut(g, str(size), 0, 2, axis=0), ints(g, -1), n, axis=0))
    shifted = g.op("Reshape", cut(g, str(turned), 1, END, axis=2), size)
    product = g.op("Add", g.op("MatMul", query, key), shifted)
    weights = g.softmax(str(g.op("Mul", product, g.const(D**-0.5, np.float32))))
    return g.out(str(g.op("MatMul", weights, g.heads(value))))


def cached(g: G) -> str:
    _, x = embedded(g)
    pasts = [g.input(f"past_key_values.0.{part}", ["b", H, "past", D]) for part in ("key", "value")]
    query, *own = (g.heads(g.linear(x, D * H)) for _ in range(3))
    key, value = (str(g.op("Concat", past, new, axis=2)) for past, new in zip(pasts, own, strict=True))
    weights = g.softmax(g.scores(query, str(g.op("Transpose", key, perm=[0, 1, 3, 2]))))
    return g.out(str(g.op("MatMul", weights, value)))


def pooled(g: G) -> str:
    """The first token's state, joined to all: it is read elsewhere, and none of the text's own is moved."""
    _, x = embedded(g)
    x, *_ = attention(g, x)
    first = cut(g, x, 0, 1)
    out, *_ = attention(g, str(g.op("Add", x, g.op("Tanh", first))))
    return out


def mixed_with_neighbours(g: G) -> str:
    """A token's own state and that of the token before it (RWKV), then a convolution."""
    _, x = embedded(g)
    x = str(g.op("Add", x, shift(g, x)))
    turned = g.op("Transpose", x, perm=[0, 2, 1])
    made = g.op("Conv", turned, g.weight(WIDTH, WIDTH, 3), pads=[1, 1])
    out, *_ = attention(g, str(g.op("Transpose", made, perm=[0, 2, 1])))
    return out


def read_both_ways(g: G) -> str:
    """A recurrent layer over the text turned around, turned back and joined."""
    _, x = embedded(g)
    ways = []
    for turn in (False, True):
        way = reverse(g, x) if turn else x
        first = g.op("Transpose", way, perm=[1, 0, 2])
        half = WIDTH // 2
        made = g.op("RNN", first, g.weight(1, half, WIDTH), g.weight(1, half, half), outputs=2, hidden_size=half)[0]
        back = str(g.op("Transpose", g.op("Squeeze", made, ints(g, 1)), perm=[1, 0, 2]))
        ways.append(reverse(g, back) if turn else back)
    out, *_ = attention(g, str(g.op("Concat", *ways, axis=2)))
    return out


def unpadded(g: G) -> str:
    """Only what the mask keeps is read, and written back."""
    _, x = embedded(g)
    mask = g.input("attention_mask", ["b", "s"], TensorProto.INT64)
    rows = g.op("Reshape", x, ints(g, -1, WIDTH))
    kept = g.op("Squeeze", g.op("NonZero", g.op("Reshape", mask, ints(g, -1))), ints(g, 0))
    some = g.op("Gather", rows, kept)
    back = g.op("ScatterND", rows, g.op("Unsqueeze", kept, ints(g, 1)), g.op("Tanh", some))
    out, *_ = attention(g, str(g.op("Reshape", back, g.op("Shape", x))))
    return out


def padded_and_mixed(g: G) -> str:
    """Local attention pads a text to whole windows, mixes neighbours, and cuts the padding off (LED)."""
    _, x = embedded(g)
    padded = str(g.op("Pad", x, ints(g, 0, 0, 0, 0, 3, 0)))
    out, *_ = attention(g, cut(g, str(g.op("Add", shift(g, padded), padded)), 0, -3))
    return out


def experts_of_heads(g: G) -> str:
    """Each expert projects the queries that chose it; they are picked, and written back (JetMoe)."""
    _, x = embedded(g)
    rows = g.op("Reshape", x, ints(g, -1, WIDTH))
    size = g.op("Slice", g.op("Shape", rows), ints(g, 0), ints(g, 1))
    _, index = g.op("TopK", g.op("ReduceSum", rows, ints(g, 1), keepdims=0), size, axis=0, outputs=2)
    made = g.linear(str(g.op("Gather", rows, index)), D * H)
    zeros = g.op("ConstantOfShape", g.op("Shape", made))
    back = g.op("ScatterND", zeros, g.op("Unsqueeze", index, ints(g, 1)), made)
    whole = g.op("Concat", g.op("Slice", g.op("Shape", x), ints(g, 0), ints(g, 2)), ints(g, D * H), axis=0)
    query, key, value = str(g.op("Reshape", back, whole)), g.linear(x, D * H), g.linear(x, D * H)
    weights = g.softmax(g.scores(g.heads(query), g.heads(key, (0, 2, 3, 1))))
    return g.out(str(g.op("MatMul", weights, g.heads(value))))


def counted_positions(g: G) -> str:
    """XLM-R: positions are counted from the ids, and looked up; padding is blanked."""
    ids, x = embedded(g)
    real = g.op("Not", g.op("Equal", ids, g.const(1, np.int64)))
    at = g.op("CumSum", g.op("Cast", real, to=TensorProto.INT64), g.const(1, np.int64))
    x = str(g.op("Add", x, g.op("Gather", g.weight(64, WIDTH), at)))
    out, *_ = attention(g, str(g.op("Where", g.op("Unsqueeze", real, ints(g, 2)), x, g.const(0, np.float32))))
    return out


@pytest.mark.parametrize(
    "graph",
    [
        rotary,
        relative_shift,
        cached,
        pooled,
        mixed_with_neighbours,
        read_both_ways,
        unpadded,
        counted_positions,
        padded_and_mixed,
        experts_of_heads,
    ],
)
def test_what_moves_no_text_is_not_doubted(graph: Callable[[G], str], tmp_path: Path) -> None:
    g = G()
    path = g.save(tmp_path, graph(g))
    found = attnx.open(path, device="cpu").sites
    assert found
    assert not any(site.moved for site in found)


def test_each_side_of_a_cross_attention_follows_its_own_text(tmp_path: Path) -> None:
    g = G()
    _, memory = embedded(g)
    other = g.input("decoder_input_ids", ["b", "t"], TensorProto.INT64)
    x = shift(g, str(g.op("Gather", g.weight(VOCABULARY, WIDTH), other)))
    memory, *_ = attention(g, memory)
    x, *_ = attention(g, x)
    out, *_ = attention(g, x, memory)
    trace = attnx.open(g.save(tmp_path, out), device="cpu").trace(
        inputs={"input_ids": np.arange(6)[None], "decoder_input_ids": np.arange(10, 15)[None]}
    )
    sides = {a.site.kind if a.site.kind == "cross" else a.site.component: a for a in trace.attentions}
    moved, still = [None, 10, 11, 12, 13], list(range(6))
    assert named(trace.queries_of(sides["encoder"])) == named(trace.keys_of(sides["encoder"])) == still
    assert named(trace.queries_of(sides["decoder"])) == named(trace.keys_of(sides["decoder"])) == moved
    assert (named(trace.queries_of(sides["cross"])), named(trace.keys_of(sides["cross"]))) == (moved, still)


def test_measures_of_places_need_queries_and_keys_in_one_order(tmp_path: Path) -> None:
    g = G()
    _, x = embedded(g)
    out, *_ = attention(g, x, roll(g, x))
    trace = traced(g.save(tmp_path, out), 7)
    assert np.isnan(offset(trace, -1).values).all()
    with pytest.raises(UnsupportedError, match="another order"):
        rollout(trace, trace.tokens)
    with pytest.raises(UnsupportedError, match="another order"):
        to_bertviz(trace)


def test_an_order_is_kept_from_run_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    g = G()
    _, x = embedded(g)
    out, *_ = attention(g, shift(g, x))
    path = g.save(tmp_path, out)
    assert attnx.open(path, device="cpu").sites == attnx.open(path, device="cpu").sites
    assert attnx.open(path, device="cpu").sites[0].query_order == ((0, -1, 0, 0, 1), (0, 0, 1, 1, -1))


def test_a_graph_of_one_length(tmp_path: Path) -> None:
    g = G()
    ids = g.input("input_ids", [1, 9], TensorProto.INT64)
    out, query, _ = attention(g, roll(g, str(g.op("Gather", g.weight(VOCABULARY, WIDTH), ids))))
    path = g.save(tmp_path, out, query)
    (one,) = traced(path, 9).attentions
    assert named(traced(path, 9).queries_of(one)) == standing(path, query, 9)


SHUFFLED = [4, 0, 7, 2, 8, 1, 3, 6, 5]


def by_product(g: G, x: str) -> str:
    return str(g.op("MatMul", g.const(np.eye(9, dtype=np.float32)[SHUFFLED]), x))


def by_product_from_the_right(g: G, x: str) -> str:
    turned = g.op("MatMul", g.op("Transpose", x, perm=[0, 2, 1]), g.const(np.eye(9, dtype=np.float32)[SHUFFLED].T))
    return str(g.op("Transpose", turned, perm=[0, 2, 1]))


def by_einsum(g: G, x: str) -> str:
    return str(g.op("Einsum", x, g.const(np.eye(9, dtype=np.float32)[SHUFFLED]), equation="bnd,mn->bmd"))


def by_product_less_one(g: G, x: str) -> str:
    """A row of zeros: no token stands there."""
    ones = np.eye(9, dtype=np.float32)[SHUFFLED]
    ones[3] = 0
    return str(g.op("MatMul", g.const(ones), x))


def by_product_scaled(g: G, x: str) -> str:
    return str(g.op("MatMul", g.const((np.diag(np.linspace(0.5, 2, 9))[SHUFFLED]).astype(np.float32)), x))


@pytest.mark.parametrize(
    "move", [by_product, by_product_from_the_right, by_einsum, by_product_less_one, by_product_scaled]
)
def test_a_product_with_a_permutation_moves_tokens(move: Move, tmp_path: Path) -> None:
    g = G()
    ids = g.input("input_ids", [1, 9], TensorProto.INT64)
    x = str(g.op("Gather", g.weight(VOCABULARY, WIDTH), ids))
    out, query, key = attention(g, x, move(g, x))
    path = g.save(tmp_path, out, query, key)
    trace = traced(path, 9)
    (one,) = trace.attentions
    truth = standing(path, key, 9)
    assert truth == [None if move is by_product_less_one and i == 3 else token for i, token in enumerate(SHUFFLED)]
    assert named(trace.keys_of(one)) == truth
    assert named(trace.queries_of(one)) == standing(path, query, 9) == list(range(9))


def test_texts_in_a_batch_are_named_one_by_one(tmp_path: Path) -> None:
    g = G()
    _, x = embedded(g)
    out, query, _ = attention(g, shift(g, x))
    path = g.save(tmp_path, out, query)
    texts = [attnx.tokens.from_ids(list(range(size))) for size in (5, 7, 6, 8)]
    for text, trace in zip(
        texts, attnx.open(path, device="cpu").trace_many(texts, quantities=("weights",)), strict=True
    ):
        (one,) = trace.attentions
        assert named(trace.queries_of(one)) == standing(path, query, len(text))


def test_interventions_name_positions_as_they_stand(tmp_path: Path) -> None:
    g = G()
    _, x = embedded(g)
    out, query, _ = attention(g, shift(g, x))
    path = g.save(tmp_path, out, query)
    opened = attnx.open(path, device="cpu")
    assert named(plan_run(opened, Prompt(inputs={"input_ids": np.arange(7)[None]})).tokens) == standing(path, query, 7)


def test_pieces_of_a_text_that_are_read_one_after_the_other_are_numbered() -> None:
    order = ((0, -1, 0, 0, 1), (0, 0, 1, 1, -1))
    site = Site(0, 0, "decoder", "self", "Softmax", "n", 1, 1, 2, 1.0, query_order=order, key_order=order)
    calls = [Attention(site, weights=np.full((1, 1, 1, 1), 1.0)), Attention(site, weights=np.full((1, 1, 1, 2), 0.5))]
    (joined,) = join_steps([[one] for one in calls])
    assert (joined.site.query_order, joined.site.key_order) == ((), ())


def test_rows_by_words_are_refused(tmp_path: Path) -> None:
    g = G()
    _, x = embedded(g)
    out, *_ = attention(g, shift(g, x))
    with pytest.raises(UnsupportedError, match="moves the tokens"):
        in_place(attnx.open(g.save(tmp_path, out), device="cpu").sites)


@pytest.mark.parametrize("order", [((0, 0, 1, 0, 20),), ((0, 5, 1, 1, 0),), ((0, 0, 1, 1, -5),), ()])
def test_an_order_that_does_not_fit_a_text_names_nothing(order: Order) -> None:
    assert reordered(numbered(8), order) is None
