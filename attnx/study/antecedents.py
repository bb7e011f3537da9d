"""Coreference in one text: a run, its maps (rollout, value norms), and where every head points from each pronoun."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from attnx.errors import AttnxError, UnsupportedError
from attnx.formula import average, normalise
from attnx.measure import rollout
from attnx.measure.coreference import Coreference, coreference
from attnx.measure.norms import value_norms, weighted
from attnx.measure.rows import Received, Rows, alike, is_over, joined
from attnx.records import Array, Tokens, Trace
from attnx.session.protocol import OpenModel
from attnx.study.mentioned import candidates, mentions, pronouns
from attnx.study.output_weights import contributions
from attnx.tokens.spans import Mention
from attnx.wording import Wording

ARRAYS = ("masked", "weights", "value")


def text_of(trace: Trace) -> Tokens:
    """The text searched for pronouns: the encoder's if its self-attentions are present, otherwise the query side's.

    Where the graph moves its text, it is the text as moved.
    """
    for text in (trace.memory, trace.tokens):
        if text is not None and any(a.site.kind == "self" and trace.queries_of(a) is text for a in trace.attentions):
            return text
    whole = (a for a in trace.attentions if a.site.kind == "self" and a.site.moved and a.site.aligned)
    return next(map(trace.queries_of, whole), trace.tokens)


def maps(
    model: OpenModel,
    trace: Trace,
    inputs: Mapping[str, Array] | None,
    known: Mapping[str, Array] = MappingProxyType({}),
    sizes: Mapping[int, Array] = MappingProxyType({}),
    read: Mapping[int, Rows] = MappingProxyType({}),
) -> tuple[dict[str, Array], list[str]]:
    """Rollout, and attention weighted by value norms, as matrices over the text; and notes on them.

    The value-norm map is the mean over layers and heads of ||a v W_O|| as shares of a row (Kobayashi et al. 2020).
    `known` has maps that the graph computed; `sizes`, by a site's index, ||v W_O|| [H,K] where the graph computed it;
    `read`, by a site's index, the rows of sites that were read before.
    """
    out = dict(known)
    notes: list[str] = []
    try:
        if "rollout" not in out:
            out["rollout"] = rollout.rollout(trace, text_of(trace), known=read).values[-1]
    except UnsupportedError as error:
        notes.append(Wording("no rollout: {why}", why=error.message))
    text = text_of(trace)
    shares, bare = list[Array](), False
    sized: list[tuple[Rows, Array]] = []
    for at, attention in enumerate(trace.attentions):
        size = sizes.get(attention.site.index)
        if not is_over(trace, attention, text) or (attention.value is None and size is None):
            continue
        output = None
        if size is None:
            size, output = contributions(model, attention, inputs)
        rows = read.get(attention.site.index)
        if size is not None and rows is not None:
            sized.append((rows, size))
            continue
        found = value_norms(trace, at, output, together=False, sizes=size).shares.values
        if found.shape[1:] == (len(text) if trace.rows is None else len(trace.rows), len(text)):
            bare = bare or (output is None and size is None)
            shares.append(average(found, axis=0))
    cells = (len(text) if trace.rows is None else len(trace.rows), len(text))
    shares += [one for one in _shares(sized) if one.shape == cells]
    if shares:
        out["value norms"] = np.nan_to_num(average(np.stack(shares), axis=0))
        if bare:
            notes.append("value norms: without W_O, of the value vectors alone")
    return out, notes


def _shares(sized: Sequence[tuple[Rows, Array]]) -> Iterator[Array]:
    """Shares [Q,K] of value-weighted attention, the mean over heads, of sites and the norms of their values [H,K]."""
    sizes = iter(size for _, size in sized)
    for group in alike([rows for rows, _ in sized]):
        found = normalise(weighted(joined(group), np.concatenate([next(sizes) for _ in group])))
        yield from average(found.reshape(len(group), -1, *found.shape[1:]), axis=1)


def resolve(
    trace: Trace,
    from_: str | None,
    to: str | None,
    known: Mapping[str, Array],
    received: Mapping[int, Received] = MappingProxyType({}),
) -> tuple[list[Coreference], list[str]]:
    """Which candidates the heads point to from every pronoun.

    Candidates that were not named and that no layer lets the pronoun see (in a causal model, those after it) are left
    out, with a note.

    Raises:
        InputError: A word that is not in the text.
        UsageError: There is no pronoun or no candidate.
    """
    text = text_of(trace)
    out, notes = [], []
    for pronoun in pronouns(text, from_):
        there = candidates(text, to, pronoun)
        found = coreference(trace, pronoun, there, maps=known, tokens=text, received=received)
        if to is None and found.unseen and len(found.unseen) < len(there):
            kept = [one for at, one in enumerate(there) if at not in found.unseen]
            count = "1 content word" if len(found.unseen) == 1 else f"{len(found.unseen)} content words"
            verb = "is" if len(found.unseen) == 1 else "are"
            notes.append(f"{count} that {pronoun.text!r} cannot see {verb} left out")
            found = coreference(trace, pronoun, kept, maps=known, tokens=text, received=received)
        out.append(found)
    return out, notes


def same_mentions(tokens: Tokens, one: Coreference) -> tuple[Mention, tuple[Mention, ...]] | None:
    """Find one text's pronoun and candidates in another, by word and occurrence; None if they are not all found."""

    def nth(mention: Mention, before: tuple[Mention, ...]) -> Mention:
        rank = sum(m.text.lower() == mention.text.lower() and m.start < mention.start for m in before)
        return mentions(tokens, mention.text)[rank]

    try:
        return nth(one.pronoun, (one.pronoun,)), tuple(nth(c, one.candidates) for c in one.candidates)
    except (AttnxError, IndexError):
        return None
