"""What fills a model's inputs, told from their names, types and shapes."""

import numpy as np
import pytest

from attnx.cli.wording import worded
from attnx.errors import InputError
from attnx.feed import fill as feeding
from attnx.feed.inputs import (
    Needs,
    batch_of,
    encoder_side,
    fixed_length,
    is_ids,
    is_past,
    own_mask,
    padded,
    takes_target,
)
from attnx.records import Attention, Site
from attnx.run.axis_tokens import name_axes
from attnx.run.kvcache import carry, is_static, pair, room
from attnx.session.ort import Slot
from attnx.tokens import from_ids
from attnx.tokens.axes import join, labelled, numbered

INT, FLOAT, BOOL = "tensor(int64)", "tensor(float)", "tensor(bool)"


def needs(length: int = 3, past: int = 0, **more: object) -> Needs:
    ids = np.arange(1, length + 1)[None]
    return Needs(ids, np.ones((1, past + length), np.int64), np.zeros_like(ids), past=past, **more)  # type: ignore[arg-type]


def one(slot: Slot, have: Needs) -> np.ndarray:
    return feeding.derive([slot], have)[slot.name]


def test_a_plain_encoder() -> None:
    slots = [Slot(n, ("batch", "seq"), INT) for n in ("input_ids", "attention_mask", "token_type_ids")]
    got = feeding.derive(slots, batch_of([from_ids([5, 6, 7])]))
    assert {k: v.tolist() for k, v in got.items()} == {
        "input_ids": [[5, 6, 7]],
        "attention_mask": [[1, 1, 1]],
        "token_type_ids": [[0, 0, 0]],
    }


@pytest.mark.parametrize(
    ("slot", "want"),
    [
        (Slot("position_ids", ("b", "s"), INT), [[4, 5, 6]]),
        (Slot("position_ids", (3, "b", "s"), INT), [[[4, 5, 6]]] * 3),
        (Slot("cache_position", ("s",), INT), [4, 5, 6]),
        (Slot("attention_mask", ("b", "t"), INT), [[1] * 7]),
        (Slot("attention_mask", ("b", 10), INT), [[1] * 7 + [0] * 3]),
        (Slot("use_cache_branch", (1,), BOOL), [True]),
        (Slot("num_logits_to_keep", (), INT), 0),
        (Slot("seqlens_k", ("b",), "tensor(int32)"), [6]),
        (Slot("total_sequence_length", (), "tensor(int32)"), 7),
        (Slot("past_sequence_length", (1,), "tensor(int32)"), [4]),
    ],
)
def test_what_depends_on_the_cache(slot: Slot, want: object) -> None:
    got = one(slot, needs(3, past=4))
    assert got.tolist() == want
    assert got.dtype == slot.dtype


def test_no_token_attends_to_all_unless_it_is_said() -> None:
    slots = [Slot(n, ("b", "s"), INT) for n in ("global_attention_mask", "attention_mask")]
    got = feeding.derive(slots, needs(4))
    assert {k: v.tolist() for k, v in got.items()} == {
        "global_attention_mask": [[0] * 4],
        "attention_mask": [[1] * 4],
    }
    assert own_mask(slots, got) == slots[1]


def test_square_masks() -> None:
    have = needs(2, past=1)
    seen = [[True, True, False], [True, True, True]]
    assert one(Slot("mask", ("b", 1, "q", "k"), BOOL), have)[0, 0].tolist() == seen
    added = one(Slot("attention_mask", ("b", 1, "q", 5), FLOAT), have)[0, 0]
    least = np.finfo(np.float32).min
    assert added.tolist() == [[0, 0, least, least, least], [0, 0, 0, least, least]]
    padding = Needs(np.ones((1, 3), int), np.array([[0, 1, 1]]), np.zeros((1, 3), int))
    assert one(Slot("src_key_padding_mask", ("b", "s"), BOOL), padding).tolist() == [[True, False, False]]
    assert one(Slot("attention_mask", ("b", "s"), BOOL), padding).tolist() == [[False, True, True]]
    assert one(Slot("position_ids", ("b", "s"), INT), padding).tolist() == [[0, 0, 1]]


@pytest.mark.parametrize(
    ("name", "shape", "want"),
    [
        ("past_key_values.0.key", ("batch_size", 4, "past_sequence_length", 8), (1, 4, 0, 8)),
        ("past_key_values.0.key", ("batch_size", "num_heads", "past_len", "head_dim"), (1, 2, 0, 16)),
        ("past_key_values.0.key", ("batch_size", 2, "past_sequence_length", "kv_cache_dim"), (1, 2, 0, 16)),
        ("past_0", (2, "batch", 4, "past", 8), (2, 1, 4, 0, 8)),
        ("past_0", (2, None, 4, None, 8), (2, 1, 4, 0, 8)),
        ("cache_k_0", (1, 2, 32, 8), (1, 2, 32, 8)),
        ("past.0.value", ("batch", "past", 4, 8), (1, 0, 4, 8)),
    ],
)
def test_empty_caches(name: str, shape: tuple[int | str | None, ...], want: tuple[int, ...]) -> None:
    got = one(Slot(name, shape, FLOAT), needs(kv_heads=2, head_size=16))
    assert got.shape == want
    assert not got.any()


def test_a_batch_that_was_exported_fixed_is_filled() -> None:
    got = feeding.derive([Slot("input_ids", (2, "s"), INT), Slot("attention_mask", (2, "s"), INT)], needs())
    assert got["input_ids"].tolist() == [[1, 2, 3]] * 2


def ids(*names: str) -> list[Slot]:
    return [Slot(n, ("b", "s"), INT) for n in names]


def test_two_sides() -> None:
    whole = ids("input_ids", "attention_mask", "decoder_input_ids")
    assert encoder_side(whole) == {"input_ids", "attention_mask"}
    decoder = [*ids("input_ids", "encoder_attention_mask"), Slot("encoder_hidden_states", ("b", "s", 8), FLOAT)]
    assert encoder_side(decoder) == {"encoder_attention_mask", "encoder_hidden_states"}
    assert encoder_side(ids("src", "tgt", "src_pad")) == {"src", "src_pad"}
    assert encoder_side(ids("encoder_input_ids", "encoder_attention_mask")) == set()
    assert encoder_side(ids("input_ids", "attention_mask")) == set()
    assert takes_target(whole)
    assert takes_target(ids("src", "tgt"))
    assert not takes_target(decoder)
    memory = np.ones((1, 2, 8), np.float32)
    have = needs(3, memory_ids=np.array([[8, 9]]), memory_mask=np.array([[1, 0]]), memory=memory)
    got = feeding.derive(whole, have)
    assert {k: v.tolist() for k, v in got.items()} == {
        "input_ids": [[8, 9]],
        "attention_mask": [[1, 0]],
        "decoder_input_ids": [[1, 2, 3]],
    }
    got = feeding.derive(decoder, have)
    assert got["encoder_hidden_states"] is not None
    assert got["encoder_attention_mask"].tolist() == [[1, 0]]
    with pytest.raises(InputError, match="takes two texts"):
        feeding.derive(whole, needs())


def test_what_no_rule_knows_is_named() -> None:
    with pytest.raises(InputError, match=r"timestep: tensor\(float\) \[batch\]") as caught:
        feeding.derive([Slot("timestep", ("batch",), FLOAT)], needs())
    assert "--set" in worded(caught.value.hint)


def test_fixed_lengths() -> None:
    assert fixed_length([Slot("input_ids", (1, 8), INT)]) == 8
    assert fixed_length([Slot("input_ids", (1, "s"), INT)]) is None
    assert padded(from_ids([1, 2]), 4, 9, "<pad>").ids.tolist() == [1, 2, 9, 9]
    with pytest.raises(InputError, match="exactly 1"):
        padded(from_ids([1, 2]), 1)


def test_which_output_fills_which_cache() -> None:
    def slots(*names: str) -> list[Slot]:
        return [*ids("input_ids"), *(Slot(n, ("b", 2, "p", 8), FLOAT) for n in names)]

    usual = slots("past_key_values.0.key", "past_key_values.0.value")
    assert pair(usual, ["logits", "present.0.key", "present.0.value"]) == {
        "past_key_values.0.key": "present.0.key",
        "past_key_values.0.value": "present.0.value",
    }
    assert pair(slots("past_key_self_0", "past_key_cross_0"), ["logits", "present_key_self_0"]) == {
        "past_key_self_0": "present_key_self_0"
    }
    assert pair(slots("past_0", "past_1"), ["logits", "present_a", "present_b"]) == {
        "past_0": "present_a",
        "past_1": "present_b",
    }
    assert pair(usual, ["logits"]) is None
    assert pair(ids("input_ids"), ["logits"]) is None
    assert not any(is_past(s) or not is_ids(s) for s in ids("input_ids"))
    old = {"past.0.encoder.key": np.ones((1, 1, 3, 1)), "past.0.decoder.key": np.ones((1, 1, 1, 1))}
    pairs = {"past.0.encoder.key": "e", "past.0.decoder.key": "d"}
    new = carry(pairs, {"e": np.zeros((1, 1, 0, 1)), "d": np.ones((1, 1, 2, 1))}, old)
    assert {k: v.shape[2] for k, v in new.items()} == {"past.0.encoder.key": 3, "past.0.decoder.key": 2}
    static = [Slot("past_key_values.0.key", ("b", 2, 32, 8), FLOAT)]
    assert (is_static(static), room(static)) == (True, 32)
    assert (is_static(usual), room(usual)) == (False, None)


def site(index: int, kind: str = "self", component: str = "decoder") -> Site:
    return Site(index, 0, component, kind, "Softmax", f"n{index}", 1, 1, 4, 0.5)  # type: ignore[arg-type]


def attention(at: Site, queries: int, keys: int) -> Attention:
    return Attention(at, weights=np.ones((1, 1, queries, keys), np.float32))


def test_axes_are_named_by_what_is_known() -> None:
    text = from_ids([4, 5, 6])
    sites = [attention(site(0), 3, 5), attention(site(1, "cross"), 3, 4), attention(site(2, "pooling"), 1, 3)]
    tokens, memory, sides = name_axes(sites, text, None)
    assert tokens is text
    assert memory is not None
    assert memory.pieces == ("0", "1", "2", "3")
    assert sides[0][1].pieces == ("past0", "past1", "#4", "#5", "#6")
    assert 1 not in sides
    assert (sides[2][0].pieces, sides[2][1]) == (("0",), text)
    tokens, memory, sides = name_axes([attention(site(0, component="encoder"), 2, 2)], None, None)
    assert (tokens.pieces, memory, sides) == (("0", "1"), None, {})
    tokens, _, _ = name_axes(
        [attention(site(0), 2, 2)], None, None, (), lambda n: labelled([f"{i}s" for i in range(n)])
    )
    assert tokens.pieces == ("0s", "1s")
    both = join(numbered(2), text)
    assert both.words == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("pixel_values", ("b", 3, 32, 32), "--image FILE"),
        ("input_features", ("b", 80, 3000), "--audio FILE.wav"),
        ("timestep", ("b",), "Give it: --inputs"),
    ],
)
def test_what_text_cannot_fill_names_the_option_that_can(name: str, shape: tuple[int | str, ...], said: str) -> None:
    with pytest.raises(InputError, match="cannot be made from text") as caught:
        one(Slot(name, shape, FLOAT), needs())
    assert said in worded(caught.value.hint)


@pytest.mark.parametrize(("values", "type_"), [
    (np.array([[-1, 5]], np.int8), "tensor(uint8)"),
    (np.array([[200, 5]], np.uint8), "tensor(int8)"),
    (np.array([[2**64 - 1, 5]], np.uint64), "tensor(int64)"),
    (np.array([[-1, 5]], np.int32), "tensor(uint32)"),
    (np.array([[np.inf, 5.0]]), "tensor(int64)"),
    (np.array([[1e300, 5.0]]), "tensor(float)"),
    (np.array([[2**40, 5]]), "tensor(int32)"),
])  # fmt: skip
def test_numbers_that_an_input_cannot_hold_are_refused(values: np.ndarray, type_: str) -> None:
    """Signed and unsigned of one width each turn back into the other, whatever they became on the way."""
    with pytest.raises(InputError, match="do not fit"):
        feeding.check([Slot("x", ("b", "s"), type_)], {"x": values})


@pytest.mark.parametrize(("values", "type_"), [
    (np.array([[1, 5]], np.int8), "tensor(uint8)"),
    (np.array([[1.0, 5.0]]), "tensor(int64)"),
    (np.array([[-np.inf, 0.5]]), "tensor(float)"),
    (np.array([[True, False]]), "tensor(int64)"),
])  # fmt: skip
def test_numbers_that_an_input_can_hold_are_converted(values: np.ndarray, type_: str) -> None:
    got = feeding.check([Slot("x", ("b", "s"), type_)], {"x": values})["x"]
    np.testing.assert_array_equal(got, values)
    assert got.dtype == Slot("x", ("b", "s"), type_).dtype
