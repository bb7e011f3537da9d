"""`-m MODEL` on commands that take their models as arguments."""

from __future__ import annotations

import pytest

from attnx.cli import app
from attnx.cli.named_models import models_in_place
from attnx.errors import UsageError


@pytest.mark.parametrize(
    ("command", "args", "becomes"),
    [
        ("sites", "-m a", "a"),
        ("sites", "--json --model=a", "a --json"),
        ("cost", "-ma --no-measure", "a --no-measure"),
        ("cost", "--lengths 4 -m a", "a --lengths 4"),
        ("intervene", "--plan p --inputs i -m a", "a --plan p --inputs i"),
        ("trace", "text -m a", "a text"),
        ("trace", "-m a text", "a text"),
        ("trace", "-m a -- -text", "a -- -text"),
        ("diff", "-m a -m b text", "a b text"),
        ("diff", "-m a b text", "a b text"),
        ("diff", "a -m b text", "a b text"),
        ("diff", "a text -m b", "a b text"),
        ("diff", "text -m a -m b", "a b text"),
        ("diff", "--file f a -m b -- text", "--file f a b -- text"),
        ("diff", "a -m b -- text", "a b -- text"),
        ("cost", "a --save -m", "a --save -m"),
        ("sites", "a -- -m b", "a -- -m b"),
        ("doctor", "-m a", "-m a"),
    ],
)
def test_models_go_where_the_command_expects_them(command: str, args: str, becomes: str) -> None:
    assert models_in_place(app.command(command).params, args.split()) == becomes.split()


@pytest.mark.parametrize(
    ("args", "says"), [("-m", "without a model"), ("--model=", "without a model"), ("-m a -m b", "takes one model")]
)
def test_what_names_no_model_or_too_many_is_refused(args: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        models_in_place(app.command("sites").params, args.split())


def test_both_ways_give_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for args in (["sites", "tiny-gpt"], ["sites", "-m", "tiny-gpt"]):
        assert app.run(args) == 0
        answers.append(capsys.readouterr())
    assert answers[0] == answers[1]
