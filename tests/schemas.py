"""Documents held to the schemas that ship, without looking at each of a million numbers by itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema

from attnx.view.json import schema

SHARED = "urn:attnx:records"
LONG = 6
"""Rows of more numbers than that are cut down; shorter ones may be of a fixed length."""


def validate(document: dict[str, Any]) -> None:
    """Fail where a document is not what its schema says.

    Raises:
        jsonschema.ValidationError: Where and why.
    """
    _validator(document["schema"]).validate(brief(document))


@cache
def _validator(name: str) -> Any:
    """One that looks its references up in two dictionaries. That the schemas are ones is a test of its own."""
    own = _whole(schema(name), "")
    there = {SHARED: _whole(schema("records"), SHARED)["$defs"], "": own.pop("$defs", {})}

    def follow(validator: Any, to: str, instance: Any, _: Any) -> Iterator[jsonschema.ValidationError]:
        of, _, part = to.partition("#/$defs/")
        yield from validator.descend(instance, there[of][part])

    kind = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"$ref": follow})
    kind.descend = _descend  # theirs makes a validator for every part of a document, to know where references lead
    return kind(own)


def _descend(
    validator: Any, instance: Any, schema: Any, path: Any = None, schema_path: Any = None, resolver: Any = None
) -> Iterator[jsonschema.ValidationError]:
    """What is wrong with a part of a document, by the validator of the whole."""
    if not isinstance(schema, dict):
        yield from validator.evolve(schema=schema).iter_errors(instance)
        return
    for name, value in schema.items():
        if (check := validator.VALIDATORS.get(name)) is None:
            continue
        for error in check(validator, value, instance, schema) or ():
            error._set(
                validator=name, validator_value=value, instance=instance, schema=schema,
                type_checker=validator.TYPE_CHECKER,
            )  # fmt: skip
            if name not in ("if", "$ref"):
                error.schema_path.appendleft(name)
            if path is not None:
                error.path.appendleft(path)
            if schema_path is not None:
                error.schema_path.appendleft(schema_path)
            yield error


def _whole(value: Any, of: str) -> Any:
    """A schema without its names, whose references all say which schema they lead into."""
    if isinstance(value, list):
        return [_whole(part, of) for part in value]
    if not isinstance(value, dict):
        return value
    out = {key: _whole(part, of) for key, part in value.items() if key != "$id"}
    if str(out.get("$ref", "")).startswith("#"):
        out["$ref"] = of + out["$ref"]
    return out


def brief(value: Any) -> Any:
    """The same, but of a long array of numbers the ends of each type alone: they tell whether all are valid."""
    if isinstance(value, dict):
        return {name: brief(part) for name, part in value.items()}
    if not isinstance(value, list):
        return value
    if (found := _numbers(value)) is None:
        return [brief(part) for part in value]
    rank, array = found
    for _ in range(rank - 1):
        array = [array]
    return array


def _numbers(value: Any) -> tuple[int, list[Any]] | None:
    """The rank and the ends of a long array of numbers; None for anything else."""
    if not isinstance(value, list) or not value:
        return None
    if all(part is None or isinstance(part, int | float) for part in value):
        return (1, _ends(value)) if len(value) > LONG else None
    parts = [_numbers(part) for part in value]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts) or len({rank for rank, _ in found}) > 1:
        return None
    return found[0][0] + 1, _ends([number for _, own in found for number in own])


def _ends(numbers: list[Any]) -> list[Any]:
    kinds: dict[type, list[Any]] = {}
    for number in numbers:
        kinds.setdefault(type(number), []).append(number)
    return [end for kind, own in kinds.items() for end in ([None] if kind is type(None) else [min(own), max(own)])]
