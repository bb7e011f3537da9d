"""The pronouns and candidates of a text: as they were asked for, else by stated word lists."""

from __future__ import annotations

from attnx.errors import InputError, UsageError
from attnx.records import Tokens
from attnx.tokens.spans import Mention, find
from attnx.wording import Wording


def mentions(tokens: Tokens, said: str) -> tuple[Mention, ...]:
    """Every place that a word, a phrase, "it@10" or a position means.

    Args:
        tokens: The text's; ids without a text are searched by pieces and positions.
        said: As it was asked for.

    Raises:
        InputError: It stands nowhere in the text.
        UsageError: There is no such position.
    """
    from attnx.tokens import find as find_token

    placed = "@" in said or said.strip().isdigit()
    if tokens.text and not placed:
        return find(tokens, said)
    try:
        pieces = find_token(tokens, said)
    except UsageError as error:
        raise UsageError(error.message, error.hint) from None
    starts = [tokens.offsets[at] for at in pieces]
    start, end = min(a for a, _ in starts), max(b for _, b in starts)
    if tokens.text and end > start:
        return (Mention(tokens.text[start:end].strip(), start, end, pieces),)
    return (Mention("".join(tokens.pieces[at] for at in pieces).strip(), -1, -1, pieces),)


def pronouns(tokens: Tokens, said: str | None) -> tuple[Mention, ...]:
    """What is looked from: as asked, else every pronoun that is found.

    Raises:
        InputError: There is none.
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
    """What the pronoun could stand for: as asked ("animal,street"), else the content words of the text.

    Raises:
        InputError: One of them stands nowhere.
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
