"""docs/reference/json.md: every document that attnx writes as JSON, from the JSON Schemas that ship."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import orjson
from reference_markdown import MADE, code, escaped, table

HEAD = """# JSON documents

What `--json` prints, and `--save x.json` writes: one document with `schema` (`attnx/inspect`) and `version`, and the
fields below. `null` stands where there is no number: hidden, undefined, infinite. A field that is added leaves the
version as it is. Fields marked *optional* may be absent.

Tables below come from the JSON Schemas in the package (`attnx/data/schema/`), and the tests hold every command to
these. To check a document yourself:

```python
import json, jsonschema
from attnx.view.json import schema

jsonschema.validate(document := json.load(open("out.json")), schema(document["schema"]))
```
"""
RECORDS = "records"


def page() -> str:
    """The page."""
    found = {path.name.removesuffix(".json"): orjson.loads(path.read_bytes()) for path in _schemas()}
    records = found.pop(RECORDS)
    out = [MADE, HEAD]
    for name, schema in found.items():
        out += [f"## {schema.get('title', name)}\n", escaped(schema.get("description", "")) + "\n"]
        out += [_fields(schema), _either(schema, name)]
        for kind, one in schema.get("$defs", {}).items():
            out += [f"### {kind} of {name}\n", escaped(one.get("description", "")) + "\n", _definition(one, name)]
    out += ["## Records\n", escaped(records["description"]) + "\n"]
    for kind, one in records["$defs"].items():
        out += [f"### {kind}\n", escaped(one.get("description", "")) + "\n", _definition(one, "")]
    return "\n".join(part for part in out if part.strip())


def _schemas() -> list[Any]:
    return sorted((files("attnx") / "data" / "schema").iterdir(), key=lambda path: path.name)


def _either(schema: dict[str, Any], name: str) -> str:
    """What a document has besides: one of several records, or one of several sets of fields."""
    choices = schema.get("oneOf", ())
    if any("$ref" in one for one in choices):
        return f"And the fields of {' or '.join(_type(one, name) for one in choices)}.\n"
    sets = [", ".join(code(field) for field in one["required"]) for one in choices]
    return "It has either of these:\n\n" + "".join(f"- {fields}\n" for fields in sets) if sets else ""


def _definition(node: dict[str, Any], home: str) -> str:
    """The fields of an object; of anything else, its type."""
    return _fields(node, home) if "properties" in node else _type(node, home) + "\n"


def _fields(node: dict[str, Any], home: str | None = None) -> str:
    name = node["properties"]["schema"]["const"].partition("/")[2] if home is None else home
    rows = [row for row in _rows(node, "", name) if row[0] not in ("`schema`", "`version`") or home is not None]
    return table(("field", "type", ""), rows)


def _rows(node: dict[str, Any], path: str, home: str) -> Iterator[tuple[str, str, str]]:
    required = node.get("required", [])
    for name, field in node.get("properties", {}).items():
        optional = "" if name in required else "*optional* "
        yield code(path + name), _type(field, home), optional + escaped(field.get("description", ""))
        for inner, mark in _objects(field):
            yield from _rows(inner, f"{path}{name}{mark}.", home)


def _objects(field: dict[str, Any], mark: str = "") -> Iterator[tuple[dict[str, Any], str]]:
    """The objects that stand in a field itself, not by reference; and how deep in lists."""
    if "properties" in field:
        yield field, mark
    for one in (*field.get("anyOf", ()), *field.get("oneOf", ())):
        yield from _objects(one, mark)
    if isinstance(field.get("items"), dict):
        yield from _objects(field["items"], mark + "[]")
    if isinstance(field.get("additionalProperties"), dict):
        yield from _objects(field["additionalProperties"], mark + ".NAME")


def _type(node: dict[str, Any], home: str) -> str:
    """The type in words."""
    if "$ref" in node:
        where, _, name = node["$ref"].rpartition("/")
        local = home and not where.startswith(f"urn:attnx:{RECORDS}")
        return f"[{name}](#{name}-of-{home})" if local else f"[{name}](#{name})"
    if "const" in node:
        return code(orjson.dumps(node["const"]).decode())
    if "enum" in node:
        return ", ".join(code(orjson.dumps(one).decode()) for one in node["enum"])
    for either in ("anyOf", "oneOf"):
        if either in node:
            return " or ".join(_type(one, home) for one in node[either])
    kinds = node.get("type", "any value")
    return " or ".join(_plain(kind, node, home) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _plain(kind: str, node: dict[str, Any], home: str) -> str:
    if kind == "array" and "prefixItems" in node:
        return f"list: {', '.join(_type(one, home) for one in node['prefixItems'])}"
    if kind == "array":
        return f"list of {_type(node['items'], home)}" if node.get("items") else "list"
    if kind == "object" and isinstance(node.get("additionalProperties"), dict):
        return f"object: name → {_type(node['additionalProperties'], home)}"
    return "text" if kind == "string" else kind
