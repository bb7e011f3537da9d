"""Validating a cut-down document finds what validating the whole one finds."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from attnx.view.json import schema
from tests.schemas import LONG, brief

MATRIX = [[0.5, None] * LONG, [0.25, 1.0] * LONG]


def test_what_is_left() -> None:
    assert brief({"a": [1, 2, 3], "b": "x", "c": [{"d": []}]}) == {"a": [1, 2, 3], "b": "x", "c": [{"d": []}]}
    assert brief(MATRIX) == [[0.25, 1.0, None]]
    assert brief([MATRIX, MATRIX]) == [[[0.25, 1.0, None]]]
    assert brief([1, 2.5, True, None] * LONG) == [1, 1, 2.5, 2.5, True, True, None]
    pairs = [[at, at + 1] for at in range(2 * LONG)]
    assert brief(pairs) == pairs


@pytest.mark.parametrize("wrong", ["x", True, [0.5], {}])
@pytest.mark.parametrize("row", [0, 1])
def test_one_wrong_cell_is_found(wrong: Any, row: int) -> None:
    defs = schema("attnx/inspect")["$defs"]["records"]["$defs"]
    matrix = {"$ref": "#/$defs/matrix", "$defs": defs}
    jsonschema.validate(brief(MATRIX), matrix)
    spoilt = [list(cells) for cells in MATRIX]
    spoilt[row][LONG] = wrong
    for document in (spoilt, brief(spoilt)):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document, matrix)
