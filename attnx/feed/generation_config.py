"""What a decoder's text begins with, and what may stand where: as a model's configuration says.

Sources: transformers' generation_config.json (`decoder_start_token_id`, `forced_bos_token_id`, `forced_decoder_ids`,
`suppress_tokens`, `begin_suppress_tokens`); Whisper's language, task and timestamps: Radford et al. 2022, section 2.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnx.errors import ModelError
from attnx.feed.timestamps import Marks
from attnx.session.protocol import Runs
from attnx.tokens.files import read_config


@dataclass(frozen=True, slots=True)
class Rules:
    """What may stand where in what a decoder writes; positions count from 0, the start included."""

    forced: Mapping[int, int] = field(default_factory=dict)
    """Position -> the id that must stand there."""
    among: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Position -> the ids that may stand there: a language, which the model is to recognise."""
    suppressed: frozenset[int] = frozenset()
    """Ids that are never written."""
    at_first: frozenset[int] = frozenset()
    """Ids that are not written at the first position that is free."""
    marks: Marks | None = None
    """Marks of time, where they are to be written."""

    @property
    def first(self) -> int:
        """The first position that is free."""
        return 1 + max((0, *self.forced, *self.among))


def settings(model: Runs) -> dict[str, Any]:
    """The model's config.json with generation_config.json over it."""
    return {
        **{k: v for k, v in read_config(model.path, "config.json").items() if v is not None},
        **{k: v for k, v in read_config(model.path, "generation_config.json").items() if v is not None},
    }


def numbers(value: object) -> set[int]:
    """The ids that a configuration gives as one number or a list of them."""
    items = value if isinstance(value, list) else [value]
    return {int(item) for item in items if isinstance(item, int) and not isinstance(item, bool) and item >= 0}


def read_rules(config: Mapping[str, Any]) -> Rules:
    """What a configuration forces and forbids."""
    bad = config.get("bad_words_ids") or []
    suppressed = numbers(config.get("suppress_tokens")) | {w[0] for w in bad if isinstance(w, list) and len(w) == 1}
    forced, among = _whisper(config)
    if isinstance(config.get("forced_bos_token_id"), int):
        forced.setdefault(1, int(config["forced_bos_token_id"]))
    begin = numbers(config.get("begin_suppress_tokens"))
    return Rules(forced, among, frozenset(suppressed), frozenset(begin))


def _whisper(config: Mapping[str, Any]) -> tuple[dict[int, int], dict[int, frozenset[int]]]:
    """What is forced behind the start: language, task, no timestamps; a language that is not said is recognised."""
    forced: dict[int, int] = {}
    among: dict[int, frozenset[int]] = {}
    languages, tasks = (t if isinstance(t := config.get(k), dict) else {} for k in ("lang_to_id", "task_to_id"))
    given = config.get("forced_decoder_ids")
    places = {int(p): n for p, n in given} if isinstance(given, list) else {}
    if not places and languages and config.get("is_multilingual", True):
        places = {1: None, 2: None}
    language, task = (str(config.get(k, "")) for k in ("language", "task"))
    for place, number in sorted(places.items()):
        if number is None and place == 1 and languages:
            number = languages.get(language, languages.get(f"<|{language}|>"))
            if number is None:
                among[place] = frozenset(languages.values())
        elif number is None and place == 2:
            number = tasks.get(task, tasks.get("transcribe"))
        if number is not None:
            forced[place] = int(number)
    silent = config.get("no_timestamps_token_id")
    if isinstance(silent, int) and silent not in forced.values():
        forced[1 + max((0, *forced, *among))] = silent
    return forced, among


def opening(model: Runs) -> tuple[list[int], str | None]:
    """The ids that a decoder starts from: its start, and what is forced right behind it.

    Returns:
        The ids, and what had to be guessed about them.
    """
    config = settings(model)
    start = config.get("decoder_start_token_id", config.get("bos_token_id"))
    note = None
    if not isinstance(start, int):
        try:
            start, piece = model.tokenizer.pad_id, model.tokenizer.piece(model.tokenizer.pad_id)
        except ModelError:
            start, piece = 0, "id 0"
        note = (
            f"no configuration says what the decoder starts with (decoder_start_token_id): taken to be {piece}, the "
            "padding, as in T5"
        )
    ids = [start]
    forced = read_rules(config).forced
    while len(ids) in forced:
        ids.append(forced[len(ids)])
    return ids, note
