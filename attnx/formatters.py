"""How records are drawn in notebooks and passed to other tools: functions by name, registered from above.

Records are at the bottom of the package and know no view; `attnx/__init__.py` registers the views that show them.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes some milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_FORMATTERS: dict[str, Callable[..., Any]] = {}


def register(**formatters: Callable[..., Any]) -> None:
    """Add formatters by name; each takes a record, and what else the method of the record takes."""
    _FORMATTERS.update(formatters)


def formatted(name: str, record: object, *arguments: object) -> Any:
    """What the formatter of that name makes of a record."""
    return _FORMATTERS[name](record, *arguments)
