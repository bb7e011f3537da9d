"""How long a text is, in words: "7 tokens", "4 encoder tokens · 7 decoder tokens"."""

from __future__ import annotations

from attnx.records import Trace


def length(trace: Trace) -> str:
    """The tokens of a trace, of both sides where it has two, with the dot of every heading between them."""
    if trace.memory is None:
        return counted(len(trace.tokens), "token")
    return f"{counted(len(trace.memory), 'encoder token')} · {counted(len(trace.tokens), 'decoder token')}"


def counted(count: int, noun: str) -> str:
    """As "1 token", "2 tokens"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


__all__ = ["counted", "length"]
