"""What the explorer looks at: a text, a layer, a head, a token, a stage; and the arrays of the layers opened."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from attnx.errors import AttnxError
from attnx.measure.words import merge_trace
from attnx.records import QUANTITIES, Attention, Measurement, Quantity, Tokens, Trace
from attnx.unscaled import both_ways
from attnx.view.matrix import Matrix, of_attention

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable
    from attnx.pipeline import Model

UNSCALED = "unscaled softmax"
STAGES: tuple[str, ...] = ("weights", UNSCALED, "scores", "scaled", "masked")
"""What the matrix can show, in the order of the keys 1 to 5."""
KEPT = 3
"""Layers whose matrices stay in memory."""


@dataclass
class Desk:
    """One text under the glass. Positions are of tokens; heads and sites count from 0."""

    model: Model
    text: str
    site: int = 0
    head: int = 0
    query: int = 0
    stage: str = "weights"
    measure: int = 0
    words: bool = False
    mute: bool = False
    lines: bool = False
    note: str = ""
    tokens: Tokens = field(init=False)
    table: HeadTable = field(init=False)
    _seen: tuple[tuple[int, int, str, bool], Matrix] | None = field(default=None, init=False)
    _layers: OrderedDict[tuple[int, bool], Trace] = field(default_factory=OrderedDict, init=False)

    def __post_init__(self) -> None:
        self.open(self.text)

    def open(self, text: str) -> None:
        """Run the model on a text: the measures of every head, reduced in the graph; matrices come when looked at.

        Raises:
            AttnxError: The text cannot be run; what was shown stays.
        """
        tokens = self.model.encode(text)
        table = self.model.heads(tokens=tokens)
        self.text, self.tokens, self.table = text, tokens, table
        self._layers.clear()
        self._seen = None
        self.site = min(self.site, self.sites - 1)
        self.head = min(self.head, self.heads - 1)
        self.query = min(self.query, len(tokens) - 1)
        self.note = "; ".join(tokens.notes)

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
        """How many heads the site has that is looked at."""
        count = self.model.sites[self.site].heads
        return int(count if count is not None else self.measurement.values.shape[1])

    @property
    def label(self) -> str:
        """The head by name: "L5 H11 previous-token"."""
        kinds = self.table.kinds[self.site]
        kind = kinds[self.head] if self.head < len(kinds) else ""
        return f"{self.measurement.axes[0].labels[self.site]} H{self.head} {kind}".strip()

    def trace(self) -> Trace:
        """The arrays of the site that is looked at, read once and kept for a while."""
        key = (self.site, self.words)
        if key not in self._layers:
            site = self.model.sites[self.site]
            layers = None if site.layer is None else [site.layer]
            whole = self.model.trace(tokens=self.tokens, layers=layers, quantities=QUANTITIES)
            one = replace(whole, attentions=tuple(a for a in whole.attentions if a.site.index == site.index))
            self._layers[key] = merge_trace(one) if self.words else one
            while len(self._layers) > KEPT:
                self._layers.popitem(last=False)
        self._layers.move_to_end(key)
        return self._layers[key]

    def matrix(self) -> Matrix:
        """The matrix of the head and stage that is looked at.

        Raises:
            AttnxError: The site does not have the stage, or failed its checks.
        """
        key = (self.site, self.head, self.stage, self.words)
        if self._seen is None or self._seen[0] != key:
            self._seen = (key, self._matrix())
        return self._seen[1]

    def _matrix(self) -> Matrix:
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
        return of_attention(trace, attention, self.head, stage)

    def _unscaled(self, trace: Trace, attention: Attention) -> Matrix:
        """The weights as they would be had the scores not been scaled."""
        weights = np.exp(both_ways(trace, 0).unscaled)[None].astype(np.float32)
        other = replace(attention, weights=weights)
        drawn = of_attention(replace(trace, attentions=(other,)), other, self.head, "weights")
        return replace(drawn, name=UNSCALED)

    def muted(self) -> tuple[int, ...]:
        """Key positions that are left out: special tokens, while they are muted."""
        if not self.mute:
            return ()
        trace = self.trace()
        return tuple(i for i, special in enumerate(trace.keys_of(trace.attentions[0]).special) if special)

    def queries(self) -> Tokens:
        """The tokens (or words) that the row's cursor moves over."""
        trace = self.trace()
        return trace.queries_of(trace.attentions[0])

    def move(self, layers: int = 0, heads: int = 0, tokens: int = 0) -> None:
        """Move, stopping at the ends."""
        self.site = min(max(self.site + layers, 0), self.sites - 1)
        self.head = min(max(self.head + heads, 0), self.heads - 1)
        if tokens:
            self.query = min(max(self.query + tokens, 0), len(self.queries()) - 1)

    def toggle_words(self) -> None:
        """Between pieces and words; the cursor stays on its token."""
        at = self.query
        before = self.queries()
        self.words = not self.words
        if self.words and self.stage != "weights":
            self.stage, self.note = "weights", "words: pieces are summed up in the weights alone"
        after = self.queries()
        start = before.offsets[at][0] if at < len(before) else 0
        same = [i for i, (a, b) in enumerate(after.offsets) if a <= start < max(b, a + 1) and not after.special[i]]
        special = at < len(before) and before.special[at]
        self.query = (0 if at == 0 else len(after) - 1) if special else same[0] if same else min(at, len(after) - 1)

    def find(self, what: str) -> None:
        """Put the cursor on a token, by its text or position.

        Raises:
            UsageError: It is not there, or there several times; the message lists where.
        """
        from attnx.tokens import find

        self.query = find(self.queries(), what)[0]
