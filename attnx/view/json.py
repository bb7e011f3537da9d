"""Any record as one JSON document, with its `schema` and `version`; and the JSON Schemas that ship.

NaN and infinities are `null`, for JSON has neither. Arrays stay numpy arrays until they are written, so that large
ones are not copied into Python lists.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any

import numpy as np
import orjson

from attnx.errors import UsageError
from attnx.records import QUANTITIES, Array, Attention, Check, Measurement, Site

VERSION = 1
"""The version of every schema until one changes; an added field does not change it."""
SHARED = "records"
"""Name of the schema with the definitions that all others refer to."""


def document(schema: str, body: Any, *, version: int = VERSION, decimals: int | None = None) -> dict[str, Any]:
    """Make a document of a record or of a mapping of records.

    Args:
        schema: Its id, "attnx/inspect".
        body: A dataclass or a mapping; nested dataclasses, mappings, sequences, arrays and paths are taken apart.
        version: Of the schema.
        decimals: Digits that floats in arrays and fields are rounded to; as they are where None.

    Returns:
        `schema` and `version`, then the body's fields; arrays are still arrays. `dumps` writes it.
    """
    fields = tidy(body, decimals)
    if not isinstance(fields, dict):
        raise TypeError(f"a document is made of a record or a mapping, not of {type(body).__name__}")
    return {"schema": schema, "version": version, **fields}


def dumps(found: Mapping[str, Any], *, indent: bool = False) -> bytes:
    """Write a document as UTF-8, with a newline at the end.

    Args:
        found: From `document`.
        indent: Over several lines, for people; one line (as JSON Lines needs it) otherwise.
    """
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if indent else 0)
    return _UNSAFE.sub(_spelled, orjson.dumps(found, option=options))


_UNSAFE = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]")
"""Characters that JSON allows in a text but a terminal obeys: DEL, C1 control characters, bidirectional overrides."""


def _spelled(match: re.Match[bytes]) -> bytes:
    """Write the character as JSON's escape, which every reader turns back into it."""
    return b"\\u%04x" % ord(match[0].decode("utf-8"))


def tidy(value: Any, decimals: int | None = None) -> Any:
    """Turn a value into what orjson can write: dicts, lists, text, numbers, contiguous arrays.

    Args:
        value: A record, or anything that records hold.
        decimals: See `document`.

    Raises:
        TypeError: Something that no record holds.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return _float(value, decimals)
    if isinstance(value, np.ndarray):
        return _array(value, decimals)
    if isinstance(value, np.generic):
        return tidy(value.item(), decimals)
    if isinstance(value, Mapping):
        return {_text(str(key)): tidy(item, decimals) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [tidy(item, decimals) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, PurePath):
        return _text(str(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _record(value, decimals)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _record(value: Any, decimals: int | None) -> dict[str, Any]:
    """Take a dataclass apart, with what a reader needs besides its fields."""
    names = [field.name for field in dataclasses.fields(value)]
    if isinstance(value, Attention):
        # What was not requested is left out, not null: null inside an array says "no number here".
        names = [name for name in names if name not in QUANTITIES or getattr(value, name) is not None]
    out = {name: tidy(getattr(value, name), decimals) for name in names}
    if isinstance(value, Site):
        out["head_dim"] = out["head_size"]  # what configs and other tools call it
        by_head = isinstance(value.scale, tuple)
        out["scale"], out["scales"] = (None, out["scale"]) if by_head else (out["scale"], None)
    elif isinstance(value, Check):
        out["difference"] = _float(value.difference, None)
        out["tolerance"] = _float(value.tolerance, None)
        out["holds"] = value.holds
    elif isinstance(value, Attention):
        out["trusted"] = value.trusted
    elif isinstance(value, Measurement):
        out["shape"] = list(value.values.shape)
    return out


def _text(text: str) -> str:
    """Spell out unpaired surrogates (from undecodable file names), which UTF-8 cannot hold; else the text itself."""
    spelled = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if spelled == text else spelled


def _float(value: float, decimals: int | None) -> float | None:
    if not np.isfinite(value):
        return None
    return value if decimals is None else round(value, decimals) + 0.0


def _array(values: Array, decimals: int | None) -> Any:
    if values.dtype.kind not in "fiub":
        return [tidy(item, decimals) for item in values.tolist()]
    if values.dtype.kind == "f":
        if values.dtype.itemsize not in (4, 8):
            values = values.astype(np.float32 if values.dtype.itemsize < 4 else np.float64)
        if decimals is not None:
            values = np.round(values, decimals) + 0  # + 0 makes a negative zero a zero
    if values.ndim == 0:
        return tidy(values.item(), decimals)
    return np.ascontiguousarray(values, values.dtype.newbyteorder("="))


@lru_cache(maxsize=32)
def _stored(name: str) -> dict[str, Any]:
    place = files("attnx") / "data" / "schema" / f"{name}.json"
    if not place.is_file():
        raise UsageError(f"there is no schema {name!r}", f"There are {', '.join(schemas())}.")
    found: dict[str, Any] = orjson.loads(place.read_bytes())
    return found


def schemas() -> tuple[str, ...]:
    """Name the JSON Schemas that ship, one for each command that writes JSON, and the shared one."""
    folder = files("attnx") / "data" / "schema"
    return tuple(sorted(item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json")))


def schema(name: str) -> dict[str, Any]:
    """Give a JSON Schema that stands alone: the shared definitions are inside, so nothing is fetched.

    Args:
        name: A command's, "inspect", or "records".

    Returns:
        A schema of draft 2020-12. Its references to `urn:attnx:records` are to the part that is included.

    Raises:
        UsageError: No such schema.
    """
    found = dict(_stored(name.removeprefix("attnx/")))
    if name != SHARED:
        found["$defs"] = {**found.get("$defs", {}), SHARED: _stored(SHARED)}
    return found
