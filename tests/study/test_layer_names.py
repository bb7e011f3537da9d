"""Layers counted from the end."""

import pytest

from attnx.errors import UsageError
from attnx.records import Site
from attnx.study.layer_names import from_end, numbered, numbered_pairs


def sites(*layers: int, component: str = "decoder", kind: str = "self") -> list[Site]:
    return [
        Site(
            index=at,
            layer=layer,
            component=component,
            kind=kind,
            op="Softmax",
            node=str(at),
            heads=2,
            kv_heads=2,
            head_size=4,
            scale=0.5,
        )
        for at, layer in enumerate(layers)
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("last", "5"), ("-1", "5"), ("LAST", "5"), ("-6", "0"), ("0,last", "0,5"), ("-3--1", "3-5"), ("2-last", "2-5"),
        ("last.3", "5.3"), ("-1.3", "5.3"), ("-2H11", "4H11"), ("Llast.0", "5.0"), ("last-last", "5-5"),
        ("5", "5"), ("2-4", "2-4"), ("L2-L4", "L2-L4"), ("5.11", "5.11"), ("nonsense", "nonsense"), ("", ""),
        ("last thing", "last thing"), ("-", "-"), ("1,", "1,"),
    ],
)  # fmt: skip
def test_a_layer_from_the_end_is_its_number(text: str, says: str) -> None:
    assert numbered(text, sites(0, 1, 2, 3, 4, 5)) == says
    assert from_end(text) == (says != text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("-1", "-1"),
        ("last", "last"),
        ("0,last", "0,last"),
        ("last.last", "last.last"),
        ("-1.3", "5.3"),
        ("lastH3", "5H3"),
    ],
)
def test_a_head_alone_does_not_count_from_the_end(text: str, says: str) -> None:
    assert numbered(text, sites(0, 1, 2, 3, 4, 5), head=True) == says


def test_layers_of_a_part_of_the_model_are_counted_as_they_are_numbered() -> None:
    assert numbered("-1,-2", sites(0, 4, 7)) == "7,4"


def test_layers_that_are_not_there() -> None:
    with pytest.raises(UsageError) as caught:
        numbered("-4", sites(0, 1, 2))
    assert caught.value.message == "there is no layer -4"
    assert caught.value.hint == "The layers are 0 to 2, or -3 to -1."
    with pytest.raises(UsageError, match="there is no layer -0"):
        numbered("-0", sites(0, 1, 2))
    with pytest.raises(UsageError, match="not known"):
        numbered("last", [])


def test_parts_that_end_at_different_layers_are_told_apart() -> None:
    both = [*sites(0, 1, 2, component="encoder"), *sites(0, 1), *sites(0, 1, kind="cross")]
    with pytest.raises(UsageError, match="not the same everywhere: encoder 2, decoder 1, cross 1"):
        numbered("last", both)
    assert numbered("last", both, "encoder") == "2"
    assert numbered("last.1", both, "cross") == "1.1"


def test_pairs_are_counted_each_in_its_model() -> None:
    one, two = sites(0, 1, 2), sites(*range(6))
    assert numbered_pairs(["0=0", "-1=last"], one, two) == ["0=0", "2=5"]
    assert numbered_pairs(["last"], one, two) == ["2=5"]
    assert numbered_pairs(["0,-2--1=2-3"], one, two) == ["0", "1-2=2-3"]
