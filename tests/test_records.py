"""Records that hold arrays can be compared and be keys: none raises numpy's "truth value of an array is ambiguous"."""

from copy import copy
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

import attnx
from attnx import records

HOLDERS = [
    one
    for one in vars(records).values()
    if isinstance(one, type) and is_dataclass(one) and any("Array" in str(f.type) for f in fields(one))
]


def test_every_record_with_arrays_is_held_here() -> None:
    assert {one.__name__ for one in HOLDERS} >= {"Tokens", "Attention", "Trace", "Measurement"}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_holds_arrays_is_equal_to_itself_alone(holder: type) -> None:
    assert holder.__eq__ is object.__eq__
    assert holder.__hash__ is object.__hash__


def test_comparing_and_finding() -> None:
    model = attnx.open("minilm", device="cpu")
    one, other = model.trace("It was."), model.trace("It was.")
    ranges = tuple(records.Axis(name, ("0", "1")) for name in ("layer", "head"))
    measured = records.Measurement("m", "", ranges, np.zeros((2, 2)))
    for mine, twin in (
        (one, other),
        (one.tokens, other.tokens),
        (one.attentions[0], other.attentions[0]),
        (measured, copy(measured)),
    ):
        assert mine == mine
        assert mine != twin
        assert mine in [twin, mine]
        assert len({mine, twin}) == 2
    assert one.attentions.index(one.attentions[3]) == 3
    assert one.attentions[0].site == other.attentions[0].site
