"""Options that would do nothing: it is said that they would, for silence would pass for an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnx.errors import UsageError
from attnx.study.request import Request


def refuse(why: str, given: Mapping[str, Any]) -> None:
    """Refuse options that have no effect beside what else was asked.

    Args:
        why: What makes them idle: "with --numbers", "without --query".
        given: Option -> its value; None and False where it was not given.

    Raises:
        UsageError: One was given.
    """
    named = [name for name, value in given.items() if value is not None and value is not False]
    if named:
        them = "it" if len(named) == 1 else "them"
        raise UsageError(f"{' and '.join(named)} would do nothing {why}", f"Leave {them} out.")


def refuse_in_view(asked: Request, *, documents: bool) -> None:
    """Refuse what the view of an inspection has no use for.

    Args:
        asked: What is asked.
        documents: Whether numbers are written, of which --top takes the largest in any view but the overview.

    Raises:
        UsageError: --top where every cell is shown, or --scale where nothing is coloured by its value.
    """
    view = asked.view
    cells = view in ("grid", "heatmap") or (view == "table" and asked.query is None)
    if asked.top is not None and (view == "overview" or (cells and not documents)):
        raise UsageError(
            f"--top would do nothing: the {view} is shown whole", "Leave it out, or choose a token: --query it."
        )
    if asked.scale != "linear" and view in ("overview", "ranking", "lines"):
        raise UsageError(
            f"--scale {asked.scale} would do nothing: the {view} has no colours of values",
            "Leave it out, or choose --view grid, heatmap or table.",
        )


__all__ = ["refuse", "refuse_in_view"]
