"""Let a decoder write on: greedy or seeded sampling, through its own cache where it has one, recomputing where not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from attnx.errors import InputError, ModelError, UnsupportedError, UsageError
from attnx.feed import fill as feeding
from attnx.feed.generation_config import Rules, numbers, read_rules, settings
from attnx.feed.inputs import Needs, fixed_length, is_past, own_mask, padded
from attnx.records import Array, Tokens
from attnx.run.encdec import Encoded, for_inputs
from attnx.run.kvcache import carry, pair, room, slides
from attnx.run.steps import join_steps
from attnx.session.protocol import NOTHING, Run, Runs, Wanted
from attnx.tokens.axes import join
from attnx.wording import Wording


@dataclass(frozen=True, slots=True)
class Plan:
    """How to go on."""

    count: int
    """The most tokens to write."""
    temperature: float = 0.0
    """0 takes the likeliest token each time; above, tokens are drawn from softmax(logits / temperature)."""
    top_k: int | None = None
    """Draw among the K likeliest only."""
    seed: int = 0
    stop: frozenset[int] = frozenset()
    """Ids that end a text."""
    rules: Rules = field(default_factory=Rules)
    """What may stand where."""
    limit: int | None = None
    """The most tokens that the model takes."""
    piece: int | None = None
    """Tokens of the prompt that are read at once where there is a cache; all of them where None."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A text that was written on."""

    ids: tuple[int, ...]
    """The prompt's and the new ones."""
    new: int
    run: Run
    """Attentions of every token over all before it."""
    cached: bool
    """Whether the model's own cache was used."""
    notes: tuple[str, ...] = ()


Look = Callable[[Runs, Mapping[str, Array], int, int], Run]
"""Runs a file of a decoder on a feed, of which the tokens from one position up to another are new to it."""


def plan(model: Runs, count: int, *, temperature: float = 0.0, top_k: int | None = None, seed: int = 0) -> Plan:
    """A plan by the model's own configuration: what ends a text, what is forced, what is suppressed.

    Raises:
        UsageError: A number that makes no sense.
    """
    if count < 1:
        raise UsageError(
            Wording("<generate={count}>: it takes the number of tokens to write, from 1", count=count),
            Wording("Try <generate=20>."),
        )
    if temperature < 0 or not np.isfinite(temperature):
        raise UsageError(
            Wording("<temperature={it}>: it takes a number from 0", it=temperature), "0 takes the likeliest token."
        )
    if top_k is not None and top_k < 1:
        raise UsageError(
            Wording("<top_k={it}>: it takes a number from 1", it=top_k), "Leave it out to draw among all tokens."
        )
    config = settings(model)
    stop = numbers(config.get("eos_token_id"))
    limit = None
    try:
        tokenizer = model.tokenizer
    except ModelError:
        pass
    else:
        end = tokenizer.token_id(tokenizer.roles.get("eos_token", ""))
        stop |= {end} if end is not None else set()
        limit = tokenizer.limit
        # A tokenizer without files beside it still names the usual ends of a text among its special tokens.
        if not stop:
            usual = (
                tokenizer.token_id(name) for name in ("</s>", "<|endoftext|>", "<eos>", "<|im_end|>", "<|eot_id|>")
            )
            stop = {number for number in usual if number is not None}
    return Plan(count, temperature, top_k, seed, frozenset(stop), read_rules(config), limit)


def decode(
    model: Runs,
    prompt: Sequence[int],
    plan: Plan,
    wanted: Wanted,
    encoded: Encoded | None = None,
    given: Mapping[str, Array] | None = None,
    look: Look | None = None,
) -> Decoded:
    """Run a decoder on a prompt and let it write on.

    Args:
        model: The decoder.
        prompt: The ids that it starts from.
        plan: How to go on; a count of 0 only reads the prompt.
        wanted: What is wanted of its sites.
        encoded: The encoder's side of an encoder-decoder.
        given: Inputs that are given outright.
        look: Runs the decoder in place of its own `run`, wherever attention would be read; nothing is `wanted` then.

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
    given = dict(given or {})
    mask = own_mask(model.slots(), given) if encoded is None else None
    padding = None if mask is None else np.asarray(given.pop(mask), dtype=np.int64)
    if padding is not None and padding.shape != (1, len(prompt)):
        raise InputError(
            f"the given {mask} has shape {list(padding.shape)}, and the text has {len(prompt)} tokens",
            "It has one number for each token of the text; what is written needs none.",
        )
    text = Text(list(prompt), encoded, padding)
    # What is in a ring is not in order, and cannot be joined: such a model reads its whole text anew each time.
    if any(is_past(s) for s in later.slots()) and not slides(later.slots()):
        return _cached(model, text, plan, wanted, given, look)
    return _recomputed(model, text, plan, wanted, given, look)


@dataclass(frozen=True, slots=True)
class Text:
    """What a decoder goes on from."""

    ids: list[int]
    encoded: Encoded | None
    padding: Array | None
    """int64 [1,Q]: 0 for what of the ids is padding."""

    def needs(self, ids: Sequence[int], past: int, model: Runs) -> Needs:
        """What the inputs are filled with for `ids` behind `past` cached ones."""
        if self.encoded is not None:
            return sized(self.encoded.needs(ids, past), model)
        new = np.array([ids], dtype=np.int64)
        mask = np.ones((1, past + len(ids)), dtype=np.int64)
        if self.padding is not None:
            mask[:, : self.padding.shape[1]] = self.padding[:, : mask.shape[1]]
        return sized(Needs(new, mask, np.zeros_like(new), past=past), model)


def sized(needs: Needs, model: Runs) -> Needs:
    """What is needed with the sizes of the model's caches, which their inputs may leave open."""
    site = next((s for s in model.sites if s.kv_heads), None)
    window = max((s.window for s in model.sites if s.window is not None), default=None)
    if site is None:
        return needs
    return replace(needs, kv_heads=site.kv_heads, head_size=site.head_size, window=window)


def _cached(
    model: Runs, text: Text, plan: Plan, wanted: Wanted, given: Mapping[str, Array], look: Look | None
) -> Decoded:
    later = model.with_past or model
    ids = list(text.ids)
    caches: dict[str, Array] = dict(text.encoded.caches or {}) if text.encoded is not None else {}
    asked = replace(wanted, outputs=True, verify_outputs=False)
    draw = np.random.default_rng(plan.seed)
    size = room(later.slots())
    start, done = len(ids), 0
    steps: list[Run] = []
    notes: list[str] = []
    most = 1 if fixed_length(model.slots()) == 1 else plan.piece or len(ids)
    ended = plan.count == 0
    while True:
        runner = model if done == 0 else later
        slots = runner.slots()
        chunk = ids[done : done + most]
        own = {**for_inputs(slots, given), **for_inputs(slots, caches)}
        feed = feeding.derive(slots, text.needs(chunk, done, model), own)
        run = runner.run(feed, asked) if look is None else look(runner, feed, done, done + len(chunk))
        # Each step's caches, in and out, would else stay in memory until the text is written.
        steps.append(replace(run, outputs={}, feed={} if steps else run.feed))
        done += len(chunk)
        pairs = pair(later.slots(), list(run.outputs))
        if pairs is None:
            return _recomputed(model, text, plan, wanted, given, look)
        caches = carry(pairs, run.outputs, caches)
        if done < len(ids):
            continue
        full = next((n for n in (size, plan.limit) if n is not None and done >= n), None)
        if ended or full is not None:
            if not ended:
                notes.append(f"stopped at {full} tokens, which is all that the model takes")
            break
        ids.append(choose(_last_logits(run.outputs, ids, -1), len(ids), plan, draw, ids))
        ended = ids[-1] in plan.stop or len(ids) - start == plan.count
    said = tuple(dict.fromkeys(note for step in steps for note in step.notes))
    joined = replace(steps[-1], attentions=join_steps([s.attentions for s in steps]), feed=steps[0].feed, notes=said)
    outputs = run.outputs if wanted.outputs else {}
    return Decoded(tuple(ids), len(ids) - start, replace(joined, outputs=outputs), True, tuple(notes))


def _recomputed(
    model: Runs, text: Text, plan: Plan, wanted: Wanted, given: Mapping[str, Array], look: Look | None
) -> Decoded:
    slots = model.slots()
    ids = list(text.ids)
    own = for_inputs(slots, given)
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
            notes.append(f"stopped at {largest} tokens, which is all that the model takes")
            break
        run = model.run(feed(), NOTHING)
        ids.append(choose(_last_logits(run.outputs, ids, len(ids) - 1), len(ids), plan, draw, ids))
        ended = ids[-1] in plan.stop or len(ids) - start == plan.count
    last = model.run(feed(), wanted) if look is None else look(model, feed(), 0, len(ids))
    return Decoded(tuple(ids), len(ids) - start, last, False, tuple(notes))


def _last_logits(outputs: Mapping[str, Array], ids: Sequence[int], position: int) -> Array:
    """Logits of the next token, [vocabulary], float64.

    Raises:
        UnsupportedError: No output has one number for each token of a vocabulary.
    """
    floats = {n: a for n, a in outputs.items() if a.dtype.kind == "f" and 2 <= a.ndim <= 3 and a.shape[-1] > max(ids)}
    logits = next((a for n, a in floats.items() if "logits" in n.lower()), None)
    if logits is None and floats:
        logits = max(floats.values(), key=lambda a: a.shape[-1])
    if logits is None or (
        logits.ndim == 3 and logits.shape[1] not in (1, position + 1) and position >= logits.shape[1]
    ):
        raise UnsupportedError(
            f"no output of the model says what comes next (logits); it gives {', '.join(outputs)}",
            "Export it with its language-model head (task text-generation).",
        )
    row = logits[0] if logits.ndim == 3 else logits
    return np.asarray(row[position if 0 <= position < len(row) else -1], dtype=np.float64)


def choose(logits: Array, position: int, plan: Plan, draw: np.random.Generator, ids: Sequence[int] = ()) -> int:
    """The next id: the likeliest (the first of equals), or one that is drawn.

    Args:
        logits: [vocabulary].
        position: Where it will stand, from 0.
        plan: Temperature, and what may stand where.
        draw: Where chance comes from.
        ids: All tokens so far, for rules that look back.
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
    if plan.temperature == 0:
        return int(np.argmax(values))
    values /= plan.temperature
    if plan.top_k is not None and plan.top_k < len(values):
        values[values < np.sort(values)[-plan.top_k]] = -np.inf
    share = np.exp(values - values.max())
    return int(draw.choice(len(share), p=share / share.sum()))


def with_new(model: Runs, prompt: Tokens, decoded: Decoded) -> Tokens:
    """The prompt's tokens with those that were written behind them; what was written stands behind the text too."""
    from attnx.tokens import from_ids

    if not decoded.new:
        return prompt
    try:
        tokenizer = model.tokenizer
    except ModelError:
        return join(prompt, from_ids(decoded.ids[-decoded.new :]))
    new = from_ids(decoded.ids[-decoded.new :], tokenizer)
    text, offsets = prompt.text, []
    for piece, special in zip(new.pieces, new.special, strict=True):
        spaces = len(piece) - len(piece.lstrip(" "))
        offsets.append((0, 0) if special else (len(text) + spaces, len(text) + len(piece)))
        text += "" if special else piece
    return replace(join(prompt, replace(new, offsets=tuple(offsets))), text=text)


def say(decoded: Decoded, plan: Plan, tokens: Tokens) -> tuple[str, ...]:
    """What was done, in words."""
    how = "the likeliest each time" if plan.temperature == 0 else f"temperature {plan.temperature:g}, seed {plan.seed}"
    way = (
        "through the model's own cache"
        if decoded.cached
        else "recomputed at every step, for it has no cache that can be filled from outside"
    )
    first = len(decoded.ids) - decoded.new
    ended = f"; ended by {tokens.pieces[-1]}" if decoded.new and decoded.ids[-1] in plan.stop else ""
    return (
        f"wrote {decoded.new} tokens, positions {first} to {len(decoded.ids) - 1} ({how}; {way}{ended})",
        *decoded.notes,
    )
