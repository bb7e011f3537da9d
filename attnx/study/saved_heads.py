"""Save one layer some heads at a time: its matrices go to files beside the result, and from there into it, whole."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from attnx.feed.arrays import ArrayFile
from attnx.formula import repeat_heads
from attnx.notes import OfSites, merged, of_all_heads
from attnx.records import QUANTITIES, STAGES, Array, Attention, Check, Origin, Quantity, Trace
from attnx.run.check import check
from attnx.session.protocol import Wanted
from attnx.study.stretches import Stretches


def by_heads(file: ArrayFile, read: Stretches, wanted: Wanted, heads: Sequence[tuple[int, ...]], folder: Path) -> Trace:
    """Run a layer and write its arrays, each whole.

    Args:
        file: The result.
        read: The run's layers.
        wanted: What is wanted of the layer, and which it is.
        heads: The heads that are held at once.
        folder: Where the files beside the result are.

    Returns:
        The run, whose arrays have only their shapes.
    """
    (layer,) = wanted.layers or ()
    (site,) = (site for site in read.sites if site.layer == layer)
    # A context that the graph does not hold is computed from the weights, and so some heads at a time as well.
    in_parts = [name for name in QUANTITIES if name in wanted.quantities and _per_head(name, name in site.places)]
    whole = [name for name in wanted.quantities if name not in in_parts]
    read.reach(layer)
    trace = _copied(read.run(replace(wanted, quantities=whole), read.after((layer,))))
    (attention,) = trace.attentions
    for name in whole:
        if (array := getattr(attention, name)) is not None:
            file.add(_name(attention, name), array)
    checked = {"query", "key", "value"} if "context" in in_parts else {"query", "key"}
    asked = replace(wanted, quantities=(*in_parts, *sorted(checked - {*in_parts})), verify_outputs=False)
    checks: list[Check] = []
    notes: list[tuple[str, ...]] = []
    origin: dict[str, Origin] = {}
    with ExitStack() as opened:
        spools = {name: _Spool(opened, folder) for name in in_parts}
        for some in heads:
            run = read.run(replace(asked, heads={layer: some}))
            (part,) = run.attentions
            notes.append(tuple(note for note in run.notes if isinstance(note, OfSites)))
            for name, spool in spools.items():
                spool.put(getattr(part, name))
            checks += [*part.checks, *_context(attention, part, some)]
            origin |= {name: of for name, of in part.origin.items() if name in in_parts}
            del run, part  # before the next is run
        shapes = {name: spool.give(file, _name(attention, name)) for name, spool in spools.items()}
    kept: dict[str, Any] = {name: _bare(array) for name in whole if (array := getattr(attention, name)) is not None}
    kept |= {name: shape for name, shape in shapes.items() if shape is not None}
    done = replace(attention, **kept, origin={**attention.origin, **origin}, checks=_largest(checks))
    return replace(trace, attentions=(done,), notes=merged(trace.notes, of_all_heads(notes)))


def _copied(trace: Trace) -> Trace:
    """A trace with copies of its arrays: what a session gave keeps all of its working memory while others run."""

    def copied(attention: Attention) -> Attention:
        held = {name: getattr(attention, name) for name in QUANTITIES}
        arrays: dict[str, Any] = {name: np.copy(array) for name, array in held.items() if array is not None}
        return replace(attention, **arrays)

    outputs = {name: np.copy(array) for name, array in trace.outputs.items()}
    return replace(trace, attentions=tuple(map(copied, trace.attentions)), outputs=outputs)


def _per_head(name: Quantity, tapped: bool) -> bool:
    return name in STAGES or (name == "context" and not tapped)


def _name(attention: Attention, quantity: str) -> str:
    """As `attnx.feed.arrays.trace_arrays` names it."""
    return f"attention.{attention.site.index}.{quantity}"


def _context(whole: Attention, part: Attention, heads: Sequence[int]) -> tuple[Check, ...]:
    """Check the layer's context against the weights of some heads."""
    if whole.context is None or whole.value is None or part.weights is None:
        return ()
    count = whole.context.shape[1]
    value = repeat_heads(whole.value, count)[:, list(heads)]
    arrays = {"weights": part.weights, "value": value, "context": whole.context[:, list(heads)]}
    return check(part.site, arrays, {"context": whole.origin["context"]}, low=False)


def _largest(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Of checks of some heads each, the one that is farthest beyond its tolerance for each name."""
    found: dict[str, Check] = {}
    for one in checks:
        before = found.get(one.name)
        if before is None or not one.difference - one.tolerance <= before.difference - before.tolerance:
            found[one.name] = one
    return tuple(found.values())


class _Spool:
    """One array [B,H,...] whose heads come one after another: a file for each sequence of the batch."""

    def __init__(self, opened: ExitStack, folder: Path) -> None:
        self._opened, self._folder = opened, folder
        self._files: list[IO[bytes]] = []
        self._array: Array | None = None
        self._heads = 0

    def put(self, array: Array | None) -> None:
        """Add some heads; None where there are no such arrays."""
        if array is None:
            return
        if self._array is None:
            self._array = _bare(array)
            for _ in array:
                spool = tempfile.TemporaryFile(dir=self._folder, prefix=".attnx-")  # noqa: SIM115
                self._files.append(self._opened.enter_context(spool))
        self._heads += array.shape[1]
        for file, one in zip(self._files, array, strict=True):
            file.write(np.ascontiguousarray(one).data)

    def give(self, file: ArrayFile, name: str) -> Array | None:
        """Write the whole array; returns one of its shape without memory, None where there was none."""
        if self._array is None:
            return None
        like = self._array
        shape = (like.shape[0], self._heads, *like.shape[2:])
        for part in self._files:
            part.seek(0)
        file.add_parts(name, like.dtype, shape, self._files)
        for part in self._files:
            part.close()
        return np.broadcast_to(np.zeros((), like.dtype), shape)


def _bare(array: Array) -> Array:
    """An array of that shape that takes no memory."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)
