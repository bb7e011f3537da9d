"""model.onnx -> what was found in it, and sessions on it: from the cache if it was opened before, else from its graph.

A cached model is run without reading its graph: neither onnx nor any code of graph/ or sites/ is imported.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnx.errors import AttnxError
from attnx.records import Array, Site
from attnx.session import model_summary as summaries
from attnx.session.branches import Chooser, chooser
from attnx.session.model_summary import ModelSummary
from attnx.session.ort import Session, on_cuda, open_session
from attnx.taps.tap import Tapped, places_for, tap

if TYPE_CHECKING:
    from attnx.graph.load.load import Loaded
    from attnx.session.processor import Processor
    from attnx.sites.recognise import Found

LANES = 4
"""The most batches that run at once on the CPU. Threads that share one small product wait for one another more than
threads that have a batch each."""
FEW = 2
"""A session for at most this many runs skips preparation that pays off only later: see `SessionPool.session`."""


Ends = tuple[str | None, str | None]
"""Where a session begins and ends: the tensor that is an input, and one that is an output; None for the model's own."""


@dataclass(slots=True)
class _Open:
    session: Session
    tapped: Tapped
    thorough: bool
    runs: int = 0


KEPT = 4
"""How many sessions stay open, the most recently used: each may hold the weights."""


class SessionPool:
    """One model file, opened only as far as needed."""

    def __init__(self, path: Path, device: str) -> None:
        self.path, self.device = path, device
        self.threads: int | None = None
        """Processors that sessions opened from now on may use; onnxruntime's choice where None."""
        self.processor: Processor | None = None
        """The processor against which integer kernels are checked; this machine's where None."""
        self.alter: Callable[[bytes, Found], bytes] | None = None
        """What is done to a serialised model before a session is opened on it."""
        self.fused = False
        """Whether sessions turn products between DequantizeLinear into products of integers."""
        self._choosers: dict[tuple[bool, ...], Chooser | None] = {}
        self._summaries: dict[tuple[bool, ...], ModelSummary] = {}
        self._graphs: dict[tuple[bool, ...], Found] = {}
        self._sessions: dict[object, _Open] = {}
        self._opens = threading.RLock()
        self._pending: threading.Thread | None = None
        self.batches: bool | None = None
        """Whether a text gives the same in a batch as on its own; None until a batch was checked."""

    def find(self, inputs: Mapping[str, Array] | None = None) -> ModelSummary:
        """What the model holds; `inputs` decides which branch of an If runs.

        Raises:
            ModelError: The file cannot be read as an ONNX model.
        """
        choose = chooser(self.path, inputs)
        branch = choose.key
        self._choosers.setdefault(branch, choose if inputs is not None else None)
        if branch not in self._summaries:
            name = summaries.key_of(self.path, branch)
            known = summaries.load(name, branch)
            if known is None:
                found = self.graph(branch)
                known = summaries.take(found, name, branch)
                summaries.save(known, found)
            self._summaries[branch] = known
        return self._summaries[branch]

    def graph(self, branch: tuple[bool, ...] = ()) -> Found:
        """The graph itself, read when it is first needed."""
        if branch not in self._graphs:
            from attnx.session.outside import facts_by_onnxruntime
            from attnx.sites.recognise import find

            choose = self._choosers.get(branch)
            chosen = choose.choose if choose is not None else None
            known = self._summaries.get(branch)
            numbered = None if known is None else (known.sites, dict(known.fused_of))
            self._graphs[branch] = find(self.path, chosen, facts_by_onnxruntime, numbered)
        return self._graphs[branch]

    def loaded(self) -> Loaded:
        """The file, opened without its weights: that of a graph that was read, or anew."""
        from attnx.graph.load.load import load

        return next((found.loaded for found in self._graphs.values()), None) or load(self.path)

    def prepare(self, quantities: Collection[str], layers: Collection[int] | None = None, rows: bool = False) -> None:
        """Start opening the session that a run will need, in parallel with what the caller does next (imports, tokens).

        onnxruntime opens a model without blocking Python. A failure here happens again when the model is run, and is
        reported then.
        """

        def work() -> None:
            with contextlib.suppress(Exception):
                sites = [s for s in known.sites if layers is None or s.layer in layers]
                self._session(known, sites, quantities, False, rows=rows)

        with contextlib.suppress(AttnxError):
            known = self.find()
            self._pending = threading.Thread(target=work, name="attnx-open")
            self._pending.start()

    def session(
        self,
        known: ModelSummary,
        sites: Sequence[Site],
        quantities: Collection[str] | Mapping[int, Collection[str]],
        outputs: bool,
        *,
        many: bool = False,
        rows: bool = False,
        picked: Collection[int] = (),
        ends: Ends = (None, None),
    ) -> tuple[Session, Tapped]:
        """A session with the taps that these sites and quantities need; kept for the next run.

        Args:
            known: What the model holds.
            sites: The sites looked at.
            quantities: What is wanted of each, or by a site's index: quantities, and statistics of `reduce.STATS`.
            outputs: Whether the model's own outputs are wanted. Without them, what only they need is not computed.
            rows: Only the rows of chosen queries.
            many: It will run batches, several at once (`lanes`): it is opened for that. Otherwise it is opened as fast
                as can be, and opened again where it then runs more than `FEW` times after all.
            picked: Sites of which only some heads' matrices are wanted, by index; see `taps.tap`.
            ends: The tensor at which it begins, as an input, and one that it returns besides; see `taps.tap`.
        """
        if self._pending is not None:
            self._pending.join()
            self._pending = None
        have = self._session(known, sites, quantities, outputs, many, rows, picked, ends)
        have.runs += 1
        return have.session, have.tapped

    def _session(
        self,
        known: ModelSummary,
        sites: Sequence[Site],
        quantities: Collection[str] | Mapping[int, Collection[str]],
        outputs: bool,
        many: bool = False,
        rows: bool = False,
        picked: Collection[int] = (),
        ends: Ends = (None, None),
    ) -> _Open:
        each = quantities if isinstance(quantities, Mapping) else {s.index: quantities for s in sites}
        wanted = {s.index: places_for(s, each[s.index]) for s in sites}
        some = tuple(sorted(picked))
        key = (known.branch, tuple((i, tuple(sorted(q))) for i, q in wanted.items()), outputs, rows, many, some, ends)
        with self._opens:  # batches run in parallel: the first opens the session for all
            return self._kept(known, wanted, key, outputs, rows, many, picked, ends)

    def _kept(
        self,
        known: ModelSummary,
        wanted: Mapping[int, Collection[str]],
        key: object,
        outputs: bool,
        rows: bool,
        many: bool,
        picked: Collection[int],
        ends: Ends,
    ) -> _Open:
        """The session under that key, opened if necessary; the least recently used one is closed."""
        have = self._sessions.get(key)
        if have is None:
            tapped = self._tapped(known, wanted, outputs, rows, picked, ends)
            have = self._sessions[key] = self._open(known, tapped, many)
        elif not have.thorough and have.runs >= FEW:
            tapped = have.tapped
            del have, self._sessions[key]  # the old one is closed first: each may hold the weights
            have = self._sessions[key] = self._open(known, tapped, False, thorough=True)
        self._sessions[key] = self._sessions.pop(key)  # the most recently used comes last
        while len(self._sessions) > KEPT:
            del self._sessions[next(iter(self._sessions))]
        return have

    def _tapped(
        self,
        known: ModelSummary,
        wanted: Mapping[int, Collection[str]],
        outputs: bool,
        rows: bool = False,
        picked: Collection[int] = (),
        ends: Ends = (None, None),
    ) -> Tapped:
        """The tapped graph, from the cache where it was made before."""
        wide = not on_cuda(self.device)
        extra: list[object] = [outputs, rows, wide, *sorted(picked)]
        extra += [list(ends)] if ends != (None, None) else []
        tapped = summaries.load_tapped(known, wanted, extra)
        if tapped is None:
            kept = None if outputs else ()
            graph, (begin, end) = self.graph(known.branch), ends
            tapped = tap(graph, wanted, outputs=kept, rows=rows, picked=picked, wide=wide, begin=begin, end=end)
            summaries.save_tapped(known, wanted, extra, tapped)
        return tapped

    def close(self, session: Session) -> None:
        """Release a session, and the weights that it holds."""
        with self._opens:
            for key in [key for key, have in self._sessions.items() if have.session is session]:
                del self._sessions[key]

    def clear(self) -> None:
        """Let go of all sessions."""
        with self._opens:
            self._sessions.clear()

    def lanes(self) -> int:
        """How many batches run at once on the CPU, each in one of the caller's threads."""
        return min(LANES, self._processors())

    def _processors(self) -> int:
        if self.threads is not None:
            return self.threads
        try:
            return len(os.sched_getaffinity(0))
        except AttributeError:  # not Linux
            return os.cpu_count() or 1

    def plain(self, known: ModelSummary) -> Session:
        """A session on the model without taps (CUDA-only operators are decomposed here too)."""
        return self._session_on(known, self._tapped(known, {}, True), threads=self.threads)

    def parameters(self, known: ModelSummary) -> int:
        """How many numbers every token is multiplied with; see `attnx.graph.axes.parameters`."""
        return summaries.parameters(known, lambda: self.graph(known.branch).opened)

    def _open(self, known: ModelSummary, tapped: Tapped, many: bool, thorough: bool = False) -> _Open:
        thorough = thorough or many or not tapped.plain or self.fused
        threads = self.threads
        if many:
            # The threads that run the batches compute as well: together they use all processors.
            threads = self._processors() - self.lanes() + 1
        return _Open(self._session_on(known, tapped, thorough=thorough, threads=threads), tapped, thorough)

    def _session_on(
        self, known: ModelSummary, tapped: Tapped, *, thorough: bool = True, threads: int | None = None
    ) -> Session:
        model = tapped.model if self.alter is None else self.alter(tapped.model, self.graph(known.branch))
        return open_session(
            model, tapped.folder, self.device, thorough=thorough, fused=self.fused, threads=threads,
            exact=tapped.rounded and not self.fused,
        )  # fmt: skip
