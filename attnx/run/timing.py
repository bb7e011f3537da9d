"""Measured time and memory of a model at growing lengths: its own outputs alone, without taps."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnx.errors import AttnxError, UnsupportedError
from attnx.feed.fill import derive
from attnx.feed.inputs import fixed_length, is_ids, looked_up, takes_target
from attnx.records import Array, Axis, Measurement, Tokens
from attnx.run.encdec import Encoded
from attnx.run.prompt import Prompt
from attnx.session.memory import give_back
from attnx.session.ort import Session
from attnx.session.protocol import NOTHING, OpenModel, Run
from attnx.tokens import from_ids
from attnx.tokens.files import find_limit

RUNS = 3
"""Runs for each length, at most, of which the median is taken; one whose time does not count comes before."""
ENOUGH = 0.05
"""Seconds after which a length is not run again: long runs vary less. If the first took longer, its time counts."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What was measured."""

    table: Measurement
    """[lengths,2]: seconds per run (median), peak memory in bytes beyond what the process held before; NaN where the
    model did not run or memory cannot be measured."""
    notes: tuple[str, ...]
    """Lengths that did not run, and why."""


def measure(model: OpenModel, lengths: Sequence[int]) -> Timing:
    """Run a model on random tokens of each length.

    Args:
        model: With a tokenizer or without: ids are drawn from the model's own table.
        lengths: Numbers of tokens, special ones included.

    Returns:
        See `Timing`. Memory is the process's own peak resident size, which is not what a GPU holds.

    Raises:
        UnsupportedError: Encoder and decoder are two files.

    Source: attnx.
    """
    rows, notes = [], []
    if model.encoder is not None:
        raise UnsupportedError(
            "an encoder and a decoder in two files are not measured together", "Measure each file by itself."
        )
    two_sided, timer = takes_target(model.slots()), _Timer(model)
    most = _most(model)
    if beyond := [str(length) for length in lengths if most is not None and length > most]:
        notes.append(f"{', '.join(beyond)} tokens were not tried: the model takes {most} at most")
    for length in lengths:
        took = (float("nan"), float("nan"))
        if most is not None and length > most:
            rows.append(took)
            continue
        tokens = _random(model, length)
        try:
            if two_sided:
                both = Encoded(tokens).needs(tokens.ids.tolist())
                took = timer.timed(derive(model.slots(), both))
            else:
                passes = Prompt().feed(model, [tokens], NOTHING)
                for one in passes:
                    took = timer.timed(one.feed)
                    passes.answer(Run((), one.feed))
        except AttnxError as error:
            notes.append(f"{length} tokens did not run: {_why(error)}")
            if longer := [str(n) for n in lengths if n > length and (most is None or n <= most)]:
                notes.append(f"{', '.join(longer)} tokens were not tried after that")
            most = length  # longer texts would not run either
        rows.append(took)
    if two_sided:
        notes.append("measured with as many tokens on the decoder's side as on the encoder's")
    if not _can_measure_memory():
        notes.append("peak memory cannot be measured on this system")
    return Timing(
        Measurement(
            name="measured",
            unit="",
            axes=(Axis("tokens", tuple(str(n) for n in lengths)), Axis("column", ("seconds", "peak memory (bytes)"))),
            values=np.array(rows, np.float64),
            bounds=(0.0, None),
            source="attnx",
            formula=f"median of up to {RUNS} runs after one that does not count, or that one if it takes {ENOUGH} s or "
            "more; peak resident memory beyond what was held before any run",
        ),
        tuple(notes),
    )


def _most(model: OpenModel) -> int | None:
    """The most tokens that a model takes: as its configuration says, or its graph was exported for."""
    limits = [find_limit(model.path), fixed_length(model.slots())]
    return min((limit for limit in limits if limit is not None and limit > 1), default=None)


def _why(error: AttnxError) -> str:
    """Why a run failed, in one line; of onnxruntime's message, only the node."""
    node = re.search(r"Name:'([^']+)'", error.message)
    if node is None:
        return error.message
    return f"onnxruntime stopped at {node[1]}; it may be more than the model takes"


class _Timer:
    """One session that runs all lengths, and gives back what one length took before the next."""

    def __init__(self, model: OpenModel) -> None:
        self._model = model
        self._session: Session | None = None
        self._branch: tuple[bool, ...] = ()
        self._before = 0.0
        """Bytes held when the session was open and had run nothing."""
        self._small: Mapping[str, Array] = {}
        """The first feed, which is the smallest: run once more to give memory back."""

    def timed(self, feed: Mapping[str, Array]) -> tuple[float, float]:
        """Seconds that a run took, and its peak memory beyond what was held before."""
        session = self._ready(feed)
        _reset_peak()
        first = _seconds(session, feed)
        memory = max(0.0, _peak() - self._before)
        seconds: list[float] = []
        while len(seconds) < RUNS and first + sum(seconds) < ENOUGH:
            seconds.append(_seconds(session, feed))
        return _median(seconds or [first]), memory

    def _ready(self, feed: Mapping[str, Array]) -> Session:
        """The session for a feed, holding no memory of other runs: opened, or freed of it by a small run."""
        branch = self._model.find(feed).branch
        if self._session is None or branch != self._branch:
            self._session = None  # closed first: each holds the weights
            self._session, self._branch, self._small = self._model.plain(feed), branch, feed
            give_back()
            self._before = _resident()
        else:
            self._session.run(self._small, shrink=True)
            give_back()
        return self._session


def _median(values: Sequence[float]) -> float:
    """The middle of them, or the mean of the two in the middle."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _seconds(session: Session, feed: Mapping[str, Array]) -> float:
    started = time.perf_counter()
    session.run(feed)
    return time.perf_counter() - started


def _random(model: OpenModel, length: int) -> Tokens:
    """Tokens of random ids from the model's table of them, always the same for a given length; 1 to 8 without a table.

    Which ids they are changes no time. Hence no tokenizer is read to tell the special ones, and multiples of a large
    prime do for random numbers (Knuth, TAOCP 3, 6.4): numpy's take time to load.
    """
    known = model.find()
    sizes = [slot.table for slot in looked_up(known.inputs, known.rows) if is_ids(slot) and slot.table is not None]
    most = max(2, min(sizes, default=9))
    return from_ids([1 + (length + at) * 2654435761 % 2**32 % (most - 1) for at in range(length)])


def _can_measure_memory() -> bool:
    return sys.platform == "linux" and Path("/proc/self/status").is_file()


def _status(field: str) -> float:
    """Bytes that /proc reports for this process; NaN where there is no /proc."""
    if not _can_measure_memory():
        return float("nan")
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(field):
            return float(line.split()[1]) * 1024
    return float("nan")


def _resident() -> float:
    return _status("VmRSS:")


def _peak() -> float:
    return _status("VmHWM:")


def _reset_peak() -> None:
    """Reset the process's peak memory to what it holds now. Source: proc(5), clear_refs."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return
