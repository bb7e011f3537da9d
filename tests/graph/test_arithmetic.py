"""Sizes that meet one another where some are unknown, or cut short."""

from __future__ import annotations

import pytest

from attnx.graph.shapes.arithmetic import broadcast


@pytest.mark.parametrize(
    ("shapes", "whole"),
    [
        (((1, 1, 1013, 2034), (7, 4, 1013, 2034)), (7, 4, 1013, 2034)),
        (((None, 1), (5, 2034)), (5, 2034)),
        (((1, 64), (5, 2034)), (5, 2034)),  # a buffer, cut where it ends
        (((1, 0), (5, 2034)), (5, 2034)),  # a buffer, cut behind its end
        (((2, 3), (2, 5)), (2, None)),
    ],
)
def test_broadcast(shapes: tuple[tuple[int | None, ...], ...], whole: tuple[int | None, ...]) -> None:
    assert broadcast(*shapes) == whole
