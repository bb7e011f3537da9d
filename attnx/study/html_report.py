"""A run -> its page: the measures of every head, what pronouns refer to, and where to look first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attnx.errors import UnsupportedError
from attnx.measure.coreference import Coreference
from attnx.measure.looks import strongest_pair
from attnx.measure.rows import head_axes
from attnx.records import Attention, Measurement, Site, Trace
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel
from attnx.study.head_effects import effects
from attnx.study.page_heads import measured
from attnx.study.page_parts import Part, joined, joined_heads, part
from attnx.study.page_references import references, words
from attnx.study.selection import head_of, position
from attnx.study.stretches import Piece, Stretch, Stretches
from attnx.study.worth_opening import opened, opening, strongest_of
from attnx.tokens.spans import Mention
from attnx.view.report import PackedSites, Page, Reference, Report, cells
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable


def wanted(sites: Sequence[Site]) -> tuple[str, ...]:
    """The quantities that a page needs: query and key give the rest; if a site's graph lacks them, the scores."""
    whole = all("query" in s.places and "key" in s.places for s in sites if s.kind in ("self", "cross"))
    return ("query", "key", *(() if whole else ("scores", "scaled", "capped")), "masked", "weights")


def fewer(sites: Sequence[Site]) -> tuple[str, ...]:
    """The quantities that suffice if nothing is masked or added: half the memory. Rebuilt weights show if they do."""
    open_ = all(
        s.kind == "self" and s.causal is False and s.window is None and s.bias is None and not s.sink
        and "query" in s.places and "key" in s.places
        for s in sites
    )  # fmt: skip
    return ("query", "key", "weights") if open_ else wanted(sites)


def compose(
    model: OpenModel,
    prompt: Prompt,
    layers: Sequence[int] | None = None,
    site: str | None = None,
    *,
    from_: str | None = None,
    to: str | None = None,
    head: str | None = None,
    query: str | None = None,
    causal: bool = False,
    tell: Callable[[int, int], None] | None = None,
) -> tuple[Page, Report]:
    """Run the model and compose its page.

    Args:
        model: The model.
        prompt: The prompt to run it on.
        layers: Only these layers.
        site: Only this kind of attention.
        from_, to, head, query: See `contents`.
        causal: Ablate every head alone, and show how far the model's answer moves next to what the head does.
        tell: Called with the number of heads ablated so far, and of all.

    Returns:
        The page and the report that it shows.
    """
    sites = model.find(prompt.inputs).sites
    asked = Asked(from_, to, head, query)
    # A mask may come in as an input. If none does and no token is padding, it is only read if it turns out that the
    # weights cannot be rebuilt without it.
    effect: Measurement | None = None
    said: tuple[str, ...] = ()
    for quantities in dict.fromkeys((fewer(sites) if prompt.inputs is None else wanted(sites), wanted(sites))):
        light = "masked" not in quantities
        found = _looked(Stretches(model, prompt, quantities, layers, site), asked, light)
        if found is None:
            continue
        packed, shown = found
        if causal:
            if effect is None:
                effect, said = effects(model, prompt, shown.trace, _axes(shown.trace), tell)
            shown = replace(shown, measures=(effect, *shown.measures), notes=(*shown.notes, *said))
        if not light or not {"weights", "roots"} & set(packed.bases):
            break
    return packed.page(shown), shown


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be shown; see `contents`."""

    from_: str | None = None
    to: str | None = None
    head: str | None = None
    query: str | None = None

    @property
    def named(self) -> bool:
        """Whether a word was named."""
        return self.from_ is not None or self.to is not None


def _looked(read: Stretches, asked: Asked, light: bool) -> tuple[PackedSites, Report] | None:
    """Run the model, pack its sites and measure what the page shows.

    Args:
        read: The layers of the run; of a long text, some are held at a time.
        asked: What is to be shown.
        light: Whether masks are not traced.

    Returns:
        None if a token is padding, and masks were not traced.
    """
    if len(read.parts) == 1 and not read.split(read.parts[0]):
        for trace in read.traces():
            if light and not all(trace.tokens.mask):
                return None
            shown = contents(trace, from_=asked.from_, to=asked.to, head=asked.head, query=asked.query)
            packed = PackedSites(cells(trace))
            packed.add(trace)
            return packed, replace(shown, notes=(*read.doubts, *shown.notes))
    looking = _Looking(read, asked, light)
    try:
        parts = [looking.joined(pieces) for pieces in read.each(looking.take)]
    except _PaddedError:
        return None
    assert looking.packed is not None
    whole = joined(parts)
    notes = looking.notes
    found = references(whole.trace, looking.words, asked.named, asked.to, notes, whole.received)
    chosen = _opened(read, whole, asked, found)
    shown = _report(whole.trace, found, chosen, whole.table, notes)
    return looking.packed, replace(shown, notes=(*read.doubts, *shown.notes))


class _PaddedError(Exception):
    """A token is padding, and masks were not traced."""


class _Looking:
    """Packs and measures the layers of a long text, some layers, or some heads of one, at a time; see `_looked`."""

    def __init__(self, read: Stretches, asked: Asked, light: bool) -> None:
        self._read, self._asked, self._light = read, asked, light
        self.packed: PackedSites | None = None
        self.words: tuple[Mention, ...] = ()
        self.notes: list[str] = []

    def take(self, piece: Piece) -> tuple[Part, bool]:
        """Pack and measure a piece; also, whether it holds some heads only.

        Raises:
            _PaddedError: A token is padding, and masks were not traced.
        """
        trace = piece.trace
        if self._light and not all(trace.tokens.mask):
            raise _PaddedError
        if self.packed is None:
            self.packed = PackedSites(_all_cells(trace, self._read.sites))
            self.words = words(trace.tokens, self._asked.from_, self._asked.to, self.notes)
            _check(replace(trace, attentions=tuple(map(Attention, self._read.sites))), self._asked)
        (self.packed.add if piece.heads is None else self.packed.add_heads)(trace)
        rows = sorted({at for word in self.words for at in word.pieces})
        return part(trace, rows, measured(trace)), piece.heads is not None

    def joined(self, pieces: Sequence[tuple[Part, bool]]) -> Part:
        """The pieces of one part as one; a layer whose heads were packed in different ways is packed whole."""
        found, in_heads = [one for one, _ in pieces], pieces[0][1]
        if not in_heads:
            return found[0]
        assert self.packed is not None
        index = found[0].trace.attentions[0].site.index
        site = next(site for site in self._read.sites if site.index == index)
        if not self.packed.close(site):
            self.packed.add(self._read.trace(None if site.layer is None else (site.layer,)))
        return joined_heads(found, site)


def _all_cells(trace: Trace, sites: Sequence[Site]) -> int:
    """`cells` of all sites, of which a trace has the first ones, or some heads of the first."""
    site = trace.attentions[0].site
    whole = next(one for one in sites if one.index == site.index)
    if whole.heads == site.heads:
        return cells(trace) * len(sites) // len(trace.attentions)
    count = 0
    for array, heads in ((trace.attentions[0].query, whole.heads), (trace.attentions[0].key, whole.kv_heads)):
        if array is not None and array.ndim == 4:
            count += array[0, 0].size * (heads or array.shape[1])
    return count * len(sites)


def _check(trace: Trace, asked: Asked) -> None:
    """Refuse a head or token that there is not, before all layers are run.

    Raises:
        UsageError: No such head or token.
    """
    if asked.head is not None:
        head_of(trace, asked.head)
    if asked.query is not None:
        position(trace.tokens, asked.query)


def _opened(read: Stretches, whole: Part, asked: Asked, found: Sequence[Coreference]) -> tuple[int, int, int]:
    """Site, head and query that are open at first; the layer of the site is run again for it."""
    site: int
    number: int | None
    if asked.head is not None:
        site, number = head_of(whole.trace, asked.head)
    else:
        try:
            site, number = opened(whole.trace, whole.columns)
        except UnsupportedError:
            return len(whole.trace.attentions) - 1, 0, 0
    own = whole.trace.attentions[site].site
    stretch = None if own.layer is None else (own.layer,)
    if heads := read.split(stretch):
        at, number, trace = 0, *_held(read, stretch, heads, number)
        _, _, query = _in_head(trace, 0, 0, asked.head is not None)
    else:
        trace = read.trace(stretch)
        at = next(at for at, a in enumerate(trace.attentions) if a.site.index == own.index)
        _, number, query = _in_head(trace, at, number, asked.head is not None)
    return site, number, _query(trace, at, query, asked.query, found if asked.from_ is not None else ())


def _held(read: Stretches, stretch: Stretch, heads: Sequence[tuple[int, ...]], number: int | None) -> tuple[int, Trace]:
    """A head of a layer that is split, or the one with its largest weight between two words, and its trace alone."""
    if number is None:
        if stretch is not None:
            read.reach(stretch[0])
        looks = [_largest(read.piece(stretch, some)) for some in heads]
        number = max(looks, key=lambda look: look[0])[1]
    return number, read.piece(stretch, (number,)).trace


def _largest(piece: Piece) -> tuple[float, int]:
    """The largest weight between two words in some heads of a layer, and its head; -1 if everything is hidden."""
    try:
        look = strongest_of(piece.trace, 0, None)
    except UnsupportedError:
        return -1.0, 0
    return look.value, piece.head(look.head)


def contents(
    trace: Trace, *, from_: str | None = None, to: str | None = None, head: str | None = None, query: str | None = None
) -> Report:
    """Measure what the page shows, and choose what is open at first.

    Args:
        trace: With `wanted` quantities.
        from_: The word to look from; by default the first pronouns.
        to: The candidates, separated by commas; by default content words near the pronoun.
        head: The head that is open at first, L.H; by default the one worth opening.
        query: The token that is open at first; by default `from_` if it is named, otherwise the head's own.

    Raises:
        InputError: A word that is not in the text.
        UsageError: No such head or token.
    """
    notes: list[str] = []
    asked = Asked(from_, to, head, query)
    there = words(trace.memory or trace.tokens, from_, to, notes)
    found = references(trace, there, asked.named, to, notes)
    site, number, at = _first(trace, head)
    where = _query(trace, site, at, query, found if from_ is not None else ())
    return _report(trace, found, (site, number, where), measured(trace), notes)


def _report(
    trace: Trace,
    found: Sequence[Coreference],
    chosen: tuple[int, int, int],
    table: HeadTable | UnsupportedError,
    notes: Sequence[str],
) -> Report:
    """What was measured, as the page takes it."""
    said_of = tuple(_reference(one) for one in found)
    if isinstance(table, UnsupportedError):
        said = Wording("heads are not measured: {why}", why=table.message)
        return Report(trace, references=said_of, chosen=chosen, notes=(*notes, said))
    return Report(
        trace=trace,
        measures=table.measures,
        kinds=table.kinds,
        rest_kinds=table.rest_kinds,
        thresholds=table.thresholds,
        references=said_of,
        chosen=chosen,
        notes=(*notes, *dict.fromkeys(note for m in table.measures for note in m.notes)),
    )


def _axes(trace: Trace) -> Measurement:
    """An empty measure [S,H]."""
    axes = head_axes(trace, [attention.site.heads or 1 for attention in trace.attentions])
    return Measurement("", "", axes, np.full([len(axis.labels) for axis in axes], np.nan))


def _reference(one: Coreference) -> Reference:
    return Reference(
        one.pronoun, one.candidates, one.sites, one.shares, one.weights, one.verdicts, one.layer_means, one.baselines,
        one.notes,
    )  # fmt: skip


def _first(trace: Trace, head: str | None) -> tuple[int, int, int]:
    """The head that is open at first, and the query of its largest weight between two words."""
    if head is None:
        try:
            found = opening(trace)
        except UnsupportedError:  # everything is hidden
            return len(trace.attentions) - 1, 0, 0
        return found.site, found.head, found.query or 0
    return _in_head(trace, *head_of(trace, head), True)


def _in_head(trace: Trace, site: int, head: int | None, named: bool) -> tuple[int, int, int]:
    """A head, and the query of its largest weight between two words.

    Args:
        trace: With weights of that site.
        site: Position in `trace.attentions`.
        head: From 0; None for the site's largest weight.
        named: Whether the head was named: then it is open even if no weight of it fits.
    """
    if named and head is not None:
        pair = strongest_pair(trace, site, head)
        return site, head, 0 if pair is None else pair.query or 0
    try:
        found = strongest_of(trace, site, head)
    except UnsupportedError:  # everything is hidden
        return len(trace.attentions) - 1, 0, 0
    return site, found.head, found.query or 0


def _query(trace: Trace, site: int, at: int, query: str | None, found: Sequence[Coreference]) -> int:
    """The query that is open at first, on the axis of that site."""
    attention = trace.attentions[site]
    tokens = trace.queries_of(attention)
    count = int(attention.need("weights").shape[2])
    last, shift = count - 1, max(0, count - len(tokens))
    if query is not None:
        return min(last, position(tokens, query) + shift)
    for one in found:
        if tokens is (trace.memory or trace.tokens):
            return min(last, one.pronoun.pieces[-1] + shift)
    return at
