"""Texts -> one part of a scan: run in batches, measured, and put into the bytes of a file.

Every engine uses this function: its result depends only on the model, the job and the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnx.errors import AttnxError, InputError
from attnx.feed.text import encode
from attnx.records import QUANTITIES, Array, Attention, Measurement, Tokens, Trace
from attnx.run import batch as batching
from attnx.run.batch import Batch
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.scan import surveys
from attnx.scan.corpus import Text
from attnx.scan.observations import Rows
from attnx.scan.parts import Note
from attnx.scan.parts import encode as encode_part
from attnx.session.protocol import OpenModel, Wanted
from attnx.study import batch_head_stats
from attnx.study.batch_head_stats import LONG
from attnx.wording import Wording

TOLERANCE = 1e-4
"""How much a measure of a text in a batch may differ from the same measure of the text alone."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is measured, and how."""

    measures: tuple[str, ...] = ("heads",)
    """Names of surveys."""
    size: int = batching.SIZE
    """Texts per batch."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Fields that every text must have."""
        return tuple(dict.fromkeys(name for one in self.measures for name in surveys.load(one).required))

    @property
    def may(self) -> tuple[str, ...]:
        """Fields that are read if they exist."""
        return tuple(dict.fromkeys(name for one in self.measures for name in surveys.load(one).optional))

    @property
    def arrays(self) -> tuple[str, ...]:
        """The quantities that are needed."""
        wanted = {name for one in self.measures for name in surveys.load(one).arrays}
        return tuple(name for name in QUANTITIES if name in wanted)

    @property
    def batched(self) -> tuple[str, ...]:
        """Measures that are computed for a whole batch at once."""
        return tuple(dict.fromkeys(name for one in self.measures for name in surveys.load(one).batched))


def measure(model: OpenModel, job: Job, number: int, start: int, texts: Sequence[Text], digest: str = "") -> bytes:
    """Measure consecutive texts.

    Args:
        model: The model.
        job: What is measured.
        number: The number of the part.
        start: The number of its first text.
        texts: Its texts.
        digest: Identifies the texts; stored in the part.

    Returns:
        The bytes of the part's file.

    Raises:
        AttnxError: A text cannot be tokenised, or a run failed; the message says where.
    """
    part = _Part(model, job, start, texts, [_tokens(model, text) for text in texts])
    try:
        part.measure()
    except AttnxError as error:
        where = f"texts {start} to {start + len(texts) - 1} ({_place(texts[0])} on)"
        error.message = Wording("{where}: {what}", where=where, what=error.message)
        raise
    total = sum(len(tokens) for tokens in part.tokens)
    made = (number, start, len(texts), digest, total, part.device, tuple(part.notes))
    return encode_part(part.rows, Note(*made, part.left, part.rows.sums))


@dataclass(slots=True)
class _Part:
    """One part in progress."""

    model: OpenModel
    job: Job
    start: int
    texts: Sequence[Text]
    tokens: Sequence[Tokens]
    rows: Rows = field(default_factory=Rows)
    notes: dict[str, None] = field(default_factory=dict)
    left: dict[str, tuple[int, str]] = field(default_factory=dict)
    device: str = ""
    _quick: dict[tuple[str, ...], tuple[tuple[Measurement, ...], Array, list[int]]] = field(default_factory=dict)
    """Labels of the layers -> the names of the measures, their values [T,M,S,H], and which texts have them."""
    _slow: bool = False
    """Whether the measures of a batch turned out to be wrong."""

    def measure(self) -> None:
        for at, tokens in enumerate(self.tokens):
            for note in tokens.notes:
                self._leave("notes", at, note)
        reduced = set(self.job.batched) <= set(surveys.load("heads").batched) and all(
            surveys.load(name).batched for name in self.job.measures
        )
        long = [at for at, tokens in enumerate(self.tokens) if reduced and len(tokens) > LONG]  # reduced in the graph
        others = [at for at in range(len(self.texts)) if at not in set(long)]
        for at in long:
            self._reduced(at)
        if batching.together(self.model):
            wanted = Wanted(None, self.job.arrays)
            for batch in batching.run(self.model, [self.tokens[at] for at in others], wanted, self.job.size):
                self._batch(replace(batch, places=tuple(others[at] for at in batch.places)))
        else:
            for at in others:
                self._single(at)
        for like, values, there in self._quick.values():
            places = sorted(there)
            numbers = [self.start + at for at in places]
            lengths = [len(self.tokens[at]) for at in places]
            self.rows.add_many(numbers, [self.texts[at] for at in places], lengths, like, values[places])

    def _reduced(self, at: int) -> None:
        """A long text, whose matrices are reduced in the graph and never fetched."""
        from attnx.study.head_stats import heads

        def trusted(trace: Trace) -> Trace:
            return replace(trace, attentions=self._trusted(trace.attentions))

        table, trace = heads(self.model, Prompt(tokens=self.tokens[at]), None, trusted)
        self.device = trace.device
        if trace.attentions:
            found = {one.name: one for one in table.measures}
            names = self.job.batched
            self.rows.add(self.start + at, self.texts[at], len(trace.tokens), [found[name] for name in names])

    def _single(self, at: int) -> None:
        trace = execute(self.model, Prompt(tokens=self.tokens[at]), Wanted(quantities=self.job.arrays))
        kept = self._trusted(trace.attentions)
        self.device = trace.device
        if kept:
            self._survey(at, replace(trace, attentions=kept), self.job.measures)

    def _batch(self, batch: Batch) -> None:
        kept = self._trusted(batch.attentions)
        self.device = batch.device
        self.notes.update(dict.fromkeys(batch.notes))
        if not kept:
            return
        batch = replace(batch, attentions=kept)
        names = self.job.batched
        quick = batch_head_stats.measure(batch, names) if names and not self._slow else None
        if quick is not None:
            quick = self._keep(batch, np.stack([quick[name] for name in names], axis=1))
        others = [name for name in self.job.measures if quick is None or not surveys.load(name).batched]
        if others:
            for at, trace in zip(batch.places, batch.traces(), strict=True):
                self._survey(at, trace, others)

    def _keep(self, batch: Batch, values: Array) -> Any:
        """Keep the measures [B,M,S,H] of a batch; its first text is also measured alone and must agree.

        Returns:
            None if it does not.
        """
        trace = next(batch.traces())
        if trace.labels not in self._quick:
            found = {m.name: m for one in self.job.measures for m in self._measured(one, trace) if m.name}
            like = tuple(found[name] for name in self.job.batched)
            alone = np.stack([one.values for one in like])
            gap = np.abs(values[0] - alone) / np.maximum(1.0, np.abs(alone))
            if not np.array_equal(np.isnan(values[0]), np.isnan(alone)) or np.nanmax(gap, initial=0.0) > TOLERANCE:
                self._slow = True
                self.notes["measures of whole batches differ from those of single texts, which are used"] = None
                return None
            shape = (len(self.texts), *values.shape[1:])
            self._quick[trace.labels] = (like, np.full(shape, np.nan, np.float32), [])
        _, kept, there = self._quick[trace.labels]
        kept[list(batch.places)] = values
        there.extend(batch.places)
        return values

    def _measured(self, name: str, trace: Trace) -> Sequence[Measurement]:
        survey = surveys.load(name)
        return survey.compute(trace, {}) if survey.batched else ()

    def _survey(self, at: int, trace: Trace, names: Sequence[str]) -> None:
        found: dict[str, Measurement] = {}
        for name in names:
            try:
                for one in surveys.load(name).compute(trace, self.texts[at].fields):
                    found.setdefault(one.name, one)
            except InputError as error:
                self._leave(name, at, error.message)
        self.rows.add(self.start + at, self.texts[at], len(trace.tokens), list(found.values()))

    def _leave(self, name: str, at: int, why: str) -> None:
        count, first = self.left.get(name, (0, f"{_place(self.texts[at])}: {why}"))
        self.left[name] = (count + 1, first)

    def _trusted(self, attentions: Sequence[Attention]) -> tuple[Attention, ...]:
        doubtful = [a.site.label for a in attentions if not a.trusted]
        self.notes.update((f"not trusted and left out: {label}", None) for label in doubtful)
        return tuple(a for a in attentions if a.trusted)


def _tokens(model: OpenModel, text: Text) -> Tokens:
    try:
        return encode(model, text.text)
    except AttnxError as error:
        raise InputError(Wording("{at}: {what}", at=_place(text), what=error.message), error.hint) from None


def _place(text: Text) -> str:
    return f"{text.source}, line {text.line}"
