"""Let a decoder continue a text: greedy or by seeded sampling, with its own cache if it has one, else recomputing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from attnx.errors import InputError, ModelError, UnsupportedError, UsageError
from attnx.feed import fill as feeding
from attnx.feed.generation_config import Rules, numbers, read_rules, settings
from attnx.feed.inputs import Needs, fixed_length, is_past, own_mask, padded, seen_by
from attnx.numerals import counted
from attnx.records import Array, Tokens
from attnx.run.encdec import Encoded, carried_states, for_inputs
from attnx.run.kvcache import carry, pair, room, sized, slides
from attnx.run.logits import next_logits, vocabulary
from attnx.run.passes import Pass, Steps
from attnx.run.steps import join_steps
from attnx.session.protocol import NOTHING, OpenModel, Run, Wanted
from attnx.tokens.axes import join
from attnx.wording import Wording


@dataclass(frozen=True, slots=True)
class Plan:
    """How a decoder continues."""

    count: int
    """The most tokens to write."""
    temperature: float = 0.0
    """0 takes the likeliest token each time; above, tokens are drawn from softmax(logits / temperature)."""
    top_k: int | None = None
    """Sample only among the K likeliest."""
    seed: int = 0
    stop: frozenset[int] = frozenset()
    """Ids that end a text."""
    rules: Rules = field(default_factory=Rules)
    """Which tokens may stand where."""
    limit: int | None = None
    """The most tokens that the model takes."""
    vocabulary: frozenset[int] = frozenset()
    """How many tokens it may choose among: see `logits.vocabulary`."""
    piece: int | None = None
    """How many tokens of the prompt are read at a time where there is a cache; all of them where None."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a decoder wrote, and its attention."""

    ids: tuple[int, ...]
    """The prompt's and the new ones."""
    new: int
    run: Run
    """Attentions of every token over all before it."""
    cached: bool
    """Whether the model's own cache was used."""
    notes: tuple[str, ...] = ()


def check_count(count: object) -> None:
    """Refuse what is no number of tokens to write.

    Raises:
        UsageError: It is no whole number, or below 1.
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise UsageError(
            Wording("<generate={count}>: it takes the number of tokens to write, from 1", count=count),
            Wording("Try <generate=20>."),
        )


def plan(model: OpenModel, count: int, *, temperature: float = 0.0, top_k: int | None = None, seed: int = 0) -> Plan:
    """A plan that follows the model's own configuration: what ends a text, which tokens are forced, which suppressed.

    Raises:
        UsageError: A number that makes no sense.
    """
    check_count(count)
    if temperature < 0 or not np.isfinite(temperature):
        raise UsageError(
            Wording("<temperature={it}>: it takes a number from 0", it=temperature), "0 takes the likeliest token."
        )
    if seed < 0:
        raise UsageError(Wording("<seed={it}>: it takes a whole number from 0", it=seed), "Any will do.")
    if top_k is not None and top_k < 1:
        raise UsageError(
            Wording("<top_k={it}>: it takes a number from 1", it=top_k), "Leave it out to sample from all tokens."
        )
    config = settings(model)
    stop = numbers(config, "eos_token_id")
    limit = None
    try:
        tokenizer = model.tokenizer
    except ModelError:
        pass
    else:
        end = tokenizer.token_id(tokenizer.roles.get("eos_token", ""))
        stop |= {end} if end is not None else set()
        limit = tokenizer.limit
        # A tokenizer with no files beside it still has the usual end tokens among its special tokens.
        if not stop:
            usual = (
                tokenizer.token_id(name) for name in ("</s>", "<|endoftext|>", "<eos>", "<|im_end|>", "<|eot_id|>")
            )
            stop = {number for number in usual if number is not None}
    return Plan(count, temperature, top_k, seed, frozenset(stop), read_rules(config), limit, vocabulary(model))


def decoder_steps(
    model: OpenModel,
    prompt: Sequence[int],
    plan: Plan,
    wanted: Wanted,
    encoded: Encoded | None = None,
    inputs: Mapping[str, Array] | None = None,
) -> Steps[Decoded]:
    """The passes of a decoder that reads a prompt and writes on.

    Args:
        model: The decoder.
        prompt: The ids to start from.
        plan: How to continue; with a count of 0 the prompt is only read.
        wanted: What is wanted of its sites.
        encoded: The encoder's side of an encoder-decoder.
        inputs: Arrays for some of its inputs.

    Raises:
        UsageError: The model is no decoder.
        UnsupportedError: It gives no logits.
    """
    own = [s for s in model.sites if s.kind == "self"] if encoded is None else []
    if plan.count and own and all(s.causal is False for s in own):
        raise UsageError(
            f"{model.name} writes no text: none of its attention hides the future",
            "Use a decoder (GPT, Llama, T5 ...).",
        )
    later = model.with_past or model
    inputs = {**(encoded.joined if encoded is not None else {}), **(inputs or {})}
    plan = plan if plan.vocabulary else replace(plan, vocabulary=vocabulary(model))
    mask = own_mask(model.slots(), inputs) if encoded is None else None
    padding = None if mask is None else seen_by(mask, inputs.pop(mask.name)).astype(np.int64)
    if mask is not None and padding is not None and padding.shape != (1, len(prompt)):
        raise InputError(
            f"the given {mask.name} has shape {list(padding.shape)}, and the text has {len(prompt)} tokens",
            "It has one number for each token of the text; what is written needs none.",
        )
    text = Text(list(prompt), encoded, padding)
    # A ring's entries are not in order and cannot be joined: such a model reads its whole text again at every step.
    if any(is_past(s) for s in later.slots()) and not slides(later.slots()):
        return (yield from _cached(model, text, plan, wanted, inputs))
    return (yield from _recomputed(model, text, plan, wanted, inputs))


@dataclass(frozen=True, slots=True)
class Text:
    """What a decoder continues."""

    ids: list[int]
    encoded: Encoded | None
    padding: Array | None
    """int64 [1,Q]: 0 where an id is padding."""

    def needs(self, ids: Sequence[int], past: int, model: OpenModel) -> Needs:
        """What fills the inputs for `ids` that follow `past` cached ones."""
        if self.encoded is not None:
            return sized(self.encoded.needs(ids, past), model)
        new = np.array([ids], dtype=np.int64)
        mask = np.ones((1, past + len(ids)), dtype=np.int64)
        if self.padding is not None:
            mask[:, : self.padding.shape[1]] = self.padding[:, : mask.shape[1]]
        return sized(Needs(new, mask, np.zeros_like(new), past=past), model)


def _cached(model: OpenModel, text: Text, plan: Plan, wanted: Wanted, inputs: Mapping[str, Array]) -> Steps[Decoded]:
    later = model.with_past or model
    ids = list(text.ids)
    caches: dict[str, Array] = dict(text.encoded.caches or {}) if text.encoded is not None else {}
    with_outputs = replace(wanted, outputs=True, verify_outputs=False)
    draw = np.random.default_rng(plan.seed)
    size = room(later.slots())
    start, done = len(ids), 0
    steps: list[Run] = []
    notes: list[str] = []
    most = 1 if fixed_length(model.slots()) == 1 else plan.piece or len(ids)
    ended = plan.count == 0
    while True:
        file = model if done == 0 else later
        slots = file.slots()
        chunk = ids[done : done + most]
        own = {**for_inputs(slots, inputs), **for_inputs(slots, caches)}
        feed = feeding.derive(slots, text.needs(chunk, done, model), own)
        run = yield Pass(file, feed, with_outputs, span=(done, done + len(chunk)))
        # Otherwise every step's caches would stay in memory until the text is finished.
        steps.append(replace(run, outputs={}, feed={} if steps else run.feed))
        done += len(chunk)
        pairs = pair(later.slots(), list(run.outputs))
        if pairs is None:
            return (yield from _recomputed(model, text, plan, wanted, inputs))
        caches = carry(pairs, run.outputs, caches)
        if done < len(ids):
            continue
        full = next((n for n in (size, plan.limit) if n is not None and done >= n), None)
        if ended or full is not None:
            if not ended and full is not None:
                notes.append(f"stopped at {counted(full, 'token')}, which is all that the model takes")
            break
        ids.append(choose(next_logits(run.outputs, plan.vocabulary, -1), len(ids), plan, draw, ids))
        ended = ids[-1] in plan.stop or len(ids) - start == plan.count
    said = tuple(dict.fromkeys(note for step in steps for note in step.notes))
    joined = replace(steps[-1], attentions=join_steps([s.attentions for s in steps]), feed=steps[0].feed, notes=said)
    outputs = run.outputs if wanted.outputs else {}
    return Decoded(tuple(ids), len(ids) - start, replace(joined, outputs=outputs), True, tuple(notes))


def _recomputed(
    model: OpenModel, text: Text, plan: Plan, wanted: Wanted, inputs: Mapping[str, Array]
) -> Steps[Decoded]:
    slots = model.slots()
    ids = list(text.ids)
    own = for_inputs(slots, inputs)
    length = fixed_length(slots)
    draw = np.random.default_rng(plan.seed)
    start, ended, notes = len(ids), plan.count == 0, []
    largest = min((n for n in (length, plan.limit) if n is not None), default=None)

    def feed() -> dict[str, Array]:
        needs = text.needs(ids, 0, model)
        if length is not None:
            from attnx.tokens import from_ids

            filled = feeding.batch_of([padded(from_ids(ids), length)])
            needs = replace(needs, ids=filled.ids, mask=filled.mask, types=filled.types)
        return feeding.derive(slots, needs, own)

    while not ended:
        if largest is not None and len(ids) >= largest:
            notes.append(f"stopped at {counted(largest, 'token')}, which is all that the model takes")
            break
        run = yield Pass(model, feed(), NOTHING)
        if states := carried_states(slots, list(run.outputs)):
            raise UnsupportedError(
                f"the decoder keeps a state of its own from call to call ({', '.join(states)}), which attnx does not "
                "hand on",
                Wording("Run single calls: <inputs=>."),
            )
        ids.append(choose(next_logits(run.outputs, plan.vocabulary, len(ids) - 1), len(ids), plan, draw, ids))
        ended = ids[-1] in plan.stop or len(ids) - start == plan.count
    run = yield Pass(model, feed(), wanted, span=(0, len(ids)))
    return Decoded(tuple(ids), len(ids) - start, run, False, tuple(notes))


def choose(logits: Array, position: int, plan: Plan, draw: np.random.Generator, ids: Sequence[int] = ()) -> int:
    """The next id: the likeliest (the first among equals), or a sampled one.

    Args:
        logits: [vocabulary].
        position: Where it will stand, from 0.
        plan: Temperature, and what may stand where.
        draw: The random generator.
        ids: All tokens so far, for rules that look back.

    Raises:
        UnsupportedError: The logits are not numbers, or no token is allowed there.
    """
    rules = plan.rules
    if position in rules.forced:
        return rules.forced[position]
    values = logits.copy()
    hidden = rules.suppressed | (rules.at_first if position == rules.first else frozenset())
    if position in rules.among:
        hidden = frozenset(range(len(values))) - rules.among[position]
    values[[n for n in hidden if n < len(values)]] = -np.inf
    if rules.marks is not None:
        values = rules.marks.allowed(values, ids)
    largest = values.max()  # NaN if any logit is
    if not np.isfinite(largest):
        raise UnsupportedError(
            f"the token at position {position} cannot be chosen: the model's logits have "
            + ("NaN among them" if np.isnan(largest) else "no finite number that its configuration allows"),
            "A half-precision file may overflow on this device; a configuration may forbid every token.",
        )
    if plan.temperature == 0:
        return int(np.argmax(values))
    with np.errstate(over="ignore"):  # at temperatures near 0 only the largest has a share
        values = (values - largest) / plan.temperature
    if plan.top_k is not None and plan.top_k < len(values):
        values[values < np.sort(values)[-plan.top_k]] = -np.inf
    share = np.exp(values)
    return int(draw.choice(len(share), p=share / share.sum()))


def with_new(model: OpenModel, prompt: Tokens, decoded: Decoded) -> Tokens:
    """The prompt's tokens followed by the new ones, and the text continued to match."""
    from attnx.tokens import from_ids

    if not decoded.new:
        return prompt
    try:
        tokenizer = model.tokenizer
    except ModelError:
        return join(prompt, from_ids(decoded.ids[-decoded.new :]))
    new = from_ids(decoded.ids[-decoded.new :], tokenizer)
    text, offsets = prompt.text, []
    for number, special in zip(new.ids.tolist(), new.special, strict=True):
        piece = "" if special else tokenizer.written(number)
        before = len(piece) - len(piece.lstrip(" ")) if piece.strip(" ") else 0
        offsets.append((0, 0) if special else (len(text) + before, len(text) + len(piece)))
        text += piece
    return replace(join(prompt, replace(new, offsets=tuple(offsets))), text=text)


def say(decoded: Decoded, plan: Plan, tokens: Tokens) -> tuple[str, ...]:
    """A note on what was written, and how."""
    how = "the likeliest each time" if plan.temperature == 0 else f"temperature {plan.temperature:g}, seed {plan.seed}"
    way = (
        "through the model's own cache"
        if decoded.cached
        else "recomputed at every step, for it has no cache that can be filled from outside"
    )
    first = len(decoded.ids) - decoded.new
    ended = f"; ended by {tokens.pieces[-1]}" if decoded.new and decoded.ids[-1] in plan.stop else ""
    return (
        f"wrote {counted(decoded.new, 'token')}, positions {first} to {len(decoded.ids) - 1} ({how}; {way}{ended})",
        *decoded.notes,
    )
