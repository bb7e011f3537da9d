"""The list of what is slow: it names tests that are there, and of every one of them some cases stay."""

from __future__ import annotations

import re
from pathlib import Path

import typer

import attnx
from attnx.cli import app as cli
from attnx.session import session_pool
from attnx.sites import recognise
from tests.conftest import BUNDLED
from tests.pace import EVERY, KEPT, slow

TESTS = Path(__file__).parent


def test_what_is_named_is_there() -> None:
    for name in (*EVERY, *KEPT):
        file, _, test = name.partition("::")
        assert re.search(rf"^def {test}\(", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE), name
    assert not set(EVERY) & set(KEPT)


def test_some_cases_stay() -> None:
    every, number = next(iter(EVERY.items()))
    cases = [f"tests/{every}[{at}]" for at in range(2 * number)]
    assert [case for case in cases if case not in set(slow(cases))] == [cases[0], cases[number]]
    kept, names = next((name, own) for name, own in KEPT.items() if own)
    cases = [f"tests/{kept}[{case}]" for case in (*names, "another")]
    assert list(slow(cases)) == [cases[-1]]
    assert list(slow(["tests/test_of_nobody.py::test_anything", "tests/test_of_nobody.py::test_anything[1]"])) == []


def test_what_hundreds_of_tests_need_is_made_once() -> None:
    """Else each would read the tokenizers and graphs of the bundled models, and open the same sessions, once more."""
    one, two = (attnx.open("tiny-gpt", device="cpu") for _ in range(2))
    assert one.tokenizer is two.tokenizer
    path = BUNDLED / "tiny-gpt" / "model.onnx"
    assert recognise.find(path).sites is recognise.find(path).sites
    opened = [session_pool.open_session(path.read_bytes(), path.parent, "cpu") for _ in range(2)]
    assert opened[0] is opened[1]
    assert typer.main.get_command(cli.app) is typer.main.get_command(cli.app)
