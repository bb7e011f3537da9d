"""Numbers as people, files and the environment write them: what reads as one, and that nothing else reads them."""

import math

import pytest
import typer

from attnx.cli import app as cli
from attnx.numerals import LARGEST, beyond, real, real_of, whole, whole_of

ODD = ("", " ", "²", "٣", "๓", "1_000", "1e3", "0x10", "1.5", "--1", "+-1", "1 2", "①", "½", "nan", "inf", "9" * 5000)


@pytest.mark.parametrize("text", ODD)
def test_what_is_no_whole_number(text: str) -> None:
    assert whole(text) is None


def test_whole_numbers_within_bounds() -> None:
    assert [whole(text) for text in ("0", "007", " 12\n", "+5", str(LARGEST))] == [0, 7, 12, 5, LARGEST]
    assert whole("-1") is None
    assert whole("-1", least=-3) == -1
    assert whole(str(LARGEST + 1)) is None
    assert (whole("5", most=4), whole("5", most=5)) == (None, 5)


def test_whole_numbers_that_are_too_large() -> None:
    large = (str(LARGEST + 1), f" +{LARGEST + 1}\n", "1" + "0" * 18 + "0", "9" * 5000, "0" * 30 + str(LARGEST + 1))
    assert all(beyond(text, LARGEST) for text in large)
    small = (
        str(LARGEST),
        "0" * 50 + "7",
        f"-{LARGEST + 2}",
        "",
        "1e99",
        "٣" * 30,
        "²" * 30,
        "9_" * 30 + "9",
        "5.5" * 20,
    )
    assert not any(beyond(text, LARGEST) for text in small)
    assert (beyond("5", 4), beyond("5", 5), beyond("10", 9)) == (True, False, True)


def test_an_option_says_that_a_number_is_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["heads", "a", "--top", str(10**30)]) == 2
    assert "is a whole number that is too large" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "text", ["", "²", "٣.٥", "1_0.5", "nan", "inf", "-infinity", "1e999", "1e", ".", "0x1p3", "9" * 5000]
)
def test_what_is_no_real_number(text: str) -> None:
    assert real(text) is None


def test_real_numbers() -> None:
    assert [real(text) for text in ("3", "-0.5", ".5", "5.", "1e-308", "+2E3")] == [3.0, -0.5, 0.5, 5.0, 1e-308, 2000.0]
    assert (real("0.5", least=1), real("0.5", most=0.25)) == (None, None)
    assert [real(text, infinite=True) for text in ("inf", "-INF", "nan")] == [math.inf, -math.inf, None]


def test_numbers_as_json_holds_them() -> None:
    assert [whole_of(value) for value in (5, 5.0, 0)] == [5, 5, 0]
    assert [whole_of(value) for value in (True, "5", 5.5, None, [5], math.inf, math.nan, 10**400, -1)] == [None] * 9
    assert [real_of(value) for value in (5, 0.5)] == [5.0, 0.5]
    assert [real_of(value) for value in (True, "5", None, [5], math.inf, math.nan, 10**400)] == [None] * 7


def options() -> list[tuple[str, str]]:
    """Every option of every command that takes a number."""
    group = typer.main.get_command(cli.app)
    found = []
    for name in cli.names():
        for parameter in group.get_command(None, name).params:  # type: ignore[attr-defined]
            if getattr(parameter.type, "name", "").split(" ")[0] in ("int", "float"):
                found.append((name, parameter.opts[0]))
    return found


@pytest.mark.parametrize(("command", "option"), options())
def test_every_option_that_takes_a_number(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("²", "٣", "1_0", "nan", "inf", "1e999", "9" * 5000, ""):
        assert cli.run([command, option, text]) == 2
        out, err = capsys.readouterr()
        assert "number" in err
        assert (out, len(err) < 300) == ("", True)
