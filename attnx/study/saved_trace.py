"""Save a run's arrays to a file; for a long text, some layers at a time, each written before the next are run."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np

from attnx.feed.arrays import ArrayFile, Npz, Safetensors, save_trace, trace_arrays, write_whole
from attnx.notes import merged
from attnx.records import QUANTITIES, Array, Attention, Trace
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.saved_heads import by_heads
from attnx.study.stretches import Stretches


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
    if len(read.parts) == 1 and not read.split(read.parts[0]):
        trace = execute(model, prompt, wanted)
        save_trace(trace, path, force=force)
        return trace
    traces: list[Trace] = []

    def run(file: ArrayFile) -> None:
        for part in read.parts:
            heads = read.split(part)
            traces.append(
                by_heads(file, read, replace(wanted, layers=part), heads, path.parent)
                if heads
                else _written(file, read, replace(wanted, layers=part))
            )

    def to_numpy(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            run(Npz(archive))

    def to_safetensors(file: IO[bytes]) -> None:
        writer = Safetensors(file, len(read.sites) * len(QUANTITIES))
        run(writer)
        writer.finish()

    write_whole(path, to_numpy if path.suffix == ".npz" else to_safetensors, force=force)
    return _together(traces)


def _written(file: ArrayFile, read: Stretches, wanted: Wanted) -> Trace:
    """Run some layers, and write their arrays."""
    layers = None if wanted.layers is None else tuple(wanted.layers)
    trace = read.run(wanted, read.after(layers))
    for name, array in trace_arrays(trace).items():
        file.add(name, array)
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
    attentions = tuple(a for trace in traces for a in trace.attentions)
    return replace(traces[0], attentions=attentions, notes=merged(*(trace.notes for trace in traces)))
