"""What was found in a model file, without its graph: sites, misses, inputs, outputs. Cached from run to run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.records import Array, Kernels, Miss, Place, Site
from attnx.session import cache
from attnx.session.ort import Slot

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph
    from attnx.session.processor import Processor
    from attnx.sites.recognise import Found
    from attnx.taps.tap import Tapped

SMALL = 4 << 20
"""Bytes of the largest array that is kept."""


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What was found in a model."""

    sites: tuple[Site, ...]
    misses: tuple[Miss, ...]
    branches: tuple[str, ...]
    """Names of the If nodes that were replaced by one of their branches."""
    inputs: tuple[Slot, ...]
    outputs: tuple[str, ...]
    """Names of the model's own outputs."""
    note: str | None = None
    """A note on its recurrent parts."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Input -> entries of the table that its numbers are looked up in."""
    kernels: Kernels = field(default_factory=Kernels)
    """In what its numbers depend on the processor."""
    key: str = ""
    """Identifies this state of the model's files; "" where nothing can be cached."""
    branch: tuple[bool, ...] = ()
    """Which branches of its Ifs run, see `branches.Chooser.key`."""
    files: tuple[Any, ...] = ()
    """The state of each file that holds weights, see `cache.identity`; None for one that is missing."""
    fused_of: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """See `recognise.Found.fused_of`: with it the graph is read again without numbering its sites."""

    def notes(self, processor: Processor | None = None) -> tuple[str, ...]:
        """Notes on the model that hold for any input, for a given processor (this machine's where None)."""
        notes = (self.note,) if self.note is not None else ()
        if self.kernels == Kernels():
            return notes
        from attnx.session.processor import doubts, here

        return (*notes, *doubts(self.kernels, processor or here()))


def take(found: Found, key: str = "", branch: tuple[bool, ...] = ()) -> ModelSummary:
    """Summarise what was found in a graph."""
    from attnx.graph.axes.lookups import rows
    from attnx.graph.load.signature import signature
    from attnx.graph.masks.mask_values import kept_by
    from attnx.graph.shapes.kernels import kernels
    from attnx.sites.recurrent import describe

    outputs = tuple(found.graph.outputs)
    note, tables, kept = describe(found.graph), rows(found.graph), kept_by(found.opened, found.sites)
    inputs = tuple(replace(slot, kept=kept.get(slot.name)) for slot in (Slot(*s) for s in signature(found.graph)))
    return ModelSummary(
        found.sites, found.misses, found.branches, inputs, outputs, note, tables, kernels(found.graph), key, branch,
        tuple(cache.identity(file) for file in found.loaded.files.values()), found.fused_of,
    )  # fmt: skip


def notes_of_run(summary: ModelSummary, tapped: Tapped, processor: Processor | None = None) -> tuple[str, ...]:
    """Notes on every run of a tapped model, for a given processor (this machine's where None)."""
    notes = summary.notes(processor)
    if tapped.widened:
        from attnx.taps.widening import WIDENED

        notes += (WIDENED,)
    return notes


def key_of(path: Path, branch: Collection[bool]) -> str:
    """Identifies the state of a model file and the branches of its Ifs that run; "" where it cannot be read."""
    known = cache.identity(path)
    return cache.key("summary", known, list(branch)) if known is not None else ""


def load(key: str, branch: tuple[bool, ...] = ()) -> ModelSummary | None:
    """The summary cached under a key; None where there is none, or a weight file has changed since."""
    entry = cache.read(key) if key else None
    if entry is None:
        return None
    try:
        if any(cache.identity(Path(file[0])) != file for file in entry.head["files"]):
            return None
        return _read(entry.head, key, branch)
    except (KeyError, TypeError, ValueError):
        return None


def save(summary: ModelSummary, found: Found) -> None:
    """Cache a summary, with the state of the weight files; not if one of them is missing: it may appear later."""
    if not summary.key or found.loaded.missing:
        return
    if None not in summary.files:
        cache.write(summary.key, _write(summary))


def parameters(summary: ModelSummary, graph: Callable[[], Graph]) -> int:
    """How many numbers every token is multiplied with: kept, or counted in the graph."""
    name = cache.key("parameters", summary.key)
    entry = cache.read(name) if summary.key else None
    if entry is not None:
        return int(entry.head["count"])
    from attnx.graph.axes.parameters import parameters as count_in

    count = count_in(graph())
    if summary.key:
        cache.write(name, {"count": count})
    return count


def kept_values(summary: ModelSummary, what: Sequence[Any], compute: Callable[[], Any]) -> Any:
    """JSON values that follow from a model's graph: kept, or computed.

    Args:
        summary: Of the model.
        what: JSON values that name them.
        compute: Gives them.
    """
    name = cache.key("values", summary.key, *what)
    entry = cache.read(name) if summary.key else None
    if entry is not None:
        return entry.head["values"]
    made = compute()
    if summary.key:
        cache.write(name, {"values": made})
    return made


def kept_array(summary: ModelSummary, what: Sequence[Any], compute: Callable[[], Array | None]) -> Array | None:
    """An array that follows from a model's weights: kept if it is small, or computed.

    Args:
        summary: Of the model. The state of its weight files is part of what the array is kept under.
        what: JSON values that name the array.
        compute: Gives it as float64; None where there is none, which is kept as well.
    """
    sure = bool(summary.key) and None not in summary.files
    name = cache.key("array", summary.key, list(summary.files), *what)
    entry = cache.read(name) if sure else None
    if entry is not None:
        shape = entry.head["shape"]
        return None if shape is None else np.frombuffer(entry.body, np.float64).reshape(shape)
    made = compute()
    if sure and (made is None or made.nbytes <= SMALL):
        body = b"" if made is None else np.ascontiguousarray(made, np.float64).tobytes()
        cache.write(name, {"shape": None if made is None else list(made.shape)}, body)
    return made


def load_tapped(summary: ModelSummary, wanted: Mapping[int, Collection[str]], extra: Any) -> Tapped | None:
    """The tapped graph cached for a summary and what was wanted of it."""
    entry = cache.read(_tapped_key(summary, wanted, extra)) if summary.key else None
    if entry is None:
        return None
    from attnx.taps.tap import Tapped

    head = entry.head
    taps = {int(i): dict(names) for i, names in head["taps"].items()}
    told = (head["plain"], head["widened"], head["rounded"])
    return Tapped(entry.body, Path(head["folder"]), taps, tuple(head["outputs"]), *told)


def save_tapped(summary: ModelSummary, wanted: Mapping[int, Collection[str]], extra: Any, tapped: Tapped) -> None:
    """Cache a tapped graph. It holds references to the weights, not the weights."""
    if not summary.key:
        return
    head = {
        "taps": {str(i): dict(names) for i, names in tapped.taps.items()},
        "folder": str(tapped.folder),
        "outputs": list(tapped.outputs),
        "plain": tapped.plain,
        "widened": tapped.widened,
        "rounded": tapped.rounded,
    }
    cache.write(_tapped_key(summary, wanted, extra), head, tapped.model)


def _tapped_key(summary: ModelSummary, wanted: Mapping[int, Collection[str]], extra: Any) -> str:
    return cache.key("tapped", summary.key, [[i, sorted(names)] for i, names in sorted(wanted.items())], extra)


def _write(summary: ModelSummary) -> dict[str, Any]:
    return {
        "sites": [asdict(site) for site in summary.sites],
        "misses": [asdict(miss) for miss in summary.misses],
        "branches": summary.branches,
        "inputs": [asdict(slot) for slot in summary.inputs],
        "outputs": summary.outputs,
        "note": summary.note,
        "rows": dict(summary.rows),
        "files": summary.files,
        "fused_of": {str(i): keys for i, keys in summary.fused_of.items()},
        "kernels": asdict(summary.kernels),
    }


def _read(head: Mapping[str, Any], key: str, branch: tuple[bool, ...]) -> ModelSummary:
    return ModelSummary(
        sites=tuple(_site(one) for one in head["sites"]),
        misses=tuple(Miss(**one) for one in head["misses"]),
        branches=tuple(head["branches"]),
        inputs=tuple(Slot(**{**one, "shape": tuple(one["shape"])}) for one in head["inputs"]),
        outputs=tuple(head["outputs"]),
        note=head["note"],
        rows=dict(head["rows"]),
        files=tuple(head["files"]),
        fused_of={int(i): tuple(keys) for i, keys in head["fused_of"].items()},
        kernels=Kernels(**head["kernels"] | {"blocks": tuple(head["kernels"]["blocks"])}),
        key=key,
        branch=branch,
    )


_FIELDS = tuple(f.name for f in fields(Site))


def _site(one: Mapping[str, Any]) -> Site:
    values = {name: _frozen(one[name]) for name in _FIELDS if name != "places"}
    places = {quantity: _place(place) for quantity, place in one["places"].items()}
    return Site(**values, places=places)


def _place(one: Mapping[str, Any]) -> Place:
    values: dict[str, Any] = {name: _frozen(value) for name, value in one.items()}
    return Place(**values)


def _frozen(value: Any) -> Any:
    """Turn lists from JSON into the tuples that records hold."""
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value
