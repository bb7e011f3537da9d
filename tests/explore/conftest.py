"""The explorer's screens are the same whatever terminal the tests run in."""

import pytest


@pytest.fixture(autouse=True)
def sixteen_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain terminal."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("COLORTERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
