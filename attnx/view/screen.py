"""An answer on one screen: what was asked for whole, then of what else there is as much as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement as Extent

from attnx.view.page import line, screen_lines
from attnx.wording import Wording

REST = Wording("the answer in full: without <explain>")
"""How what an explanation has no room for is seen."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Ways to show one thing, the fullest first: the first that there is room for is taken, else the last."""

    ways: tuple[tuple[RenderableType, ...], ...]
    instead: tuple[str, ...] = ()
    """Of each way: what it leaves out, and how that is seen."""


def choice(*ways: Sequence[Any], instead: str | Sequence[str] = "") -> Choice:
    """Ways to show one thing.

    Args:
        ways: The fullest first; renderables below one another, none in the last where it may be left out.
        instead: What each way leaves out and how that is seen, "WHAT: OPTION"; one text stands for all but the first.
    """
    left = ["", *[instead] * (len(ways) - 1)] if isinstance(instead, str) else instead
    return Choice(tuple(tuple(way) for way in ways), tuple(left))


@dataclass(frozen=True, slots=True)
class Explanation:
    """See `explanation`."""

    explained: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write them below one another."""
        yield from (line(text, "dim") for text in self.explained)


def explanation(*texts: str) -> Explanation:
    """How numbers are computed, and whose measures they are: a line each. A `screen` shows it before anything else."""
    return Explanation(tuple(text for text in texts if text))


def _explained(parts: Sequence[Any]) -> list[str]:
    """What the parts of a screen say about how their numbers are computed, in order, each once."""
    found: list[str] = []
    for part in parts:
        if isinstance(part, Choice):
            found += _explained([one for way in part.ways for one in way])
        elif isinstance(part, Screen):
            found += _explained(part.parts)
        else:
            found += getattr(part, "explained", ())
    return list(dict.fromkeys(found))


def _bare(part: Any) -> Any:
    """A part without its explanation."""
    if isinstance(part, Screen):
        return replace(part, parts=tuple(map(_bare, part.parts)))
    if isinstance(part, Choice):
        return replace(part, ways=tuple(tuple(map(_bare, way)) for way in part.ways))
    return replace(part, explained=()) if getattr(part, "explained", ()) else part


@dataclass(frozen=True, slots=True)
class Screen:
    """See `screen`."""

    parts: tuple[RenderableType | Choice, ...]
    said: int = 0
    every: bool = False
    hints: tuple[str, ...] = field(default=())
    rest: str = REST

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Count the lines of what must be there, then choose what takes the rest."""
        height = None if self.every else screen_lines(console, options)

        def lines(*parts: RenderableType) -> int:
            return len(console.render_lines(Group(*parts), options, pad=False)) if parts else 0

        told = [] if height is None else _explained(self.parts)
        if height is not None and told:
            fullest = [one for part in self.parts for one in (part.ways[0] if isinstance(part, Choice) else (part,))]
            room = height - 1 - self.said
            if lines(*fullest, *self._hints(self.hints)) > room:
                yield from self._told(told, room, lines)
                return
        taken: dict[int, tuple[RenderableType, ...]] = {}
        left: list[str] = list(self.hints)
        if height is None:
            taken = {at: part.ways[0] for at, part in enumerate(self.parts) if isinstance(part, Choice)}
        else:
            fixed = [part for part in self.parts if not isinstance(part, Choice)]
            room = height - 1 - self.said - lines(*fixed, *self._hints(left))
            for at, part in enumerate(self.parts):
                if not isinstance(part, Choice):
                    continue
                for number, way in enumerate(part.ways):
                    hints = [*left, *filter(None, part.instead[number : number + 1])]
                    more = lines(*self._hints(hints)) - lines(*self._hints(left))
                    if lines(*way) + more <= room or number == len(part.ways) - 1:
                        taken[at], left, room = way, hints, room - lines(*way) - more
                        break
        for at, part in enumerate(self.parts):
            yield from taken.get(at, ()) if isinstance(part, Choice) else (part,)
        yield from self._hints(left)

    def _told(self, told: Sequence[str], room: int, lines: Callable[..., int]) -> Iterator[RenderableType]:
        """The explanation whole, and above it as much of the answer, from its beginning, as there is room for."""
        below: list[RenderableType] = [line(text, "dim") for text in told]
        rest = line(self.rest, "dim")
        if lines(*below, rest) >= room:
            below = [line(" · ".join(told), "dim")]
        room -= lines(*below, rest)
        above: list[RenderableType] = []
        for part in map(_bare, self.parts):
            ways = part.ways if isinstance(part, Choice) else ((part,),)
            way = next((way for way in ways if lines(*above, *way) <= room), None)
            if way is None:
                break
            above += way
        while above and not lines(above[-1]) - (above[-1] == ""):
            above.pop()
        if above and lines(*above) < room:
            above.append("")
        yield from (*above, *below, rest)

    @staticmethod
    def _hints(texts: Sequence[str]) -> list[RenderableType]:
        """How the rest is seen, on one line where it fits."""
        return [line(" · ".join(_together(texts)), "dim")] if texts else []

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Any width will do."""
        return Extent(min(40, options.max_width), options.max_width)


def _together(texts: Sequence[str]) -> list[str]:
    """Hints of the form "WHAT: OPTION", those with the same option in one: no option is named twice."""
    found: dict[str, list[str]] = {}
    for text in texts:
        what, _, option = text.rpartition(": ")
        found.setdefault(option, []).append(what)
    return [f"{', '.join(filter(None, whats))}: {option}".removeprefix(": ") for option, whats in found.items()]


def screen(*parts: RenderableType | Choice, said: int = 0, every: bool = False, hints: Sequence[str] = ()) -> Screen:
    """Put an answer on one screen.

    Args:
        parts: Renderables, which are shown whatever there is room for, and `choice`s, which share the lines that are
            left, in order.
        said: Lines that stderr has said besides, which the screen holds too.
        every: Show the fullest of everything.
        hints: What is missing and how it is seen, "WHAT: OPTION" each; they end the screen together with what had to
            be left out.

    Returns:
        A renderable. A pipe gets as much as the smallest screen, a file everything. Where parts have an explanation
        (`explanation`, or the field `explained`) and not everything fits, it is shown whole, below the beginning of the
        answer.
    """
    return Screen(parts, said, every, tuple(text for text in hints if text))


__all__ = ["Choice", "Explanation", "Screen", "choice", "explanation", "screen"]
