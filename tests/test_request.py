"""Options into a request."""

import pytest

from attnx.errors import UsageError
from attnx.study.request import Head, ask, parse_head, parse_layers, parse_quantities
from attnx.study.selection import layers_of


@pytest.mark.parametrize(
    ("text", "layers"),
    [("5", (5,)), ("0,2-4", (0, 2, 3, 4)), ("4, 1 ,4", (1, 4)), ("L3", (3,)), ("l1-L2", (1, 2)), ("7-7", (7,))],
)
def test_layers(text: str, layers: tuple[int, ...]) -> None:
    assert parse_layers(text) == layers


@pytest.mark.parametrize("text", ["", "-1", "4-2", "1.5", "a", "1,", "1--2", "٣", "99999999999"])
def test_no_layers(text: str) -> None:
    with pytest.raises(UsageError):
        parse_layers(text)


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("11", Head(None, 11)),
        ("5.11", Head(5, 11)),
        ("L5H11", Head(5, 11)),
        ("l5 h11", Head(5, 11)),
        ("H3", Head(None, 3)),
    ],
)
def test_head(text: str, head: Head) -> None:
    assert parse_head(text) == head


@pytest.mark.parametrize("text", ["", "5.", ".5", "5.1.1", "-1", "L5", "5H", "x"])
def test_no_head(text: str) -> None:
    with pytest.raises(UsageError, match="not a head"):
        parse_head(text)


@pytest.mark.parametrize(
    ("options", "view"),
    [
        ({}, "overview"),
        ({"query": "it"}, "ranking"),
        ({"layer": "5"}, "grid"),
        ({"stage": "scores"}, "grid"),
        ({"layer": "5", "query": "it"}, "table"),
        ({"heads": ["5.11"]}, "table"),
        ({"heads": ["5.11"], "query": "it"}, "row"),
        ({"mean": "heads"}, "table"),
        ({"largest": "all", "query": "it"}, "row"),
    ],
)
def test_the_view_that_suits(options: dict[str, str], view: str) -> None:
    assert ask(**options).view == view  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ({}, None),
        ({"heads": ["5.11", "3.1"]}, (3, 5)),
        ({"heads": ["5.11", "1"]}, None),
        ({"heads": ["1"], "layer": "2"}, (2,)),
        ({"layer": "0-1"}, (0, 1)),
    ],
)
def test_only_layers_that_are_shown_are_traced(options: dict[str, str], layers: tuple[int, ...] | None) -> None:
    assert ask(**options).traced_layers == layers  # type: ignore[arg-type]


def test_quantities() -> None:
    assert parse_quantities("weights, scores") == ("scores", "weights")
    assert len(parse_quantities(None)) == 9
    with pytest.raises(UsageError, match="logits"):
        parse_quantities("logits")


@pytest.mark.parametrize(("head", "layer"), [("5.11", "2"), ("0.0", "1-5"), ("L2H3", "0,1,3-5")])
def test_a_head_of_a_layer_that_is_left_out_is_not_passed_over(head: str, layer: str) -> None:
    with pytest.raises(UsageError, match="which `layers` leaves out"):
        ask(heads=["1.2", head], layer=f"{layer},1")
    with pytest.raises(UsageError, match="which `layers` leaves out"):
        layers_of([head], parse_layers(layer))


def test_heads_go_with_layers_that_hold_them() -> None:
    assert ask(heads=["5.11", "3"], layer="2-5").layers == (2, 3, 4, 5)
    assert layers_of(["5.11"], (4, 5)) == (4, 5)
    assert layers_of(["5.11", "2.1"], None) == (2, 5)
