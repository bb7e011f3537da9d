"""README and docs: every command is run, and what a page shows is what comes out."""

import contextlib
import doctest
import io
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnx.cli import app as cli
from attnx.view.cells import cell_len

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import console_blocks  # noqa: E402

README = console_blocks.README.read_text(encoding="utf-8")
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
PAGES = {str(page.relative_to(ROOT)): page for page in console_blocks.PAGES}


def test_there_are_pages_with_commands() -> None:
    assert sum(len(list(console_blocks.commands(p.read_text(encoding="utf-8")))) for p in PAGES.values()) >= 40


def test_the_two_commands_of_a_newcomer() -> None:
    first, second = re.findall(r"```sh\n(.*?)\n```", README)[:2]
    assert first.endswith(f"&& {next(console_blocks.commands(README)).line}")
    assert "pip install" in first
    assert second.endswith("python -m pytest")


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= 10_000


@pytest.mark.parametrize(
    "name", ["README.md", "docs/index.md", "docs/tutorial.md", "docs/ko/index.md", "docs/ko/tutorial.md"]
)
def test_what_a_newcomer_runs_fits_a_screen(name: str) -> None:
    for command in console_blocks.commands(PAGES[name].read_text(encoding="utf-8")):
        lines = sum(max(1, -(-cell_len(line) // 80)) for line in command.output.splitlines())
        assert lines < 24, f"{lines} lines and the prompt: {command.line}"


def same(shown: str, got: str) -> bool:
    """Equal but for the last digit of numbers, the bars that are drawn from them, and the device."""
    shown, got = (re.sub(r"[▏▎▍▌▋▊▉█░▒▓]+ ?|\bcuda:\d+|\bcpu\b|[\u2800-\u28ff]+", "", text) for text in (shown, got))
    if [part.split() for part in NUMBER.split(shown)] != [part.split() for part in NUMBER.split(got)]:
        return False
    for a, b in zip(NUMBER.findall(shown), NUMBER.findall(got), strict=True):
        step = 10.0 ** -min(4, len(a.partition(".")[2]))
        if abs(float(a) - float(b)) > 1.01 * step:
            return False
    return True


def stale(name: str, run: Callable[[str, Path], str], folder: Path) -> str:
    """Commands of a page that print something else than it shows, in order and in one folder: one may use another's."""
    out = ""
    for command in console_blocks.commands(PAGES[name].read_text(encoding="utf-8")):
        got = run(command.line, folder)
        if not same(command.output, got):
            out += f"$ {command.line}\n{got}"
    return out and f"scripts/console_blocks.py rewrites the pages; these now print:\n{out}"


def run_here(line: str, folder: Path) -> str:
    """What a command line prints: where it is one of attnx, in this process, which a session starts faster.

    What its output is piped into is a process, and so is any other line.
    """
    command, rest = console_blocks.parted(line)
    quiet = command.endswith(" 2>/dev/null")
    parts = shlex.shlex(command.removesuffix(" 2>/dev/null"), posix=True, punctuation_chars=True)
    parts.whitespace_split = True
    first, *args = list(parts)
    if first != "attnx" or set(command) & set("$`*?~") or any(set(arg) <= set("();<>|&") for arg in args if arg):
        return console_blocks.run(line, folder)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    own = err if quiet or rest else out
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(own):
        patch.chdir(folder)
        wanted = console_blocks.environment(terminal=not rest)
        for variable in set(os.environ) - set(wanted):
            patch.delenv(variable)
        for variable, value in wanted.items():
            patch.setenv(variable, value)
        cli.run(args)
    shown, aside = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    if rest:
        (folder / ".shown").write_text(shown, encoding="utf-8")
        shown = console_blocks.run(f"cat .shown | {rest}", folder)
    return shown if quiet else aside + shown


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_attnx_prints(name: str, tmp_path: Path) -> None:
    said = stale(name, run_here, tmp_path)
    assert not said, said


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_its_commands_print(name: str, tmp_path: Path) -> None:
    """Each in a process of its own, by the program that was installed."""
    said = stale(name, console_blocks.run, tmp_path)
    assert not said, said


def test_only_a_terminal_gives_its_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell does not export COLUMNS: a piped command does not know how wide the terminal is that shows the rest."""
    monkeypatch.setenv("COLUMNS", "33")
    say = "echo ${COLUMNS:-none}"
    assert console_blocks.run(say, tmp_path) == "80\n"
    assert console_blocks.run(f"bash -c '{say}' | cat", tmp_path) == "none\n"
    assert console_blocks.run(f"echo a | bash -c '{say}'", tmp_path) == "80\n"
    assert console_blocks.run(f"bash -c '{say}; true' 2>/dev/null", tmp_path) == "80\n"
    console_blocks.run(f"{say} > there", tmp_path)
    assert (tmp_path / "there").read_text() == "none\n"
    for run in (run_here, console_blocks.run):
        whole, first = (run(f"attnx sites tiny-gpt{rest}", tmp_path) for rest in ("", " | cat"))
        assert max(map(cell_len, whole.splitlines())) <= 80 < max(map(cell_len, first.splitlines()))


def test_a_pipe_in_quotes_is_none() -> None:
    assert console_blocks.parted("jq '.a | .b' x | head -1") == ("jq '.a | .b' x", "head -1")
    assert console_blocks.parted('echo "a | b"') == ('echo "a | b"', "")


def test_comparing_notices_differences() -> None:
    assert same("a 0.67 ██", "a 0.68 ██▏")
    assert not same("a 0.67", "a 0.69")
    assert not same("a 0.67", "b 0.67")
    assert not same("a 0.67", "a 0.67\nmore")


def test_python() -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    blocks = 0
    for name, page in PAGES.items():
        names: dict[str, object] = {}
        for block in re.findall(r"```pycon\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            blocks += 1
            runner.run(parser.get_doctest(block, names, name, name, 0), clear_globs=False)
            assert runner.summarize(verbose=False).failed == 0
    assert blocks


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    """Links and pictures, as they are read beside the file: in a clone, and on its host."""
    page = PAGES[name]
    for target in re.findall(r"(?:\]\(|src=\")(?!https?:)([^)#\"]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
