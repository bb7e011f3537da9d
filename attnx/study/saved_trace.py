"""Save a run's arrays to a file; for a long text, some layers at a time, each written before the next are run."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from attnx.feed.arrays import Safetensors, save_trace, trace_arrays, write_whole
from attnx.records import QUANTITIES, Array, Attention, Trace
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.stretches import Stretch, Stretches


def run_and_save(model: OpenModel, prompt: Prompt, wanted: Wanted, path: Path, *, force: bool = False) -> Trace:
    """Run a model, and write every array of the run to .npz or .safetensors.

    Args:
        model: The model.
        prompt: The prompt to run it on.
        wanted: What to trace.
        path: The file.
        force: Replace an existing file.

    Returns:
        The run; if it was made in several parts, its arrays only have their shapes, not their numbers.

    Raises:
        AttnxError: A run failed, or the file cannot be written.
    """
    read = Stretches(model, prompt, wanted.quantities, wanted.layers)
    if len(read.parts) == 1:
        trace = execute(model, prompt, wanted)
        save_trace(trace, path, force=force)
        return trace
    traces: list[Trace] = []

    def run(add: Callable[[str, Array], None]) -> None:
        for part in read.parts:
            traces.append(_written(add, read, wanted, part))

    def to_numpy(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            run(partial(_add, archive))

    def to_safetensors(file: IO[bytes]) -> None:
        writer = Safetensors(file, len(read.sites) * len(QUANTITIES))
        run(writer.add)
        writer.finish()

    write_whole(path, to_numpy if path.suffix == ".npz" else to_safetensors, force=force)
    return _together(traces)


def _add(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    """Add an array to a file in the format of numpy.savez."""
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)


def _written(add: Callable[[str, Array], None], read: Stretches, wanted: Wanted, part: Stretch) -> Trace:
    """Run some layers, and write their arrays."""
    trace = read.run(replace(wanted, layers=part), read.after(part))
    for name, array in trace_arrays(trace).items():
        add(name, array)
    return replace(trace, attentions=tuple(_shapes(a) for a in trace.attentions))


def _shapes(attention: Attention) -> Attention:
    """An attention whose arrays only have their shapes and take no memory."""

    def bare(array: Array | None) -> Array | None:
        return None if array is None else np.broadcast_to(np.zeros((), array.dtype), array.shape)

    a = attention
    return replace(
        a, query=bare(a.query), key=bare(a.key), value=bare(a.value), scores=bare(a.scores), scaled=bare(a.scaled),
        capped=bare(a.capped), masked=bare(a.masked), weights=bare(a.weights), context=bare(a.context),
    )  # fmt: skip


def _together(traces: Sequence[Trace]) -> Trace:
    notes = tuple(dict.fromkeys(note for trace in traces for note in trace.notes))
    return replace(traces[0], attentions=tuple(a for trace in traces for a in trace.attentions), notes=notes)
