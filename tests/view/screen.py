"""A terminal that keeps what is printed: the text, or the text with its colours."""

from __future__ import annotations

import io
from typing import Literal

from rich.console import Console, RenderableType
from rich.segment import Segment

System = Literal["standard", "256", "truecolor"]


class _Ascii(io.StringIO):
    encoding = "ascii"  # type: ignore[assignment]


def plain(view: RenderableType, width: int = 80, *, ascii_only: bool = False) -> str:
    """What a pipe gets: no colours, no control sequences, lines without the spaces at their ends."""
    out = _Ascii() if ascii_only else io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=False, legacy_windows=False, _environ={})
    console.print(view)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().split("\n")[:-1])


def segments(
    view: RenderableType, width: int = 80, height: int | None = 24, system: System = "truecolor"
) -> list[list[Segment]]:
    """What a terminal draws: lines of text with their styles."""
    console = Console(
        file=io.StringIO(), width=width, height=height, color_system=system, force_terminal=True, legacy_windows=False,
        _environ={},
    )  # fmt: skip
    return list(Segment.split_lines(console.render(view)))


def coloured(view: RenderableType, width: int = 80, height: int | None = 24, system: System = "truecolor") -> str:
    """The bytes a terminal receives."""
    console = Console(
        file=io.StringIO(), width=width, height=height, color_system=system, force_terminal=True, legacy_windows=False,
        _environ={},
    )  # fmt: skip
    console.print(view)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]
