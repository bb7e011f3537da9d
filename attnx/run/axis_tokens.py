"""What each site's axes stand for: tokens, the encoder's tokens, patches of a picture, cached keys; else numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.errors import UnsupportedError
from attnx.feed.inputs import encoder_side, is_ids, named, seen_by
from attnx.formula import HIDDEN
from attnx.numerals import counted
from attnx.records import Array, Attention, Order, Site, Tokens, Trace
from attnx.session.ort import Slot
from attnx.tokens.axes import join, labelled, masked, numbered, reordered
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.feed.patches import Frame

FromIds = Callable[[Array], Tokens]
_MOVES = "the graph moves the tokens of its text"


def is_picture(tokens: Tokens) -> bool:
    """Whether these are patches of a picture."""
    from attnx.feed.patches import grid_of

    return grid_of(tokens) is not None


def lengths(attention: Attention) -> tuple[int, int] | None:
    """Q and K of a site, from any array that has both."""
    for name in ("weights", "masked", "scaled", "scores"):
        array: Any = getattr(attention, name)
        if array is not None:
            return int(array.shape[2]), int(array.shape[3])
    if attention.query is not None and attention.key is not None:
        return int(attention.query.shape[2]), int(attention.key.shape[2])
    return None


def at_end(attention: Attention) -> bool:
    """Whether every query sees as far as its own key, where the last keys are the queries' own.

    A cache of fixed size has its keys before those that are still free, and a query sees none of the last.
    """
    masked = attention.masked
    if masked is None or not masked.size:
        return True
    queries, keys = masked.shape[2:]
    seen = (masked[0] > HIDDEN).any(axis=0)
    last = keys - 1 - seen[:, ::-1].argmax(axis=1)
    return bool((last >= keys - queries + np.arange(queries))[seen.any(axis=1)].all())


def in_blocks(attentions: Sequence[Attention], rows: int, whole: Collection[int]) -> list[int]:
    """Sites of which each row of the batch is a block of a text, whose keys are then a block's too.

    Args:
        attentions: The sites.
        rows: How many texts were fed.
        whole: How many tokens these have.

    Returns:
        Their indices.
    """
    found = []
    for a in attentions:
        array = a.weights if a.weights is not None else a.masked
        if array is not None and rows and array.shape[0] > rows and array.shape[0] % rows == 0:
            found += [a.site.index] * (array.shape[2] not in whole)
    return found


def read_tokens(
    slots: Sequence[Slot], feed: Mapping[str, Array], from_ids: FromIds
) -> tuple[Tokens | None, Tokens | None]:
    """The token sequences in a feed: the decoder's (or the only one), and the encoder's; the first row of each."""
    memory = encoder_side(slots)
    sides: list[Tokens | None] = []
    for wanted in (False, True):
        slot = next((s for s in slots if is_ids(s) and (s.name in memory) is wanted and feed[s.name].size), None)
        if slot is None:
            sides.append(None)
            continue
        tokens = from_ids(feed[slot.name][0])
        of_side = (s for s in slots if named(s, "mask") and not named(s, "global") and (s.name in memory) is wanted)
        masks = (seen_by(s, feed[s.name]) for s in of_side)
        mask = next((m[0] for m in masks if m.ndim == 2 and m.shape[1] == len(tokens)), None)
        sides.append(tokens if mask is None or not mask.any() else masked(tokens, mask))
    return sides[0], sides[1]


def name_axes(
    attentions: Sequence[Attention],
    tokens: Tokens | None,
    memory: Tokens | None,
    frames: Sequence[Frame] = (),
    otherwise: Callable[[int], Tokens] | None = None,
    windowed: Collection[int] = (),
    joint: Callable[[int], Tokens | None] = lambda _: None,
    past: bool = True,
) -> tuple[Tokens, Tokens | None, dict[int, tuple[Tokens, Tokens]]]:
    """Find what each site's axes stand for, by their lengths.

    Args:
        attentions: The sites with their arrays.
        tokens: The query side, where it is known.
        memory: The encoder side, where it is known.
        frames: Pictures or latents that the model was fed.
        otherwise: Names positions about which nothing is known; where None, they are numbered.
        windowed: Indices of sites that see one part of a picture at a time: their positions count within that part.
        joint: Names a text and a picture in one sequence; None for a length that is none.
        past: Whether keys may have been cached before: more keys than queries then stand before these.

    Returns:
        The tokens, the memory, and the sides of those sites that are neither; see `Trace.sides`.
    """
    known = {a.site.index: both for a in attentions if (both := lengths(a)) is not None}
    parts = {i: (numbered(known[i][0]), numbered(known[i][1])) for i in windowed if i in known}
    if len(parts) < len(known):
        attentions = [a for a in attentions if a.site.index not in parts]
    elif frames:
        frames = ()
    found: dict[tuple[int, str], Tokens] = {}

    pictures = list(frames)

    def find(length: int, *candidates: Tokens | None, cached: bool = False) -> Tokens:
        first = candidates[0] if candidates else None
        for side in candidates:
            if side is not None and len(side) == length:
                return side
        from attnx.feed.patches import grid_tokens

        if (length, "") not in found:
            both = grid_tokens(length, pictures, labelled) or joint(length)
            if both is not None:
                found[length, ""] = both
        if (length, "") in found:
            return found[length, ""]
        if cached and first is not None and length > len(first):  # cached positions come before new ones
            found.setdefault((length, "past"), join(numbered(length - len(first), "past"), first))
            return found[length, "past"]
        found[length, ""] = (otherwise or numbered)(length)
        return found[length, ""]

    if memory is None:
        across = [a for a in attentions if a.site.kind == "cross" and a.site.component == "decoder"]
        crosses = [known[a.site.index][1] for a in across if a.site.index in known]
        memory = find(crosses[0]) if crosses else None
        if memory is not None and is_picture(memory):
            # Where the keys are the picture, the queries are something else: objects, latents, tokens.
            pictures[:] = [replace(frame, height=0, width=0) for frame in pictures]
    if tokens is None:
        own = [known[a.site.index] for a in attentions if a.site.index in known]
        decoders = [known[a.site.index] for a in attentions if a.site.component == "decoder" and a.site.index in known]
        length = (decoders or own or [(1, 1)])[0][0]
        tokens = find(length)
    sides: dict[int, tuple[Tokens, Tokens]] = dict(parts)
    for a in attentions:
        if a.site.index not in known or a.site.index in parts:
            continue
        queries, keys = known[a.site.index]
        encoder = a.site.component == "encoder" and memory is not None
        query_side = memory if encoder else tokens
        key_side = memory if (encoder or a.site.kind == "cross") and memory is not None else tokens
        if query_side is None or key_side is None or (len(query_side), len(key_side)) != (queries, keys):
            before = a.site.keys_before
            if before and keys == before + queries and query_side is not None and len(query_side) == queries:
                sides[a.site.index] = query_side, join(numbered(before, "global"), query_side)
                continue
            cached = past and a.site.kind == "self" and keys > queries and at_end(a)
            asked = find(keys, key_side, tokens, memory, cached=cached)
            sides[a.site.index] = (find(queries, query_side, tokens, memory), asked)
    return tokens, memory, sides


def as_moved(
    attentions: Sequence[Attention],
    tokens: Tokens,
    memory: Tokens | None,
    sides: Mapping[int, tuple[Tokens, Tokens]],
) -> tuple[dict[int, tuple[Tokens, Tokens]], tuple[str, ...]]:
    """The sides of sites whose queries or keys a graph has moved, in the order in which these stand there.

    Args:
        attentions: The sites.
        tokens: See `Trace.tokens`.
        memory: See `Trace.memory`.
        sides: See `Trace.sides`.

    Returns:
        The sides of all sites that have some of their own, and notes on what was moved.
    """
    found = dict(sides)
    made: dict[tuple[int, Order], Tokens | None] = {}
    named_at, numbered_at = set[int](), set[int]()
    plain = Trace("", "", tokens, memory, (), sides=sides)

    def standing(at: int, side: Tokens, order: Order | None) -> Tokens:
        known = side is tokens or side is memory
        if order is None or (not known and side.pieces == numbered(len(side)).pieces):
            return side
        # The order is that of a whole text: it says nothing about positions behind a cache.
        if (id(side), order) not in made:
            made[id(side), order] = reordered(side, order) if known else None
        moved = made[id(side), order]
        (named_at if moved is not None else numbered_at).add(at)
        return moved if moved is not None else numbered(len(side))

    for a in attentions:
        if a.site.moved:
            at, site = a.site.index, a.site
            found[at] = (
                standing(at, plain.queries_of(a), site.query_order), standing(at, plain.keys_of(a), site.key_order),
            )  # fmt: skip
    told, untold = len(named_at - numbered_at), len(numbered_at)
    notes = []
    if told:
        notes.append(f"{_MOVES}: positions of {counted(told, 'site')} are named by the tokens that stand there")
    if untold:
        notes.append(
            f"{_MOVES}, and which stands where is not known: positions of {counted(untold, 'site')} are numbered"
        )
    apart = sum(a.site.kind == "self" and not a.site.aligned for a in attentions)
    if notes and apart:
        notes.append(
            f"in {counted(apart, 'site')} query and key of a position are not one token: nothing is counted from a "
            "token's own place (previous, self, distance)"
        )
    return found, tuple(notes)


def in_place(sites: Sequence[Site]) -> None:
    """Check that every row and column is of the text's own token at that position.

    Raises:
        UnsupportedError: The graph moves the text on its way to one of the sites.
    """
    moved = next((site for site in sites if site.moved), None)
    if moved is not None:
        raise UnsupportedError(
            f"the graph moves the tokens of its text, so rows and keys of {moved.label} are not those of the text",
            Wording("<model.trace()> shows which token stands where."),
        )
