"""What the explorer shows: a text, a layer, a head, a token, a stage, and how they are displayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from attnx.errors import AttnxError
from attnx.explore.reader import Reader, prepare
from attnx.measure.rows import SINK, read
from attnx.measure.unscaled import both_ways
from attnx.records import STAGES as QUANTITIES
from attnx.records import Attention, Measurement, Quantity, Tokens, Trace
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel
from attnx.study.selection import head_of
from attnx.view.matrix import Matrix, of_attention
from attnx.view.scale import SCALES, ScaleKind

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable

UNSCALED = "unscaled softmax"
STAGES: tuple[str, ...] = ("weights", UNSCALED, "scores", "scaled", "masked")
"""What the matrix can show, in the order of the keys 1 to 5."""
SHARES = ("weights", UNSCALED)
VIEWS = ("heatmap", "lines", "numbers")
"""How the matrix can be shown, in the order in which a key cycles through them."""


@dataclass
class Desk:
    """The state of the explorer for one text. Positions are token positions; heads and sites count from 0."""

    model: OpenModel
    text: str
    prompt: Callable[[str], Prompt] = Prompt
    """Makes the prompt to run for a text."""
    site: int = 0
    head: int = 0
    query: int = 0
    stage: str = "weights"
    measure: int = 0
    words: bool = False
    mute: bool = False
    sinks: bool = False
    view: str = "heatmap"
    scale: ScaleKind = "linear"
    note: str = ""
    reader: Reader = field(init=False)
    _matrix: tuple[tuple[int, int, str, bool], Matrix] | None = field(default=None, init=False)
    _parked: tuple[tuple[int, int, bool], tuple[int, ...]] | None = field(default=None, init=False)
    _queries: Tokens | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.open(self.text)

    def prepare(self, text: str) -> Reader:
        """Run the model on a text without showing it yet: the measures of every head, reduced in the graph.

        Raises:
            AttnxError: The text cannot be run.
        """
        return prepare(self.model, self.prompt(text))

    def open(self, text: str, reader: Reader | None = None) -> None:
        """Show a text (prepared, if a reader is given); layer, head and token stay the same if possible.

        Raises:
            AttnxError: The text cannot be run; the display stays unchanged.
        """
        self.reader = self.prepare(text) if reader is None else reader
        self.text = text
        self._matrix = self._parked = self._queries = None
        self.site = min(self.site, self.sites - 1)
        self.head = min(self.head, self.heads - 1)
        self.query = min(self.query, len(self.queries()) - 1)
        self.note = "; ".join((*self.tokens.notes, *self.reader.bare.notes))

    @property
    def tokens(self) -> Tokens:
        """The text's tokens."""
        return self.reader.tokens

    @property
    def table(self) -> HeadTable:
        """The measures of every head."""
        return self.reader.table

    @property
    def measurement(self) -> Measurement:
        """The measure that the grid shows, [S,H]."""
        return self.table.measures[self.measure % len(self.table.measures)]

    @property
    def sites(self) -> int:
        """How many sites there are."""
        return int(self.measurement.values.shape[0])

    @property
    def heads(self) -> int:
        """The number of heads of the current site."""
        count = self.reader.sites[self.site].heads
        return int(count if count is not None else self.measurement.values.shape[1])

    @property
    def place(self) -> str:
        """The current head's place: "L5 H11"."""
        return f"{self.measurement.axes[0].labels[self.site]} H{self.head}"

    @property
    def kind(self) -> str:
        """What the head does: "previous-token", or of a sink "sink, broad"; "" if it has no named kind."""
        table, at = self.table, (self.site, self.head)
        both = [kinds[at[0]][at[1]] for kinds in (table.kinds, table.rest_kinds) if kinds and at[1] < len(kinds[at[0]])]
        return ", ".join(filter(None, both))

    @property
    def ready(self) -> bool:
        """Whether the site's matrices are in memory, so that they can be shown at once."""
        return self.reader.has(self.site)

    def trace(self) -> Trace:
        """A trace with only the current head; the model is run if its arrays are not in memory."""
        return self.reader.trace(self.site, self.head, words=self.words)

    def matrix(self) -> Matrix:
        """The matrix of the current head and stage.

        Raises:
            AttnxError: The site does not have the stage, or failed its checks.
        """
        key = (self.site, self.head, self.stage, self.words)
        if self._matrix is None or self._matrix[0] != key:
            self._matrix = (key, self._drawn())
        return self._matrix[1]

    def effects(self) -> tuple[Measurement, tuple[str, ...]]:
        """How far the model's answer moves when a head is ablated, for every head; this runs the model for each.

        Notes say which heads cannot be ablated, and why.

        Raises:
            AttnxError: The model's heads cannot be ablated.
        """
        from attnx.study.head_effects import effects

        return effects(self.model, self.prompt(self.text), self.reader.bare, self.table.measures[0])

    def add(self, measure: Measurement) -> None:
        """Colour the grid by a measure that is not in the table."""
        kept = tuple(one for one in self.table.measures if one.name != measure.name)
        self.reader.table = replace(self.table, measures=(*kept, measure))
        self.measure = len(kept)

    def _drawn(self) -> Matrix:
        trace = self.trace()
        attention = trace.attentions[0]
        if not attention.trusted:
            worst = max((c for c in attention.checks if not c.holds), key=lambda c: c.difference)
            raise AttnxError(
                f"{worst.name!r} does not hold at this site (off by {worst.difference:.2g}): it is not shown"
            )
        if self.stage == UNSCALED:
            return self._unscaled(trace, attention)
        stage: Quantity = self.stage if self.stage in QUANTITIES else "weights"
        return replace(of_attention(trace, attention, 0, stage), title=self.place)

    def _unscaled(self, trace: Trace, attention: Attention) -> Matrix:
        """The weights as they would be without scaling the scores."""
        weights = np.exp(both_ways(trace, 0).unscaled)[None].astype(np.float32)
        other = replace(attention, weights=weights)
        drawn = of_attention(replace(trace, attentions=(other,)), other, 0, "weights")
        return replace(drawn, name=UNSCALED, title=self.place)

    def muted(self) -> tuple[int, ...]:
        """Key positions that are left out: special tokens while they are muted, the head's sinks while those are."""
        out: set[int] = set()
        trace = self.trace()
        if self.mute:
            out.update(i for i, special in enumerate(trace.keys_of(trace.attentions[0]).special) if special)
        if self.sinks:
            key = (self.site, self.head, self.words)
            if self._parked is None or self._parked[0] != key:
                taken = read(trace, trace.attentions[0]).importance()[0]
                self._parked = (key, tuple(int(at) for at in np.flatnonzero(np.nan_to_num(taken) > SINK)))
            out.update(self._parked[1])
        return tuple(sorted(out))

    def queries(self) -> Tokens:
        """The tokens (or words) that the row's cursor moves over; while a site is being read, those shown last."""
        if self.ready:
            trace = self.trace()
            self._queries = trace.queries_of(trace.attentions[0])
        return self.tokens if self._queries is None else self._queries

    def move(self, layers: int = 0, heads: int = 0, tokens: int = 0) -> None:
        """Move, stopping at the ends."""
        self.site = min(max(self.site + layers, 0), self.sites - 1)
        self.head = min(max(self.head + heads, 0), self.heads - 1)
        self.query = min(max(self.query + tokens, 0), len(self.queries()) - 1)

    def show(self, stage: str) -> None:
        """Show another stage; words only have weights, so any other stage shows pieces."""
        if stage != "weights" and self.words:
            self.toggle_words()
        self.stage = stage
        if stage not in SHARES and self.scale == "log":
            self.scale, self.note = "linear", "scores may be negative: linear colours"

    def next_scale(self) -> None:
        """The next colour scale that the stage can have."""
        there = [kind for kind in SCALES if kind != "log" or self.stage in SHARES]
        self.scale = there[(there.index(self.scale) + 1) % len(there)]

    def toggle_words(self) -> None:
        """Switch between pieces and words; the cursor stays on its token."""
        at = self.query
        self.trace()
        before = self.queries()
        self.words = not self.words
        if self.words and self.stage != "weights":
            self.stage, self.note = "weights", "words: pieces are summed up in the weights alone"
        after = self.queries()
        start = before.offsets[at][0] if at < len(before) else 0
        same = [i for i, (a, b) in enumerate(after.offsets) if a <= start < max(b, a + 1) and not after.special[i]]
        special = at < len(before) and before.special[at]
        self.query = (0 if at == 0 else len(after) - 1) if special else same[0] if same else min(at, len(after) - 1)

    def start(self, head: str | None = None, query: str | None = None) -> None:
        """Show a head and a token: the named ones, otherwise the head worth opening and its strongest pair.

        Args:
            head: "5.11".
            query: A token, by its text or position.

        Raises:
            AttnxError: There is no such head or token; the run failed.
        """
        if head is not None:
            self.site, self.head = head_of(self.reader.bare, head)
        found = self.reader.opening(None if head is None else (self.site, self.head))
        if found is not None:
            self.site, self.head, self.query = found
        if query is not None:
            self.reader.read(self.site)
            self.find(query)

    def find(self, what: str) -> None:
        """Put the cursor on a token, by its text or position.

        Raises:
            UsageError: It does not occur, or occurs several times; the message lists where.
        """
        from attnx.tokens import find

        self.query = find(self.queries(), what)[0]
