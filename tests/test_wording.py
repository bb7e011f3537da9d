"""Texts that name arguments: in the words of Python, of another reader, and with whatever a user wrote in them."""

import copy
import pickle

import orjson
import pytest

import attnx
from attnx.errors import UsageError
from attnx.wording import PYTHON, Argument, Reader, Wording
from tests.signatures import arguments


class Shouting(Reader):
    """Has what it is told, and writes it in capitals."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def has(self, argument: str) -> bool:
        return argument in self.names

    def argument(self, one: Argument) -> str:
        return f"{one.name.upper()} {one.value}" if one.value else one.name.upper()

    def call(self, name: str, arguments: str | None) -> str:
        return f"{name.upper()}/{arguments}"


@pytest.mark.parametrize(("template", "python", "other"), [
    ("Leave out <image>.", "Leave out `image`.", "Leave out IMAGE."),
    ("Give <target=>.", "Give `target=...`.", "Give TARGET."),
    ("Try <generate=20>.", "Try `generate=20`.", "Try GENERATE 20."),
    ("See <model.find()>.", "See `model.find()`.", "See MODEL.FIND/."),
    ("See <model.sites>.", "See `model.sites`.", "See MODEL.SITES/None."),
    ("<a.b([1, 2], c='d')>", "`a.b([1, 2], c='d')`", "A.B/[1, 2], c='d'"),
    ("Give <target=>[, or <generate=>].", "Give `target=...`, or `generate=...`.", "Give TARGET."),
    ("[With <top>|With <image>|Without].", "With `image`.", "With TOP."),
    ("[With <chat>|Without] it.", "Without it.", "Without it."),
    ("[Give [<image=>, or ]<inputs=>.|Nothing.]", "Give `image=...`, or `inputs=...`.", "Nothing."),
    ("[a note]", "a note", "a note"),
    ("0 < 1, a|b", "0 < 1, a|b", "0 < 1, a|b"),
])  # fmt: skip
def test_every_reader_words_it_its_own_way(template: str, python: str, other: str) -> None:
    made = Wording(template)
    assert (str(made), made.said(Reader()), made.said(Shouting("top"))) == (python, python, other)


def test_values_are_put_in_and_read_for_no_mark() -> None:
    nasty = "<image>[{x}|'\"]"
    made = Wording("{path}: <layers={text!r}> is {share:.1f}, <query={text}>", path=nasty, text=nasty, share=0.25)
    assert made == f"{nasty}: `layers={nasty!r}` is 0.2, `query={nasty!r}`"
    assert Wording("<layers={text!r}>", text="2").said(Reader()) == "`layers='2'`"
    assert Wording("<a.pull({name})>", name="x/y") == "`a.pull('x/y')`"


def test_a_wording_in_a_wording_is_worded_for_the_same_reader() -> None:
    inner = Wording("<top={n}> shows nothing", n=0)
    outer = Wording("line {line}: {what}", line=3, what=inner)
    assert (outer, outer.said(Shouting())) == ("line 3: `top=0` shows nothing", "line 3: TOP 0 shows nothing")


@pytest.mark.parametrize("template", ["a]", "[a", "[a[b]", "[a|b]]"])
def test_brackets_belong_together(template: str) -> None:
    with pytest.raises(ValueError, match="bracket"):
        Wording(template)


def test_a_field_without_a_value_is_a_mistake() -> None:
    with pytest.raises(KeyError, match="nothing"):
        Wording("{nothing}")


def test_it_is_a_str_and_travels_whole() -> None:
    made = Wording("<top={n}> shows nothing", n=0)
    for one in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert (one, one.said(Shouting())) == (made, "TOP 0 shows nothing")
    assert orjson.loads(orjson.dumps({"notes": [str(made)]})) == {"notes": ["`top=0` shows nothing"]}
    error = pickle.loads(pickle.dumps(UsageError(made)))
    assert error.message.said(Shouting()) == "TOP 0 shows nothing"


def test_an_error_is_a_str_that_reads_as_python() -> None:
    error = UsageError(Wording("<top={n}> shows nothing", n=0), Wording("Leave out <top>."))
    assert (str(error), error.message, error.hint) == (
        "`top=0` shows nothing",
        "`top=0` shows nothing",
        "Leave out `top`.",
    )
    with pytest.raises(UsageError) as caught:
        attnx.open().trace("a b", generate=0)
    assert caught.value.message == "`generate=0`: it takes the number of tokens to write, from 1"
    assert caught.value.hint == "Try `generate=20`."


def test_clauses_for_python_go_by_what_open_and_trace_take() -> None:
    assert {*arguments(attnx.open), *arguments(attnx.Model.trace)} == PYTHON
