"""Arrays written on the command line."""

from pathlib import Path

import numpy as np
import pytest

from attnx.cli import app as cli
from attnx.cli.set_option import parse_dims, read_settings
from attnx.errors import InputError, UsageError
from attnx.session.disagreement import disagreement
from attnx.session.ort import Slot

SLOTS = [
    Slot("hidden", ("batch", 4, "height", "width"), "tensor(float)"),
    Slot("step", ("batch",), "tensor(int64)"),
    Slot("ids", ("batch", "seq"), "tensor(int64)"),
    Slot("on", (1,), "tensor(bool)"),
    Slot("scale", (), "tensor(float16)"),
    Slot("open", (None, 3), "tensor(float)"),
]


def test_each_kind_of_value() -> None:
    dims = parse_dims(["height=2", "width=3", "seq=4"])
    got = read_settings(["hidden=randn:5", "step=7", "ids=arange", "on=true", "scale=0.5", "open=ones"], SLOTS, dims)
    np.testing.assert_array_equal(
        got["hidden"], np.random.default_rng(5).standard_normal((1, 4, 2, 3)).astype(np.float32)
    )
    assert got["step"].tolist() == [7]
    assert got["ids"].tolist() == [[0, 1, 2, 3]]
    assert got["on"].tolist() == [True]
    assert got["scale"].shape == ()
    assert (got["scale"].dtype, float(got["scale"])) == (np.float16, 0.5)
    assert got["open"].tolist() == [[1.0, 1.0, 1.0]]
    assert [got[n].dtype.name for n in ("hidden", "step", "on")] == ["float32", "int64", "bool"]


def test_lists_files_and_sizes_read_off_other_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 4, 1, 1), np.float32))
    assert read_settings(["ids=5,6,7"], SLOTS)["ids"].tolist() == [[5, 6, 7]]
    assert read_settings([f"hidden=@{tmp_path / 'a.npy'}"], SLOTS)["hidden"].shape == (2, 4, 1, 1)
    given = {"ids": np.zeros((3, 6), np.int64)}
    assert read_settings(["step=zeros"], SLOTS, None, given)["step"].tolist() == [0, 0, 0]
    assert read_settings(["hidden=zeros"], SLOTS, {"height": 2, "width": 2}, given)["hidden"].shape == (3, 4, 2, 2)


@pytest.mark.parametrize(
    ("text", "dims", "said"),
    [
        ("nothing=1", {}, "names no input"),
        ("hidden", {}, "names no input"),
        ("hidden=zeros", {}, "height is open"),
        ("hidden=1,2", {"height": 2, "width": 2}, "a list fills one row"),
        ("step=0.5", {}, "does not fit"),
        ("step=randn", {}, "randn|takes"),
        ("hidden=randn:x", {"height": 1, "width": 1}, "seed"),
        ("step=many", {}, "not a value"),
        ("on=2", {}, "does not fit"),
    ],
)
def test_what_cannot_be_set(text: str, dims: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_settings([text], SLOTS, dims)


def test_dims_and_files_that_are_wrong(tmp_path: Path) -> None:
    for text in ("batch", "batch=x", "=3", "batch=-1"):
        with pytest.raises(UsageError, match="not of the form NAME=SIZE"):
            parse_dims([text])
    with pytest.raises(UsageError, match="--dim batch: the size is too large"):
        parse_dims(["batch=1000000001"])
    with pytest.raises(UsageError, match="--dim height: the size is too large"):
        parse_dims(["height=" + "9" * 5000])
    with pytest.raises(UsageError, match="no dimension depth"):
        read_settings([], SLOTS, {"depth": 2})
    with pytest.raises(InputError, match="no file"):
        read_settings([f"step=@{tmp_path / 'x.npy'}"], SLOTS)
    (tmp_path / "bad.npy").write_text("no array")
    with pytest.raises(InputError, match=r"not a \.npy file"):
        read_settings([f"step=@{tmp_path / 'bad.npy'}"], SLOTS)


@pytest.mark.parametrize("dim", ["N", "?", "batch_size", "DynamicDimension.0", "b", None])
def test_the_first_of_several_dimensions_is_a_batch_of_one(dim: str | None) -> None:
    slot = Slot("x", (dim, 3, "w"), "tensor(float)")
    assert read_settings(["x=zeros"], [slot], {"w": 2})["x"].shape == (1, 3, 2)


@pytest.mark.parametrize(
    ("shape", "said"), [(("seq_len", 4), "--dim seq_len=8"), ((2, "?"), "@file.npy"), (("n",), "n=8")]
)
def test_a_sequence_of_unknown_length_is_no_batch(shape: tuple[int | str, ...], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_settings(["x=zeros"], [Slot("x", shape, "tensor(float)")])
    assert said in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "hidden=randn:²", "hidden=randn:-1", "hidden=randn:1_0", f"hidden=randn:{'9' * 5000}", "hidden=ones:3",
        "step=²", "step=٣", "step=1_0", "step=nan", "step=inf", "step=1e999", "step=9223372036854775808", "step=0x10",
        "hidden=1e39", "scale=1e5", "scale=nan", f"step={'9' * 5000}", "step=,", "step=",
    ],
)  # fmt: skip
def test_numbers_that_are_none_or_do_not_fit(text: str) -> None:
    with pytest.raises(UsageError):
        read_settings([text], SLOTS, {"height": 2, "width": 2})


@pytest.mark.parametrize("text", ["height=²", "height=٣", "height=1_0", "height=-1", "height=1e3"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="is not of the form NAME=SIZE"):
        parse_dims([text])


def test_whole_numbers_are_not_rounded_and_masks_may_be_infinite() -> None:
    assert read_settings(["step=9007199254740993"], SLOTS)["step"].tolist() == [9007199254740993]
    got = read_settings(["hidden=-inf"], SLOTS, {"height": 1, "width": 1})["hidden"]
    assert np.isneginf(got).all()


def test_arrays_that_do_not_fit_into_memory_are_refused_before_they_are_made() -> None:
    with pytest.raises(UsageError, match="GB"):
        read_settings(["hidden=zeros"], SLOTS, {"height": 10**9, "width": 10**9})
    with pytest.raises(UsageError, match="GB"):
        read_settings(["ids=arange"], SLOTS, {"batch": 10**9, "seq": 10**9})


@pytest.mark.parametrize(
    ("command", "name", "length", "want"),
    [
        (("inspect", "A dog."), "attention_mask", 2, 5),
        (("heads", "A dog."), "attention_mask", 9, 5),
        (("ablate", "A dog."), "token_type_ids", 4, 5),
        (("lens", "A dog.", "-m", "tiny-gpt"), "attention_mask", 9, 4),
        (("attribute", "A dog.", "-m", "tiny-gpt"), "attention_mask", 2, 4),
    ],
)
def test_a_list_of_another_length_than_the_text_is_named(
    command: tuple[str, ...], name: str, length: int, want: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not in onnxruntime's words; a length of 1 stands for all tokens."""
    assert cli.run([*command, "--set", f"{name}={','.join('1' * length)}"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"input {name} has {length} entries where input_ids has {want}" in said
    assert f"Give {want} of {name}: --set NAME=VALUE or --inputs FEED.npz." in said
    assert "onnxruntime" not in said
    assert cli.run([*command, "--set", f"{name}=1"]) == 0


def test_lengths_that_go_together() -> None:
    def slot(name: str, *shape: int | str | None) -> Slot:
        return Slot(name, shape, "tensor(int64)")

    slots = [slot("mask", "b", "s"), slot("ids", "b", "s"), slot("types", "b", "s"), slot("x", 2, None), slot("y", "?")]
    feed = {name: np.zeros((2, 5)) for name in ("mask", "ids", "types", "x")} | {"y": np.zeros(9)}
    assert disagreement(slots, feed) is None
    assert disagreement(slots, {**feed, "mask": np.zeros((1, 1))}) is None
    assert disagreement(slots, {**feed, "mask": np.zeros(7)}) is None
    assert disagreement(slots[:1], feed) is None
    cached = [slot("input_ids", "b", "s"), slot("mask", "b", "all"), slot("past.0.key", "b", 2, "past", 4)]
    old = {"input_ids": np.zeros((1, 3)), "past.0.key": np.zeros((1, 2, 4, 4))}
    assert [disagreement(cached, {**old, "mask": np.zeros((1, size))}) for size in (1, 4, 7)] == [None] * 3
    beyond = disagreement(cached, {**old, "mask": np.zeros((1, 5))})
    assert beyond is not None
    assert (beyond.message, beyond.hint) == (
        "input mask has 5 entries where input_ids has 3 and the past 4", "Give 7 of mask.",
    )  # fmt: skip
    for wrong, said in ((np.zeros((2, 3)), "mask has 3 entries where ids has 5"), (np.zeros((4, 5)), "has 4 entries")):
        error = disagreement(slots, {**feed, "mask": wrong})
        assert error is not None
        assert said in error.message
        assert error.hint.startswith("Give ")
