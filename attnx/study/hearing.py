"""A speech model and one sound: its transcript of each window, and where in the sound each token ends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from attnx.errors import ModelError, UsageError
from attnx.feed.audio import Sound
from attnx.feed.generation_config import Rules, decoder_start, numbers, read_rules, settings
from attnx.feed.languages import code
from attnx.feed.timestamps import Marks
from attnx.measure import warping
from attnx.records import Array, Trace
from attnx.run.axis_tokens import in_place
from attnx.run.encdec import Encoded, encoder_steps
from attnx.run.generate import Plan, check_count, decoder_steps, plan
from attnx.run.passes import Planned, Steps
from attnx.run.pipeline import execute
from attnx.session.protocol import NOTHING, OpenModel, Wanted
from attnx.study.crossing import CROSS
from attnx.study.selection import trusted
from attnx.tokens import from_ids
from attnx.wording import Wording

Result = TypeVar("Result")

MARK = 0.02
"""Seconds from one timestamp to the next. Source: Radford et al. 2022, section 2.3."""
_LANGUAGE = re.compile(r"<\|[a-z]{2,3}\|>")
MOST = 4096
"""The most tokens written per window if the decoder's limit is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The transcript of one window."""

    start: float
    """Seconds."""
    ids: tuple[int, ...]
    ends: Array
    """float64 [T], seconds from the start of the window."""


class Ear:
    """A model listening to one sound, window by window."""

    def __init__(
        self,
        model: OpenModel,
        sound: Sound,
        heads: Sequence[tuple[int, int]],
        *,
        prompt: str | None = None,
        target: str | None = None,
        count: int | None = None,
    ) -> None:
        """Prepare; nothing is run yet.

        Args:
            model: The speech model.
            sound: The sound.
            heads: Layer and head of each head whose weights are read.
            prompt: The text that came before the sound.
            target: The transcript, if it is known.
            count: The most tokens to write per window.
        """
        self.model, self.sound = model, sound
        if count is not None:
            check_count(count)
        self.prompt, self.target, self.count = prompt, target, count
        self.seconds = len(sound.samples) / sound.rate
        self.config = settings(model)
        self.device = "cpu"
        self.language: str | None = None
        self.notes: list[str] = []
        by_layer: dict[int, list[int]] = {}
        for layer, head in heads:
            by_layer.setdefault(layer, []).append(head)
        self.wanted = Wanted(tuple(by_layer), ("masked", "weights"), kinds=CROSS, heads=by_layer)

    def _execute(self, steps: Steps[Result]) -> Result:
        return execute(self.model, Planned(steps), NOTHING)

    @cached_property
    def width(self) -> int:
        """How many frames the median is taken over."""
        told = self.config.whole("median_filter_width", warping.WIDTH, 1, 1 << 16)
        if told % 2 == 0:
            raise self.config.wrong("median_filter_width", "an odd whole number")
        return told

    @cached_property
    def stops(self) -> frozenset[int]:
        """Ids that end a text."""
        return plan(self.model, 1).stop

    @cached_property
    def limit(self) -> int | None:
        """The decoder's maximum number of tokens."""
        limits = [self.config.maybe_whole("max_target_positions", 1), self.model.tokenizer.limit]
        return min((n for n in limits if n is not None), default=None)

    def windows(self) -> Iterator[Part]:
        """Yield the transcript of each window, in order."""
        sound = self.sound
        if not sound.is_long:
            frames = None if sound.length is None else -(-len(sound.samples) // sound.hop)
            yield self._part(sound.array(), 0.0, frames, timed=False)
            return
        if self.target is not None:
            raise UsageError(
                Wording(
                    "<target> transcribes {most:g} seconds of sound at most, and this one has {seconds:.1f}",
                    most=sound.span,
                    seconds=self.seconds,
                ),
                Wording(
                    "Cut the sound, or leave <target> out: the model then transcribes it itself, window by window."
                ),
            )
        size = (sound.length or 0) // sound.hop
        whole = sound.spectra(sound.samples, len(sound.samples)).astype(sound.slot.dtype)
        total = whole.shape[1]
        if self.begin is None:
            self.notes.append(
                f"the sound is cut every {sound.span:g} seconds, maybe within a word: the model writes no marks of time"
            )
        at = 0
        while at < total:
            piece = whole[:, at : at + size]
            padded = np.pad(piece, ((0, 0), (0, size - piece.shape[1])))[None]
            part = self._part(padded, at * sound.hop / sound.rate, total - at, timed=self.begin is not None)
            part, moved = self._cut(part, piece.shape[1])
            yield part
            at += moved

    @cached_property
    def begin(self) -> int | None:
        """The id of the timestamp 0.00 s; None if the vocabulary has no timestamps."""
        silent, size = (self.config.maybe_whole(name) for name in ("no_timestamps_token_id", "vocab_size"))
        if silent is None:
            return None
        tokenizer = self.model.tokenizer
        if silent + 1 >= tokenizer.size:  # older tokenizers lack the timestamps, though the model has them
            return silent + 1 if size is not None and silent + 1 < size else None
        return silent + 1 if tokenizer.piece(silent + 1) == "<|0.00|>" else None

    def _cut(self, part: Part, spectra: int) -> tuple[Part, int]:
        """Which part of a window's transcript is kept, and how many spectra later the next window begins.

        A pair of timestamps ends a stretch of speech: what follows the last pair is repeated in the next window, unless
        a single timestamp at the very end says that nothing follows.
        """
        ids = part.ids[:-1] if part.ids and part.ids[-1] in self.stops else part.ids
        kept, moved = len(ids), spectra
        if self.begin is not None:
            is_mark = [number >= self.begin for number in ids]
            pairs = [at for at in range(1, len(ids)) if is_mark[at - 1] and is_mark[at]]
            if pairs and is_mark[-2:] != [False, True]:
                stride = round(MARK * self.sound.rate / self.sound.hop)
                moved = (ids[pairs[-1] - 1] - self.begin) * stride or spectra
                kept = pairs[-1] + 1
        return Part(part.start, ids[:kept], part.ends[:kept]), moved

    def _part(self, array: Array, start: float, frames: int | None, *, timed: bool) -> Part:
        """Transcribe one window.

        Args:
            array: The encoder's input.
            start: Start of the window in seconds.
            frames: How many of its spectra are sound rather than added silence; None for all.
            timed: Whether timestamps are written.
        """
        inputs = {self.sound.slot.name: array}
        nothing = Wanted((), (), verify=False, required=False)
        encoded = self._execute(encoder_steps(self.model, None, inputs, nothing))
        first = self._opening(encoded, inputs, timed=timed)
        if self.target is not None:
            ids = [*first, *self._ids(self.target)]
            ends = self._ends(ids, len(first), encoded, inputs, frames)
        else:
            # Nothing is written after the last token, so it has no row; it ends with the one before it.
            ids = self._write(first, encoded, inputs, timed=timed)
            ends = self._ends(ids[:-1], len(first), encoded, inputs, frames)
            ends = np.append(ends, ends[-1:] if len(ends) else 0.0)
        return Part(start, tuple(ids[len(first) :]), ends)

    def _ends(
        self, ids: Sequence[int], first: int, encoded: Encoded, inputs: Mapping[str, Array], frames: int | None
    ) -> Array:
        """Where each written token ends, in seconds: where the alignment path reaches the row that reads it."""
        run = self._execute(decoder_steps(self.model, ids, Plan(0), self.wanted, encoded, inputs)).run
        self.device = run.device
        trace, doubts = trusted(Trace(self.model.name, run.device, from_ids(ids), None, run.attentions))
        self.notes += doubts
        in_place([a.site for a in trace.attentions])
        weights = np.concatenate([a.need("weights")[0] for a in trace.attentions if a.site.kind in CROSS])
        positions = weights.shape[-1]
        frame = self.sound.span / positions
        if frames is not None and self.sound.length is not None:
            whole = self.sound.length // self.sound.hop
            weights = weights[..., : max(1, frames // max(1, whole // positions))]
        return np.asarray(warping.frames(weights[:, first:], self.width) * frame)

    def _opening(self, encoded: Encoded, inputs: Mapping[str, Array], *, timed: bool) -> list[int]:
        """The decoder's initial tokens: prompt, start, language, task, and whether timestamps are written."""
        rules = read_rules(self.config)
        ids, note = decoder_start(self.model)
        if note:
            self.notes.append(note)
        silent = self.config.maybe_whole("no_timestamps_token_id")
        ids = ids[:1]
        while (at := len(ids)) in rules.forced or at in rules.among:
            if at in rules.forced:
                ids.append(rules.forced[at])
                continue
            known = self._known_language(rules.among[at])
            ids.append(known if known is not None else self._recognised(ids, rules, encoded, inputs))
        if timed and ids[-1] == silent:
            ids = ids[:-1]
        self._name_language(ids)
        return [*self._prompt(), *ids]

    def _known_language(self, among: frozenset[int]) -> int | None:
        """The language of an earlier window: it is detected only once."""
        if self.language is None:
            return None
        number = self.model.tokenizer.token_id(f"<|{self.language}|>")
        return number if number in among else None

    def _recognised(self, ids: Sequence[int], rules: Rules, encoded: Encoded, inputs: Mapping[str, Array]) -> int:
        first = Plan(1, rules=Rules(among=rules.among))
        return self._execute(decoder_steps(self.model, ids, first, NOTHING, encoded, inputs)).ids[-1]

    def _name_language(self, ids: Sequence[int]) -> None:
        """The language among the initial tokens, by the configuration, or else by its own text, such as <|ja|>."""
        languages = self.config.get("lang_to_id")
        named = {number: name for name, number in languages.items()} if isinstance(languages, dict) else {}
        for number in ids:
            name = named.get(number) if named else self.model.tokenizer.piece(number)
            if name is not None and (named or _LANGUAGE.fullmatch(name)):
                self.language = code(str(name))

    def _prompt(self) -> list[int]:
        """The ids of the text that came before: <|startofprev|>, then a space and the text."""
        if self.prompt is None:
            return []
        tokenizer = self.model.tokenizer
        mark = tokenizer.token_id("<|startofprev|>")
        if mark is None:
            raise ModelError(
                f"{self.model.name} has no <|startofprev|>, so it takes no prompt", Wording("Leave out <prompt>.")
            )
        return [mark, *self._ids(self.prompt)]

    def _ids(self, text: str) -> list[int]:
        """The ids of a spoken text, with a space before it."""
        return [int(number) for number in self.model.tokenizer.encode(f" {text.strip()}", add_special=False).ids]

    def _write(self, first: list[int], encoded: Encoded, inputs: Mapping[str, Array], *, timed: bool) -> list[int]:
        rules = read_rules(self.config)
        marks = None
        if timed:
            latest = self.config.maybe_whole("max_initial_timestamp_index")
            end = min(numbers(self.config, "eos_token_id") or self.stops or {0})
            marks = Marks(self.begin or 0, end, len(first), latest)
        # The forced tokens are given already; the last of them marks where the free ones begin.
        rules = replace(rules, forced={len(first) - 1: first[-1]}, among={}, marks=marks)
        room = (self.limit or 1 << 30) - len(first)
        if room < 1:
            raise UsageError(
                f"the prompt leaves no room: the decoder takes {self.limit} tokens, and {len(first)} are there",
                Wording("Give a shorter <prompt>."),
            )
        count = min(room, self.count or room, MOST)
        how = Plan(count, stop=self.stops, rules=rules)
        made = self._execute(decoder_steps(self.model, first, how, NOTHING, encoded, inputs))
        if made.ids[-1] not in self.stops:
            self.notes.append(
                f"the text of a window was cut off after {count} tokens: the last one has no time of its own"
            )
        return list(made.ids)


__all__ = ["Ear", "Part"]
