"""What a decoder's text begins with, and which tokens are allowed where, by a model's configuration.

Sources: transformers' generation_config.json (`decoder_start_token_id`, `forced_bos_token_id`, `forced_decoder_ids`,
`suppress_tokens`, `begin_suppress_tokens`); Whisper's language, task and timestamps: Radford et al. 2022, section 2.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attnx.errors import ModelError
from attnx.feed.languages import code
from attnx.feed.timestamps import Marks
from attnx.numerals import LARGEST, whole_of
from attnx.session.protocol import OpenModel
from attnx.tokens.config import Config
from attnx.tokens.files import read_config


@dataclass(frozen=True, slots=True)
class Rules:
    """Which tokens a decoder may write where; positions count from 0, including the start."""

    forced: Mapping[int, int] = field(default_factory=dict)
    """Position -> the id that must stand there."""
    among: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Position -> the ids that may stand there: languages, among which the model chooses."""
    suppressed: frozenset[int] = frozenset()
    """Ids that are never written."""
    at_first: frozenset[int] = frozenset()
    """Ids that are not written at the first free position."""
    marks: Marks | None = None
    """Timestamps, if they are to be written."""

    @property
    def first(self) -> int:
        """The first free position."""
        return 1 + max((0, *self.forced, *self.among))


def settings(model: OpenModel) -> Config:
    """The model's config.json, overridden by generation_config.json."""
    return read_config(model.path, "generation_config.json").over(read_config(model.path, "config.json"))


def numbers(config: Config, name: str) -> set[int]:
    """The ids that a configuration gives as one number or a list of them; negative ones mean none.

    Raises:
        ModelError: The field holds something else.
    """
    value = config.get(name, [])
    items = [whole_of(item, least=-LARGEST) for item in (value if isinstance(value, list) else [value])]
    if None in items:
        raise config.wrong(name, "a token id or a list of them")
    return {item for item in items if item is not None and item >= 0}


def pairs(config: Config, name: str, expected: str) -> list[tuple[int, int]]:
    """Pairs of whole numbers from 0; none where the field is not there.

    Raises:
        ModelError: The field holds something else.
    """
    found = []
    given = config.get(name, [])
    for pair in given if isinstance(given, list) else [None]:
        one, two = map(whole_of, pair) if isinstance(pair, list) and len(pair) == 2 else (None, None)
        if one is None or two is None:
            raise config.wrong(name, expected)
        found.append((one, two))
    return found


def read_rules(config: Config) -> Rules:
    """What a configuration forces and forbids.

    Raises:
        ModelError: A field has the wrong type or value.
    """
    bad = config.get("bad_words_ids", [])
    if not isinstance(bad, list) or not all(isinstance(word, list) for word in bad):
        raise config.wrong("bad_words_ids", "a list of lists of token ids")
    single = Config({"bad_words_ids": [word[0] for word in bad if len(word) == 1]}, config.where)
    suppressed = numbers(config, "suppress_tokens") | numbers(single, "bad_words_ids")
    forced, among = _whisper(config)
    if (first := _id(config, "forced_bos_token_id")) is not None:
        forced.setdefault(1, first)
    begin = numbers(config, "begin_suppress_tokens")
    return Rules(forced, among, frozenset(suppressed), frozenset(begin))


def _whisper(config: Config) -> tuple[dict[int, int], dict[int, frozenset[int]]]:
    """What is forced after the start: language, task, no timestamps; a language that is not set is recognised.

    Raises:
        ModelError: A language or a task that is set is none of the model's.
    """
    forced: dict[int, int] = {}
    among: dict[int, frozenset[int]] = {}
    languages, tasks = (_ids_by_name(config, name) for name in ("lang_to_id", "task_to_id"))
    language, task = (config.text(name) or "" for name in ("language", "task"))
    # The older forced_decoder_ids do not count where a language or a task is set, as in transformers.
    places = {} if languages and (language or task) else _forced(config)
    if not places and languages and (language or config.flag("is_multilingual", True)):
        places = {1: None, 2: None}
    for place, number in sorted(places.items()):
        if number is None and place == 1 and languages:
            number = languages.get(language, languages.get(f"<|{code(language)}|>", languages.get(code(language))))
            if number is None and language:
                raise config.wrong("language", "one of lang_to_id")
            if number is None:
                among[place] = frozenset(languages.values())
        elif number is None and place == 2:
            number = tasks.get(task or "transcribe")
            if number is None and task:
                raise config.wrong("task", "one of task_to_id")
        if number is not None:
            forced[place] = number
    silent = config.maybe_whole("no_timestamps_token_id")
    if silent is not None and silent not in forced.values():
        forced[1 + max((0, *forced, *among))] = silent
    return forced, among


def _id(config: Config, name: str) -> int | None:
    """A token id; None where there is none (some configurations write -1)."""
    number = config.maybe_whole(name, least=-1)
    return None if number == -1 else number


def _ids_by_name(config: Config, name: str) -> dict[str, int]:
    part = config.part(name)
    return {} if part is None else {key: part.whole(key, 0) for key in part}


def _forced(config: Config) -> dict[int, int | None]:
    """Position -> the id that is forced there, None where it depends on the language or the task."""
    given = config.get("forced_decoder_ids", [])
    places: dict[int, int | None] = {}
    for pair in given if isinstance(given, list) else [None]:
        place, number = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
        at, token = whole_of(place, most=1 << 20), None if number is None else whole_of(number)
        if at is None or (token is None) != (number is None):
            raise config.wrong("forced_decoder_ids", "a list of [position, token id]")
        places[at] = token
    return places


def decoder_start(model: OpenModel) -> tuple[list[int], str | None]:
    """The ids that a decoder starts from: its start token, and those forced right after it.

    Returns:
        The ids, and what had to be guessed about them.
    """
    config = settings(model)
    start = _id(config, "decoder_start_token_id")
    start = _id(config, "bos_token_id") if start is None else start
    note = None
    if start is None:
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
