"""How a command begins: typed options, and steps whose own errors are the ones that show."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from attnx.cli import inputs, options
from attnx.cli.option_groups import ModelChoice, Output, Source, Writing
from attnx.cli.start import Start, start


def test_options_stand_in_their_groups() -> None:
    run = start(text="a cat", model="m", values=["a=1"], generate=3, json=True, device="cpu")
    assert run.source == Source("a cat", values=("a=1",))
    assert run.writing == Writing(generate=3)
    assert run.model == ModelChoice("m", device="cpu")
    assert run.output == Output(json=True)
    assert replace(run, output=Output()).output.json is False
    with pytest.raises(FrozenInstanceError):
        run.source = Source()  # type: ignore[misc]
    with pytest.raises(AttributeError, match="text"):
        _ = run.text  # type: ignore[attr-defined]


def test_every_shared_option_has_its_place_in_a_group() -> None:
    """What `start` takes, what a command can declare, and what the groups hold are one set, with one default each."""
    kinds = (Source, Writing, ModelChoice, Output)
    held = {
        "model" if (kind, one.name) == (ModelChoice, "name") else one.name for kind in kinds for one in fields(kind)
    }
    taken = inspect.signature(start).parameters
    assert held == set(taken) == set(options._BY_NAME)
    for name, (_, default) in options._BY_NAME.items():
        assert taken[name].default == default, name


@pytest.mark.parametrize("name", sorted(inspect.signature(start).parameters))
def test_each_option_reaches_its_own_field(name: str) -> None:
    sent = {"values": ["x=1"], "dims": ["n=2"], "file": Path("f"), "json": True, "chat": True}.get(name, f"<{name}>")
    run = start(**{name: sent})  # type: ignore[arg-type]
    apart = [
        (one.name, getattr(group, one.name))
        for group, plain in zip(groups(run), groups(start()), strict=True)
        for one in fields(group)
        if getattr(group, one.name) != getattr(plain, one.name)
    ]
    assert apart == [("name" if name == "model" else name, tuple(sent) if isinstance(sent, list) else sent)]


def groups(run: Start) -> tuple[Source, Writing, ModelChoice, Output]:
    return run.source, run.writing, run.model, run.output


def test_an_error_inside_a_step_is_the_one_that_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(*_: object) -> object:
        raise AttributeError("no attribute 'offsets'")

    monkeypatch.setattr(inputs, "take", take)
    with pytest.raises(AttributeError, match="offsets"):
        _ = start(text="a cat").items
