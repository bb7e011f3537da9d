"""What a model file holds, without its graph: sites, misses, inputs, outputs. Kept in the cache from run to run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.records import Kernels, Miss, Place, Site
from attnx.session import cache
from attnx.session.ort import Slot

if TYPE_CHECKING:
    from attnx.session.processor import Processor
    from attnx.sites.recognise import Found
    from attnx.taps.tap import Tapped


@dataclass(frozen=True, slots=True)
class Inventory:
    """What was found in a model."""

    sites: tuple[Site, ...]
    misses: tuple[Miss, ...]
    branches: tuple[str, ...]
    """Names of the If nodes that were replaced by one of their branches."""
    inputs: tuple[Slot, ...]
    outputs: tuple[str, ...]
    """Names of the model's own outputs."""
    note: str | None = None
    """What is to be said of its recurrent parts."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Input -> entries of the table that its numbers are looked up in."""
    kernels: Kernels = field(default_factory=Kernels)
    """What of its numbers hangs on the processor."""
    key: str = ""
    """Names this state of the model's files; "" where nothing can be kept of it."""
    branch: tuple[bool, ...] = ()
    """Which branches of its Ifs run, see `branches.Chooser.key`."""
    files: tuple[Any, ...] = ()
    """The state of each file that holds weights, see `cache.identity`; None for one that is missing."""

    def notes(self, processor: Processor | None = None) -> tuple[str, ...]:
        """What is to be said of the model, whatever it is run on; of a processor, this machine's where None."""
        said = (self.note,) if self.note is not None else ()
        if self.kernels == Kernels():
            return said
        from attnx.session.processor import doubts, here

        return (*said, *doubts(self.kernels, processor or here()))


def take(found: Found, key: str = "", branch: tuple[bool, ...] = ()) -> Inventory:
    """Write down what was found in a graph."""
    from attnx.graph.axes.lookups import rows
    from attnx.graph.load.signature import signature
    from attnx.graph.probe.mask_values import kept_by
    from attnx.graph.shapes.kernels import kernels
    from attnx.sites.recurrent import describe

    outputs = tuple(found.graph.outputs)
    said, tables, kept = describe(found.graph), rows(found.graph), kept_by(found.opened, found.sites)
    inputs = tuple(replace(slot, kept=kept.get(slot.name)) for slot in (Slot(*s) for s in signature(found.graph)))
    return Inventory(
        found.sites, found.misses, found.branches, inputs, outputs, said, tables, kernels(found.graph), key, branch,
        tuple(cache.identity(file) for file in found.loaded.files.values()),
    )  # fmt: skip


def said(inventory: Inventory, tapped: Tapped, processor: Processor | None = None) -> tuple[str, ...]:
    """What is to be said of every run of a tapped model; on a processor, this machine's where None."""
    notes = inventory.notes(processor)
    if tapped.widened:
        from attnx.taps.widening import WIDENED

        notes += (WIDENED,)
    return notes


def key_of(path: Path, branch: Collection[bool]) -> str:
    """Names the state of a model file, and the branches of its Ifs that run; "" where it cannot be read."""
    known = cache.identity(path)
    return cache.key("inventory", known, list(branch)) if known is not None else ""


def load(key: str, branch: tuple[bool, ...] = ()) -> Inventory | None:
    """The inventory kept under a key; None where there is none, or a weight file changed since."""
    entry = cache.read(key) if key else None
    if entry is None:
        return None
    try:
        if any(cache.identity(Path(file[0])) != file for file in entry.head["files"]):
            return None
        return _read(entry.head, key, branch)
    except (KeyError, TypeError, ValueError):
        return None


def save(inventory: Inventory, found: Found) -> None:
    """Keep an inventory, with the state of the weight files; not where one is missing, for it may come."""
    if not inventory.key or found.loaded.missing:
        return
    if None not in inventory.files:
        cache.write(inventory.key, _write(inventory))


def load_tapped(inventory: Inventory, wanted: Mapping[int, Collection[str]], extra: Any) -> Tapped | None:
    """The tapped graph kept for an inventory and what was wanted of it."""
    entry = cache.read(_tapped_key(inventory, wanted, extra)) if inventory.key else None
    if entry is None:
        return None
    from attnx.taps.tap import Tapped

    head = entry.head
    taps = {int(i): dict(names) for i, names in head["taps"].items()}
    return Tapped(entry.body, Path(head["folder"]), taps, tuple(head["outputs"]), head["plain"], head["widened"])


def save_tapped(inventory: Inventory, wanted: Mapping[int, Collection[str]], extra: Any, tapped: Tapped) -> None:
    """Keep a tapped graph. It holds references to the weights, not the weights."""
    if not inventory.key:
        return
    head = {
        "taps": {str(i): dict(names) for i, names in tapped.taps.items()},
        "folder": str(tapped.folder),
        "outputs": list(tapped.outputs),
        "plain": tapped.plain,
        "widened": tapped.widened,
    }
    cache.write(_tapped_key(inventory, wanted, extra), head, tapped.model)


def _tapped_key(inventory: Inventory, wanted: Mapping[int, Collection[str]], extra: Any) -> str:
    return cache.key("tapped", inventory.key, [[i, sorted(names)] for i, names in sorted(wanted.items())], extra)


def _write(inventory: Inventory) -> dict[str, Any]:
    return {
        "sites": [asdict(site) for site in inventory.sites],
        "misses": [asdict(miss) for miss in inventory.misses],
        "branches": inventory.branches,
        "inputs": [asdict(slot) for slot in inventory.inputs],
        "outputs": inventory.outputs,
        "note": inventory.note,
        "rows": dict(inventory.rows),
        "files": inventory.files,
        "kernels": asdict(inventory.kernels),
    }


def _read(head: Mapping[str, Any], key: str, branch: tuple[bool, ...]) -> Inventory:
    return Inventory(
        sites=tuple(_site(one) for one in head["sites"]),
        misses=tuple(Miss(**one) for one in head["misses"]),
        branches=tuple(head["branches"]),
        inputs=tuple(Slot(**{**one, "shape": tuple(one["shape"])}) for one in head["inputs"]),
        outputs=tuple(head["outputs"]),
        note=head["note"],
        rows=dict(head["rows"]),
        files=tuple(head["files"]),
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
    """Lists of JSON as the tuples that records hold."""
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value
