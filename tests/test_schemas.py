"""Validating a cut-down document finds what validating the whole one finds."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from attnx.cli import app as cli
from attnx.view.json import schema
from tests.schemas import LONG, brief, validate

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


@pytest.mark.parametrize("at", [("tokens", "ids"), ("measures", 0, "axes"), ("measures", 0, "values", 0), ("notes",)])
def test_what_stands_behind_references_is_held(at: tuple[str | int, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """As by jsonschema's own way through the schema that ships."""
    assert cli.run(["heads", "a b", "-m", "tiny-gpt", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    validate(document)
    inner = document
    for step in at[:-1]:
        inner = inner[step]
    inner[at[-1]] = {"a text": "where an array stands"}
    plain = jsonschema.Draft202012Validator(schema("attnx/heads"))
    assert not plain.is_valid(document)
    with pytest.raises(jsonschema.ValidationError) as found:
        validate(document)
    assert found.value.json_path in {error.json_path for error in plain.iter_errors(brief(document))}
