"""The core names arguments and calls of Python, nothing of the command line; which has an option for each."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import attnx
from attnx.cli import app as cli
from attnx.cli import output
from attnx.cli.wording import COMMANDS, NAMES, Options, worded
from attnx.view.columns import column, columns
from attnx.view.json import document
from attnx.wording import PYTHON, Argument, Wording
from tests.signatures import all_arguments

SOURCE = Path(attnx.__file__).parent
CORE = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] != "cli"]
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
COMMAND = re.compile(rf"(?<![\w'.])attnx ({'|'.join(cli.names())})\b")
MARK = re.compile(r"<([a-z_][\w.]*)(=[^<>]*|\([^<>]*)?(?:>|$)")
"""A mark, or the beginning of one that ends in another part."""
PIP = re.compile(r"pip install [^`]*")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Every text in a file: its docstrings, messages, and all others."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def of_the_command_line(text: str) -> bool:
    """Whether a text names an option or a command."""
    bare = PIP.sub("", text)
    return bool(OPTION.search(bare) or COMMAND.search(bare) or "`attnx " in bare)


def templates(source: str) -> Iterator[str]:
    """Every template of a wording in a file: where it is put together, its parts, and what its names stand for."""
    nodes = list(ast.walk(ast.parse(source)))
    named: dict[str, list[ast.expr]] = {}
    for node in nodes:
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Name):
                named.setdefault(target.id, []).append(node.value)
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Wording":
            names = [one.id for one in ast.walk(node.args[0]) if isinstance(one, ast.Name)]
            for part in (node.args[0], *(value for name in names for value in named.get(name, []))):
                for one in ast.walk(part):
                    if isinstance(one, ast.Constant) and isinstance(one.value, str):
                        yield one.value


def command(name: str) -> Any:
    return typer.main.get_command(cli.app).get_command(None, name)  # type: ignore[attr-defined]


def options(name: str) -> set[str]:
    return {option for parameter in command(name).params for option in parameter.opts}


@cache
def written() -> list[str]:
    """Every template of the core. Read once, and not where this file is only collected: it walks all of attnx."""
    sources = (path.read_text("utf-8") for path in CORE)
    return [text for source in sources if "Wording(" in source for text in templates(source)]


@cache
def called() -> set[str]:
    """The calls that templates name, as "model.trace"."""
    return {name for name in marks() if "." in name}


@cache
def marks() -> set[str]:
    return {match[1] for text in written() for match in MARK.finditer(text)}


def test_the_core_names_no_option_and_no_command() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)}:{line}: {text!r}"
        for path in CORE
        for line, text in texts(path.read_text("utf-8"))
        if of_the_command_line(text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("text", "bad"), [
    ("Give --ids.", True),
    ("`attnx sites MODEL` lists them", True),
    ("See attnx sites.", True),
    ("`attnx.tokens.from_ids()`", False),
    ("Install it: pip install --force-reinstall attnx", False),
    ("pip install 'attnx[scan]'", False),
    ("a -- b, x--y", False),
])  # fmt: skip
def test_what_counts_as_the_command_lines(text: str, bad: bool) -> None:
    assert of_the_command_line(text) is bad


def test_what_another_error_said_is_put_in_whole() -> None:
    """In an f-string a wording is Python's for good."""
    wrong = []
    for path in CORE:
        source = path.read_text("utf-8")
        for node in ast.walk(ast.parse(source)) if ".message" in source or ".hint" in source else ():
            if isinstance(node, ast.FormattedValue) and getattr(node.value, "attr", "") in ("message", "hint"):
                wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert [place for place in wrong if not place.startswith("view/notebook.py")] == []


def test_arguments_that_are_named_exist() -> None:
    there = {name for path in CORE for name in all_arguments(path.read_text("utf-8"))}
    assert len(marks() - called()) > 30
    # What the command line alone can give is named in clauses, which Python leaves out.
    for text in written():
        for mark in MARK.finditer(text):
            before = text[: mark.start()]
            assert "." in mark[1] or mark[1] in there or before.count("[") > before.count("]"), text
    assert not (marks() - called() - there) & PYTHON


def test_every_argument_that_is_named_has_an_option() -> None:
    reader = Options()
    named = marks() - called()
    there = {option for name in cli.names() for option in options(name)}
    assert {name for name in named if reader.argument(Argument(name)) not in there} == set()
    assert set(NAMES) <= named


def test_calls_that_are_named_exist_and_have_a_command() -> None:
    for name in called():
        first, _, rest = name.partition(".")
        if first == "model":
            assert hasattr(attnx.Model, rest), name
        else:
            module, _, attribute = name.rpartition(".")
            assert hasattr(import_module(module), attribute), name
    assert set(COMMANDS) == called()
    for words in COMMANDS.values():
        name, *rest = words.split()
        assert {word for word in rest if word.startswith("--")} <= {*options(name), "--help"}, words


@pytest.mark.parametrize(("made", "said"), [
    (Wording("Leave out <words> and <largest>."), "Leave out --words and --max."),
    (Wording("Give <target=> or <generate=>."), "Give --target TEXT or --generate N."),
    (Wording("Give it: <inputs=>."), "Give it: --inputs FEED.npz."),
    (Wording("Choose one: <heads=['5.11']>, or <layers=[0, 5]>."), "Choose one: --head 5.11, or --layer 0,5."),
    (Wording("Give <tokens=attnx.tokens.from_ids([101, 2023])>."), "Give --ids 101,2023."),
    (Wording("Give <force=True> to replace it."), "Give --force to replace it."),
    (Wording("<as_if='sqrt'> shows it; <from_=10>"), "--as-if sqrt shows it; --from 10"),
    (Wording("<layers={text!r}> is not a layer", text=""), "--layer '' is not a layer"),
    (Wording("<layers={text}>", text="3=7,4=8"), "--layer 3=7,4=8"),
    (Wording("<query={text}>", text="it's; rm"), """--query 'it'"'"'s; rm'"""),
    (Wording("<device={d}>: none", d="cuda:1"), "--device cuda:1: none"),
    (Wording("<model.find()> lists <model.sites>"), "`attnx sites MODEL` lists `attnx sites MODEL --places`"),
    (
        Wording("<attnx.catalog.hub.pull(Name({repo}, revision={at}))>", repo="a/b", at="v1"),
        "`attnx pull a/b --revision v1`",
    ),
    (
        Wording("<attnx.study.inspection.inspect(site='cross', layers=[0])>"),
        "`attnx inspect --site cross --layer 0`",
    ),
])  # fmt: skip
def test_arguments_become_options(made: Wording, said: str) -> None:
    assert worded(made) == said


def test_a_text_without_arguments_stays() -> None:
    assert worded("a <b> [c]") == "a <b> [c]"


def test_clauses_go_by_the_command_at_hand() -> None:
    made = Wording("Use a shorter text[, or fewer layers (<layers>)][: <heads=>].")
    assert worded(made, command("inspect")) == "Use a shorter text, or fewer layers (--layer): --head L.H."
    assert worded(made, command("word")) == "Use a shorter text."
    field = Wording("Name the text's: <field=>.")
    assert worded(field, command("scan")) == "Name the text's: --field NAME."


def test_an_error_is_said_in_options_and_its_python_in_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["inspect", "a b", "--mean", "heads", "--max", "all"]) == 2
    assert capsys.readouterr().err == "attnx: --mean and --max cannot be given together\n  Give one of them.\n"
    assert cli.run(["inspect", "a b", "--view", "row"]) == 2
    assert capsys.readouterr().err == "attnx: --view row shows where one token looks\n  Choose a token: --query it.\n"


def test_what_leaves_is_in_options(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """Documents however deep, tables with the lines under them, and what is said besides; arrays stay."""
    made = Wording("größer: <top={n}>", n=5)
    output.emit_json(document("attnx/test", {"notes": [made, "a"], "deep": [{"x": (made,)}], "array": np.arange(2)}))
    output.show(columns("", [column("key", ["a"])], notes=[made]))
    output.note(made)
    out, err = (stream.decode() for stream in capsysbinary.readouterr())
    first, rest = out.split("\n", 1)
    found = json.loads(first)
    assert found["notes"] == ["größer: --top 5", "a"]
    assert (found["deep"], found["array"]) == ([{"x": ["größer: --top 5"]}], [0, 1])
    assert "größer: --top 5" in rest
    assert err == "attnx: größer: --top 5\n"
