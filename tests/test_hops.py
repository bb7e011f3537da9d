"""How far a text travels from the command line to the tokenizer, to onnxruntime, and back to the view: and never up."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from attnx.cli import app
from attnx.session.ort import Session
from attnx.tokens import Tokenizer
from attnx.view import grid as grids
from tests.test_arrows import FLOOR

MOST = 10
"""Functions on the way, from the command's to the last."""


def way() -> list[tuple[str, str]]:
    """Room and name of every attnx function on the stack, from the command down to the one that is watched."""
    found = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("attnx."):
            found.append((module.removeprefix("attnx."), frame.f_code.co_qualname))
        frame = frame.f_back
    found.reverse()
    return found[found.index(("cli.commands.inspect", "inspect")) :]


@pytest.mark.parametrize(
    ("owner", "name", "last"),
    [
        (Tokenizer, "encode", "feed.text"),
        (Session, "run", "run.pipeline"),
        (grids, "grid", "study.presentation"),
    ],
    ids=["tokens", "onnxruntime", "view"],
)
def test_a_text_goes_straight_down(owner: Any, name: str, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[list[tuple[str, str]]] = []
    original = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        ways.append(way())
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, watched)
    assert app.run(["inspect", "The animal didn't cross the street.", "--layer", "5"]) == 0
    (found,) = ways
    assert len(found) < MOST, found  # the function that is watched is one more
    assert found[-1][0] == last
    floors = [FLOOR[module.partition(".")[0]] for module, _ in found]
    assert floors == sorted(floors, reverse=True), found
