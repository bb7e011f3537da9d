"""A plan as JSON, read strictly: every field must be known, fit its kind, and have a valid value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnx.errors import InputError
from attnx.interventions.plan import (
    COMPONENTS,
    METHODS,
    OF_LAYERS,
    OTHER,
    PATCHED,
    RUN,
    Attribute,
    Edit,
    Intervention,
    Lens,
    Step,
)
from attnx.tokens.json_object import TwiceError, read_json

KINDS: Mapping[str, tuple[str, ...]] = {
    "ablate": ("component", "layers", "heads", "queries", "with", "over"),
    "knockout": ("component", "layers", "heads", "queries", "keys", "keep_self"),
    "patch": ("component", "layers", "heads", "queries", "keys", "quantity", "from"),
    "lens": (),
    "attribute": ("targets",),
}
"""Kind -> the fields that it takes in addition to id, kind and run."""
_ALL = ("id", "kind", "run", *dict.fromkeys(name for names in KINDS.values() for name in names))
_HELD = ("base", "corrupt")
"""Names of the unedited runs' results."""
_MOST = 64 << 20


def read_plan(path: Path) -> list[Step]:
    """The steps of a plan.

    Raises:
        InputError: No such file, invalid JSON, or an invalid entry; the message says which, and what is expected.
    """
    try:
        if path.stat().st_size > _MOST:
            raise InputError(f"{path} has more than {_MOST >> 20} MB", "A plan is a short list of interventions.")
        found = read_json(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"there is no file {path}", "A plan is a JSON file with a list of interventions.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", "A plan is a JSON file.") from None
    except TwiceError as error:
        raise InputError(
            f"{path} has {error} twice in one entry, with different values", "Take one of them out."
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON: {str(error)[:150]}", "A plan is a JSON file with a list of interventions."
        ) from None
    return parse_plan(found)


def parse_plan(found: Any) -> list[Step]:
    """The steps of a plan that has been read.

    Raises:
        InputError: As for `read_plan`.
    """
    if isinstance(found, Mapping) and set(found) == {"interventions"}:
        found = found["interventions"]
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise InputError(f"a plan is a list of interventions, and this is {_kind_of(found)}", _EXAMPLE)
    if not found:
        raise InputError("the plan is empty", _EXAMPLE)
    steps = [_step(number, entry) for number, entry in enumerate(found)]
    names = [step.id for step in steps]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"the plan has the id {name!r} {names.count(name)} times", "Results are named by their id."
            )
    return steps


_EXAMPLE = (
    'For example: [{"id": "zero", "kind": "ablate", "layers": [0], "heads": [1], "with": "zero"}]. '
    "The fields are id, kind, run, component, layers, heads, queries, keys, and those of its kind."
)


class _Entry:
    """One entry of a plan, its fields taken one by one."""

    def __init__(self, number: int, entry: Mapping[str, Any]) -> None:
        self._fields = entry
        name = entry.get("id")
        self.title = f"entry {number} of the plan" + (f" ({name!r})" if isinstance(name, str) else "")

    def bad(self, found: str, hint: str) -> InputError:
        return InputError(f"{self.title}: {found}", hint)

    def choice(self, field: str, among: Sequence[str], default: str | None = None) -> str | None:
        value = self._fields.get(field)
        if value is None:
            return default
        if not isinstance(value, str) or value not in among:
            raise self.bad(f"{field} is {_shown(value)}", f"It is one of {', '.join(among)}.")
        return value

    def places(self, field: str) -> tuple[int, ...] | None:
        value = self._fields.get(field)
        if value is None:
            return None
        good = isinstance(value, list) and value and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
        if not good or min(value) < 0:
            raise self.bad(
                f"{field} is {_shown(value)}", "It is a list of whole numbers from 0, or null for all: [0, 2]."
            )
        return tuple(value)

    def flag(self, field: str) -> bool:
        value = self._fields.get(field)
        if value not in (None, True, False) or (isinstance(value, int) and not isinstance(value, bool)):
            raise self.bad(f"{field} is {_shown(value)}", "It is true or false.")
        return bool(value)

    def feed(self, field: str, default: str) -> str:
        found = self.choice(field, (RUN, OTHER), default)
        assert found is not None
        return found


def _step(number: int, fields: Any) -> Step:
    if not isinstance(fields, Mapping):
        raise InputError(
            f"entry {number} of the plan is {_kind_of(fields)}, and an intervention is an object", _EXAMPLE
        )
    entry = _Entry(number, fields)
    unknown = [name for name in fields if name not in _ALL]
    if unknown:
        raise entry.bad(f"there is no field {_shown(unknown[0])}", f"The fields are {', '.join(_ALL)}.")
    name = fields.get("id")
    if not isinstance(name, str) or not name or any(c in name for c in "/\\\0") or len(name) > 200:
        raise entry.bad(f"its id is {_shown(name)}", "It is a name for the result: up to 200 characters, no slash.")
    if name in _HELD:
        raise entry.bad(f"its id is {name!r}", f"{', '.join(_HELD)} name what the unedited runs give: choose another.")
    kind = entry.choice("kind", tuple(KINDS))
    if kind is None:
        raise entry.bad("it has no kind", f"It is one of {', '.join(KINDS)}.")
    own = ("id", "kind", "run", *KINDS[kind])
    extra = [n for n in fields if n not in own and fields[n] is not None and fields[n] is not False]
    if extra:
        raise entry.bad(
            f"{extra[0]} is given, and {kind} does not take it",
            f"It takes {', '.join(KINDS[kind]) or 'nothing besides a run'}.",
        )
    run = entry.feed("run", RUN)
    if kind == "lens":
        return Lens(name, run)
    if kind == "attribute":
        return Attribute(_targets(entry, fields.get("targets")), name, run)
    return Intervention(name, (_edit(entry, kind, run),), run)


def _edit(entry: _Entry, kind: str, run: str) -> Edit:
    quantity = entry.choice("quantity", PATCHED)
    method = entry.choice("with", METHODS)
    over = entry.choice("over", ("unpadded", "all"))
    keys = entry.places("keys")
    if kind == "ablate" and method is None:
        raise entry.bad("it does not say with what to ablate", f"with is one of {', '.join(METHODS)}.")
    if kind == "patch" and quantity is None:
        raise entry.bad("it does not say what to patch", f"quantity is one of {', '.join(PATCHED)}.")
    if over is not None and method != "mean":
        raise entry.bad("over is given without a mean", 'It goes with "with": "mean".')
    for field, of in (("heads", OF_LAYERS), ("keys", (*OF_LAYERS, "query", "context")), ("queries", ("key", "value"))):
        if kind == "patch" and quantity in of and entry.places(field) is not None:
            raise entry.bad(f"{field} are given, and {quantity} has none", f"Leave {field} out, or null.")
    return Edit(
        kind,  # type: ignore[arg-type]
        entry.places("layers"),
        entry.places("heads"),
        entry.places("queries"),
        keys,
        entry.choice("component", COMPONENTS),  # type: ignore[arg-type]
        method or "zero",  # type: ignore[arg-type]
        "unpadded" if over == "unpadded" else None,
        quantity,
        entry.feed("from", OTHER if run == RUN else RUN),
        keep_self=entry.flag("keep_self"),
    )


def _targets(entry: _Entry, value: Any) -> tuple[tuple[int, int, int], ...]:
    def whole(number: Any) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and number >= 0

    good = isinstance(value, list) and value
    if not good or not all(isinstance(t, list) and len(t) == 3 and all(map(whole, t)) for t in value):
        raise entry.bad(
            f"targets is {_shown(value)}", "It is a list of [row of the batch, position, token]: [[0, 8, 82]]."
        )
    return tuple((t[0], t[1], t[2]) for t in value)


def _kind_of(value: Any) -> str:
    named = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return named.get(type(value), "a number")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}..."


__all__ = ["KINDS", "parse_plan", "read_plan"]
