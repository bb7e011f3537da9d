"""The pronouns and candidates of a text: as requested, otherwise from fixed word lists."""

from __future__ import annotations

from attnx.errors import InputError, UsageError
from attnx.records import Tokens
from attnx.tokens.spans import Mention
from attnx.wording import Wording


def mentions(tokens: Tokens, said: str) -> tuple[Mention, ...]:
    """Every place that a word, a phrase, "it@10" or a position refers to.

    Args:
        tokens: The text's tokens; ids without a text are searched by token strings and positions.
        said: The request.

    Raises:
        InputError: It does not occur in the text.
        UsageError: There is no such position.
    """
    from attnx.tokens.find import missing, places

    found = places(tokens, said)
    if not found:
        raise InputError(*missing(tokens, said))
    return tuple(_mention(tokens, pieces) for pieces in found)


def _mention(tokens: Tokens, pieces: tuple[int, ...]) -> Mention:
    spans = [tokens.offsets[at] for at in pieces]
    start, end = min(a for a, _ in spans), max(b for _, b in spans)
    if tokens.text and end > start:
        return Mention(tokens.text[start:end].strip(), start, end, pieces)
    return Mention("".join(tokens.pieces[at] for at in pieces).strip(), -1, -1, pieces)


def pronouns(tokens: Tokens, said: str | None) -> tuple[Mention, ...]:
    """The words to look from: as requested, otherwise every pronoun in the text.

    Raises:
        InputError: There is no pronoun.
    """
    if said is not None:
        return mentions(tokens, said)
    from attnx.measure.mentions import find_pronouns

    found = find_pronouns(tokens)
    if not found:
        raise InputError(
            "no third-person pronoun (he, she, it, they, ...) was found in the text",
            Wording("Name the word to look from[: <from_=>]."),
        )
    return found


def candidates(tokens: Tokens, said: str | None, pronoun: Mention) -> tuple[Mention, ...]:
    """What the pronoun could refer to: as requested ("animal,street"), otherwise the content words of the text.

    Raises:
        InputError: One of them does not occur in the text.
        UsageError: There are none.
    """
    if said is not None:
        named = [word for word in said.split(",") if word.strip()]
        found = {one.pieces: one for word in named for one in mentions(tokens, word)}
        return tuple(found.values())
    from attnx.measure.mentions import find_candidates

    out = find_candidates(tokens, pronoun)
    if not out:
        raise UsageError(
            "no content words were found that it could stand for", Wording("Name them[: <to=['animal', 'street']>].")
        )
    return out
