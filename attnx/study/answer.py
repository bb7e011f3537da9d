"""An answer and its prompt: which parts of the prompt each generated word attends to, by head and step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnx.errors import InputError, UsageError
from attnx.formula import average
from attnx.measure import lookback as measure
from attnx.records import Array, Axis, Measurement, Site, Tokens, Trace
from attnx.run.axis_tokens import in_place
from attnx.run.encdec import check_names
from attnx.run.generate import Plan, decoder_steps, say, with_new
from attnx.run.passes import Passes, Planned
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.run.row_sums import RowSums, UnreducedError, reads_in_pieces, sound
from attnx.session.protocol import NOTHING, OpenModel, Wanted
from attnx.study.prompts import Span, answered, cut, with_text
from attnx.study.request import Head
from attnx.study.selection import trusted
from attnx.tokens.sentences import sentences
from attnx.tokens.spaced import readers
from attnx.wording import Wording

BLOCKS = 96
"""Stretches of the prompt that are shown as a strip."""
PIECE = 512
"""How many tokens of a long prompt are read at once if the model has a cache."""
UNITS = ("sentence", "word", "whole")
"""How the answer is grouped."""
NO_PROOF = Wording(
    "where heads read is no proof of use: <attnx.study.ablation.ablate()> takes an edge away and shows whether the "
    "answer changes"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of the answer."""

    text: str
    steps: tuple[int, ...]
    """Which of the written tokens, from 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The generated text, and where the heads attended while generating it."""

    model: str
    device: str
    tokens: Tokens
    """The prompt, followed by the generated tokens."""
    prompt: int
    """How many of them belong to the prompt."""
    spans: tuple[Span, ...]
    weights: Measurement
    """[L,H,T,G]: per head and generated token, the weight on each span, on the rest of the prompt, on sinks, and on
    the model's own words."""
    blocks: Measurement
    """[L,H,T,B]: the prompt cut into stretches of equal length, sinks left out."""
    lookback: Measurement
    """[L,H,T]."""
    sites: tuple[Site, ...]
    notes: tuple[str, ...]

    @property
    def written(self) -> int:
        """How many tokens were generated."""
        return len(self.tokens) - self.prompt

    def mean(self, measured: Measurement, heads: Sequence[Head], layers: Sequence[int] | None) -> Array:
        """The mean over the requested heads; over all if none is requested.

        Raises:
            UsageError: There is no such head or layer.
        """
        values = measured.values
        have = [site.layer for site in self.sites]
        for layer in (*(layers or ()), *(h.layer for h in heads if h.layer is not None)):
            if layer not in have:
                raise UsageError(f"there is no layer {layer}", f"There are the layers {', '.join(map(str, have))}.")
        kept = [at for at, layer in enumerate(have) if layers is None or layer in layers]
        if not heads:
            flat = values[kept].reshape(-1, *values.shape[2:])
            return average(flat, axis=0)
        count = values.shape[1]
        if (high := max(h.head for h in heads)) >= count:
            raise UsageError(f"there is no head {high}", f"There are heads 0 to {count - 1}.")
        picked = [values[at, h.head] for h in heads for at in kept if h.layer in (None, have[at])]
        return average(np.stack(picked), axis=0)

    def units(self, by: str) -> tuple[Unit, ...]:
        """The generated text by word, by sentence or as a whole; special tokens belong to no unit."""
        steps = [at for at in range(self.written) if not self.tokens.special[self.prompt + at]]
        if not steps:
            return ()
        offsets = self.tokens.offsets
        start = min(offsets[self.prompt + at][0] for at in steps)
        stop = max(offsets[self.prompt + at][1] for at in steps)
        if by == "whole":
            return (Unit(self.tokens.text[start:stop], tuple(steps)),)
        if by == "word":
            first, whole = self.prompt, readers(self.tokens)
            own = [(text, tuple(at - first for at in places if at >= first)) for text, places in whole]
            return tuple(Unit(text, places) for text, places in own if places)
        out = []
        for a, b in sentences(self.tokens.text[start:stop]):
            inside = tuple(at for at in steps if a <= offsets[self.prompt + at][0] - start < b)
            if inside:
                out.append(Unit(self.tokens.text[start + a : start + b], inside))
        return tuple(out)


def answer(model: OpenModel, source: Prompt, plan: Plan | None, how: str = "sentence") -> Answer:
    """Let a decoder continue a prompt, or take a given answer, and see where its heads attend.

    Args:
        model: A decoder.
        source: A text or tokens, and `target`, the answer, if it is known.
        plan: How to generate; None if the answer is given.
        how: How the prompt is cut into spans; see `prompts.cut`.

    Raises:
        UsageError: The model is not a decoder.
        InputError: Nothing was written, or the spans do not fit the prompt.
    """
    own = [site for site in model.sites if site.kind == "self"]
    if not own or all(site.causal is False for site in own):
        raise UsageError(
            f"{model.name} writes no text: none of its attention hides the future",
            "Choose a decoder (GPT, Llama ...) or a translator.",
        )
    text, target = source.text, source.target
    tokens = next(iter(source.encode(model)), None)
    if tokens is None:
        raise UsageError("there is no text to go on from", Wording("Give a text[, or ids (<tokens>)]."))
    if target is not None:
        tokens, prompt = answered(model, with_text(tokens), text, target)
    else:
        tokens, prompt = with_text(tokens), len(tokens)
    if not prompt:
        raise InputError("there is no prompt before the answer", "Give a text; the answer goes on behind it.")
    spans = cut(tokens, prompt, how)
    sinks = tuple(at for at in range(prompt) if at == 0 or tokens.special[at])
    places = [tuple(at for at in span.tokens if at not in sinks) for span in spans]
    blocks = min(BLOCKS, prompt)
    ids = tokens.ids.tolist()
    writing = plan if plan is not None and target is None else Plan(0)
    inputs = source.inputs or {}
    check_names(model, inputs)
    if prompt > 2 * PIECE and reads_in_pieces(model, ids):
        writing = replace(writing, piece=PIECE)

    def marks(size: int) -> Array:
        return measure.groups(size, places, sinks, prompt, blocks)

    rows = RowSums(marks, prompt - 1)
    try:
        decoded = rows.follow(Passes(decoder_steps(model, ids, writing, NOTHING, inputs=inputs)))
        sums, sites, notes, device = rows.sums(), rows.sites, list(rows.notes), rows.device
    except UnreducedError:
        decoded = execute(model, Planned(decoder_steps(model, ids, writing, _WHOLE, inputs=inputs)), _WHOLE)
        trace, doubts = trusted(Trace(model.name, decoded.run.device, tokens, None, decoded.run.attentions))
        kept = [a for a in trace.attentions if a.site.kind == "self"]
        in_place([a.site for a in kept])
        sums = [a.need("weights")[0, :, prompt - 1 :] @ marks(a.need("weights").shape[-1]) for a in kept]
        sites, device = tuple(a.site for a in kept), decoded.run.device
        notes = [*decoded.run.notes, *doubts]
    if target is None:
        tokens = with_new(model, tokens, decoded)
        notes += say(decoded, writing, tokens)
    count = len(tokens) - prompt
    if not count:
        raise InputError(f"{model.name} wrote nothing", Wording("Give the answer: <target=>."))
    sums = [one[:, :count].astype(np.float64) for one in sums]  # the last token's row writes nothing
    sums, sites, doubts = sound(sums, sites, len(tokens))
    return _measured(model, device, tokens, prompt, spans, sites, sums, (*tokens.notes, *notes, *doubts))


_WHOLE = Wanted(quantities=("masked", "weights"), kinds=("self",))


def _measured(
    model: OpenModel, device: str, tokens: Tokens, prompt: int, spans: tuple[Span, ...], sites: tuple[Site, ...],
    sums: list[Array], notes: Sequence[str],
) -> Answer:  # fmt: skip
    heads, count = max(len(one) for one in sums), len(tokens) - prompt
    stacked = np.full((len(sums), heads, count, sums[0].shape[-1]), np.nan)
    for at, one in enumerate(sums):
        stacked[at, : len(one)] = one
    parts = len(spans) + 3
    labels = [site.label for site in sites]
    if len(set(labels)) < len(labels):
        labels = [f"{label} #{site.index}" for label, site in zip(labels, sites, strict=True)]
    axes = (
        Axis("layer", tuple(labels)),
        Axis("head", tuple(f"H{at}" for at in range(heads))),
        Axis("written", tuple(tokens.pieces[prompt:])),
    )
    groups = Axis("part", (*(span.name for span in spans), "rest of the prompt", "sinks", "own words"))
    blocks = stacked[..., parts:-1]
    size = blocks.shape[-1]
    starts = tuple(str(-(-at * prompt // size)) for at in range(size))
    on_prompt, on_own = stacked[..., :parts].sum(-1) - stacked[..., parts - 1], stacked[..., parts - 1]
    return Answer(
        model.name, device, tokens, prompt, spans,
        Measurement("attention while writing", "share", (*axes, groups), stacked[..., :parts], (0.0, 1.0), "attnx",
                    "weight of the row that writes a token, summed over the tokens of each part"),
        Measurement("attention to the prompt", "share", (*axes, Axis("from token", starts)), blocks, (0.0, 1.0)),
        Measurement("lookback ratio", "share", axes, measure.lookback(on_prompt, on_own, prompt), (0.0, 1.0),
                    measure.SOURCE, measure.FORMULA),
        sites, tuple(dict.fromkeys((*notes, NO_PROOF))),
    )  # fmt: skip


__all__ = ["UNITS", "Answer", "Unit", "answer"]
