from __future__ import annotations

import dataclasses
import json
from pathlib import PurePosixPath

import jsonschema
import numpy as np
import pytest

from attnx.errors import UsageError
from attnx.records import Site
from attnx.view.json import document, dumps, schema, schemas, tidy
from tests.view import samples


def valid(kind: str, found: object) -> None:
    whole = {"$ref": f"urn:attnx:records#/$defs/{kind}", "$defs": {"records": schema("records")}}
    jsonschema.Draft202012Validator(whole).validate(found)


def read(name: str, body: object, decimals: int | None = None) -> dict[str, object]:
    found = json.loads(dumps(document(name, body, decimals=decimals)))
    assert isinstance(found, dict)
    return found


def test_trace() -> None:
    trace = samples.trace(causal=True)
    found = read("attnx/trace", trace, 4)
    valid("trace", found)
    valid("document", found)
    assert (found["schema"], found["version"]) == ("attnx/trace", 1)
    one = found["attentions"][1]  # type: ignore[index]
    wanted = np.asarray(trace.attentions[1].weights, np.float64)
    np.testing.assert_allclose(one["weights"], wanted, atol=0.5e-4)
    assert one["weights"][0][3][10][2] == round(float(wanted[0, 3, 10, 2]), 4)
    assert one["masked"][0][0][0][1] is None
    assert "query" not in one
    assert one["trusted"] is True
    assert found["tokens"]["pieces"][2] == "animal"  # type: ignore[index]


def test_site_has_the_names_that_others_use() -> None:
    site = samples.trace().attentions[0].site
    found = tidy(site)
    valid("site", found)
    assert found["head_dim"] == found["head_size"] == 32
    assert found["scale"] == 32**-0.5
    assert found["scales"] is None
    by_head = tidy(dataclasses.replace(site, scale=(0.1, 0.2), layer=None, causal=None))
    valid("site", by_head)
    assert (by_head["scale"], by_head["scales"]) == (None, [0.1, 0.2])
    assert set(Site.__dataclass_fields__) <= set(found)


@pytest.mark.parametrize("kind", ["measurement", "miss", "tokens", "check", "axis", "place"])
def test_every_record_is_valid(kind: str) -> None:
    trace = samples.trace()
    record = {
        "measurement": samples.by_candidate(),
        "miss": trace.misses[0],
        "tokens": trace.tokens,
        "check": trace.attentions[0].checks[0],
        "axis": samples.by_head().axes[0],
        "place": trace.attentions[0].site.places["query"],
    }[kind]
    valid(kind, json.loads(dumps(document("attnx/x", record))))


def test_nan_and_infinities_are_null() -> None:
    body = {"a": np.array([np.nan, np.inf, -np.inf, 1.0]), "b": float("nan"), "c": np.float32(0.1), "d": -float("inf")}
    assert read("attnx/x", body, 3) == {
        "schema": "attnx/x", "version": 1, "a": [None, None, None, 1.0], "b": None, "c": 0.1, "d": None,
    }  # fmt: skip
    assert read("attnx/x", samples.by_candidate())["values"] == [0.67, 0.1, 0.03, 0.2, None]


def test_decimals() -> None:
    body = {"a": np.array([0.67349, -0.00001], np.float32), "b": 0.67349, "c": np.array([[1.23456]])}
    found = dumps(document("attnx/x", body, decimals=3))
    assert found == b'{"schema":"attnx/x","version":1,"a":[0.673,0.0],"b":0.673,"c":[[1.235]]}\n'


def test_tolerances_are_never_rounded_away() -> None:
    found = read("attnx/x", samples.trace().attentions[0], 2)
    assert found["checks"][0]["tolerance"] == 1e-4  # type: ignore[index]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3).T, np.arange(3, dtype=">f4"), np.arange(3, dtype=np.float16),
        np.arange(3, dtype=np.int64)[::2], np.array([True, False]), np.array(["a", "한"]), np.array(2.5),
        np.zeros((0, 3)), np.arange(4, dtype=np.longdouble),
    ],
)  # fmt: skip
def test_arrays_of_every_kind(array: np.ndarray) -> None:
    assert read("attnx/x", {"a": array})["a"] == array.tolist()


def test_text_of_every_kind() -> None:
    body = {
        "a": "\ud800",
        "b": "고양이 [bold] \x1b \u0000",
        "c": PurePosixPath("/x/y"),
        3: ("a", None, True),
        "s": {"b", "a"},
    }
    found = read("attnx/x", body)
    assert found["a"] == "\\ud800"
    assert found["b"] == "고양이 [bold] \x1b \u0000"
    assert found["c"] == "/x/y"
    assert found["3"] == ["a", None, True]
    assert found["s"] == ["a", "b"]


def test_one_line_and_indented() -> None:
    found = document("attnx/x", {"a": [1, 2]})
    assert dumps(found).count(b"\n") == 1
    assert json.loads(dumps(found, indent=True)) == json.loads(dumps(found))
    assert dumps(found, indent=True).count(b"\n") > 3


def test_what_is_no_record_is_our_mistake() -> None:
    with pytest.raises(TypeError, match="object"):
        tidy(object())
    with pytest.raises(TypeError, match="list"):
        document("attnx/x", [1])


@pytest.mark.parametrize("name", schemas())
def test_schemas_that_ship_are_schemas_and_stand_alone(name: str) -> None:
    whole = schema(name)
    jsonschema.Draft202012Validator.check_schema(whole)
    ids = {whole.get("$id"), *(part.get("$id") for part in whole.get("$defs", {}).values())}
    for line in json.dumps(whole).split('"$ref": "')[1:]:
        target = line.split('"')[0].split("#")[0]
        assert target in ("", *ids), target


def test_no_such_schema() -> None:
    with pytest.raises(UsageError, match="no schema"):
        schema("nothing")


def test_wrong_documents_are_found_out() -> None:
    found = read("attnx/trace", samples.trace())
    found["attentions"][0]["site"]["kind"] = "sideways"  # type: ignore[index]
    with pytest.raises(jsonschema.ValidationError):
        valid("trace", found)
    with pytest.raises(jsonschema.ValidationError):
        valid("document", {"schema": "other/trace", "version": 1})
