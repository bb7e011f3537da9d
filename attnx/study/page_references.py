"""What the heads say of the words of a text on a page: the first pronouns, or the word that is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from attnx.errors import AttnxError, InputError, UnsupportedError, UsageError
from attnx.measure.coreference import Coreference, coreference
from attnx.measure.rows import Received
from attnx.records import Tokens, Trace
from attnx.study.mentioned import candidates, pronouns
from attnx.tokens.spans import Mention
from attnx.wording import Wording

PRONOUNS = 3
"""How many pronouns are used if none is named: the first ones."""
CANDIDATES = 24
"""How many candidates are used if none are named: the nearest before and after the pronoun."""


def words(text: Tokens, from_: str | None, to: str | None, notes: list[str]) -> tuple[Mention, ...]:
    """The words to look from; none if the text has no pronoun and no word is named.

    Args:
        text: The text.
        from_: The word to look from; by default the first pronouns.
        to: The candidates; by default content words near the pronoun.
        notes: Notes are added here.

    Raises:
        InputError: A word that is not in the text; candidates, but no pronoun.
    """
    try:
        there = pronouns(text, from_)
    except AttnxError:
        if from_ is not None or to is not None:
            raise
        return ()
    if from_ is None and len(there) > PRONOUNS:
        notes.append(f"coreference: the first {PRONOUNS} of {len(there)} pronouns; any other can be named")
        there = there[:PRONOUNS]
    return there


def references(
    trace: Trace,
    there: Sequence[Mention],
    named: bool,
    to: str | None,
    notes: list[str],
    received: Mapping[int, Received] = MappingProxyType({}),
) -> list[Coreference]:
    """Where the heads point from some words.

    Args:
        trace: See `coreference`.
        there: The words.
        named: Whether a word was named: then what cannot be measured is an error, otherwise a note.
        to: The candidates; by default content words near the pronoun.
        notes: Notes are added here.
        received: See `coreference`.
    """
    out = []
    text = trace.memory or trace.tokens
    for pronoun in there:
        try:
            out.append(_of(trace, pronoun, candidates(text, to, pronoun), to is None, notes, received))
        except (InputError, UnsupportedError, UsageError) as error:
            if named:
                raise
            notes.append(Wording("coreference of {it!r}: {why}", it=pronoun.text, why=error.message))
    return out


def _of(
    trace: Trace,
    pronoun: Mention,
    there: Sequence[Mention],
    choose: bool,
    notes: list[str],
    received: Mapping[int, Received],
) -> Coreference:
    if choose and len(there) > CANDIDATES:
        own = pronoun.pieces[0]
        near = sorted(there, key=lambda one: (abs(one.pieces[-1] - own), one.pieces))[:CANDIDATES]
        notes.append(f"coreference of {pronoun.text!r}@{own}: the {CANDIDATES} nearest of {len(there)} content words")
        there = [one for one in there if one in near]
    found = coreference(trace, pronoun, there, received=received)
    if choose and 0 < len(found.unseen) < len(there):
        seen = [one for at, one in enumerate(there) if at not in found.unseen]
        found = coreference(trace, pronoun, seen, received=received)
    return found
