"""Mentions: the pronouns of a text, and the words that they could refer to.

A heuristic, not a parser: it only uses English word lists. Pronouns are third-person personal pronouns, so an
expletive "it" ("it rains") is found as well. Candidates are content words: every word that is not a pronoun, not on a
short stop-word list, not a number and longer than one letter. Verbs and adjectives count too ("tired", "cross"), as no
part of speech is known; name the candidates if that matters.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnx.errors import InputError
from attnx.records import Tokens
from attnx.tokens.spans import Mention, mention
from attnx.tokens.words import group_words
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


def find_pronouns(tokens: Tokens) -> tuple[Mention, ...]:
    """Third-person pronouns in text order, with every repetition.

    Args:
        tokens: With text and offsets.

    Returns:
        Mentions; empty if the text has none.

    Raises:
        InputError: The tokens have no text (ids were given).

    Source: attnx; the list is `PRONOUNS`.
    """
    return tuple(_mentions(tokens, [hit for hit in _words(tokens) if tokens.text[slice(*hit)].lower() in PRONOUNS]))


def find_candidates(tokens: Tokens, pronoun: Mention | None = None) -> tuple[Mention, ...]:
    """Content words: what a pronoun could refer to, by the heuristic of this module.

    A word that occurs twice is a candidate twice, because a head points to a position.

    Args:
        tokens: With text and offsets.
        pronoun: Left out if it is a content word itself.

    Returns:
        Mentions in text order, before and after the pronoun; empty if there are none.

    Raises:
        InputError: The tokens have no text (ids were given).

    Source: attnx; the list is `STOP_WORDS`.
    """
    kept = []
    for hit in _words(tokens):
        word = tokens.text[slice(*hit)].lower().replace("’", "'")
        bare = word.removesuffix("'s")
        if (
            len(bare) < 2
            or bare in PRONOUNS
            or word in STOP_WORDS
            or bare in STOP_WORDS
            or not any(map(str.isalpha, bare))
        ):
            continue
        if pronoun is not None and hit[0] < pronoun.end and hit[1] > pronoun.start:
            continue
        kept.append(hit)
    return tuple(_mentions(tokens, kept))


def _words(tokens: Tokens) -> list[tuple[int, int]]:
    """Start and end of every word that has tokens; words cut off the end of a long text have none.

    In scripts without spaces between words, a word is what the tokenizer keeps in one piece.
    """
    if not tokens.text:
        raise InputError(
            "these tokens carry no text, so pronouns and candidates cannot be found in it",
            Wording("Give a text instead of ids[, or positions: <from_=10> <to=[2, 8]>]."),
        )
    groups = (group for group in group_words(tokens) if not any(tokens.special[at] for at in group))
    spans = [(tokens.offsets[group[0]][0], max(tokens.offsets[at][1] for at in group)) for group in groups]
    return [(start, end) for start, end in spans if any(map(str.isalnum, tokens.text[start:end]))]


def _mentions(tokens: Tokens, hits: Sequence[tuple[int, int]]) -> list[Mention]:
    return [mention(tokens, *hit) for hit in hits]
