"""Wrong names and types from Python are told as such, before anything is run."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attnx
from attnx.errors import AttnxError, InputError, ModelError, UsageError
from attnx.model import Model

TEXT = "it was"
WRONG: dict[str, tuple[Callable[[Any], Any], type[AttnxError], str]] = {
    "names for a switch": (lambda m: m.trace(TEXT, outputs=["logits"]), UsageError, "outputs is True or False"),
    "a number for a switch": (lambda m: m.trace(TEXT, verify=1), UsageError, "verify is True or False"),
    "a quantity misspelt": (lambda m: m.trace(TEXT, quantities=["weigths"]), UsageError, "no quantity 'weigths'"),
    "one name for a list": (lambda m: m.trace(TEXT, quantities="weights"), UsageError, "names in a list"),
    "a number for names": (lambda m: m.trace(TEXT, quantities=3), UsageError, "names in a list"),
    "one layer for a list": (lambda m: m.trace(TEXT, layers=5), UsageError, "layers are whole numbers in a list"),
    "layers as texts": (lambda m: m.trace(TEXT, layers=["5"]), UsageError, "one of these is str '5'"),
    "a fraction of a layer": (lambda m: m.trace(TEXT, layers=[1.5]), UsageError, "one of these is float"),
    "a truth for a layer": (lambda m: m.trace(TEXT, layers=[True]), UsageError, "one of these is bool"),
    "a layer that is not there": (lambda m: m.trace(TEXT, layers=[99]), UsageError, "no layer 99"),
    "no layers": (lambda m: m.trace(TEXT, layers=[]), UsageError, "layers is empty"),
    "no quantities": (lambda m: m.trace(TEXT, quantities=()), UsageError, "quantities is empty"),
    "a quantity that is not there": (
        lambda m: m.trace(TEXT, layers=[0]).attentions[0].need("wights"),
        UsageError,
        "no quantity 'wights'",
    ),
    "a text and tokens": (lambda m: m.trace(TEXT, tokens=m.encode(TEXT)), UsageError, "both given"),
    "heads of a text and tokens": (lambda m: m.heads(TEXT, tokens=m.encode(TEXT)), UsageError, "both given"),
    "a word for positions": (lambda m: m.rows(TEXT, "it"), UsageError, "positions are whole numbers in a list"),
    "words for positions": (lambda m: m.rows(TEXT, ["it"]), UsageError, "one of these is str 'it'"),
    "one position": (lambda m: m.rows(TEXT, 1), UsageError, "positions are whole numbers in a list"),
    "no positions": (lambda m: m.rows(TEXT, []), InputError, "no positions were given"),
    "a position beyond": (lambda m: m.rows(TEXT, [99]), InputError, "no token 99"),
    "rows of a quantity misspelt": (lambda m: m.rows(TEXT, [1], quantities=["x"]), UsageError, "no quantity 'x'"),
    "heads of one layer": (lambda m: m.heads(TEXT, layers=5), UsageError, "layers are"),
    "a text for tokens": (lambda m: m.trace(tokens="it"), UsageError, "tokens are what attnx.tokens makes"),
    "ids for tokens": (lambda m: m.trace(tokens=[101, 102]), UsageError, "this is list"),
    "a number for inputs": (lambda m: m.trace(TEXT, inputs=5), UsageError, "arrays by name"),
    "values hidden from numpy alone": (
        lambda m: m.trace(TEXT, inputs={"attention_mask": np.ma.array([[1, 1]], mask=[[0, 1]])}),
        InputError,
        "hides 1",
    ),
    "values hidden from numpy alone, in a feed": (
        lambda m: m.ablate({"input_ids": np.ma.array([[101, 102]], mask=[[0, 1]])}),
        InputError,
        "hides 1",
    ),
    "ragged rows": (lambda m: m.trace(TEXT, inputs={"attention_mask": [[1], [1, 1]]}), InputError, "different lengths"),
    "a number for a picture": (lambda m: m.trace(image=3), UsageError, "a picture is the path of a file"),
    "a number for a sound": (lambda m: m.trace(audio=3), UsageError, "a sound is the path of a file"),
    "a text for a count": (lambda m: m.trace(TEXT, generate="3"), UsageError, "from 1"),
    "texts in batches of none": (lambda m: list(m.trace_many([TEXT], size=0)), UsageError, "from 1, and this is 0"),
    "texts in batches of a text": (lambda m: list(m.trace_many([TEXT], size="3")), UsageError, "this is str '3'"),
    "many texts, one layer": (lambda m: list(m.trace_many([TEXT], layers=2)), UsageError, "layers are"),
    "many texts, a name": (lambda m: list(m.trace_many([TEXT], quantities=["x"])), UsageError, "no quantity 'x'"),
    "a number for a model": (lambda _: attnx.open(5), UsageError, "a model is the path"),
    "no name of a model": (lambda _: attnx.open(""), ModelError, "has no name"),
    "a name of a model beyond what a file can have": (lambda _: attnx.open("x" * 5000), ModelError, "name too long"),
    "a number for a device": (lambda _: attnx.open("minilm", device=5), UsageError, "a device is a name"),
    "a device that is none": (lambda _: attnx.open("minilm", device="tpu"), UsageError, "no device 'tpu'"),
    "a number for a tokenizer": (lambda _: attnx.open("minilm", tokenizer=5), UsageError, "a tokenizer is the path"),
    "nothing for a tokenizer": (lambda _: attnx.open("minilm", tokenizer=[]), UsageError, "a tokenizer is the path"),
}


TWO = ("the cat sat", "the dog sat")
EXPERIMENTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a head as a text": (lambda m: m.ablate(TEXT, heads="0.1"), "heads are pairs .* in a list"),
    "heads as texts": (lambda m: m.ablate(TEXT, heads=["0.1"]), "one of these is str '0.1'"),
    "heads as numbers": (lambda m: m.ablate(TEXT, heads=[3]), "one of these is int '3'"),
    "a fraction of a head": (lambda m: m.ablate(TEXT, heads=[(0, 0.0)]), "pairs"),
    "a truth for a head": (lambda m: m.patch(*TWO, heads=[(0, True)]), "pairs"),
    "a sender as a text": (lambda m: m.patch_paths(*TWO, from_="0.1"), "from_ are pairs"),
    "receivers as texts": (lambda m: m.patch_paths(*TWO, to=["3.1"]), "to are pairs"),
    "a layer for a list": (lambda m: m.ablate(TEXT, layers=3), "layers are whole numbers"),
    "an edge as a text": (lambda m: m.ablate(TEXT, edges=["it:was"]), "edges are pairs"),
    "a place before the first": (lambda m: m.lens(TEXT, at=-1), "no position -1"),
    "a place that is a fraction": (lambda m: m.ablate(TEXT, queries=[1.5]), "float '1.5'"),
    "a place beyond": (lambda m: m.attribute(TEXT, at=99), "no position 99"),
    "read before the first": (lambda m: m.patch(*TWO, read=-9), "no position -9"),
    "an answer as a number": (lambda m: m.ablate(TEXT, answer=5), "answer.* is a word, and this is int"),
    "no such method": (lambda m: m.ablate(TEXT, method="x"), "no method 'x'"),
    "no such way": (lambda m: m.patch(*TWO, by="x"), "no by 'x'"),
    "none of the best": (lambda m: m.lens(TEXT, top=0), "from 1, and this is 0"),
    "nothing among texts": (lambda m: list(m.trace_many([TEXT, None])), "this is NoneType"),
    "a place for a list": (lambda m: m.ablate(TEXT, queries=1), "queries takes several in a list, and this is int"),
    "a word for a list": (lambda m: m.ablate(TEXT, queries="it"), "queries takes several in a list, and this is str"),
    "no list of edges": (lambda m: m.ablate(TEXT, edges=None), "edges takes several in a list"),
    "kinds for a kind": (lambda m: m.patch(*TWO, component=["decoder"]), "no component"),
    "a number for texts": (lambda m: m.trace_many(5), "several texts go in a list"),
    "a text for a feed": (lambda m: m.find("x"), "arrays by name"),
}


@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_what_is_wrong_in_an_experiment_is_told(kind: str, gpt: Model) -> None:
    call, said = EXPERIMENTS[kind]
    with pytest.raises(UsageError, match=said):
        call(gpt)


@pytest.mark.parametrize("name", ["ablate", "patch", "patch_paths", "lens", "attribute"])
def test_an_argument_that_is_none_is_told_by_the_name_of_the_call(name: str, gpt: Model) -> None:
    texts = TWO if name.startswith("patch") else TWO[:1]
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'bogus'$"):
        getattr(gpt, name)(*texts, bogus=1)


def test_numbers_of_numpy_are_positions_and_heads(gpt: Model) -> None:
    one, head = np.int64(1), (np.int64(0), np.int32(2))
    assert gpt.lens(TEXT, at=one).positions == gpt.lens(TEXT, at=[1]).positions == (1,)
    named = [gpt.ablate(TEXT, heads=[h], queries=[q]).effects[0] for h, q in ((head, one), ((0, 2), 1))]
    assert named[0] == named[1]


@pytest.fixture(scope="module")
def gpt() -> Model:
    return attnx.open("tiny-gpt", device="cpu")


@pytest.fixture(scope="module")
def minilm() -> Model:
    return attnx.open("minilm", device="cpu")


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_told(kind: str, minilm: Model) -> None:
    call, error, said = WRONG[kind]
    with pytest.raises(error, match=said) as caught:
        call(minilm)
    assert type(caught.value) is error


def test_a_copy_opens_the_files_anew(minilm: Model) -> None:
    want = minilm.trace(TEXT, layers=[5]).attentions[0].need("weights")
    copy = pickle.loads(pickle.dumps(minilm))
    assert (copy.name, copy.path, copy.device) == (minilm.name, minilm.path.resolve(), "cpu")
    np.testing.assert_array_equal(copy.trace(TEXT, layers=[5]).attentions[0].need("weights"), want)


def test_an_edge_to_what_comes_later_is_told(gpt: Model) -> None:
    found = gpt.ablate("the cat sat", heads=[(0, 1)], edges=[("cat", "sat")])
    assert any("cannot see" in note and "comes later" in note for note in found.notes)
    assert found.effects[0].change.moved == 0
    there = gpt.ablate("the cat sat", heads=[(0, 1)], edges=[("sat", "cat")])
    assert not any("cannot see" in note for note in there.notes)


def test_a_near_name_is_offered(minilm: Model) -> None:
    with pytest.raises(UsageError) as caught:
        minilm.trace(TEXT, quantities=["weigths"])
    assert caught.value.hint.startswith("Did you mean weights?")


def test_what_is_as_good_as_a_list_is_taken(minilm: Model) -> None:
    for layers in (np.array([5]), range(5, 6), iter([5]), {5}, (np.int64(5),)):
        assert [a.site.layer for a in minilm.trace(TEXT, layers=layers, quantities=["weights"]).attentions] == [5]
    assert minilm.rows(TEXT, np.array([1]), layers=[5]).rows == (1,)
    lists = minilm.trace(TEXT, inputs={"attention_mask": [[1, 1, 1, 0]]}, layers=[5])
    assert not lists.attentions[0].need("weights")[0, :, :, 3].any()
