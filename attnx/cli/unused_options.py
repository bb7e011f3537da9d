"""Refuse options that would do nothing: a user could not tell that they had no effect."""

from __future__ import annotations

from collections.abc import Mapping

from attnx.errors import UsageError
from attnx.study.request import Request


def refuse(why: str, options: Mapping[str, object]) -> None:
    """Refuse options that have no effect together with the others.

    Args:
        why: What makes them ineffective: "with --numbers", "without --query".
        options: Option -> its value; None or False where it was not given.

    Raises:
        UsageError: One was given.
    """
    named = [name for name, value in options.items() if value is not None and value is not False]
    if named:
        them = "it" if len(named) == 1 else "them"
        raise UsageError(f"{' and '.join(named)} would do nothing {why}", f"Leave {them} out.")


def refuse_in_view(request: Request, *, documents: bool) -> None:
    """Refuse options that have no effect in this view of an inspection.

    Args:
        request: What is inspected.
        documents: Whether numbers are written; --top then selects the largest in any view but the overview.

    Raises:
        UsageError: --top where every cell is shown, or --scale where no cell is coloured by its value.
    """
    view = request.view
    cells = view in ("grid", "heatmap") or (view == "table" and request.query is None)
    if request.top is not None and (view == "overview" or (cells and not documents)):
        raise UsageError(
            f"--top would do nothing: the {view} is shown whole", "Leave it out, or choose a token: --query it."
        )
    if request.scale != "linear" and view in ("overview", "ranking", "lines"):
        raise UsageError(
            f"--scale {request.scale} would do nothing: the {view} has no colours of values",
            "Leave it out, or choose --view grid, heatmap or table.",
        )


__all__ = ["refuse", "refuse_in_view"]
