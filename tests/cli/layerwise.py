"""A model made to be run a layer, or a head, at a time, and what each run fetched."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from attnx.session.ort import Session
from attnx.study import stretches


def a_layer_at_a_time(monkeypatch: pytest.MonkeyPatch, alive: int = 0, *, heads: bool = False) -> list[int]:
    """Make every layer a stretch of its own.

    Args:
        monkeypatch: Undoes it.
        alive: Matrices of earlier runs that may still be there when one begins.
        heads: Whether every head is a piece of its own, too.

    Returns:
        How many matrices each run fetched, filled as they are made.
    """
    held: list[weakref.ref[np.ndarray]] = []
    fetched: list[int] = []
    own = Session.run

    def counted(self: Session, feed: Any, *rest: Any) -> Any:
        gc.collect()
        assert len([array for ref in held if (array := ref()) is not None]) <= alive
        out = own(self, feed, *rest)
        matrices = [array for array in out.values() if array.ndim == 4 and array.shape[-1] == array.shape[-2] > 1]
        assert not heads or all(array.shape[1] == 1 for array in matrices)
        held.extend(weakref.ref(array) for array in matrices)
        fetched.append(len(matrices))
        return out

    monkeypatch.setattr(Session, "run", counted)
    monkeypatch.setattr(stretches, "ROOM", 1)
    if not heads:
        monkeypatch.setattr(stretches.Stretches, "split", lambda self, part: ())
    return fetched
