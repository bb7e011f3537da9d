"""Several tokens at once, where one query or key may be named: a span "it..tired", a list "it,animal", or both."""

from __future__ import annotations

import re

from attnx.errors import UsageError
from attnx.records import Tokens
from attnx.tokens.find import find

_SPAN = re.compile(r"(.+?)\.\.(?!\.)(.+)", re.DOTALL)


def find_group(tokens: Tokens, what: str) -> tuple[tuple[int, ...], bool]:
    """The positions of a token, of the pieces of a word, or of several tokens.

    A token or word that contains such signs itself ("3,000", "a..b") takes precedence.

    Args:
        tokens: The tokens.
        what: As `find` takes it; FROM..TO, both included; or several of these with commas between them.

    Returns:
        Positions in order, each once; and whether several were named.

    Raises:
        UsageError: Nothing or more than one thing fits one of the parts, or a span that runs backwards.
    """
    parts = _parts(what)
    try:
        found = find(tokens, what)
    except UsageError:
        if parts is None:
            raise
    else:
        if parts is None or len({tokens.words[at] for at in found}) == 1:
            return found, False
    out: set[int] = set()
    for part in parts:
        span = _SPAN.fullmatch(part)
        if span is None:
            out |= set(find(tokens, part))
            continue
        first, last = find(tokens, span[1]), find(tokens, span[2])
        if last[-1] < first[0]:
            raise UsageError(
                f"{part!r} runs backwards: from position {first[0]} to {last[-1]}",
                f"Give the earlier one first: {span[2]}..{span[1]}.",
            )
        out |= {at for at in range(first[0], last[-1] + 1) if tokens.mask[at]}
    return tuple(sorted(out)), True


def _parts(what: str) -> list[str] | None:
    """The parts of a list or span; None where it is neither."""
    parts = [part.strip() for part in what.split(",")]
    if not all(parts):  # a literal comma
        parts = [what.strip()]
    return parts if len(parts) > 1 or _SPAN.fullmatch(parts[0]) else None


__all__ = ["find_group"]
