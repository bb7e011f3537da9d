"""How records are drawn in notebooks and passed to other tools: functions by name, registered from above.

Records are at the bottom of the package and do not import views; `attnx/__init__.py` registers the views.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes some milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_FORMATTERS: dict[str, Callable[..., Any]] = {}


def register(**formatters: Callable[..., Any]) -> None:
    """Add formatters by name; each takes a record and any further arguments of the record's method."""
    _FORMATTERS.update(formatters)


def formatted(name: str, record: object, *arguments: object) -> Any:
    """Format a record with the formatter of that name."""
    return _FORMATTERS[name](record, *arguments)
