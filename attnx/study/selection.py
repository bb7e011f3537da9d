"""What a measuring command selects from a run: trusted sites, one kind of attention, one head, one token."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from attnx.errors import UnsupportedError, UsageError
from attnx.records import Site, Tokens, Trace
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.attention_kind import named_sort, sort_of
from attnx.study.request import Head, Request, agree, parse_head
from attnx.wording import Wording

PIECES = 8
"""How many tokens a message lists."""


def sorts(sites: Sequence[Site]) -> tuple[str, ...]:
    """The kinds of attention present: "encoder", "decoder", "cross", ..., in execution order."""
    return tuple(dict.fromkeys(sort_of(site) for site in sites))


def of_sort(trace: Trace, sort: str | None) -> Trace:
    """The trace with only the sites of one kind; None for all.

    Raises:
        UsageError: The model has no such attention.
    """
    if sort is None:
        return trace
    wanted = named_sort([attention.site for attention in trace.attentions], sort)
    return replace(trace, attentions=tuple(a for a in trace.attentions if sort_of(a.site) == wanted))


def trusted(trace: Trace) -> tuple[Trace, tuple[str, ...]]:
    """The trace without the sites whose checks failed, and notes on those.

    Raises:
        UnsupportedError: No site is left.
    """
    left, doubts = doubted(trace)
    if doubts and not left.attentions:
        raise untrusted(doubts)
    return left, doubts


def doubted(trace: Trace) -> tuple[Trace, tuple[str, ...]]:
    """Like `trusted`, but without an error if no site is left."""
    doubts = []
    for label, attention in zip(trace.labels, trace.attentions, strict=True):
        failed = [check for check in attention.checks if not check.holds]
        if failed:
            doubts.append(f"left out, {label} NOT TRUSTED: {failed[0].off}")
    return replace(trace, attentions=tuple(a for a in trace.attentions if a.trusted)), tuple(doubts)


def untrusted(doubts: Sequence[str]) -> UnsupportedError:
    """The error to raise if no site is left, given the notes on all."""
    return UnsupportedError(
        f"no site of this model can be trusted, so nothing is measured: {doubts[0]}",
        Wording("<model.trace()> shows every check."),
    )


def run_trusted(
    model: OpenModel,
    prompt: Prompt,
    quantities: Collection[str],
    *,
    layers: Collection[int] | None = None,
    site: str | None = None,
) -> tuple[Trace, tuple[str, ...]]:
    """Run a model, and keep the trusted sites of one kind.

    Args:
        model: The model.
        prompt: The prompt to run it on.
        quantities: Which arrays to keep.
        layers: Only sites of these layers.
        site: Only sites of this kind.

    Returns:
        The trace, and notes on the sites that were left out.

    Raises:
        UsageError: The model has no such attention.
        UnsupportedError: No site can be trusted.
    """
    return trusted(of_sort(execute(model, prompt, Wanted(layers, quantities)), site))


def head_of(trace: Trace, text: str, *, argument: str = "heads") -> tuple[int, int]:
    """Resolve a head as the user names it ("5.11" or, with one layer, "11") to the site's position and the head.

    If several kinds of attention have such a layer, the last one is meant: the cross-attention of a decoder.

    Raises:
        UsageError: It cannot be parsed, or does not exist.
    """
    asked = parse_head(text, argument)
    fits = [at for at, a in enumerate(trace.attentions) if asked.layer in (None, a.site.layer)]
    if not fits:
        layers = sorted({a.site.layer for a in trace.attentions if a.site.layer is not None})
        hint = f"The layers are {layers[0]} to {layers[-1]}." if layers else "The layers of this model are not known."
        raise UsageError(f"there is no layer {asked.layer}", hint)
    if asked.layer is None and len(trace.attentions) > 1:
        said = Wording(f"<{argument}={{text!r}}> names no layer", text=text)
        raise UsageError(said, f"Give layer and head: {fits[-1]}.{asked.head}.")
    return fits[-1], _held(trace, fits[-1], asked)


def _held(trace: Trace, site: int, asked: Head) -> int:
    attention = trace.attentions[site]
    count = next(
        (a.shape[1] for a in (attention.weights, attention.masked, attention.scores) if a is not None),
        attention.site.heads,
    )
    if count is not None and asked.head >= count:
        raise UsageError(f"there is no head {asked.head}", f"{trace.labels[site]} has heads 0 to {count - 1}.")
    return asked.head


def layers_of(heads: Sequence[str], layers: Sequence[int] | None) -> tuple[int, ...] | None:
    """The layers that must be traced for these heads and layers; None for all.

    Raises:
        UsageError: A head that cannot be parsed, or that is in none of the layers.
    """
    asked = [parse_head(text) for text in heads]
    agree(asked, layers)
    named = [head.layer for head in asked]
    if layers is None and named and None not in named:
        return tuple(sorted({layer for layer in named if layer is not None}))
    return None if layers is None else tuple(layers)


def positions(tokens: Tokens, text: str) -> tuple[int, ...]:
    """The position of one token, or of several treated as one: a word's pieces, "it..tired", "it,animal".

    Raises:
        UsageError: There is no such token.
    """
    from attnx.tokens.group import find_group

    return find_group(tokens, text)[0]


def position(tokens: Tokens, text: str, *, argument: str = "query") -> int:
    """The position of one token, where several cannot be treated as one.

    Raises:
        UsageError: There is no such token, or there are several.
    """
    found = positions(tokens, text)
    if len(found) > 1:
        named = ", ".join(f"{tokens.pieces[at].strip()}@{at}" for at in found[:PIECES]) + (
            ", ..." if found[PIECES:] else ""
        )
        many = f"<{argument}={{text!r}}> is {len(found)} tokens, and takes one token here"
        raise UsageError(Wording(many, text=text), f"Choose one of them: {named}.")
    return found[0]


def each_position(tokens: Tokens, texts: Sequence[str]) -> tuple[int, ...]:
    """The positions of tokens to take one by one: "it", "3", "it..tired", or "all" except padding.

    Raises:
        UsageError: There is no such token.
    """
    found: list[int] = []
    for text in texts:
        if text == "all":
            found += [at for at, is_real in enumerate(tokens.mask) if is_real]
        else:
            found += positions(tokens, text)
    return tuple(dict.fromkeys(found))


def positions_of(tokens: Tokens, request: Request) -> tuple[int, ...]:
    """The position of the query on the query axis, or the positions of several tokens treated as one.

    Raises:
        UsageError: No such token, or several tokens at a stage without a mean.
    """
    assert request.query is not None
    found = positions(tokens, request.query)
    if len(found) > 1 and request.stage in ("masked", "bias"):
        raise UsageError(
            f"{request.stage} of several tokens have no mean: what one of them hides is minus infinity",
            Wording("Choose one token, or <stage='weights'>."),
        )
    return found


__all__ = [
    "each_position",
    "head_of",
    "layers_of",
    "of_sort",
    "position",
    "positions",
    "positions_of",
    "run_trusted",
    "sorts",
    "trusted",
]
