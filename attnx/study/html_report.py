"""A run -> its page: the measures of every head, what pronouns refer to, and where to look first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnx.errors import AttnxError, InputError, UnsupportedError, UsageError
from attnx.measure import describe_heads
from attnx.measure import heads as head_measures
from attnx.measure.coreference import Coreference, coreference
from attnx.measure.looks import strongest_pair
from attnx.measure.rows import head_axes, head_labels
from attnx.records import Array, Axis, Measurement, Site, Trace
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.head_effects import effects
from attnx.study.mentioned import candidates, pronouns
from attnx.study.selection import head_of, of_sort, position, trusted
from attnx.study.worth_opening import opening
from attnx.tokens.spans import Mention
from attnx.view.report import Page, Reference, Report, report
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable

CELLS = 1 << 20
"""How many weights of one layer are measured at once."""
PRONOUNS = 3
"""How many pronouns are used if none is named: the first ones."""
CANDIDATES = 24
"""How many candidates are used if none are named: the nearest before and after the pronoun."""


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
    # A mask may come in as an input. If none does and no token is padding, it is only read if it turns out that the
    # weights cannot be rebuilt without it.
    effect: Measurement | None = None
    said: tuple[str, ...] = ()
    for quantities in dict.fromkeys((fewer(sites) if prompt.inputs is None else wanted(sites), wanted(sites))):
        trace, doubts = trusted(of_sort(execute(model, prompt, Wanted(layers, quantities)), site))
        light = "masked" not in quantities
        if light and not all(trace.tokens.mask):
            continue
        shown = contents(trace, from_=from_, to=to, head=head, query=query)
        shown = replace(shown, notes=(*doubts, *shown.notes))
        if causal:
            if effect is None:
                effect, said = effects(model, prompt, trace, _axes(trace), tell)
            shown = replace(shown, measures=(effect, *shown.measures), notes=(*shown.notes, *said))
        page = report(shown)
        if not light or not {"weights", "roots"} & set(page.packed):
            break
    return page, shown


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
    found = _references(trace, from_, to, notes)
    site, number, at = _first(trace, head)
    where = _query(trace, site, at, query, found if from_ is not None else ())
    table = None
    try:
        table = _heads(trace)
    except UnsupportedError as error:
        notes.append(Wording("heads are not measured: {why}", why=error.message))
    return Report(
        trace=trace,
        measures=table.measures if table is not None else (),
        kinds=table.kinds if table is not None else (),
        rest_kinds=table.rest_kinds if table is not None else (),
        thresholds=table.thresholds if table is not None else (),
        references=tuple(_reference(one) for one in found),
        chosen=(site, number, where),
        notes=(*notes, *dict.fromkeys(note for m in (table.measures if table else ()) for note in m.notes)),
    )


def _axes(trace: Trace) -> Measurement:
    """An empty measure [S,H]."""
    axes = head_axes(trace, [attention.site.heads or 1 for attention in trace.attentions])
    return Measurement("", "", axes, np.full([len(axis.labels) for axis in axes], np.nan))


def _heads(trace: Trace) -> HeadTable:
    """`describe_heads`, a few heads at a time for a long text, so that intermediate arrays stay small."""
    shapes = {a.weights.shape[1:] for a in trace.attentions if a.weights is not None}
    if len(shapes) != 1 or any(a.weights is None for a in trace.attentions):
        return describe_heads(trace)
    ((count, queries, keys),) = shapes
    step = max(1, CELLS // (queries * keys))
    if step >= count:
        return describe_heads(trace)
    tables = [describe_heads(_some(trace, slice(at, min(at + step, count)))) for at in range(0, count, step)]
    return head_measures.table(
        _joined([one.measures for one in tables], count), _joined([one.rest for one in tables], count)
    )


def _joined(tables: Sequence[Sequence[Measurement]], count: int) -> list[Measurement]:
    """The measures of a few heads each, side by side: [S,H] for all `count` heads."""
    joined = []
    for parts in zip(*tables, strict=True):
        axes = (parts[0].axes[0], Axis(parts[0].axes[1].name, head_labels(count)))
        values = np.concatenate([part.values for part in parts], axis=1)
        notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
        joined.append(replace(parts[0], axes=axes, values=values, notes=notes))
    return joined


def _some(trace: Trace, heads: slice) -> Trace:
    """The trace with some of its heads."""

    def cut(array: Array | None) -> Array | None:
        return None if array is None else array[:, heads]

    return replace(
        trace,
        attentions=tuple(
            replace(
                a, weights=cut(a.weights), masked=cut(a.masked), capped=cut(a.capped),
                query=None, key=None, value=None, scores=None, scaled=None, context=None,
            )
            for a in trace.attentions
        ),
    )  # fmt: skip


def _references(trace: Trace, from_: str | None, to: str | None, notes: list[str]) -> list[Coreference]:
    """Where the heads point from the pronouns; empty if the text has none and none is named."""
    text = trace.memory or trace.tokens
    named = from_ is not None or to is not None
    try:
        there = pronouns(text, from_)
    except AttnxError:
        if named:
            raise
        return []
    if from_ is None and len(there) > PRONOUNS:
        notes.append(f"coreference: the first {PRONOUNS} of {len(there)} pronouns; any other can be named")
        there = there[:PRONOUNS]
    out = []
    for pronoun in there:
        try:
            out.append(_of(trace, pronoun, candidates(text, to, pronoun), to is None, notes))
        except (InputError, UnsupportedError, UsageError) as error:
            if named:
                raise
            notes.append(Wording("coreference of {it!r}: {why}", it=pronoun.text, why=error.message))
    return out


def _of(trace: Trace, pronoun: Mention, there: Sequence[Mention], choose: bool, notes: list[str]) -> Coreference:
    if choose and len(there) > CANDIDATES:
        own = pronoun.pieces[0]
        near = sorted(there, key=lambda one: (abs(one.pieces[-1] - own), one.pieces))[:CANDIDATES]
        notes.append(f"coreference of {pronoun.text!r}@{own}: the {CANDIDATES} nearest of {len(there)} content words")
        there = [one for one in there if one in near]
    found = coreference(trace, pronoun, there)
    if choose and 0 < len(found.unseen) < len(there):
        found = coreference(trace, pronoun, [one for at, one in enumerate(there) if at not in found.unseen])
    return found


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
    site, number = head_of(trace, head)
    pair = strongest_pair(trace, site, number)
    return site, number, 0 if pair is None else pair.query or 0


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
