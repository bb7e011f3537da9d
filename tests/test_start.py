"""How a command begins: what its steps meet is what is said."""

from __future__ import annotations

import pytest

from attnx.cli import inputs as intake
from attnx.cli.start import Start


def test_options_are_attributes_and_others_are_none() -> None:
    run = Start({"text": "a cat", "json": True})
    assert (run.text, run.json) == ("a cat", True)
    with pytest.raises(AttributeError, match="layer"):
        _ = run.layer
    assert run.but(json=False).json is False


def test_an_attribute_that_a_step_lacks_is_not_called_the_steps_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(**_: object) -> object:
        raise AttributeError("no attribute 'offsets'")

    monkeypatch.setattr(intake, "take", take)
    with pytest.raises(AttributeError, match="offsets"):
        _ = Start({"text": "a cat", "values": None, "dims": None}).given
