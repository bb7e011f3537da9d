"""Mentions: the pronouns of a text, and the words that could be what they stand for.

A heuristic, not a parser: English word lists and nothing else. Pronouns are third-person personal pronouns, so an
expletive "it" ("it rains") is found as well. Candidates are content words: every word that is not a pronoun, not on a
short stop-word list, not a number and longer than one letter. Verbs and adjectives pass ("tired", "cross"), since no
part of speech is known; name the candidates where that matters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnx.errors import InputError
from attnx.records import Tokens
from attnx.tokens.spans import Mention, mention
from attnx.wording import Wording

PRONOUNS = frozenset(
    "he him his himself she her hers herself it its itself they them their theirs themselves themself".split()
)
"""Third-person personal pronouns of English."""
STOP_WORDS = frozenset(
    """
    a an the this that these those each every either neither both all any some no none such same other another own
    i me my mine myself we us our ours ourselves you your yours yourself yourselves one ones who whom whose which what
    and or but nor so yet because since as if unless until while although though whereas whether than then when where
    why how that lest once after before
    of in on at by for with about against between into through during above below to from up down out off over under
    again further along across around behind beside beyond near without within upon toward towards onto inside outside
    am is are was were be been being do does did doing done have has had having can could will would shall should may
    might must ought need get got gets let
    not never only just very too also even still already always often quite rather almost enough much many more most
    less least few little there here now soon later today yes
    don't doesn't didn't isn't aren't wasn't weren't can't cannot couldn't won't wouldn't shouldn't hasn't haven't
    hadn't
    it's he's she's that's there's they're we're you're i'm i've
    """.split()
)
"""Short list of English function words; never a candidate."""
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def find_pronouns(tokens: Tokens) -> tuple[Mention, ...]:
    """Third-person pronouns in the order in which they stand; repeated ones each.

    Args:
        tokens: With text and offsets.

    Returns:
        Mentions; empty where the text has none.

    Raises:
        InputError: The tokens carry no text (ids were given).

    Source: attnx; the list is `PRONOUNS`.
    """
    return tuple(_mentions(tokens, [hit for hit in _words(tokens) if hit.group().lower() in PRONOUNS]))


def find_candidates(tokens: Tokens, pronoun: Mention | None = None) -> tuple[Mention, ...]:
    """Content words: what a pronoun could stand for, by the heuristic that this file states.

    A word that occurs twice is a candidate twice, since a head points at a place.

    Args:
        tokens: With text and offsets.
        pronoun: Left out, should it be a content word itself.

    Returns:
        Mentions in the order in which they stand, before and after the pronoun; empty where there are none.

    Raises:
        InputError: The tokens carry no text (ids were given).

    Source: attnx; the list is `STOP_WORDS`.
    """
    kept = []
    for hit in _words(tokens):
        word = hit.group().lower().replace("’", "'")
        bare = word.removesuffix("'s")
        if len(bare) < 2 or bare in PRONOUNS or word in STOP_WORDS or bare in STOP_WORDS or bare.isdigit():
            continue
        if pronoun is not None and hit.start() < pronoun.end and hit.end() > pronoun.start:
            continue
        kept.append(hit)
    return tuple(_mentions(tokens, kept))


def _words(tokens: Tokens) -> list[re.Match[str]]:
    if not tokens.text:
        raise InputError(
            "these tokens carry no text, so pronouns and candidates cannot be found in it",
            Wording("Give a text instead of ids[, or positions: <from_=10> <to=[2, 8]>]."),
        )
    return list(_WORD.finditer(tokens.text))


def _mentions(tokens: Tokens, hits: Sequence[re.Match[str]]) -> list[Mention]:
    """Mentions of words that have tokens; what was cut off the end of a long text has none and is left out."""
    covered = [
        (a, b) for at, (a, b) in enumerate(tokens.offsets) if a < b and tokens.mask[at] and not tokens.special[at]
    ]
    kept = [hit for hit in hits if any(a < hit.end() and b > hit.start() for a, b in covered)]
    return [mention(tokens, hit.start(), hit.end()) for hit in kept]
