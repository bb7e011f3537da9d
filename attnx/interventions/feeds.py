"""The feed of one unedited run on a text, two texts, a picture or a sound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attnx.errors import UnsupportedError
from attnx.feed.inputs import is_ids
from attnx.records import Array, Tokens, Trace
from attnx.run.passes import Feed
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel, Run, Wanted
from attnx.tokens.axes import numbered, reordered
from attnx.wording import Wording


@dataclass(frozen=True, slots=True)
class Planned:
    """One planned run of a graph."""

    feed: Mapping[str, Array]
    trace: Trace
    """A trace without sites; its tokens name the positions."""

    @property
    def tokens(self) -> Tokens:
        """The tokens at the query positions (the decoder's, if there are two sides)."""
        return self.trace.tokens


def plan_run(model: OpenModel, prompt: Prompt) -> Planned:
    """Plan the single run of a model's graph on a prompt; an encoder in a separate file is run for it.

    Raises:
        UnsupportedError: It would take several runs of the graph.
        UsageError: Arguments that exclude each other.
        InputError: One of the model's inputs cannot be filled.
    """
    passes = prompt.feed(model, prompt.encode(model), Wanted((), (), verify=False, required=False))
    feeds: list[Mapping[str, Array]] = []
    for one in passes:
        if one.model is not model:
            passes.answer(execute(one.model, Feed(one.feed), one.wanted))
            continue
        feeds.append(one.feed)
        if one.wanted.outputs:
            raise UnsupportedError(
                "this model reads its text in several runs (a token at a time, or through a cache of fixed size), and "
                "interventions are made in one",
                Wording("Give arrays for one run: <inputs=>."),
            )
        passes.answer(Run((), one.feed))
    return Planned(feeds[-1], _standing(model, feeds[-1], passes.result))


def _standing(model: OpenModel, feed: Mapping[str, Array], trace: Trace) -> Trace:
    """The trace with its tokens in the order in which the graph has them where it attends; numbered where that is not
    one order.
    """
    own = [s for s in model.find(feed).sites if s.kind == "self" and (trace.memory is None or s.component == "decoder")]
    if not any(site.moved for site in own):
        return trace
    orders = {(site.query_order, site.aligned) for site in own}
    order, aligned = next(iter(orders))
    moved = reordered(trace.tokens, order) if len(orders) == 1 and aligned and order is not None else None
    return replace(trace, tokens=moved or numbered(len(trace.tokens)))


def positions_of(model: OpenModel, prompt: Prompt, planned: Planned) -> Tokens:
    """The names of the query positions: the tokens, or the patches of a picture and the like.

    If no ids are fed, an attention is run: only its size shows how many positions there are.
    """
    layer = next((site.layer for site in model.sites if site.kind == "self" and site.layer is not None), None)
    if layer is None or any(is_ids(slot) for slot in model.slots() if slot.name in planned.feed):
        return planned.tokens
    wanted = Wanted((layer,), ("masked", "weights"), verify=False, kinds=("self",))
    return execute(model, prompt, wanted).tokens


def named(model: OpenModel, prompt: Prompt, planned: Planned) -> Planned:
    """The same run with its positions named as displayed (for a picture, its patches); see `positions_of`."""
    return replace(planned, trace=replace(planned.trace, tokens=positions_of(model, prompt, planned)))


__all__ = ["Planned", "named", "plan_run", "positions_of"]
