"""Coreference datasets, read as their authors publish them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from json import JSONDecodeError
from pathlib import Path
from string import ascii_uppercase
from xml.etree import ElementTree

from attnx.errors import InputError
from attnx.measure.entries import Entry, Spot
from attnx.numerals import counted
from attnx.tokens.json_object import TwiceError, read_json
from attnx.tokens.text_file import read_text
from attnx.wording import Wording

OCCUPATIONS = (
    "accountant", "analyst", "assistant", "attendant", "auditor", "baker", "carpenter", "cashier", "ceo", "chief",
    "cleaner", "clerk", "construction worker", "cook", "counselor", "designer", "developer", "driver", "editor",
    "farmer", "guard", "hairdresser", "housekeeper", "janitor", "laborer", "lawyer", "librarian", "manager",
    "mechanic", "mover", "nurse", "physician", "receptionist", "salesperson", "secretary", "sheriff", "supervisor",
    "tailor", "teacher", "writer",
)  # fmt: skip
"""The 40 occupations of WinoBias. Source: Zhao et al. 2018, "Gender Bias in Coreference Resolution", table 1."""


@dataclass(frozen=True, slots=True)
class Example:
    """One pronoun with its candidates."""

    text: str
    pronoun: Spot
    candidates: tuple[Spot, ...]
    answer: int
    """Index of the candidate that the pronoun refers to."""
    pair: str
    """Examples of one minimal pair share it."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """The contents of a file."""

    name: str
    """The kind of file: "Winograd", "WinoBias", "GAP", "pairs"."""
    examples: tuple[Example, ...]
    skipped: tuple[str, ...]
    """What was left out and why, one line each."""


_KINDS_HINT = Wording("See <attnx.measure.coref_data.read> for the kinds of files that are read.")
Found = Iterator[Example | str]
"""What a reader yields: examples, or the reason why an entry cannot be one."""


def read(path: str | Path) -> Dataset:
    """Read a dataset file; its kind follows from its name and first characters.

    - `.jsonl`: one object per line with text, pronoun [start, end], candidates [[start, end], ...], answer, pair.
    - `.xml`: the Winograd Schema collection (Davis), WSCollection.xml; WSC273 is its first 273 schemas.
    - `.json`: the same collection as a list of objects with text, pronoun, pronoun_loc, options, label.
    - `.tsv`: GAP (Webster et al. 2018). Rows in which neither name is meant are left out.
    - otherwise: WinoBias (Zhao et al. 2018), one numbered sentence per line with the two mentions in brackets.

    Args:
        path: The file, UTF-8.

    Returns:
        Its examples, and what was left out.

    Raises:
        InputError: The file cannot be read, is none of these kinds, or has no examples.
    """
    where = Path(path)
    content = read_text(where, "Give a text file in UTF-8.")
    return parse(content, where.suffix.lower(), str(where))


def bundled() -> Dataset:
    """The minimal pairs written for and shipped with attnx: pairs of sentences that differ in a word or two."""
    content = (files("attnx") / "data" / "minimal_pairs.jsonl").read_text(encoding="utf-8")
    return parse(content, ".jsonl", "minimal_pairs.jsonl")


def parse(content: str, suffix: str, source: str = "the dataset") -> Dataset:
    """Read a dataset from text.

    Args:
        content: The whole file.
        suffix: ".jsonl", ".xml", ".json", ".tsv" or any other (WinoBias).
        source: The file's name in messages.

    Returns:
        See `read`.

    Raises:
        InputError: See `read`.
    """
    name, entries = _KINDS.get(suffix, ("WinoBias", _winobias))
    examples: list[Example] = []
    skipped: list[str] = []
    try:
        for at, found in enumerate(entries(content), start=1):
            made = _sound(found) if isinstance(found, Example) else found
            if isinstance(made, Example):
                examples.append(made)
            else:
                skipped.append(f"entry {at}: {made}")
    except InputError as error:
        raise InputError(
            Wording("{said} is not a {name} file: {what}", said=source, name=name, what=error.message),
            error.hint or _KINDS_HINT,
        ) from None
    except (ValueError, RecursionError, ElementTree.ParseError, csv.Error) as error:
        raise InputError(f"{source} is not a {name} file: {error}", _KINDS_HINT) from None
    if not examples:
        raise InputError(f"{source} holds no example as {name}", *skipped[:1])
    return Dataset(name, tuple(examples), tuple(skipped))


def _sound(example: Example) -> Example | str:
    """The example itself, or why its spans cannot be used."""
    spots = (example.pronoun, *example.candidates)
    if len(example.candidates) < 2:
        return f"{counted(len(example.candidates), 'candidate')}: there is nothing to choose between"
    if not 0 <= example.answer < len(example.candidates):
        return f"answer {example.answer} is not one of {len(example.candidates)} candidates"
    if any(not 0 <= a < b <= len(example.text) for a, b in spots):
        return "a span lies outside the text"
    if any(a < d and c < b for at, (a, b) in enumerate(spots) for c, d in spots[at + 1 :]):
        return "spans overlap"
    return example


def _lines(content: str) -> Iterator[tuple[int, str]]:
    """Non-empty lines, numbered from 1: they end only at line feeds, not at other Unicode line breaks."""
    for at, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            yield at, line.rstrip("\r")


def _pairs(content: str) -> Found:
    for at, line in _lines(content):
        try:
            entry = Entry.of(read_json(line), f"line {at}")
        except TwiceError as error:
            raise InputError(f"line {at} has {error} twice, with different values", "Take one of them out.") from None
        except JSONDecodeError as error:
            raise InputError(f"line {at} is not JSON: {error.msg} at character {error.pos + 1}") from None
        yield Example(
            text=entry.text("text"),
            pronoun=entry.spot("pronoun", entry.get("pronoun")),
            candidates=tuple(entry.spot("candidates", one) for one in entry.items("candidates")),
            answer=entry.whole("answer"),
            pair=str(entry.values.get("pair", at)),
        )


def _winograd_xml(content: str) -> Found:
    # A schema collection needs no entities; refusing them keeps a hostile file from expanding in memory.
    if "<!ENTITY" in content:
        raise ValueError("it declares XML entities")
    entries = []
    for schema in ElementTree.fromstring(content).iter("schema"):
        before, pronoun, after = (
            " ".join((schema.findtext(f"text/{tag}") or "").split()) for tag in ("txt1", "pron", "txt2")
        )
        front = f"{before} " if before else ""
        gap = "" if re.match(r"[.,;:!?'’]", after) else " "
        answers = [" ".join((answer.text or "").split()) for answer in schema.iter("answer")]
        letter = (schema.findtext("correctAnswer") or "").strip(" .\n\t")
        place = (len(front), len(front) + len(pronoun))
        letters = ascii_uppercase[: len(answers)]
        answer: int | str = f"correctAnswer is {letter!r}, and one of {', '.join(letters)} was expected"
        if len(letter) == 1 and letter.upper() in letters:
            answer = letters.index(letter.upper())
        entries.append((f"{front}{pronoun}{gap}{after}".strip(), place, answers, answer))
    yield from _named(entries)


def _winograd_json(content: str) -> Found:
    try:
        listed = read_json(content)
    except TwiceError as error:
        raise InputError(f"an entry has {error} twice, with different values", "Take one of them out.") from None
    if not isinstance(listed, list):
        raise InputError("it holds no list of schemas")
    entries = [Entry.of(value, f"entry {at}") for at, value in enumerate(listed, start=1)]
    yield from _named(
        [
            (
                entry.text("text"),
                (entry.whole("pronoun_loc"), entry.whole("pronoun_loc") + len(entry.text("pronoun"))),
                [str(one) for one in entry.items("options")],
                _misplaced(entry.text("text"), [(entry.text("pronoun"), entry.whole("pronoun_loc"))])
                or entry.whole("label"),
            )
            for entry in entries
        ]
    )


def _misplaced(text: str, words: Sequence[tuple[str, int]]) -> str:
    """The first word that does not stand at its place in a text, and what does; "" where all do.

    Args:
        text: The text.
        words: Words, each with its first character.
    """
    for word, start in words:
        there = text[start : start + len(word)]
        if there != word:
            said = f"{there!r} does" if there else "the text ends before"
            return f"{word!r} does not stand at character {start}: {said}"
    return ""


def _named(entries: list[tuple[str, Spot, list[str], int | str]]) -> Found:
    """Examples whose candidates are given as words; adjacent ones with the same candidates form a pair.

    Args:
        entries: Text, pronoun, candidates, and the index of the answer or the reason why there is no example.
    """
    pair, before = 0, None
    for text, pronoun, answers, answer in entries:
        now = [core.lower() for core in map(_core, answers)]
        pair += now != before
        before = now
        spots = [_located(text, pronoun, answer) for answer in answers]
        missing = [answer for answer, spot in zip(answers, spots, strict=True) if spot is None]
        if isinstance(answer, str):
            yield answer
        elif missing:
            yield f"{missing[0]!r} does not stand in {text!r}"
        else:
            yield Example(text, pronoun, tuple(spot for spot in spots if spot), answer, str(pair))


def _located(text: str, pronoun: Spot, answer: str) -> Spot | None:
    """Locate a candidate, without article or possessive: nearest before the pronoun, otherwise first after it."""
    pattern = rf"(?<!\w){re.escape(_core(answer))}(?!\w)"
    hits = [hit.span() for hit in re.finditer(pattern, text, re.IGNORECASE)]
    before = [hit for hit in hits if hit[1] <= pronoun[0]]
    after = [hit for hit in hits if hit[0] >= pronoun[1]]
    return before[-1] if before else after[0] if after else None


def _core(answer: str) -> str:
    """A noun phrase without leading words: "The city councilmen" -> "city councilmen"."""
    lead = r"^(?:the|an?|my|his|her|their|its|our|your|some|this|that)\s+"
    return re.sub(lead, "", answer.strip(" ."), flags=re.IGNORECASE) or answer


def _gap(content: str) -> Found:
    rows = csv.DictReader((line for _, line in _lines(content)), delimiter="\t", quoting=csv.QUOTE_NONE)
    for at, row in enumerate(rows, start=1):
        entry = Entry(f"row {at}", row)
        told = {name: entry.text(f"{name}-coref").strip() for name in ("A", "B")}
        right = [one.upper() == "TRUE" for one in told.values()]
        start = entry.whole("Pronoun-offset")
        names = [(entry.whole(f"{name}-offset"), entry.text(name)) for name in ("A", "B")]
        unclear = next((name for name, one in told.items() if one.upper() not in ("TRUE", "FALSE")), None)
        if unclear is not None:
            yield f"{entry.text('ID')}: {unclear}-coref is {told[unclear]!r}, and TRUE or FALSE was expected"
            continue
        if misplaced := _misplaced(
            entry.text("Text"), [(entry.text("Pronoun"), start), *((name, at) for at, name in names)]
        ):
            yield f"{entry.text('ID')}: {misplaced}"
            continue
        if sum(right) != 1:
            yield f"{entry.text('ID')}: {'both' if all(right) else 'neither'} of the names is meant"
            continue
        yield Example(
            text=entry.text("Text"),
            pronoun=(start, start + len(entry.text("Pronoun"))),
            candidates=tuple((at, at + len(name)) for at, name in names),
            answer=right.index(True),
            pair=entry.text("ID"),
        )


def _winobias(content: str) -> Found:
    jobs = re.compile(rf"(?<!\w)(?:{'|'.join(OCCUPATIONS)})(?!\w)", re.IGNORECASE)
    pair, before = 0, None
    for _, line in _lines(content):
        text, spots = _brackets(re.sub(r"^\s*[0-9]+\s+", "", line).strip())
        named = [spot for spot in spots if jobs.search(text[slice(*spot)])]
        if len(spots) != 2 or len(named) != 1:
            yield f"an occupation and a pronoun were expected in brackets: {line.strip()!r}"
            continue
        others = [hit.span() for hit in jobs.finditer(text) if hit.end() <= named[0][0] or hit.start() >= named[0][1]]
        if not others:
            yield f"no second occupation is named: {line.strip()!r}"
            continue
        candidates = sorted([named[0], others[0]])
        now = [text[slice(*spot)].lower() for spot in candidates]
        pair += now != before
        before = now
        pronoun = next(spot for spot in spots if spot != named[0])
        yield Example(text, pronoun, tuple(candidates), candidates.index(named[0]), str(pair))


def _brackets(line: str) -> tuple[str, list[Spot]]:
    """A sentence without its brackets, and the spans of what was in them, without articles."""
    text, spots = "", []
    for piece in re.split(r"(\[[^\]]*\])", line):
        inner = piece.strip("[]") if piece.startswith("[") else piece
        if piece.startswith("["):
            spots.append((len(text) + len(inner) - len(_core(inner)), len(text) + len(inner)))
        text += inner
    return text, spots


_KINDS: dict[str, tuple[str, Callable[[str], Found]]] = {
    ".jsonl": ("pairs", _pairs),
    ".xml": ("Winograd", _winograd_xml),
    ".json": ("Winograd", _winograd_json),
    ".tsv": ("GAP", _gap),
}
