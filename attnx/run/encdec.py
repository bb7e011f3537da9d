"""Encoder-decoders, in one file or two: encoder self, decoder self and cross-attention in one trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from attnx.errors import InputError, ModelError, UsageError
from attnx.feed import fill as feeding
from attnx.feed.generation_config import decoder_start, read_rules, settings
from attnx.feed.inputs import Needs, is_ids, is_past, is_sense
from attnx.records import Array, Attention, Site, Tokens
from attnx.run.kvcache import is_cross, pair_by_name
from attnx.run.passes import Pass, Steps
from attnx.run.read import measure_causal
from attnx.session.ort import Slot
from attnx.session.protocol import OpenModel, Run, Wanted
from attnx.tokens.axes import join, labelled, numbered


@dataclass(frozen=True, slots=True)
class Encoded:
    """The encoder's side of a run of two files, or of one graph with both sides."""

    memory: Tokens
    hidden: Array | None = None
    """float [1,K,hidden], where the encoder is a file of its own."""
    caches: Mapping[str, Array] | None = None
    """Keys and values of the cross-attention, where the encoder's file makes them."""
    run: Run | None = None
    """The run of the encoder's file, where it is a file of its own."""
    joined: Mapping[str, Array] = field(default_factory=dict)
    """Inputs of the decoder that outputs of the encoder's file fill by their names: "memory_out" for "memory"."""

    def needs(self, ids: Sequence[int], past: int = 0) -> Needs:
        """What fills the decoder's inputs for `ids` that follow `past` cached tokens."""
        memory_mask = np.array([self.memory.mask], dtype=np.int64)
        new = np.array([ids], dtype=np.int64)
        mask = np.ones((1, past + len(ids)), dtype=np.int64)
        return Needs(new, mask, np.zeros_like(new), self.memory.ids[None], memory_mask, self.hidden, past)


def encoder_steps(
    model: OpenModel,
    memory: Tokens | None,
    arrays: Mapping[str, Array],
    wanted: Wanted,
    name: Callable[[int], Tokens] = numbered,
) -> Steps[Encoded]:
    """A pass over the encoder's file, where there is one; no pass where encoder and decoder are one graph.

    Args:
        model: The decoder.
        memory: The text; None where `arrays` fill all inputs of the encoder (a picture, sound).
        arrays: Arrays for some of the inputs.
        wanted: What is wanted of the encoder's sites.
        name: Names the encoder's positions, where they are not tokens.

    Raises:
        InputError: Nothing fills one of the encoder's inputs.
        ModelError: None of the encoder's outputs is an input of the decoder.
    """
    encoder = model.encoder
    if encoder is None:
        if memory is None and not any(is_sense(s) for s in model.slots() if s.name in arrays):
            raise InputError("there is no text for the encoder", "Give one.")
        return Encoded(memory if memory is not None else numbered(0))  # the run determines how many positions there are
    slots = agreeing(encoder.slots(), model.slots())
    own = {s.name: arrays[s.name] for s in slots if s.name in arrays}
    feed = feeding.check(slots, own) if memory is None else feeding.derive(slots, feeding.batch_of([memory]), own)
    wanted = replace(of_file(encoder, wanted), outputs=True, required=False, verify_outputs=False)
    run = yield Pass(encoder, feed, wanted)
    return _encoded(model, memory, run, name)


def agreeing(slots: Sequence[Slot], others: Sequence[Slot]) -> list[Slot]:
    """Inputs of the encoder's file, with what only the decoder's file says about masks that both take."""
    known = {other.name: other.kept for other in others}
    return [replace(slot, kept=known.get(slot.name)) if slot.kept is None else slot for slot in slots]


def join_by_name(slots: Sequence[Slot], outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs of a decoder that outputs of its encoder fill: those of the same name, apart from "out" and "encoder".

    An output whose name says "out" is preferred to one that is only passed through.
    """
    by_name: dict[str, str] = {}
    for name in sorted(outputs, key=lambda name: _bare(name) == name.lower()):
        by_name.setdefault(_bare(name), name)
    found = {slot.name: outputs[by_name[bare]] for slot in slots if (bare := _bare(slot.name)) in by_name}
    fits = {slot.name: slot for slot in slots}
    return {
        name: array
        for name, array in found.items()
        if array.ndim == len(fits[name].shape) and array.dtype == fits[name].dtype and not is_ids(fits[name])
    }


def _bare(name: str) -> str:
    """A name without the parts that say where it comes from or goes to: "encoder.memory_out" -> "memory"."""
    bare = re.sub(r"^(encoder|enc)[._/]|[._/]?(out|output|outputs)$", "", name.lower())
    return bare or name.lower()


def carried_states(slots: Sequence[Slot], outputs: Sequence[str]) -> list[str]:
    """Inputs of a decoder that its own outputs fill in the next call, besides caches: the state of recurrent layers."""
    made = {_bare(name): name for name in outputs}
    states = [s for s in slots if _bare(s.name) in made and not is_past(s) and s.dtype in (np.float32, np.float16)]
    return [s.name for s in states if made[_bare(s.name)] != s.name]


def _encoded(model: OpenModel, memory: Tokens | None, run: Run, name: Callable[[int], Tokens]) -> Encoded:
    later = model.with_past or model
    pairs = {k: v for k, v in pair_by_name(later.slots(), list(run.outputs)).items() if is_cross(k)}
    caches = {name: run.outputs[output] for name, output in pairs.items()}
    takes = [s for s in model.slots() if len(s.shape) == 3 and not is_past(s) and not is_ids(s)]
    widths = {s.shape[2] for s in takes if isinstance(s.shape[2], int)}
    floats = {
        n: a
        for n, a in run.outputs.items()
        if a.ndim == 3 and a.dtype.kind == "f" and n not in pairs.values() and (not widths or a.shape[2] in widths)
    }
    hidden = next((a for n, a in floats.items() if "hidden" in n), next(iter(floats.values()), None))
    joined = join_by_name(model.slots(), run.outputs)
    if (hidden is None or not takes) and not caches and not joined:
        raise ModelError(
            f"the encoder gives {', '.join(run.outputs)}, none of which the decoder takes: "
            f"{', '.join(s.describe() for s in takes) or 'no hidden states, no keys and values'}",
            "Are the two files of one export?",
        )
    if memory is None:
        memory = name(_length(hidden, caches))
    elif hidden is not None and hidden.shape[1] != len(memory):
        memory = name(hidden.shape[1])
    return Encoded(memory, hidden, caches or None, run, joined)


def _length(hidden: Array | None, caches: Mapping[str, Array]) -> int:
    """How many positions the encoder gave."""
    if hidden is not None:
        return int(hidden.shape[1])
    return int(next(iter(caches.values())).shape[-2]) if caches else 1


def of_file(model: OpenModel, wanted: Wanted) -> Wanted:
    """What is wanted of one file among several: nothing where it has none of the sites."""
    if (wanted.layers is None and wanted.kinds is None) or any(map(wanted.takes, model.sites)):
        return wanted
    return replace(wanted, layers=(), quantities=(), required=False)


def check_layers(model: OpenModel, wanted: Wanted) -> None:
    """Check the wanted layers against those of both files.

    Raises:
        UsageError: Neither file has any of them.
    """
    files = [m for m in (model.encoder, model) if m is not None]
    have = sorted({s.layer for m in files for s in m.sites if s.layer is not None})
    if wanted.layers and have and not set(wanted.layers) & set(have):
        raise UsageError(
            f"there is no layer {', '.join(map(str, wanted.layers))}", f"The model has layers {have[0]} to {have[-1]}."
        )


def for_inputs(slots: Sequence[Slot], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays that a graph takes."""
    names = {s.name for s in slots}
    return {name: array for name, array in arrays.items() if name in names}


def check_names(model: OpenModel, arrays: Mapping[str, Array]) -> None:
    """Check the names of arrays against the inputs of all files of a model.

    Raises:
        InputError: One that none of them takes.
    """
    files = [model, *(m for m in (model.encoder, model.with_past) if m is not None)]
    names = list(dict.fromkeys(s.name for m in files for s in m.slots()))
    if unknown := [name for name in arrays if name not in names]:
        raise InputError(f"the model has no input {', '.join(unknown)}", f"It takes: {', '.join(names)}.")


def target_tokens(model: OpenModel, text: str) -> Tokens:
    """What the decoder reads of a text: its start tokens, then the text, without the end token it would predict."""
    start, note = decoder_start(model)
    tokens = model.tokenizer.encode(text)
    if len(tokens) > 1 and tokens.special[-1]:
        tokens = _cut(tokens, 0, len(tokens) - 1)
    # The tokens that the tokenizer itself puts first are already there, or are replaced by forced ones (a language).
    own = next((i for i, special in enumerate(tokens.special) if not special), len(tokens))
    if len(start) > 1 or (own and tokens.ids[0] == start[0]):
        tokens = _cut(tokens, own, len(tokens))
    tokens = join(special_tokens(model, start), tokens)
    notes = [note] if note else []
    if len(start) in read_rules(settings(model)).among:
        notes.append(f"what stands at position {len(start)} (the language) is for the model to say, and is left out")
    return replace(tokens, text=text, notes=(*tokens.notes, *notes))


def special_tokens(model: OpenModel, ids: Sequence[int]) -> Tokens:
    """Tokens that stand for no text: ids with their pieces, where a tokenizer is at hand."""
    try:
        pieces = [model.tokenizer.piece(number) for number in ids]
    except ModelError:
        pieces = [f"#{number}" for number in ids]
    return replace(labelled(pieces, [True] * len(ids)), ids=np.array(ids, np.int64))


def _cut(tokens: Tokens, start: int, end: int) -> Tokens:
    return replace(
        tokens,
        ids=tokens.ids[start:end],
        **{
            name: getattr(tokens, name)[start:end]
            for name in ("pieces", "offsets", "words", "special", "mask", "type_ids")
        },
    )


def with_encoder(encoded: Encoded, run: Run) -> Run:
    """A run of the decoder, with the sites and notes of the encoder's before its own."""
    notes = encoded.run.notes if encoded.run is not None else ()
    return replace(run, attentions=together(encoded, run.attentions), notes=(*notes, *run.notes))


def together(encoded: Encoded, attentions: Sequence[Attention]) -> tuple[Attention, ...]:
    """The encoder's sites and the decoder's, numbered through.

    Of two files, all self-attention of the second is the decoder's, whatever its graph alone suggests.
    """
    if encoded.run is None:
        return tuple(attentions)
    decoder: list[Attention] = []
    for a in attentions:
        if a.site.kind == "self":
            layer = sum(d.site.kind == "self" for d in decoder)
            seen = measure_causal({} if a.weights is None else {"weights": a.weights})
            hides = True if seen and a.weights is not None and a.weights.shape[2] > 2 else a.site.causal
            kept = a.site.layer if _all_decoder(attentions) else layer  # chosen layers keep their numbers
            site = replace(a.site, component="decoder", component_known=True, layer=kept, causal=hides)
            decoder.append(replace(a, site=site))
        else:
            decoder.append(a)
    return tuple(replace(a, site=replace(a.site, index=i)) for i, a in enumerate([*encoded.run.attentions, *decoder]))


def sites_of(model: OpenModel) -> tuple[Site, ...]:
    """The sites of all files of a model, numbered through as in a trace of it."""
    if model.encoder is None:
        return tuple(model.sites)
    own = [s for s in model.sites if s.kind == "self"]
    settled = all(s.component == "decoder" for s in own)
    decoder = [
        replace(s, component="decoder", layer=s.layer if settled else own.index(s)) if s.kind == "self" else s
        for s in model.sites
    ]
    return tuple(replace(s, index=i) for i, s in enumerate([*model.encoder.sites, *decoder]))


def _all_decoder(attentions: Sequence[Attention]) -> bool:
    return all(a.site.component == "decoder" for a in attentions if a.site.kind == "self")


__all__ = [
    "Encoded", "check_layers", "check_names", "encoder_steps", "for_inputs", "of_file", "sites_of", "special_tokens",
    "target_tokens", "together",
]  # fmt: skip
