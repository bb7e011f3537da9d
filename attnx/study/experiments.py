"""Experiments in one call each: the functions behind `Model.ablate`, `patch`, `patch_paths`, `lens`, `attribute`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnx.errors import UsageError
from attnx.interventions.feeds import Planned, plan_run, positions_of
from attnx.interventions.perform import feed_of, prompt_of
from attnx.interventions.plan import METHODS, OTHER, RUN, Where
from attnx.interventions.running import Intervening
from attnx.records import Tokens
from attnx.run.arguments import choice_of, heads_of, layers_of, position_of, several_of, whole_of
from attnx.session.protocol import OpenModel
from attnx.study import ablation, attribution, logit_lens, patching, path_patching
from attnx.study.inspect_run import all_sites
from attnx.study.layer_names import from_the_end, layers_and_heads
from attnx.study.patch_metric import Meter, meter
from attnx.study.patch_places import sides_of, tokens_of
from attnx.study.selection import each_position
from attnx.study.selection import position as position_named
from attnx.study.two_texts import differences

Source = str | Mapping[str, Any]
"""A text; keyword arguments of `Model.trace` (text, target, tokens, inputs ...); or an array for each graph input."""
Token = int | str
"""A position, or a token named as on the command line: "it", "it@10"."""
Head = tuple[int, int]
"""Layer and head; a layer of -1 is the last."""


def ablate(
    model: OpenModel,
    source: Source,
    *,
    queries: Sequence[Token] | None = None,
    edges: Sequence[tuple[Token, Token]] = (),
    heads: Sequence[Head] = (),
    layers: Sequence[int] | None = None,
    position: Token | None = None,
    **asked: Any,
) -> ablation.Ablation:
    """Ablate heads, or knock edges out of them, and read the model's output; see `attnx.study.ablation.ablate`.

    Args:
        model: The model.
        source: The input to run it on.
        queries: Positions at which heads are ablated; None for all.
        edges: Query and key of edges to knock out instead of an ablation.
        heads: The heads to ablate, each alone; with edges, the heads in which to knock them out.
        layers: Layers to ablate as a whole, -1 being the last.
        position: The position or token to read; None for a decoder's last position, a masked model's mask, a text.
        asked: component, method, means, answer, foil.
    """
    pairs, layers = _chosen(model, heads, layers, asked.get("component"))
    choice_of(asked.get("method", "zero"), METHODS, "method")
    edges = several_of(edges, "edges", "edges=[('it', 'animal')]")
    queries = None if queries is None else several_of(queries, "queries", "queries=['it']")
    prompt = prompt_of(model, source)
    made = plan_run(model, prompt)
    running, memory = Intervening(model, {RUN: made.feed}), made.trace.memory
    here = None if position is None else _position(made.tokens, position, "position")
    named = made.tokens if queries is None and not edges else positions_of(model, prompt, made)
    looking, seen = sides_of(running, asked.get("component"), named, memory)
    where = None if queries is None else [_position(looking, token, "queries") for token in queries]
    cut = [(_position(looking, q, "edges"), _position(seen, k, "edges")) for q, k in map(_pair, edges)]
    return ablation.ablate(
        model, running, made.tokens, memory=memory, at_queries=named, queries=where, edges=cut, heads=pairs,
        layers=layers, position=here, at=here, **asked,
    )  # fmt: skip


def lens(
    model: OpenModel,
    source: Source,
    *,
    at: Sequence[Token] | str | None = None,
    answer: str | None = None,
    top: int = logit_lens.TOP,
) -> logit_lens.LogitLens:
    """Read what each layer would predict; see `attnx.study.logit_lens.logit_lens`.

    Args:
        model: The model.
        source: The input to run it on.
        at: Positions or tokens, or "all"; None for a decoder's last position or a masked model's masks.
        answer: The token or label to watch; None for the model's own first choice.
        top: How many tokens to keep per layer.
    """
    top = whole_of(top, "top")
    made = feed_of(model, source)
    running = Intervening(model, {RUN: made.feed})
    return logit_lens.logit_lens(model, running, made.tokens, at=_positions(made.tokens, at), answer=answer, top=top)


def attribute(
    model: OpenModel,
    source: Source,
    *,
    answer: str | None = None,
    foil: str | None = None,
    at: Token | None = None,
) -> attribution.Attribution:
    """Decompose a logit, or the difference of two; see `attnx.study.attribution.attribution`.

    Args:
        model: The model.
        source: The input to run it on.
        answer: The token or label; None for the model's own first choice.
        foil: The token or label whose logit is subtracted.
        at: The position or token to read; None for a decoder's last position or a masked model's mask.
    """
    made = feed_of(model, source)
    here = None if at is None else _position(made.tokens, at, "at")
    running = Intervening(model, {RUN: made.feed})
    return attribution.attribution(model, running, made.tokens, answer=answer, foil=foil, at=here)


def patch(
    model: OpenModel,
    clean: Source,
    corrupt: Source,
    *,
    quantity: str = "context",
    by: patching.By | None = None,
    component: Where | None = None,
    heads: Sequence[Head] = (),
    layers: Sequence[int] | None = None,
    at: Sequence[Token] | str | None = None,
    noising: bool = False,
    answer: str | None = None,
    foil: str | None = None,
    metric: str | None = None,
    read: Token | None = None,
) -> patching.Patching:
    """Patch activations of one text into the run of another, one spot at a time; see `attnx.study.patching.patch`.

    Args:
        model: The model.
        clean: The text whose answer is restored.
        corrupt: A text with the same number of tokens.
        quantity: context, value, query, key, weights, attention, mlp or residual.
        by: "head", "position" or "layer": the unit of a patch.
        component: "encoder", "decoder" or "cross".
        heads: The heads to patch; empty for all.
        layers: Only these layers, -1 being the last.
        at: Only these positions or tokens; None for all.
        noising: Whether to patch corrupt activations into the clean run.
        answer: The token or label; None for the clean run's first choice.
        foil: The token or label to compare it with; None for the corrupt run's first choice.
        metric: "difference", "probability" or "kl"; None for the difference where there is one.
        read: The position or token to read; None for the last or the mask.
    """
    if by is not None:
        choice_of(by, patching.BY, "by")
    pairs, layers = _chosen(model, heads, layers, component)
    made, running, measured = _two(model, clean, corrupt, answer=answer, foil=foil, metric=metric, read=read)
    tokens, memory = made.tokens, made.trace.memory
    there = tokens_of(running, component, quantity, tokens, memory)
    return patching.patch(
        running, measured, quantity=quantity, by=by, component=component, heads=pairs, layers=layers,
        at=_positions(there, at), tokens=tokens, memory=memory, noising=noising,
    )  # fmt: skip


def patch_paths(
    model: OpenModel,
    clean: Source,
    corrupt: Source,
    *,
    from_: Sequence[Head] = (),
    to: Sequence[Head] = (),
    into: path_patching.Into = "query",
    component: Where | None = None,
    freeze_mlps: bool = False,
    noising: bool = False,
    answer: str | None = None,
    foil: str | None = None,
    metric: str | None = None,
    read: Token | None = None,
) -> patching.Patching:
    """Patch only the paths from a head to later heads; see `attnx.study.path_patching.patch_paths`.

    Args:
        model: The model.
        clean: The text whose answer is restored.
        corrupt: A text with the same number of tokens.
        from_: The senders; empty for every head.
        to: The receivers; empty for the answer.
        into: "query", "key" or "value" of the receivers.
        component: "encoder", "decoder" or "cross".
        freeze_mlps: Whether the MLPs between them are frozen too.
        noising: Whether to patch corrupt activations into the clean run.
        answer: As for `patch`, and so are foil, metric and read.
        foil: See there.
        metric: See there.
        read: See there.
    """
    ends = [_heads(model, given, component, name) for name, given in (("from_", from_), ("to", to))]
    _, running, measured = _two(model, clean, corrupt, answer=answer, foil=foil, metric=metric, read=read)
    return path_patching.patch_paths(
        running,
        measured,
        from_=ends[0],
        to=ends[1],
        into=into,
        component=component,
        freeze_mlps=freeze_mlps,
        noising=noising,
    )


def _two(
    model: OpenModel, clean: Source, corrupt: Source, *, read: Token | None, **asked: str | None
) -> tuple[Planned, Intervening, Meter]:
    """Both texts, the model with their feeds, and the metric that compares them."""
    one, two = feed_of(model, clean), feed_of(model, corrupt)
    differences(one, two)
    running = Intervening(model, {RUN: one.feed, OTHER: two.feed})
    here = None if read is None else _position(one.tokens, read, "read")
    return one, running, meter(model, running.base(RUN), running.base(OTHER), one.tokens, at=here, **asked)


def _heads(model: OpenModel, given: Sequence[Head], sort: Where | None, argument: str) -> list[tuple[int, int]]:
    return layers_and_heads(heads_of(given, argument), lambda: all_sites(model), sort)


def _chosen(
    model: OpenModel, heads: Sequence[Head], layers: Sequence[int] | None, sort: Where | None
) -> tuple[list[tuple[int, int]], list[int] | None]:
    """Heads and layers by number."""
    pairs, wanted = _heads(model, heads, sort, "heads"), layers_of(layers)
    if wanted is not None and min(wanted, default=0) < 0:
        wanted = from_the_end(wanted, all_sites(model), sort)
    return pairs, None if wanted is None else list(wanted)


def _position(tokens: Tokens, token: Token, argument: str) -> int:
    if isinstance(token, str):
        return position_named(tokens, token, argument=argument)
    return position_of(token, len(tokens), argument)


def _pair(edge: Any) -> tuple[Token, Token]:
    if isinstance(edge, str) or not isinstance(edge, Sequence) or len(edge) != 2:
        raise UsageError(
            "edges are pairs (query, key), and one of these is none", "For example: edges=[('it', 'animal')]."
        )
    return edge[0], edge[1]


def _positions(tokens: Tokens, at: Sequence[Token] | str | None) -> list[int] | None:
    if at is None:
        return None
    named = at if isinstance(at, Iterable) and not isinstance(at, str) else [at]
    found = [
        each_position(tokens, [one]) if isinstance(one, str) else [position_of(one, len(tokens), "at")] for one in named
    ]
    return list(dict.fromkeys(place for places in found for place in places))


__all__ = ["ablate", "attribute", "lens", "patch", "patch_paths"]
