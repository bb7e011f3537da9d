"""What has been read of a text: the measures of every head at once, matrices for a stretch of layers at a time.

A stretch is as many layers as fit in `STRETCH` bytes, so that a short text is read at once and a long one does not
exhaust memory; each stretch has one tapped session, which the next text reuses.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from attnx.errors import UnsupportedError
from attnx.measure.looks import strongest_pair
from attnx.measure.words import merge_trace
from attnx.records import QUANTITIES, STAGES, Attention, Site, Tokens, Trace
from attnx.run.dry_run import dry_run
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.head_stats import heads
from attnx.study.stretches import Stretch, stretches
from attnx.study.worth_opening import opening, opening_reduced

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable

STRETCH = 1 << 28
"""Bytes of matrices that are read at once."""
KEPT = 1 << 29
"""Bytes of matrices that stay in memory in addition to those of the current stretch."""


@dataclass
class Reader:
    """One text and what was read of it. Methods may be called from one thread at a time, `has` from any."""

    model: OpenModel
    prompt: Prompt
    """The prompt to run it on."""
    table: HeadTable
    """The measures of every head, reduced in the graph."""
    bare: Trace
    """The run without arrays: tokens, and the sites in the order of the table."""
    _stretches: tuple[Stretch, ...] = field(init=False)
    _read: OrderedDict[Stretch, Trace] = field(default_factory=OrderedDict, init=False)
    _words: dict[tuple[int, int], Trace] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        sides = [
            self.bare.tokens,
            self.bare.memory or (),
            *(side for both in self.bare.sides.values() for side in both),
        ]
        self._stretches = stretches(self.sites, max(map(len, sides)), STRETCH)

    @property
    def tokens(self) -> Tokens:
        """The query side's tokens."""
        return self.bare.tokens

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites, in the order of the table."""
        return tuple(a.site for a in self.bare.attentions)

    def stretch(self, site: int) -> Stretch:
        """The layers that are read together with a site."""
        layer = self.sites[site].layer
        return next((one for one in self._stretches if one is None or layer in one), None)

    def has(self, site: int) -> bool:
        """Whether a site's matrices are in memory."""
        return self.stretch(site) in self._read

    def near(self, site: int) -> int | None:
        """A site one step away whose matrices are not in memory but would also fit; None if there is none."""
        now = self._read.get(self.stretch(site))
        if now is None or size(now) > KEPT // 2:
            return None
        beside = (at for at in (site + 1, site - 1) if 0 <= at < len(self.sites))
        return next((at for at in beside if not self.has(at)), None)

    def read(self, site: int) -> None:
        """Run the model for a site's stretch, unless it is in memory.

        Raises:
            AttnxError: The run failed.
        """
        stretch = self.stretch(site)
        if stretch in self._read:
            return
        self._read[stretch] = execute(self.model, self.prompt, Wanted(stretch, STAGES))
        while len(self._read) > 1 and sum(map(size, self._read.values())) > KEPT:
            self._read.popitem(last=False)

    def opening(self, head: tuple[int, int] | None = None) -> tuple[int, int, int] | None:
        """The head worth opening, and the query of its largest weight between two words.

        Args:
            head: Use this head instead: position of its site, head.

        Returns:
            Position of its site, head, query; None if nothing stands out.

        Raises:
            AttnxError: The run failed.
        """
        if head is None and len(self._stretches) > 1:  # for a long text, the head is found without its matrices
            planned = dry_run(self.model, self.prompt)
            head = None if planned is None else opening_reduced(self.model, planned, self.sites)
            if head is None:
                return None
        self.read(0 if head is None else head[0])
        whole = self._read[self.stretch(0 if head is None else head[0])]
        if head is None:
            try:
                look = opening(whole)
            except UnsupportedError:
                return None
            index = whole.attentions[look.site].site.index
            return [site.index for site in self.sites].index(index), look.head, look.query or 0
        indices = [a.site.index for a in whole.attentions]
        pair = strongest_pair(whole, indices.index(self.sites[head[0]].index), head[1])
        return (*head, 0 if pair is None else pair.query or 0)

    def trace(self, site: int, head: int, *, words: bool = False) -> Trace:
        """One head of one site, read first if it is not in memory; only weights if pieces are merged into words.

        Returns:
            A trace with one attention of one head.

        Raises:
            AttnxError: The run failed, or the site's pieces cannot be merged.
        """
        self.read(site)
        stretch = self.stretch(site)
        self._read.move_to_end(stretch)
        whole = self._read[stretch]
        index = self.sites[site].index
        one = replace(whole, attentions=tuple(only_head(a, head) for a in whole.attentions if a.site.index == index))
        if not words:
            return one
        if (site, head) not in self._words:
            self._words = {(site, head): merge_trace(one)}
        return self._words[site, head]


def prepare(model: OpenModel, prompt: Prompt) -> Reader:
    """Run a model for the measures of every head; if possible, no matrix leaves the graph.

    Args:
        model: The model.
        prompt: The prompt to run it on.

    Raises:
        AttnxError: The model cannot be run on the prompt.
    """
    table, bare = heads(model, prompt)
    written = bare.generated and bare.memory is None and not (prompt.image or prompt.audio or prompt.inputs)
    # What a decoder has written is not generated again for every stretch.
    return Reader(model, Prompt(tokens=bare.tokens) if written else prompt, table, bare)


def size(trace: Trace) -> int:
    """Bytes of a trace's matrices."""
    return sum(
        array.nbytes for a in trace.attentions for array in (getattr(a, stage) for stage in STAGES) if array is not None
    )


def only_head(attention: Attention, head: int) -> Attention:
    """One head of an attention as an attention with one head; keys and values are those of its group."""
    site = attention.site
    arrays = {}
    for name in QUANTITIES:
        whole = getattr(attention, name)
        if whole is not None:
            at = head * whole.shape[1] // (site.heads or whole.shape[1])
            arrays[name] = whole[:, at : at + 1]
    scale = site.scale[head] if isinstance(site.scale, tuple) else site.scale
    return replace(attention, site=replace(site, heads=1, kv_heads=1, scale=scale), **arrays)
